//! A flush, and the matching of its answers while it is in flight.

use std::sync::Arc;

use super::record::{self, Record};
use super::unit::{Chunk, Joint, LaneId, LaneSet, Segment, Task};
use crate::offset::ReplOffset;
use crate::resp::command::{Parsed, Parser};
use crate::resp::encode;
use crate::resp::reply::Scanned;

/// Where the bytes of a part lie.
#[derive(Debug, Clone)]
pub enum Holder {
    Chunk(Arc<Chunk>),
    Joint(Arc<Joint>),
}

impl Holder {
    pub fn chunk(&self) -> &Chunk {
        match self {
            Holder::Chunk(chunk) => chunk,
            Holder::Joint(joint) => &joint.chunk,
        }
    }

    fn same(&self, other: &Holder) -> bool {
        match (self, other) {
            (Holder::Chunk(a), Holder::Chunk(b)) => Arc::ptr_eq(a, b),
            (Holder::Joint(a), Holder::Joint(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// Whole units of one chunk: its segments `from..to`.
#[derive(Debug, Clone)]
pub struct Part {
    pub holder: Holder,
    pub from: usize,
    pub to: usize,
}

impl Part {
    fn segments(&self) -> &[Segment] {
        self.holder.chunk().segments.get(self.from..self.to).unwrap_or_default()
    }
}

/// What a lane sends in one go: a transaction of units and of the records that move past them.
#[derive(Debug, Clone)]
pub struct Flush {
    /// The lane whose connection carries it.
    pub leader: LaneId,
    /// The lanes whose records it moves, the leader among them.
    pub lanes: LaneSet,
    pub parts: Vec<Part>,
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
        Flush { leader, lanes, parts: Vec::new(), record, task: None, task_due: false, commands: 0, bytes: 0 }
    }

    /// Adds the segments `from..to` of a chunk, which must be whole units behind those already there.
    pub fn add(&mut self, holder: Holder, from: usize, to: usize) {
        let chunk = holder.chunk();
        self.bytes += chunk.slice(from, to).len();
        for segment in chunk.segments.get(from..to).unwrap_or_default() {
            self.commands += segment.commands;
            self.record.offset = segment.offset;
            self.record.stream_db = segment.stream_db;
        }
        match self.parts.last_mut() {
            Some(part) if part.to == from && part.holder.same(&holder) => part.to = to,
            _ => self.parts.push(Part { holder, from, to }),
        }
    }

    /// Takes out the unit that `at` lies in, so that the rest can be sent without it.
    pub fn remove_unit(&mut self, at: &Located) {
        let Some(part) = self.parts.get(at.part).cloned() else { return };
        let segments = &part.holder.chunk().segments;
        let ends_unit = |i: usize| segments.get(i).is_none_or(|s| s.last);
        let from = (part.from..=at.segment).rev().find(|i| *i == part.from || ends_unit(i - 1));
        let to = (at.segment..part.to).find(|i| ends_unit(*i));
        let (Some(from), Some(to)) = (from, to) else { return };
        let removed = segments.get(from..=to).unwrap_or_default();
        self.commands -= removed.iter().map(|s| s.commands).sum::<u32>();
        let halves = [(part.from, from), (to + 1, part.to)];
        let kept = halves.into_iter().filter(|(a, b)| a < b);
        let kept: Vec<Part> = kept.map(|(from, to)| Part { holder: part.holder.clone(), from, to }).collect();
        self.parts.splice(at.part..=at.part, kept);
    }

    /// Appends the transaction in RESP, with the records of the lanes `moved`, for a connection whose database is `db`;
    /// it leaves database 0 selected.
    ///
    /// Returns how many commands stand between MULTI and EXEC.
    pub fn encode(&self, job: &str, mut db: u32, moved: LaneSet, out: &mut Vec<u8>) -> usize {
        let mut queued = 0;
        let mut select = |out: &mut Vec<u8>, db: &mut u32, wanted: u32| {
            if *db != wanted {
                encode::command(out, &[b"SELECT", wanted.to_string().as_bytes()]);
                *db = wanted;
                queued += 1;
            }
        };
        out.extend_from_slice(MULTI);
        for part in &self.parts {
            let segments = part.segments();
            let mut from = part.from;
            // Neighbours of one database go out in one piece.
            for (i, segment) in segments.iter().enumerate() {
                let at = part.from + i;
                if segments.get(i + 1).is_some_and(|next| next.db == segment.db) {
                    continue;
                }
                select(out, &mut db, segment.db);
                out.extend_from_slice(part.holder.chunk().slice(from, at + 1));
                from = at + 1;
            }
        }
        select(out, &mut db, 0);
        let text = self.record.encode();
        for lane in moved.iter() {
            encode::command(out, &[&b"SET"[..], &record::key(job, lane), text.as_bytes()]);
            queued += 1;
        }
        out.extend_from_slice(b"*1\r\n$4\r\nEXEC\r\n");
        queued + self.commands as usize
    }

    /// Which unit's command stands at `index` between MULTI and EXEC, for a connection that began with database `db`.
    /// `None` for a SELECT or a record.
    pub fn locate(&self, index: usize, mut db: u32) -> Option<Located> {
        let mut at = 0;
        for (p, part) in self.parts.iter().enumerate() {
            for (i, segment) in part.segments().iter().enumerate() {
                at += usize::from(segment.db != db);
                db = segment.db;
                let commands = segment.commands as usize;
                if index < at {
                    return None;
                }
                if index < at + commands {
                    return Some(Located { part: p, segment: part.from + i, command: index - at });
                }
                at += commands;
            }
        }
        None
    }

    /// The commands from `from` on, to the end of its unit or of the flush, each with its target database: those whose
    /// keys are not to be trusted when the one at `from` failed.
    pub fn commands_from(&self, from: &Located, unit_only: bool) -> Vec<(u32, Vec<u8>)> {
        let mut commands = Vec::new();
        for (p, part) in self.parts.iter().enumerate().skip(from.part) {
            for (i, segment) in part.segments().iter().enumerate() {
                let at = part.from + i;
                if (p, at) < (from.part, from.segment) {
                    continue;
                }
                let mut rest = part.holder.chunk().slice(at, at + 1);
                let mut parser = Parser::new();
                while let Ok(Some(Parsed::Command { len })) = parser.parse(rest) {
                    let (command, later) = rest.split_at(len.min(rest.len()));
                    commands.push((segment.db, command.to_vec()));
                    rest = later;
                }
                if unit_only && segment.last || !holds!("recopy-what-follows") {
                    return commands;
                }
            }
        }
        commands
    }

    /// Names the command at `at` for people.
    pub fn describe(&self, at: &Located) -> Described {
        let chunk = self.parts.get(at.part).map(|p| p.holder.chunk());
        let segment = chunk.and_then(|c| c.segments.get(at.segment));
        let bytes = chunk.map(|c| c.slice(at.segment, at.segment + 1)).unwrap_or_default();
        let (command, key) = name_and_key(bytes, at.command);
        Described { command, key, db: segment.map_or(0, |s| s.db), offset: segment.map_or(ReplOffset(0), |s| s.offset) }
    }
}

/// Where in a flush a command lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    pub part: usize,
    pub segment: usize,
    /// Which command of the segment.
    pub command: usize,
}

/// A command as an error names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub command: String,
    /// The first argument: for nearly all commands the key.
    pub key: Vec<u8>,
    pub db: u32,
    pub offset: ReplOffset,
}

/// The `nth` command in `bytes`, if it is one that a key can't answer with 0 that is there and expires.
fn expiry_command(mut bytes: &[u8], nth: usize) -> Option<Vec<u8>> {
    let mut parser = Parser::new();
    for _ in 0..nth {
        let Ok(Some(Parsed::Command { len })) = parser.parse(bytes) else { return None };
        bytes = bytes.get(len..)?;
    }
    let Ok(Some(Parsed::Command { len })) = parser.parse(bytes) else { return None };
    let name = parser.args(bytes).get(0)?;
    let is = |word: &[u8]| name.eq_ignore_ascii_case(word);
    (is(b"PEXPIREAT") || is(b"PERSIST")).then(|| bytes.get(..len).unwrap_or_default().to_vec())
}

/// The name and first argument of the `nth` command in `bytes`.
pub fn name_and_key(mut bytes: &[u8], nth: usize) -> (String, Vec<u8>) {
    let mut parser = Parser::new();
    for _ in 0..nth {
        let Ok(Some(Parsed::Command { len })) = parser.parse(bytes) else { break };
        bytes = bytes.get(len..).unwrap_or_default();
    }
    match parser.parse(bytes) {
        Ok(Some(Parsed::Command { .. })) => {
            let args = parser.args(bytes);
            let name = String::from_utf8_lossy(args.get(0).unwrap_or_default()).to_ascii_uppercase();
            (name, args.get(1).unwrap_or_default().to_vec())
        }
        _ => (String::new(), Vec::new()),
    }
}

/// What became of a flush.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Applied,
    /// Nothing of it was applied. `at` is the place between MULTI and EXEC that was refused, where the server said.
    Refused {
        words: String,
        at: Option<usize>,
    },
    /// All was applied but the commands at these places.
    AppliedBut(Vec<(usize, String)>),
}

/// The answers can't be those of what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the target's answers don't match what was sent")]
pub struct OutOfStep;

/// A flush whose answers are still coming.
#[derive(Debug)]
pub struct Flight {
    pub flush: Flush,
    /// The connection's database when it was sent.
    pub db: u32,
    queued: usize,
    seen: usize,
    stage: Stage,
    refused: Option<(usize, String)>,
    errors: Vec<(usize, String)>,
    /// Places between MULTI and EXEC that were answered with 0.
    zeros: Vec<usize>,
    /// What follows MULTI and waits for it to be taken.
    held: Vec<u8>,
}

/// The bytes that a transaction begins with.
const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Multi,
    Queueing,
    Exec,
    Results,
}

