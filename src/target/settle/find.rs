//! Finding what expires in a target, and when.

use super::items::{Item, Items};
use super::{Error, Plan};
use crate::delivery::record;
use crate::net::conn::Conn;
use crate::net::info::Info;
use crate::resp::encode;
use crate::resp::reply::Reply;
use crate::slot::{Slot, Slots};

/// Names listed by one SCAN or HSCAN, about.
const SCAN_COUNT: &[u8] = b"1000";
/// Hashes whose fields are listed at a time.
const HASHES_MAX: usize = 50;
/// Keys whose time left is asked between two looks at the server's clock: at first, and for those between whose looks a
/// millisecond ended, again. A server so slow that one always ends is taken at what it says the last time: that is known to
/// the milliseconds that the answer took.
const KEYS_A_CLOCK: usize = 100;
const KEYS_A_CLOCK_AGAIN: [usize; 7] = [10, 1, 1, 1, 1, 1, 1];

/// What is looked through: the keys of these slots that are in scope.
pub struct Search<'a> {
    pub plan: &'a Plan<'a>,
    /// `None`: of all.
    pub slots: Option<&'a Slots>,
}

impl Search<'_> {
    fn takes(&self, db: u32, key: &[u8]) -> bool {
        let owned = self.slots.is_none_or(|slots| slots.contains(Slot::of(key)));
        owned && !record::is_own_key(key) && (self.plan.in_scope)(db, key)
    }
}

/// Adds everything in scope that expires and that `items` wants.
pub async fn find(search: &Search<'_>, conn: &mut Conn, items: &mut Items) -> Result<(), Error> {
    let info = Info::parse(conn.ask(&[b"INFO"]).await?.bytes().unwrap_or_default());
    // PEXPIRETIME is of Redis 7.0, and so of every Valkey.
    let times = match search.slots {
        _ if info.is_valkey() || info.version() >= (7, 0, 0) => Times::Told,
        None => Times::ByClock,
        Some(_) => Times::ByClockInSlot,
    };
    for (db, _) in info.keyspace() {
        conn.ask(&[b"SELECT", db.to_string().as_bytes()]).await?;
        if info.expires(db) > 0 {
            keys(search, conn, db, times, items).await?;
        }
        if info.expiring_hashes(db) > 0 {
            hashes(search, conn, db, items).await?;
        }
    }
    Ok(())
}

/// Adds the keys of the selected database that expire.
///
/// The times of one page are asked behind the SCAN for the next: the server needn't wait for us.
async fn keys(search: &Search<'_>, conn: &mut Conn, db: u32, times: Times, items: &mut Items) -> Result<(), Error> {
    let mut out = Vec::new();
    let mut asked: Vec<Vec<u8>> = Vec::new();
    let mut unsure: Vec<Vec<u8>> = Vec::new();
    scan(&mut out, b"0", None);
    conn.send(&out).await?;
    loop {
        let (cursor, mut page) = read_page(conn).await?;
        page.retain(|key| items.wants(db, key, None) && search.takes(db, key));
        if times == Times::ByClockInSlot {
            page.sort_by_cached_key(|key| Slot::of(key));
        }
        out.clear();
        let more = cursor != b"0";
        if more {
            scan(&mut out, &cursor, None);
        }
        ask_times(&mut out, &page, times, KEYS_A_CLOCK);
        conn.send(&out).await?;
        let before = std::mem::replace(&mut asked, page);
        read_times(conn, db, &before, (times, KEYS_A_CLOCK), items, Some(&mut unsure)).await?;
        if !more {
            read_times(conn, db, &asked, (times, KEYS_A_CLOCK), items, Some(&mut unsure)).await?;
            break;
        }
    }
    for (n, clock) in KEYS_A_CLOCK_AGAIN.into_iter().enumerate() {
        let is_last = n + 1 == KEYS_A_CLOCK_AGAIN.len();
        let mut keys = std::mem::take(&mut unsure);
        if times == Times::ByClockInSlot {
            keys.sort_by_cached_key(|key| Slot::of(key));
        }
        for page in keys.chunks(KEYS_AGAIN) {
            out.clear();
            ask_times(&mut out, page, times, clock);
            conn.send(&out).await?;
            read_times(conn, db, page, (times, clock), items, (!is_last).then_some(&mut unsure)).await?;
        }
    }
    Ok(())
}

