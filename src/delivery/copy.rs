//! A lane's part of the copy: values sent bare and pipelined, each kept until it is acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;

use super::answers::OutOfStep;
use super::parts::{Described, name_and_key};
use super::refusal::{Refusal, refusal};
use super::standalone::Fault;
use super::unit::Chunk;
use crate::offset::ReplOffset;
use crate::rdb::opcode;
use crate::resp::command::{Parsed, Parser};
use crate::resp::encode;
use crate::resp::reply::Scanned;

/// Bytes of values in flight on one lane: enough to keep a target busy that is some milliseconds away.
pub const WINDOW_BYTES: usize = 1 << 20;

/// Most values in flight on one lane, whatever their size: a slow target's answers stay within its output buffer.
pub const WINDOW_VALUES: usize = 8192;

/// A type, and a module's id as a length of nine bytes.
const RDB_HEAD_BYTES: usize = 10;

/// One value: segment `at` of the chunk.
#[derive(Debug, Clone)]
pub struct Value {
    chunk: Arc<Chunk>,
    at: usize,
}

impl Value {
    /// Each value of a chunk.
    pub fn all(chunk: &Arc<Chunk>) -> impl Iterator<Item = Value> {
        (0..chunk.segments.len()).map(|at| Value { chunk: Arc::clone(chunk), at })
    }

    pub fn slot(&self) -> u16 {
        self.chunk.segments.get(self.at).map_or(0, |s| s.slot)
    }

    fn bytes(&self) -> &[u8] {
        self.chunk.slice(self.at, self.at + 1)
    }

    fn db(&self) -> u32 {
        self.chunk.segments.get(self.at).map_or(0, |s| s.db)
    }
}

/// What the answer to a value or to a SELECT means.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Applied {
        bytes: usize,
    },
    Selected,
    /// Not applied, will be sent again; of a value, that of this slot.
    Refused {
        words: String,
        refusal: Refusal,
        slot: Option<u16>,
    },
    /// Never to be applied; dropped.
    Fault {
        words: String,
        what: Vec<Dropped>,
        bytes: usize,
    },
}

/// A value that was dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Dropped {
    pub what: Described,
    /// How its RDB form begins: the type, and for a module's value its id.
    pub head: Vec<u8>,
}

impl Dropped {
    pub fn fault(self, words: &str) -> Fault {
        let (words, copied) = (words.to_owned(), Some(self.head));
        Fault { words, what: self.what, applied: true, suspects: Vec::new(), copied }
    }
}

#[derive(Debug, Default)]
pub struct CopyLane {
    /// Values to send: those refused in passing first, then new ones.
    waiting: VecDeque<Value>,
    sent: VecDeque<Value>,
    sent_bytes: usize,
    /// The connection's database.
    pub db: u32,
    /// The database of a SELECT that isn't answered yet.
    selecting: Option<u32>,
    /// Sends values behind a SELECT that isn't answered (see `Rules::select_awaited`).
    #[cfg(test)]
    pub hasty: bool,
}

impl CopyLane {
    pub fn push(&mut self, value: Value) {
        self.waiting.push_back(value);
    }

