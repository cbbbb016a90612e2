//! Commands that the table lacks, learnt from the target.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ask::Asking;
use crate::args::Args;
use crate::commands::{CommandInfo, Learnt, LearntError, MovableKeys, Spec};
use crate::delivery::refusal::{Refusal, refusal};
use crate::net::conn::{self, Conn};
use crate::net::info::Info;
use crate::resp::reply::Reply;
use crate::slot::Slot;
use crate::target::nodes::Target;
use crate::target::{Error, scan};

/// How long to wait before the target is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Why the target wasn't asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error(transparent)]
    Target(#[from] Error),
    #[error("the stream has ended")]
    Ended,
}

/// What the target says of a command.
#[derive(Debug)]
pub enum Answer {
    Known(Spec),
    /// The target doesn't have it either.
    Unknown,
    /// It has it, but where its keys are can't be told.
    Opaque(LearntError),
}

/// What was learnt, also for who delivers it.
pub type SharedLearnt = Arc<Mutex<Learnt>>;

pub fn lock(learnt: &SharedLearnt) -> MutexGuard<'_, Learnt> {
    learnt.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks the target for commands, each once.
pub struct Learner {
    target: Target,
    asking: Asking,
    learnt: SharedLearnt,
    /// Databases that the target has.
    databases: BTreeSet<u32>,
}

impl Learner {
    pub fn new(target: Target, asking: Asking, learnt: SharedLearnt) -> Self {
        Learner { target, asking, learnt, databases: BTreeSet::new() }
    }

    /// Whether the target has a database, which is asked once: in a transaction a SELECT that fails would leave what
    /// follows it to another database.
    ///
    /// # Errors
    /// When the target can't be asked.
    pub fn has_database(&mut self, db: u32) -> Result<bool, AskError> {
        // Every server has database 0: it needn't be there to be asked.
        if db == 0 || self.databases.contains(&db) {
            return Ok(true);
        }
        let reply = self.ask(async |conn| conn.call(&[b"SELECT", db.to_string().as_bytes()]).await)?;
        let has = !matches!(reply, Reply::Error(_));
        if has {
            self.databases.insert(db);
        }
        Ok(has)
    }

    /// Writes past the lanes, for a rule taken out.
    ///
    /// # Errors
    /// When the target can't be reached or refuses.
    #[cfg(feature = "failpoints")]
    pub fn write_beside(&self, db: u32, command: &[&[u8]]) -> Result<(), AskError> {
        self.ask(async |conn| {
            conn.ask(&[b"SELECT", db.to_string().as_bytes()]).await?;
            conn.ask(command).await
        })
        .map(|_| ())
    }

    /// Asks on a connection of its own, again and again while the target can't be reached: the lanes say what that means.
    fn ask(&self, question: impl AsyncFn(&mut Conn) -> Result<Reply, conn::Error>) -> Result<Reply, AskError> {
        // BUSY, LOADING and the like are no answer to what was asked.
        let is_answer = |reply: &Reply| match reply {
            Reply::Error(words) => refusal(words) == Refusal::ForGood,
            _ => true,
        };
        self.retrying(async || Ok(question(&mut self.target.any().await?).await?), is_answer)
    }

    fn retrying<T>(
        &self,
        ask: impl AsyncFn() -> Result<T, Error>,
        is_answer: impl Fn(&T) -> bool,
    ) -> Result<T, AskError> {
        loop {
            match self.asking.ask(ask()) {
                Some(Err(error)) if !error.is_passing() => return Err(error.into()),
                Some(Ok(answer)) if is_answer(&answer) => return Ok(answer),
                Some(_) => self.asking.pause(ASK_AGAIN).ok_or(AskError::Ended)?,
                None => return Err(AskError::Ended),
            }
        }
    }

    /// The keys of slots in the target, with its databases; some of them more than once.
    ///
    /// # Errors
    /// When the target can't be asked.
    pub fn keys_of_slots(&self, slots: &[Slot]) -> Result<Vec<(u32, Vec<u8>)>, AskError> {
        let list = async || {
            let info = self.target.any().await?.ask(&[&b"INFO"[..], b"keyspace"]).await?;
            let info = Info::parse(info.bytes().unwrap_or_default());
            let databases: Vec<u32> = info.keyspace().into_iter().map(|(db, _)| db).collect();
            let mut keys = Vec::new();
            let note = |db: u32, key: &[u8]| {
                if slots.contains(&Slot::of(key)) {
                    keys.push((db, key.to_vec()));
                }
            };
            scan::each_key_in(&self.target, &databases, note).await?;
            Ok(keys)
        };
        self.retrying(list, |_| true)
    }

