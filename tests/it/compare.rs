//! Reads two servers back with plain commands and says where they differ.
//!
//! Keys that start with `keyferry` or `{keyferry` are keyferry's own records and are left out.

use crate::client::{Client, Cmd, Reply, shown};
use crate::server::Server;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How many differences are told.
const SHOWN_MAX: usize = 8;
/// How late expiries may be while keyferry follows (`--expiry-grace`'s default).
pub const GRACE_MS: i64 = 3_600_000;

/// What one server holds, by database and key.
pub type Snapshot = BTreeMap<(u32, Vec<u8>), Entry>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: String,
    /// Milliseconds since 1970, -1 for none.
    pub expires_at_ms: i64,
    pub value: Content,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Plain(Reply),
    /// Field, value, expiry in ms or -1; by field.
    Hash(Vec<(Vec<u8>, Reply, i64)>),
    /// Named parts (entries, last id, each group's consumers and pending entries). One that the
    /// source doesn't report, because it is older, is not compared.
    Stream(BTreeMap<String, Reply>),
}

/// What counts as equal.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    /// Expiries on the target may also be exactly this much later.
    pub late_ms: i64,
    /// Expiries may differ by this much either way (while following a source that streams relative times).
    pub slack_ms: i64,
    /// Names of consumers and counts of entries read must be equal. The stream of a random load doesn't always
    /// tell them: native replicas of Redis 6.0, 7.0 and 8.6 differ there, too.
    pub group_hints: bool,
    /// Which of the source's keys must be on the target; the target may hold no others.
    pub in_scope: &'a dyn Fn(u32, &[u8]) -> bool,
    /// The target's database of a source database.
    pub database: &'a dyn Fn(u32) -> u32,
}

impl Default for Rules<'_> {
    fn default() -> Self {
        Rules { late_ms: 0, slack_ms: 0, group_hints: true, in_scope: &|_, _| true, database: &|db| db }
    }
}

impl Rules<'_> {
    /// The same while keyferry follows: expiries may be an hour late.
    pub fn following(source: &Server) -> Self {
        let tells_all = source.version() >= (7, 0);
        Rules {
            late_ms: GRACE_MS,
            // What is streamed is relative to when it was executed at the source: on a busy machine that is a while
            // before it is received.
            slack_ms: if tells_all { 0 } else { 15_000 },
            group_hints: false,
            ..Rules::default()
        }
    }
}

/// What can be read back: a server, or a cluster.
pub trait Holds {
    /// Reads what `keep` lets pass.
    fn snapshot_where(&self, keep: &dyn Fn(u32, &[u8]) -> bool) -> Snapshot;
}

impl Holds for Server {
    fn snapshot_where(&self, keep: &dyn Fn(u32, &[u8]) -> bool) -> Snapshot {
        read_server(self, keep)
    }
}

/// Reads everything of a server or a cluster.
pub fn snapshot(from: &impl Holds) -> Snapshot {
    from.snapshot_where(&|_, _| true)
}

fn read_server(server: &Server, keep: &dyn Fn(u32, &[u8]) -> bool) -> Snapshot {
    let mut client = server.client();
    let field_expiry = client.knows("HPEXPIRETIME");
    let absolute = client.knows("PEXPIRETIME");
    let mut all = Snapshot::new();
    for db in databases(&mut client) {
        client.select(db);
        let mut keys = scan(&mut client);
        keys.retain(|k| !is_own_record(k) && keep(db, k));
        for part in keys.chunks(400) {
            for (key, entry) in read_part(&mut client, part, absolute, field_expiry) {
                all.insert((db, key), entry);
            }
        }
    }
    all
}