impl Flight {
    /// `queued`: what [`Flush::encode`] returned.
    pub fn new(flush: Flush, db: u32, queued: usize) -> Self {
        Flight {
            flush,
            db,
            queued,
            seen: 0,
            stage: Stage::Multi,
            refused: None,
            errors: Vec::new(),
            zeros: Vec::new(),
            held: Vec::new(),
        }
    }

    /// For the commands of a flush that were sent without MULTI and EXEC (see `Rules::one_transaction`).
    #[cfg(test)]
    pub fn bare(flush: Flush, db: u32, queued: usize) -> Self {
        Flight { stage: Stage::Results, ..Flight::new(flush, db, queued) }
    }

    /// Keeps what follows the MULTI that stands at `start` of `out`, for [`Flight::release`].
    pub fn hold_back(&mut self, out: &mut Vec<u8>, start: usize) {
        self.held = out.split_off((start + MULTI.len()).min(out.len()));
    }

    /// Appends what was held back to `out`, once MULTI was taken.
    pub fn release(&mut self, out: &mut Vec<u8>) {
        if self.stage != Stage::Multi {
            out.append(&mut self.held);
        }
    }

    /// Takes the next answer; returns the outcome with the last.
    /// # Errors
    /// When it can't be an answer to this flush.
    pub fn answer(&mut self, scanned: Scanned<'_>) -> Result<Option<Outcome>, OutOfStep> {
        match (self.stage, scanned) {
            (Stage::Multi, Scanned::Status(b"OK")) => {
                self.stage = if self.queued == 0 { Stage::Exec } else { Stage::Queueing };
                Ok(None)
            }
            (Stage::Multi, Scanned::Error(words)) if !self.held.is_empty() => {
                Ok(Some(Outcome::Refused { words: text(words), at: None }))
            }
            // Without its MULTI the commands behind it run bare: the records decide what is to be sent again.
            (Stage::Multi, _) => Err(OutOfStep),
            (Stage::Queueing, Scanned::Status(b"QUEUED")) => Ok(self.queue_answered()),
            (Stage::Queueing, Scanned::Error(words)) => {
                if self.refused.is_none() {
                    self.refused = Some((self.seen, text(words)));
                }
                Ok(self.queue_answered())
            }
            (Stage::Exec, Scanned::Error(words)) => {
                let (at, words) = match self.refused.take() {
                    Some((at, words)) => (Some(at), words),
                    None => (None, text(words)),
                };
                Ok(Some(Outcome::Refused { words, at }))
            }
            (Stage::Exec, Scanned::Open(count)) if count == self.queued && self.refused.is_none() => {
                self.stage = Stage::Results;
                self.seen = 0;
                Ok((count == 0).then_some(Outcome::Applied))
            }
            (Stage::Results, Scanned::Open(_)) => Err(OutOfStep),
            (Stage::Results, result) => {
                match result {
                    Scanned::Error(words) => self.errors.push((self.seen, text(words))),
                    Scanned::Integer(0) => self.zeros.push(self.seen),
                    _ => {}
                }
                self.seen += 1;
                Ok((self.seen == self.queued).then(|| self.end()))
            }
            _ => Err(OutOfStep),
        }
    }

