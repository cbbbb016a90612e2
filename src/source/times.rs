//! When keys expire, asked of a source that only says how long they have left (before Redis 7.0).
//!
//! Before 6.2 a transaction with a command in it that isn't marked read-only, such as SELECT or INFO, is written to the
//! source's stream, even if it writes nothing. Then no answer would be one about the offset at which the target stands.
//! So a transaction holds nothing but ROLE, which tells the offset before the keys are looked at, and PTTL, which
//! deletes what has expired; the clock is looked at on both sides of it.

use super::side::{Position, position};
use crate::delivery::settling::{Expiry, Told};
use crate::net::conn::{Conn, Error};
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::offset::ReplOffset;
use crate::resp::encode;
use crate::resp::reply::Reply;

/// Keys between two looks at the clock: first, and for those between whose looks a millisecond ended, again.
const GROUPS: [usize; 5] = [50, 8, 1, 1, 1];

/// The first version that marks ROLE as read-only.
const ROLE_READS: (u16, u16, u16) = (6, 0, 0);

/// Asks on a connection of its own, which is opened when first asked, and again after a break.
pub struct Times {
    server: Locator,
    /// With the database that is selected.
    conn: Option<(Conn, u32)>,
    /// Whether ROLE can be asked without a trace.
    role: bool,
    /// Where the target stands.
    stands: Position,
}

impl Times {
    /// `version`: that of the source; `stands`: where the target is, to which nothing is applied any more.
    pub fn new(server: Locator, version: (u16, u16, u16), stands: Position) -> Self {
        Times { server, conn: None, role: version >= ROLE_READS, stands }
    }

    /// The same of a node of a cluster, where a transaction would have to be of one slot: each key is asked for by itself,
    /// and what is said is about the target's offset only where the stream stood there before and behind.
    pub fn of_node(server: Locator, stands: Position) -> Self {
        Times { server, conn: None, role: false, stands }
    }

    /// What the source says of keys of its database `db`, in their order. Without keys it only says that it is there.
    ///
    /// # Errors
    /// When it can't be reached or refuses.
    pub async fn ask(&mut self, db: u32, keys: &[&[u8]]) -> Result<Vec<Told>, Error> {
        let [first, again @ ..] = GROUPS;
        let mut told = self.ask_once(db, keys, first).await?;
        for group in again {
            let wide = |(i, told): (usize, &Told)| told.is_wide().then(|| Some((i, *keys.get(i)?))).flatten();
            let (places, some): (Vec<usize>, Vec<&[u8]>) = told.iter().enumerate().filter_map(wide).unzip();
            if some.is_empty() {
                break;
            }
            for (i, again) in places.into_iter().zip(self.ask_once(db, &some, group).await?) {
                if let Some(told) = told.get_mut(i) {
                    *told = told.narrowed(again);
                }
            }
        }
        Ok(told)
    }

    async fn ask_once(&mut self, db: u32, keys: &[&[u8]], group: usize) -> Result<Vec<Told>, Error> {
        match self.try_ask(db, keys, group).await {
            // The offset is still told by INFO, if less surely.
            Err(Error::Refused { words, .. })
                if self.role && words.starts_with("NOPERM") && words.contains("'role'") =>
            {
                self.role = false;
                self.try_ask(db, keys, group).await
            }
            answer => answer,
        }
    }

    /// Whatever fails ends the connection: nothing of the rest may be taken for an answer to something else.
    async fn try_ask(&mut self, db: u32, keys: &[&[u8]], group: usize) -> Result<Vec<Told>, Error> {
        let (conn, selected) = match self.conn.take() {
            Some(open) => open,
            None => (self.server.connect().await?, 0),
        };
        let mut question = Question { conn, db: (selected != db).then_some(db), keys, group, role: self.role };
        let told = question.ask(self.stands).await?;
        self.conn = Some((question.conn, db));
        Ok(told)
    }
}

/// One round over some keys.
struct Question<'a> {
    conn: Conn,
    /// The database, where it isn't selected yet.
    db: Option<u32>,
    keys: &'a [&'a [u8]],
    group: usize,
    role: bool,
}

/// What a group of keys was answered with.
struct Answers {
    /// Where the stream stood before the first, by ROLE.
    offset: Option<ReplOffset>,
    /// PTTL of each.
    left_ms: Vec<i64>,
}