/// Keys asked for again at a time.
const KEYS_AGAIN: usize = 1000;

fn scan(out: &mut Vec<u8>, cursor: &[u8], kind: Option<&[u8]>) {
    match kind {
        None => encode::command(out, &[&b"SCAN"[..], cursor, b"COUNT", SCAN_COUNT]),
        Some(kind) => encode::command(out, &[&b"SCAN"[..], cursor, b"COUNT", SCAN_COUNT, b"TYPE", kind]),
    }
}

/// Reads the answer of SCAN or HSCAN: the next cursor and the names.
async fn read_page(conn: &mut Conn) -> Result<(Vec<u8>, Vec<Vec<u8>>), Error> {
    let names = |reply: Reply| match reply {
        Reply::Array(names) => names,
        _ => Vec::new(),
    };
    let mut parts = names(answer(conn, b"SCAN").await?).into_iter();
    let cursor = parts.next().and_then(bulk).unwrap_or_else(|| b"0".to_vec());
    let page = parts.next().map(names).unwrap_or_default();
    Ok((cursor, page.into_iter().filter_map(bulk).collect()))
}

fn bulk(reply: Reply) -> Option<Vec<u8>> {
    match reply {
        Reply::Bulk(bytes) => Some(bytes),
        _ => None,
    }
}

/// The next reply, an error as an error.
async fn answer(conn: &mut Conn, command: &[u8]) -> Result<Reply, Error> {
    match conn.reply().await? {
        Reply::Error(words) => Err(crate::target::refused(conn, command, words)),
        reply => Ok(reply),
    }
}

/// How it's found out when a key expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Times {
    Told,
    /// Older servers tell how long a key has left; with looks at their clock before and behind, in the same transaction, that
    /// is exact where both show one millisecond.
    ByClock,
    /// The same on a node of a cluster, where the keys of a transaction are of one slot.
    ByClockInSlot,
}

impl Times {
    /// The keys of each transaction.
    fn groups(self, keys: &[Vec<u8>]) -> impl Iterator<Item = &[Vec<u8>]> {
        keys.chunk_by(move |a, b| self != Times::ByClockInSlot || Slot::of(a) == Slot::of(b))
    }
}

fn ask_times(out: &mut Vec<u8>, keys: &[Vec<u8>], times: Times, clock: usize) {
    if times == Times::Told {
        keys.iter().for_each(|key| encode::command(out, &[&b"PEXPIRETIME"[..], key]));
        return;
    }
    for group in times.groups(keys) {
        encode::command(out, &[b"MULTI"]);
        for keys in group.chunks(clock) {
            encode::command(out, &[b"TIME"]);
            keys.iter().for_each(|key| encode::command(out, &[&b"PTTL"[..], key]));
            encode::command(out, &[b"TIME"]);
        }
        encode::command(out, &[b"EXEC"]);
    }
}

/// Reads the answers to [`ask_times`]. Keys whose time isn't sure to the millisecond are added to `unsure`; without that
/// they are taken all the same.
async fn read_times(
    conn: &mut Conn,
    db: u32,
    keys: &[Vec<u8>],
    (times, clock): (Times, usize),
    items: &mut Items,
    mut unsure: Option<&mut Vec<Vec<u8>>>,
) -> Result<(), Error> {
    if times == Times::Told {
        for key in keys {
            let at_ms = answer(conn, b"PEXPIRETIME").await?.integer();
            push(items, db, key, None, at_ms);
        }
        return Ok(());
    }
    for group in times.groups(keys) {
        let clocks = group.len().div_ceil(clock);
        answer(conn, b"MULTI").await?;
        for _ in 0..group.len() + 2 * clocks {
            answer(conn, b"PTTL").await?;
        }
        let exec = answer(conn, b"EXEC").await?;
        let mut replies = exec.array().unwrap_or_default();
        for keys in group.chunks(clock) {
            let Some((told, rest)) = replies.split_at_checked(keys.len() + 2) else { break };
            replies = rest;
            let [before, left @ .., after] = told else { break };
            let (before, after) = (before.unix_ms(), after.unix_ms());
            for (key, left) in keys.iter().zip(left) {
                let Some(left_ms) = left.integer().filter(|ms| *ms >= 0) else { continue };
                if before != after
                    && let Some(unsure) = &mut unsure
                {
                    unsure.push(key.clone());
                    continue;
                }
                push(items, db, key, None, before.map(|now_ms| now_ms.saturating_add(left_ms)));
            }
        }
    }
    Ok(())
}

