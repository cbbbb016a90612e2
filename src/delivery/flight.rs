//! A flush, and the matching of its answers while it is in flight.

use super::answers::{Answers, OutOfStep, Outcome};
use super::parts::{Holder, Located, Parts, encode_units, select};
use super::record::{self, Record};
use super::unit::{LaneId, LaneSet, Task};
use crate::resp::encode;
use crate::resp::reply::Scanned;

/// What a lane sends in one go: a transaction of units and of the records that move past them.
#[derive(Debug, Clone)]
pub struct Flush {
    /// The lane whose connection carries it.
    pub leader: LaneId,
    /// The lanes whose records it moves, the leader among them.
    pub lanes: LaneSet,
    pub parts: Parts,
    /// What the records will say.
    pub record: Record,
    /// What its unit needs besides commands; such a unit goes alone. Kept, since a break may undo it.
    pub task: Option<Task>,
    /// True while the task is to be done before the flush is sent.
    pub task_due: bool,
    pub commands: u32,
    pub bytes: usize,
}

impl Flush {
    pub fn new(leader: LaneId, lanes: LaneSet, record: Record) -> Self {
        Flush { leader, lanes, parts: Parts::default(), record, task: None, task_due: false, commands: 0, bytes: 0 }
    }

    /// Adds the segments `from..to` of a chunk, which must be whole units behind those already there.
    pub fn add(&mut self, holder: Holder, from: usize, to: usize) {
        let chunk = holder.chunk();
        self.bytes += chunk.weight(from, to);
        for segment in chunk.segments.get(from..to).unwrap_or_default() {
            self.commands += segment.commands;
            self.record.offset = segment.offset;
            self.record.stream_db = segment.stream_db;
        }
        self.parts.add(holder, from, to);
    }

    /// Takes out the unit that `at` lies in, so that the rest can be sent without it.
    pub fn remove_unit(&mut self, at: &Located) {
        self.commands -= self.parts.remove_unit(at);
    }

    /// Appends the transaction in RESP, with the records of the lanes `moved`, for a connection whose database is `db`;
    /// it leaves database 0 selected.
    ///
    /// Returns how many commands stand between MULTI and EXEC.
    pub fn encode(&self, job: &str, mut db: u32, moved: LaneSet, out: &mut Vec<u8>) -> usize {
        out.extend_from_slice(MULTI);
        let mut queued = encode_units(self.parts.spans(), &mut db, out);
        queued += select(0, &mut db, out);
        let text = self.record.encode();
        for lane in moved.iter() {
            encode::command(out, &[&b"SET"[..], &record::key(job, lane), text.as_bytes()]);
            queued += 1;
        }
        out.extend_from_slice(EXEC);
        queued
    }
}

/// A flush whose answers are still coming.
#[derive(Debug)]
pub struct Flight {
    pub flush: Flush,
    /// The connection's database when it was sent.
    pub db: u32,
    answers: Answers,
    /// What follows MULTI and waits for it to be taken.
    held: Vec<u8>,
}

/// The bytes that a transaction begins with.
pub const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";

/// The bytes that a transaction ends with.
pub const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

impl Flight {
    /// `queued`: what [`Flush::encode`] returned.
    pub fn new(flush: Flush, db: u32, queued: usize) -> Self {
        Flight { flush, db, answers: Answers::to(queued), held: Vec::new() }
    }

    /// For the commands of a flush that were sent without MULTI and EXEC (see `Rules::one_transaction`).
    #[cfg(test)]
    pub fn bare(flush: Flush, db: u32, queued: usize) -> Self {
        let mut flight = Flight::new(flush, db, queued);
        flight.answers.begin_at_results();
        flight
    }

    /// Keeps what follows the MULTI that stands at `start` of `out`, for [`Flight::release`].
    pub fn hold_back(&mut self, out: &mut Vec<u8>, start: usize) {
        self.held = hold_back(out, start);
        self.answers.alone = true;
    }

    /// Appends what was held back to `out`, once MULTI was taken.
    pub fn release(&mut self, out: &mut Vec<u8>) {
        if self.answers.is_begun() {
            out.append(&mut self.held);
        }
    }

    /// Takes the next answer; returns the outcome with the last.
    /// # Errors
    /// When it can't be an answer to this flush.
    pub fn answer(&mut self, scanned: Scanned<'_>) -> Result<Option<Outcome>, OutOfStep> {
        self.answers.answer(scanned)
    }

    /// The commands that found no key, though on the source they did: PEXPIREAT and PERSIST that answered 0. Each with
    /// its target database.
    pub fn lost_keys(&self) -> Vec<(u32, Vec<u8>)> {
        self.answers.lost_keys(self.db, self.flush.parts.spans())
    }
}

/// Cuts what follows the MULTI that stands at `start` of `out`.
pub fn hold_back(out: &mut Vec<u8>, start: usize) -> Vec<u8> {
    out.split_off((start + MULTI.len()).min(out.len()))
}