    /// Takes out what waits that is of a slot for which `is_out` holds.
    pub fn take_out(&mut self, is_out: impl Fn(u16) -> bool) -> impl Iterator<Item = Value> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (out, kept): (Vec<Value>, Vec<Value>) = waiting.partition(|value| is_out(value.slot()));
        self.waiting = kept.into();
        out.into_iter()
    }

    /// True when something waits to be sent.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True while the answer to a SELECT is due, behind which nothing may be sent.
    pub fn is_selecting(&self) -> bool {
        self.selecting.is_some()
    }

    /// True when every value was acknowledged.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty() && self.selecting.is_none()
    }

    /// True while an answer is due.
    pub fn in_flight(&self) -> bool {
        !self.sent.is_empty() || self.selecting.is_some()
    }

    /// Appends what may be sent now to `out`.
    ///
    /// A SELECT goes alone: if it were refused in passing, the values behind it would land in another database. `alone`:
    /// nothing else is in flight on the connection. Returns how many answers are to come.
    pub fn send(&mut self, alone: bool, out: &mut Vec<u8>) -> u32 {
        let mut sent = 0;
        while self.selecting.is_none() && self.sent_bytes < WINDOW_BYTES && self.sent.len() < WINDOW_VALUES {
            let Some(value) = self.waiting.front() else { break };
            if value.db() != self.db {
                let db = value.db();
                if !self.sent.is_empty() || !alone {
                    break;
                }
                sent += self.select(db, out);
                #[cfg(test)]
                if self.hasty {
                    sent += 1;
                    self.send_front(out);
                }
                break;
            }
            self.send_front(out);
            sent += 1;
        }
        sent
    }

    fn send_front(&mut self, out: &mut Vec<u8>) {
        let Some(value) = self.waiting.pop_front() else { return };
        out.extend_from_slice(value.bytes());
        self.sent_bytes += value.bytes().len();
        self.sent.push_back(value);
    }

    /// Goes over to a database, with nothing in flight; returns how many answers are to come.
    pub fn select(&mut self, db: u32, out: &mut Vec<u8>) -> u32 {
        self.selecting = Some(db);
        encode::command(out, &[b"SELECT", db.to_string().as_bytes()]);
        1
    }

    /// Takes the next answer.
    /// # Errors
    /// When nothing was sent that it could answer.
    pub fn answer(&mut self, scanned: Scanned<'_>) -> Result<Answer, OutOfStep> {
        let error = match scanned {
            Scanned::Error(words) => Some(String::from_utf8_lossy(words).into_owned()),
            Scanned::Open(_) => return Err(OutOfStep),
            _ => None,
        };
        if let Some(db) = self.selecting.take() {
            return Ok(match error {
                None => {
                    self.db = db;
                    Answer::Selected
                }
                Some(words) => match refusal(&words) {
                    Refusal::ForGood => self.drop_database(db, words),
                    refusal => Answer::Refused { words, refusal, slot: None },
                },
            });
        }
        let value = self.sent.pop_front().ok_or(OutOfStep)?;
        let bytes = value.bytes().len();
        self.sent_bytes -= bytes;
        Ok(match error {
            None => Answer::Applied { bytes },
            Some(words) => match refusal(&words) {
                Refusal::ForGood => Answer::Fault { words, what: vec![dropped(&value)], bytes },
                refusal => {
                    // Values are independent of each other, so its place among them doesn't matter.
                    let slot = Some(value.slot());
                    self.waiting.push_front(value);
                    Answer::Refused { words, refusal, slot }
                }
            },
        })
    }

    /// The database can't be selected: the values that wait for it at the front would wait for ever.
    fn drop_database(&mut self, db: u32, words: String) -> Answer {
        let (mut what, mut bytes) = (Vec::new(), 0);
        while self.waiting.front().is_some_and(|value| value.db() == db) {
            let Some(value) = self.waiting.pop_front() else { break };
            what.push(dropped(&value));
            bytes += value.bytes().len();
        }
        Answer::Fault { words, what, bytes }
    }

    /// The connection is gone: what wasn't acknowledged goes again, which replaces it by itself.
    pub fn broken(&mut self) {
        while let Some(value) = self.sent.pop_back() {
            self.waiting.push_front(value);
        }
        self.sent_bytes = 0;
        self.selecting = None;
        self.db = 0;
    }
}

fn dropped(value: &Value) -> Dropped {
    let (command, key) = name_and_key(value.bytes(), 0);
    let head = match command.as_str() {
        "SET" => vec![opcode::STRING],
        "RESTORE" => rdb_head(value.bytes()),
        // A library or script: no key.
        _ => Vec::new(),
    };
    Dropped { what: Described { command, key, db: value.db(), offset: ReplOffset(0) }, head }
}