    /// The commands that found no key, though on the source they did: PEXPIREAT and PERSIST that answered 0. Each with
    /// its target database.
    pub fn lost_keys(&self) -> Vec<(u32, Vec<u8>)> {
        let mut lost = Vec::new();
        let mut zeros = self.zeros.iter().copied().peekable();
        let (mut at, mut db) = (0, self.db);
        for part in &self.flush.parts {
            for (i, segment) in part.segments().iter().enumerate() {
                at += usize::from(segment.db != db);
                db = segment.db;
                let end = at + segment.commands as usize;
                while zeros.next_if(|zero| *zero < at).is_some() {}
                // Most flushes have none, so nearly no segment is looked into.
                if zeros.peek().is_some_and(|zero| *zero < end) {
                    let bytes = part.holder.chunk().slice(part.from + i, part.from + i + 1);
                    while let Some(zero) = zeros.next_if(|zero| *zero < end) {
                        lost.extend(expiry_command(bytes, zero - at).map(|command| (db, command)));
                    }
                }
                at = end;
            }
        }
        lost
    }

    fn queue_answered(&mut self) -> Option<Outcome> {
        self.seen += 1;
        if self.seen == self.queued {
            self.stage = Stage::Exec;
        }
        None
    }

    fn end(&mut self) -> Outcome {
        match std::mem::take(&mut self.errors) {
            errors if errors.is_empty() => Outcome::Applied,
            errors => Outcome::AppliedBut(errors),
        }
    }
}

fn text(words: &[u8]) -> String {
    String::from_utf8_lossy(words).into_owned()
}