/// Takes what expires; others answer -1, and those that are gone -2.
fn push(items: &mut Items, db: u32, key: &[u8], field: Option<&[u8]>, at_ms: Option<i64>) {
    if let Some(at_ms @ 1..) = at_ms {
        items.push(&Item { db, key, field, at_ms });
    }
}

/// Adds the fields of the selected database's hashes that expire.
async fn hashes(search: &Search<'_>, conn: &mut Conn, db: u32, items: &mut Items) -> Result<(), Error> {
    let mut out = Vec::new();
    let mut cursor = b"0".to_vec();
    loop {
        out.clear();
        scan(&mut out, &cursor, Some(b"hash"));
        conn.send(&out).await?;
        let (next, mut page) = read_page(conn).await?;
        page.retain(|key| search.takes(db, key));
        let page = with_times(conn, page).await?;
        for keys in page.chunks(HASHES_MAX) {
            fields(conn, db, keys, items).await?;
        }
        cursor = next;
        if cursor == b"0" {
            return Ok(());
        }
    }
}

/// Leaves out hashes in the encodings that have no room for times.
async fn with_times(conn: &mut Conn, keys: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Error> {
    let mut out = Vec::new();
    keys.iter().for_each(|key| encode::command(&mut out, &[&b"OBJECT"[..], b"ENCODING", key]));
    conn.send(&out).await?;
    let mut with = Vec::new();
    for key in keys {
        let encoding = answer(conn, b"OBJECT").await?;
        if !matches!(encoding.bytes(), Some(b"listpack" | b"ziplist")) {
            with.push(key);
        }
    }
    Ok(with)
}

/// Goes through the fields of some hashes, all a page further at a time.
async fn fields(conn: &mut Conn, db: u32, keys: &[Vec<u8>], items: &mut Items) -> Result<(), Error> {
    let mut out = Vec::new();
    let mut left: Vec<(&[u8], Vec<u8>)> = keys.iter().map(|key| (&key[..], b"0".to_vec())).collect();
    while !left.is_empty() {
        out.clear();
        for (key, cursor) in &left {
            encode::command(&mut out, &[&b"HSCAN"[..], key, cursor, b"COUNT", SCAN_COUNT, b"NOVALUES"]);
        }
        conn.send(&out).await?;
        let mut pages = Vec::new();
        for (key, cursor) in &mut left {
            let (next, mut names) = read_page(conn).await?;
            *cursor = next;
            names.retain(|field| items.wants(db, key, Some(field)));
            if !names.is_empty() {
                pages.push((*key, names));
            }
        }
        field_times(conn, db, &pages, items).await?;
        left.retain(|(_, cursor)| cursor != b"0");
    }
    Ok(())
}

async fn field_times(
    conn: &mut Conn,
    db: u32,
    pages: &[(&[u8], Vec<Vec<u8>>)],
    items: &mut Items,
) -> Result<(), Error> {
    let mut out = Vec::new();
    for (key, names) in pages {
        encode::array_header(&mut out, 4 + names.len());
        for word in [&b"HPEXPIRETIME"[..], key, b"FIELDS", names.len().to_string().as_bytes()] {
            encode::bulk(&mut out, word);
        }
        names.iter().for_each(|field| encode::bulk(&mut out, field));
    }
    conn.send(&out).await?;
    for (key, names) in pages {
        let times = answer(conn, b"HPEXPIRETIME").await?;
        for (field, at_ms) in names.iter().zip(times.array().unwrap_or_default()) {
            push(items, db, key, Some(field), at_ms.integer());
        }
    }
    Ok(())
}