/// The databases that hold keys.
pub fn databases(client: &mut Client) -> Vec<u32> {
    let info = client.info("keyspace");
    let mut numbers: Vec<u32> = info.keys().filter_map(|name| name.strip_prefix("db")?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// Whether a key is one of keyferry's records.
pub fn is_own_record(key: &[u8]) -> bool {
    key.starts_with(b"keyferry") || key.starts_with(b"{keyferry")
}

/// All keys of the chosen database, each once.
pub fn scan(client: &mut Client) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut cursor = b"0".to_vec();
    loop {
        let reply = client.call(&cmd!["SCAN", cursor, "COUNT", 5000]);
        let [next, part] = reply.list() else {
            panic!("SCAN answers {reply:?}");
        };
        keys.extend(part.list().iter().map(|k| k.bytes().to_vec()));
        cursor = next.bytes().to_vec();
        if cursor == b"0" {
            break;
        }
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// When keys expire: -1 for never, -2 for one that isn't there.
///
/// Servers before 7.0 only say how long a key has left. Between two looks at their clock that show one and the same
/// millisecond that says it exactly; those for whom it went on are asked again.
pub fn expiries(client: &mut Client, keys: &[Vec<u8>], absolute: bool) -> Vec<i64> {
    if absolute {
        let asks: Vec<Cmd> = keys.iter().map(|k| cmd!["PEXPIRETIME", k]).collect();
        return client.pipe(&asks).iter().map(Reply::int).collect();
    }
    let clock_ms = |time: &Reply| time.list()[0].int() * 1000 + time.list()[1].int() / 1000;
    let mut at: Vec<Option<i64>> = vec![None; keys.len()];
    loop {
        let open: Vec<usize> = (0..keys.len()).filter(|i| at[*i].is_none()).collect();
        if open.is_empty() {
            return at.into_iter().flatten().collect();
        }
        let asks: Vec<Cmd> = open.iter().flat_map(|i| [cmd!["TIME"], cmd!["PTTL", keys[*i]], cmd!["TIME"]]).collect();
        for (i, replies) in open.into_iter().zip(client.pipe(&asks).chunks_exact(3)) {
            let (before, left_ms, after) = (clock_ms(&replies[0]), replies[1].int(), clock_ms(&replies[2]));
            at[i] = if left_ms < 0 { Some(left_ms) } else { (before == after).then_some(before + left_ms) };
        }
    }
}

fn read_part(client: &mut Client, keys: &[Vec<u8>], absolute: bool, field_expiry: bool) -> Vec<(Vec<u8>, Entry)> {
    let asks: Vec<Cmd> = keys.iter().map(|k| cmd!["TYPE", k]).collect();
    let kinds = client.pipe(&asks).into_iter().map(|kind| kind.text());
    let heads: Vec<(String, i64)> = kinds.zip(expiries(client, keys, absolute)).collect();
    let asks: Vec<Cmd> = keys.iter().zip(&heads).map(|(k, (kind, _))| read_command(kind, k)).collect();
    let values = client.pipe(&asks);
    let mut entries = Vec::with_capacity(keys.len());
    for ((key, (kind, expires_at_ms)), value) in keys.iter().zip(heads).zip(values) {
        let value = match kind.as_str() {
            // Gone since SCAN: as if SCAN had not named it.
            "none" => continue,
            _ if expires_at_ms == -2 => continue,
            _ if value.is_error() => Content::Plain(value),
            "set" => {
                let mut members = value.list().to_vec();
                members.sort_unstable();
                Content::Plain(Reply::List(members))
            }
            "zset" => Content::Plain(Reply::List(members_and_scores(value.list()))),
            "hash" => read_hash(client, key, &value, field_expiry),
            "stream" => read_stream(client, key, value),
            _ => Content::Plain(value),
        };
        let entry = Entry { kind, expires_at_ms, value };
        entries.push((key.clone(), entry));
    }
    entries
}

fn read_command(kind: &str, key: &[u8]) -> Cmd {
    match kind {
        "string" => cmd!["GET", key],
        "list" => cmd!["LRANGE", key, 0, -1],
        "set" => cmd!["SMEMBERS", key],
        "zset" => cmd!["ZRANGE", key, 0, -1, "WITHSCORES"],
        "hash" => cmd!["HGETALL", key],
        "stream" => cmd!["XRANGE", key, "-", "+"],
        _ => cmd!["DUMP", key],
    }
}

/// Scores as Rust writes them: servers before 7.2 write the same number with more digits.
fn members_and_scores(flat: &[Reply]) -> Vec<Reply> {
    let number = |reply: &Reply| match reply.text().parse::<f64>() {
        Ok(score) => Reply::Bytes(format!("{score:?}").into_bytes()),
        Err(_) => reply.clone(),
    };
    flat.chunks_exact(2).flat_map(|pair| [pair[0].clone(), number(&pair[1])]).collect()
}

fn read_hash(client: &mut Client, key: &[u8], value: &Reply, field_expiry: bool) -> Content {
    let mut fields: Vec<(Vec<u8>, Reply, i64)> =
        value.list().chunks_exact(2).map(|p| (p[0].bytes().to_vec(), p[1].clone(), -1)).collect();
    fields.sort_unstable();
    if field_expiry {
        for part in fields.chunks_mut(1000) {
            let mut ask = cmd!["HPEXPIRETIME", key, "FIELDS", part.len()];
            ask.extend(part.iter().map(|f| f.0.clone()));
            // An error or nil: the key is gone meanwhile, the next look will show it.
            if let Ok(Reply::List(times)) = client.ask(&ask) {
                for (field, time) in part.iter_mut().zip(times) {
                    field.2 = time.int();
                }
            }
        }
    }
    Content::Hash(fields)
}

fn read_stream(client: &mut Client, key: &[u8], entries: Reply) -> Content {
    let mut parts = BTreeMap::from([("entries".to_string(), entries)]);
    let replies = client.pipe(&[cmd!["XINFO", "STREAM", key], cmd!["XINFO", "GROUPS", key]]);
    let [info, groups] = replies.as_slice() else {
        return Content::Stream(parts);
    };
    if info.is_error() || groups.is_error() {
        return Content::Stream(parts);
    }
    let told = ["length", "last-generated-id", "max-deleted-entry-id", "entries-added"];
    for name in told {
        if let Some(value) = info.field(name) {
            parts.insert(name.to_string(), value.clone());
        }
    }
    parts.insert("groups".into(), Reply::Int(groups.list().len() as i64));
    for group in groups.list() {
        let Some(name) = group.field("name") else {
            continue;
        };
        let label = format!("group {}", shown(name.bytes()));
        for told in ["last-delivered-id", "entries-read"] {
            if let Some(value) = group.field(told) {
                parts.insert(format!("{label} {told}"), value.clone());
            }
        }
        let replies = client.pipe(&[
            cmd!["XINFO", "CONSUMERS", key, name.bytes()],
            cmd!["XPENDING", key, name.bytes(), "-", "+", 1_000_000],
        ]);
        let [consumers, pending] = replies.as_slice() else {
            continue;
        };
        if let (Reply::List(consumers), Reply::List(pending)) = (consumers, pending) {
            let mut names: Vec<Reply> = consumers.iter().filter_map(|c| c.field("name").cloned()).collect();
            names.sort_unstable();
            parts.insert(format!("{label} consumers"), Reply::List(names));
            // Id, consumer and number of deliveries; how long ago changes by itself.
            let pending = pending
                .iter()
                .map(|p| match p.list() {
                    [id, consumer, _, times] => Reply::List(vec![id.clone(), consumer.clone(), times.clone()]),
                    _ => p.clone(),
                })
                .collect();
            parts.insert(format!("{label} pending"), Reply::List(pending));
        }
    }
    Content::Stream(parts)
}

/// The first differences from `source` (expected) to `target` (found), as short lines; empty when equal.
pub fn differences(source: &Snapshot, target: &Snapshot, rules: &Rules) -> Vec<String> {
    let mut lines = Vec::new();
    let mut wanted = BTreeMap::new();
    for ((db, key), entry) in source {
        if (rules.in_scope)(*db, key) {
            wanted.insert(((rules.database)(*db), key.as_slice()), entry);
        }
    }
    for (&(db, key), entry) in &wanted {
        let name = format!("{db}:'{}'", shown(key));
        match target.get(&(db, key.to_vec())) {
            None => lines.push(format!("missing {name} ({})", entry.kind)),
            Some(found) => lines.extend(difference(&name, entry, found, rules)),
        }
    }
    for ((db, key), entry) in target {
        if !wanted.contains_key(&(*db, key.as_slice())) {
            lines.push(format!("extra {db}:'{}' ({})", shown(key), entry.kind));
        }
    }
    if lines.len() > SHOWN_MAX {
        let all = lines.len();
        lines.truncate(SHOWN_MAX);
        lines.push(format!("… {all} differences"));
    }
    lines
}

fn difference(name: &str, want: &Entry, found: &Entry, rules: &Rules) -> Option<String> {
    if want.kind != found.kind {
        return Some(format!("type {name} {} != {}", want.kind, found.kind));
    }
    if !on_time(want.expires_at_ms, found.expires_at_ms, rules) {
        let (x, y) = (want.expires_at_ms, found.expires_at_ms);
        return Some(format!("expiry {name} {x} != {y}"));
    }
    match (&want.value, &found.value) {
        (Content::Hash(x), Content::Hash(y)) => {
            let pair = x.iter().zip(y).find(|(p, q)| (&p.0, &p.1) != (&q.0, &q.1) || !on_time(p.2, q.2, rules));
            match pair {
                Some((p, q)) => Some(format!("field {name} {p:?} != {q:?}")),
                None if x.len() != y.len() => Some(format!("fields {name} {} != {}", x.len(), y.len())),
                None => None,
            }
        }
        (Content::Stream(x), Content::Stream(y)) => x
            .iter()
            .filter(|(part, _)| {
                let hint = part.ends_with(" consumers") || part.ends_with(" entries-read");
                rules.group_hints || !hint
            })
            .find(|(part, value)| y.get(*part) != Some(value))
            .map(|(part, value)| {
                let found = y.get(part);
                format!("stream {name} {part}: {}", cut(&format!("{value:?} != {found:?}")))
            }),
        (x, y) if x == y => None,
        (x, y) => Some(format!("value {name} {}", cut(&format!("{x:?} != {y:?}")))),
    }
}

fn on_time(want: i64, found: i64, rules: &Rules) -> bool {
    let near = |a: i64, b: i64| (a - b).abs() <= rules.slack_ms;
    if want < 0 || found < 0 {
        return want == found;
    }
    near(want, found) || rules.late_ms > 0 && near(want + rules.late_ms, found)
}

fn cut(text: &str) -> String {
    text.chars().take(300).collect()
}

/// Waits until both hold the same, with the first differences as the reason if they never do.
pub fn until_same(source: &impl Holds, target: &impl Holds, limit: Duration, what: &str, rules: &Rules) {
    let started = Instant::now();
    loop {
        let want = source.snapshot_where(rules.in_scope);
        let lines = differences(&want, &snapshot(target), rules);
        if lines.is_empty() {
            return;
        }
        assert!(started.elapsed() < limit, "{what}: still different after {limit:?}:\n{}", lines.join("\n"));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Fails unless both, which nothing is written to, hold the same.
pub fn must_be_same(source: &impl Holds, target: &impl Holds, what: &str, rules: &Rules) {
    // They are read one after the other: what expires between both is seen again.
    until_same(source, target, Duration::from_secs(3), what, rules);
}

pub fn now_ms() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}