/// The first bytes of what a `RESTORE key ttl value` restores.
fn rdb_head(command: &[u8]) -> Vec<u8> {
    let mut parser = Parser::new();
    let Ok(Some(Parsed::Command { .. })) = parser.parse(command) else { return Vec::new() };
    let value = parser.args(command).get(3).unwrap_or_default();
    value.get(..RDB_HEAD_BYTES).unwrap_or(value).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::record::JobState;
    use crate::delivery::standalone::{Event, Standalone};
    use crate::route::Router;

    /// A machine of one lane with two values of database 1 and one of database 0.
    fn copying() -> Standalone {
        let job = JobState { shard: 0, replid: None, generation: 1, lanes: 1, late_ms: 0, scope: 0 };
        let mut machine = Standalone::new("j", job);
        let mut router = Router::new(1);
        for (db, key) in [(1, "a"), (1, "b"), (0, "c")] {
            router.copy(0, db, |out| encode::command(out, &["SET", key, "1"]));
        }
        machine.push(router.take(ReplOffset(5), 0));
        machine
    }

    fn faults(event: Result<Option<Event>, OutOfStep>) -> usize {
        match event {
            Ok(Some(Event::Faults(faults))) => faults.len(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn value_refused_for_good_leaves_the_queued_bytes() {
        let (mut machine, mut out) = (copying(), Vec::new());
        machine.send(0, &mut out);
        assert_eq!(machine.answer(0, Scanned::Status(b"OK")), Ok(None));
        machine.send(0, &mut out);
        assert_eq!(faults(machine.answer(0, Scanned::Error(b"NOPERM no"))), 1);
        assert_eq!(machine.answer(0, Scanned::Status(b"OK")), Ok(Some(Event::Copied { values: 1 })));
        machine.send(0, &mut out);
        assert_eq!(machine.answer(0, Scanned::Status(b"OK")), Ok(None));
        machine.send(0, &mut out);
        assert_eq!(machine.answer(0, Scanned::Status(b"OK")), Ok(Some(Event::Copied { values: 1 })));
        assert_eq!((machine.queued_bytes(), machine.is_idle()), (0, true));
    }

    #[test]
    fn value_refused_for_good_tells_its_type() {
        let told = |command: &[&[u8]]| {
            let (mut lane, mut out, mut router) = (CopyLane::default(), Vec::new(), Router::new(1));
            router.copy(0, 0, |bytes| encode::command(bytes, command));
            let batch = router.take(ReplOffset(5), 0);
            let Some(crate::delivery::unit::Item::Copy(chunk)) = batch.lanes.first().and_then(|items| items.first())
            else {
                panic!("{batch:?}")
            };
            Value::all(chunk).for_each(|value| lane.push(value));
            lane.send(true, &mut out);
            match lane.answer(Scanned::Error(b"NOPERM no")) {
                Ok(Answer::Fault { what, .. }) => what[0].head.clone(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(told(&[b"SET", b"k", b"v"]), [opcode::STRING]);
        assert_eq!(told(&[b"RESTORE", b"k", b"0", b"\x10payload", b"REPLACE"]), *b"\x10payload");
        assert_eq!(told(&[b"RESTORE", b"k", b"0", b"\x07123456789abc"]), *b"\x07123456789");
        assert!(told(&[b"FUNCTION", b"LOAD", b"REPLACE", b"#!lua"]).is_empty());
    }

    #[test]
    fn select_refused_for_good_drops_its_values_and_goes_on() {
        let (mut machine, mut out) = (copying(), Vec::new());
        machine.send(0, &mut out);
        assert_eq!(faults(machine.answer(0, Scanned::Error(b"ERR DB index is out of range"))), 2);
        machine.send(0, &mut out);
        assert_eq!(machine.answer(0, Scanned::Status(b"OK")), Ok(Some(Event::Copied { values: 1 })));
        assert_eq!((machine.queued_bytes(), machine.is_idle()), (0, true));
    }
}