    /// The row of `args`, which the table has none for.
    ///
    /// # Errors
    /// When the target can't be asked.
    pub fn spec(&mut self, args: Args<'_>) -> Result<Answer, AskError> {
        if let Some(spec) = lock(&self.learnt).lookup(args).cloned() {
            return Ok(Answer::Known(spec));
        }
        let name = args.get(0).unwrap_or_default();
        let reply = self.ask(async |conn| conn.ask(&[&b"COMMAND"[..], b"INFO", name]).await)?;
        Ok(self.learn(args, &reply, Learnt::learn))
    }

    /// The same of a command that the target doesn't have, by the source's answer to COMMAND INFO.
    pub fn spec_of_lacking(&mut self, args: Args<'_>, reply: &Reply) -> Answer {
        self.learn(args, reply, Learnt::learn_lacking)
    }

    fn learn(
        &mut self,
        args: Args<'_>,
        reply: &Reply,
        learn: impl FnOnce(&mut Learnt, CommandInfo<'_>) -> Result<(), LearntError>,
    ) -> Answer {
        let row = reply.array().and_then(<[Reply]>::first).and_then(Reply::array);
        let Some(row) = row else { return Answer::Unknown };
        let name = String::from_utf8_lossy(args.get(0).unwrap_or_default()).into_owned();
        let mut learnt = lock(&self.learnt);
        match learn(&mut learnt, command_info(&name, row)) {
            Ok(()) => learnt.lookup(args).cloned().map_or(Answer::Unknown, Answer::Known),
            Err(error) => Answer::Opaque(error),
        }
    }
}

/// Reads one row of COMMAND INFO: name, arity, flags, first key, last key, step, ACL categories, tips, key specifications.
fn command_info<'a>(name: &'a str, row: &[Reply]) -> CommandInfo<'a> {
    let flags = row.get(2).and_then(Reply::array).unwrap_or_default();
    let flag = |word: &[u8]| flags.iter().any(|f| f.bytes() == Some(word));
    let number = |i: usize| row.get(i).and_then(Reply::integer).unwrap_or(0);
    CommandInfo {
        name,
        write: flag(b"write"),
        movable: flag(b"movablekeys"),
        first_key: number(3),
        last_key: number(4),
        step: number(5),
        counted: row.get(8).and_then(Reply::array).and_then(counted),
    }
}

/// A single key specification that says "a number of keys, and then the keys": where the number stands.
fn counted(specifications: &[Reply]) -> Option<MovableKeys> {
    let [only] = specifications else { return None };
    let begin = field(only, b"begin_search")?;
    let find = field(only, b"find_keys")?;
    if field(begin, b"type")?.bytes()? != b"index" || field(find, b"type")?.bytes()? != b"keynum" {
        return None;
    }
    let index = field(field(begin, b"spec")?, b"index")?.integer()?;
    let find = field(find, b"spec")?;
    let (at, first) = (field(find, b"keynumidx")?.integer()?, field(find, b"firstkey")?.integer()?);
    let step = field(find, b"keystep")?.integer()?;
    (first == at + 1).then_some(())?;
    Some(MovableKeys { count: u8::try_from(index + at).ok()?, step: u8::try_from(step).ok()? })
}

/// A field of a map that RESP2 shows as a list of names and values.
fn field<'a>(map: &'a Reply, name: &[u8]) -> Option<&'a Reply> {
    map.array()?.chunks_exact(2).find(|pair| pair.first().and_then(Reply::bytes) == Some(name))?.get(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: Vec<(&str, Reply)>) -> Reply {
        let flat = pairs.into_iter().flat_map(|(name, value)| [Reply::Bulk(name.into()), value]);
        Reply::Array(flat.collect())
    }

    #[test]
    fn counted_key_specification_gives_the_number_of_keys() {
        let word = |w: &str| Reply::Bulk(w.into());
        let begin = map(vec![("type", word("index")), ("spec", map(vec![("index", Reply::Integer(2))]))]);
        let find = map(vec![
            ("type", word("keynum")),
            (
                "spec",
                map(vec![
                    ("keynumidx", Reply::Integer(0)),
                    ("firstkey", Reply::Integer(1)),
                    ("keystep", Reply::Integer(1)),
                ]),
            ),
        ]);
        let specification = map(vec![("flags", Reply::Null), ("begin_search", begin), ("find_keys", find)]);
        let found = counted(&[specification]);
        assert_eq!(found.map(|k| (k.count, k.step)), Some((2, 1)));
    }
}