impl Question<'_> {
    async fn ask(&mut self, stands: Position) -> Result<Vec<Told>, Error> {
        self.conn.send(&self.commands()).await?;
        let before = self.position().await?;
        if self.db.is_some() {
            self.answer(b"SELECT").await?;
        }
        let mut clock_ms = self.clock_ms().await?;
        let mut groups = Vec::new();
        for keys in self.keys.chunks(self.group) {
            let answers = self.answers(keys.len()).await?;
            let now_ms = self.clock_ms().await?;
            groups.push((answers, clock_ms, now_ms));
            clock_ms = now_ms;
        }
        let after = self.position().await?;
        // Before 4.0 a server doesn't say; its history ends with its process.
        let same = after.replid.is_none_or(|replid| Some(replid) == stands.replid);
        let still = before.offset == stands.offset && after.offset == stands.offset;
        let told = groups.into_iter().flat_map(|(answers, from_ms, to_ms)| {
            let level = same && (still || answers.offset == Some(stands.offset));
            answers.left_ms.into_iter().map(move |left_ms| Told { expiry: expiry(left_ms, from_ms, to_ms), level })
        });
        Ok(told.collect())
    }

    fn commands(&self) -> Vec<u8> {
        let mut out = Vec::new();
        encode::command(&mut out, &[&b"INFO"[..], b"replication"]);
        if let Some(db) = self.db {
            encode::command(&mut out, &[b"SELECT", db.to_string().as_bytes()]);
        }
        encode::command(&mut out, &[b"TIME"]);
        for keys in self.keys.chunks(self.group) {
            if self.role {
                encode::command(&mut out, &[b"MULTI"]);
                encode::command(&mut out, &[b"ROLE"]);
            }
            keys.iter().for_each(|key| encode::command(&mut out, &[&b"PTTL"[..], key]));
            if self.role {
                encode::command(&mut out, &[b"EXEC"]);
            }
            encode::command(&mut out, &[b"TIME"]);
        }
        encode::command(&mut out, &[&b"INFO"[..], b"replication"]);
        out
    }

    /// Reads what a group of so many keys is answered with.
    async fn answers(&mut self, count: usize) -> Result<Answers, Error> {
        let mut left_ms = Vec::with_capacity(count);
        if !self.role {
            for _ in 0..count {
                let reply = self.answer(b"PTTL").await?;
                left_ms.push(self.integer(&reply)?);
            }
            return Ok(Answers { offset: None, left_ms });
        }
        // MULTI, and what it has queued.
        for _ in 0..count + 2 {
            self.answer(b"PTTL").await?;
        }
        let exec = self.answer(b"EXEC").await?;
        let (role, times) = match exec.array() {
            Some([role, times @ ..]) if times.len() == count => (role, times),
            _ => return Err(self.unlike(b"EXEC", &exec)),
        };
        for time in times {
            left_ms.push(self.integer(time)?);
        }
        Ok(Answers { offset: role_offset(role), left_ms })
    }

    /// The next reply, an error as an error.
    async fn answer(&mut self, command: &[u8]) -> Result<Reply, Error> {
        match self.conn.reply().await? {
            Reply::Error(words) => Err(self.conn.refused(command, words)),
            reply => Ok(reply),
        }
    }

    async fn position(&mut self) -> Result<Position, Error> {
        let reply = self.answer(b"INFO").await?;
        Ok(position(&Info::parse(reply.bytes().unwrap_or_default())))
    }

    async fn clock_ms(&mut self) -> Result<i64, Error> {
        let reply = self.answer(b"TIME").await?;
        reply.unix_ms().ok_or_else(|| self.unlike(b"TIME", &reply))
    }

    fn integer(&self, reply: &Reply) -> Result<i64, Error> {
        match reply {
            Reply::Error(words) => Err(self.conn.refused(b"PTTL", words.clone())),
            reply => reply.integer().ok_or_else(|| self.unlike(b"PTTL", reply)),
        }
    }

    /// The error of an answer that is none to `command`.
    fn unlike(&self, command: &[u8], reply: &Reply) -> Error {
        self.conn.refused(command, format!("{reply:?}"))
    }
}

/// What PTTL says, asked when the source's clock stood between two times.
fn expiry(left_ms: i64, from_ms: i64, to_ms: i64) -> Expiry {
    match left_ms {
        0.. => Expiry::At {
            from_ms: from_ms.saturating_add(left_ms),
            // A clock that was set back meanwhile leaves nothing to tell.
            to_ms: to_ms.max(from_ms).saturating_add(left_ms),
        },
        -1 => Expiry::Never,
        _ => Expiry::Gone,
    }
}

/// The offset in what ROLE answers: `master`, offset, replicas; or `slave`, host, port, state, offset.
fn role_offset(role: &Reply) -> Option<ReplOffset> {
    let words = role.array()?;
    let at = match words.first()?.bytes()? {
        b"master" => 1,
        b"slave" => 4,
        _ => return None,
    };
    words.get(at)?.integer().and_then(|offset| u64::try_from(offset).ok()).map(ReplOffset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_an_expiry_between_the_clocks_on_both_sides() {
        assert_eq!(expiry(500, 1000, 1003), Expiry::At { from_ms: 1500, to_ms: 1503 });
        assert_eq!(expiry(0, 1000, 900), Expiry::At { from_ms: 1000, to_ms: 1000 });
        assert_eq!(expiry(i64::MAX, 1000, 1003), Expiry::At { from_ms: i64::MAX, to_ms: i64::MAX });
        assert_eq!((expiry(-1, 1, 2), expiry(-2, 1, 2)), (Expiry::Never, Expiry::Gone));
    }

    #[test]
    fn role_tells_the_offset_of_a_primary_and_of_a_replica() {
        let word = |w: &str| Reply::Bulk(w.into());
        let primary = Reply::Array(vec![word("master"), Reply::Integer(77), Reply::Array(Vec::new())]);
        assert_eq!(role_offset(&primary), Some(ReplOffset(77)));
        let replica = [word("slave"), word("h"), Reply::Integer(6379), word("connected"), Reply::Integer(88)];
        assert_eq!(role_offset(&Reply::Array(replica.to_vec())), Some(ReplOffset(88)));
        let lost = [word("slave"), word("h"), Reply::Integer(6379), word("connect"), Reply::Integer(-1)];
        assert_eq!(role_offset(&Reply::Array(lost.to_vec())), None);
        assert_eq!(role_offset(&Reply::Array(vec![word("sentinel")])), None);
    }
}
