//! Delivery to a standalone target: every flush one transaction with its record, one in flight per lane.

mod beside;
mod joint;

use std::collections::VecDeque;
use std::sync::Arc;

use super::answers::{OutOfStep, Outcome};
use super::copy::{Answer, CopyLane, Value};
use super::flight::{Flight, Flush};
use super::motion::Ticket;
use super::parts::{Described, Holder, Located, Parts};
use super::record::{JobState, Phase, Record};
use super::refusal::{Refusal, refusal};
use super::rules::rule;
use super::unit::{Batch, Chunk, Item, LaneId, LaneSet, Task};
use crate::offset::ReplOffset;
use crate::resp::reply::Scanned;

/// Most commands of a flush; a larger unit goes alone.
pub const FLUSH_COMMANDS_MAX: u32 = 1024;

/// Most bytes of a flush; a larger unit goes alone.
pub const FLUSH_BYTES_MAX: usize = 1 << 20;

/// The command by which a [`Fault`] says that a database couldn't be selected.
pub const SELECT: &str = "SELECT";

/// What an answer of the target led to.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// So many values of the copy were applied.
    Copied { values: u64 },
    /// So many commands of the stream were applied.
    Applied { commands: u64 },
    /// The lane waits until [`Standalone::unpause`]; it then sends the same again.
    Refused { words: String },
    /// The connection must be closed: the server may be another one now.
    Elsewhere { words: String },
    /// The same, but these of them, each with its target database, found no key where the source had one: the target
    /// has lost it.
    LostKeys { commands: u64, lost: Vec<(u32, Vec<u8>)> },
    /// Commands that the target will never take.
    Faults(Vec<Fault>),
}

/// A command that the target refused for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub words: String,
    pub what: Described,
    /// True when the rest of its flush was applied, so that it can't be sent again.
    pub applied: bool,
    /// Commands of the stream, with their target databases, whose keys may differ from the source's now.
    pub suspects: Vec<(u32, Vec<u8>)>,
    /// For a value of the copy, how its RDB form begins: its type, and a module's id.
    pub copied: Option<Vec<u8>>,
}

/// Why a target can't be gone on with after its records were read: it needs a new full sync, or lanes as it knows them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("lane {lane} has no record in the target any more")]
    Record { lane: LaneId },
    #[error("the target lost writes while the copy was under way")]
    Copy,
    #[error("slot {slot} has no record in the target any more")]
    Slot { slot: u16 },
    /// Its keys may lie on either node, or on none.
    #[error("the target lost a server while slot {slot} was on the move")]
    Torn { slot: u16 },
    /// It fell back to where the job had another lane count. No full sync is needed.
    #[error("the target's records are those of {lanes} lanes")]
    Lanes { lanes: usize },
}

/// How to go on after the records were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reread {
    /// What isn't applied is still here.
    Continue,
    /// The target has lost acknowledged writes, or has more than is known here. Everything queued was dropped: the
    /// router must start again behind `offset`, with that database selected, and count its batches by this epoch.
    Rewind { offset: ReplOffset, stream_db: u32, epoch: u64 },
    /// The router must start again, but not while anything is on its way, or how far some slots are isn't known: all
    /// connections must be closed, and all records be read together.
    ReadAll,
}

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Item>,
    /// Segments of the front item that were taken already.
    taken: usize,
    /// How many joint items the queue holds.
    joints: usize,
    copy: CopyLane,
    following: bool,
    /// The flush that this lane carries.
    flight: Option<Flight>,
    /// The lane that carries a joint flush of this one.
    held_by: Option<LaneId>,
    /// Lanes that flow as one, since they keep joining; empty when this lane flows by itself.
    group: LaneSet,
    /// A flush that was refused and is to be sent again.
    again: Option<Flush>,
    /// Waits for [`Standalone::unpause`].
    paused: bool,
    /// Its last acknowledged unit.
    applied: ReplOffset,
    applied_db: u32,
    /// Pieces of large values applied in this copy.
    pieces: u64,
    /// What its record in the target is known to say, once that names a place in the stream.
    recorded: Option<ReplOffset>,
    /// A flush sent behind `flight` (see `Rules::one_in_flight`).
    #[cfg(test)]
    behind: Option<Flight>,
}

impl Lane {
    /// Takes over what a record says of an earlier process.
    fn stand_at(&mut self, record: &Record) {
        self.following = true;
        self.applied = record.offset;
        self.applied_db = record.stream_db;
        self.pieces = record.pieces;
        self.recorded = Some(record.offset);
    }

    /// A lane that follows and has nothing left to do has applied all that was routed. In a group it stays with the
    /// others: their next flush may end before that.
    fn advance(&mut self, routed: ReplOffset, routed_db: u32) {
        let idle = self.following && !self.is_busy() && self.queue.is_empty() && self.group.is_empty();
        if idle && routed > self.applied {
            self.applied = routed;
            self.applied_db = routed_db;
        }
    }

    fn is_busy(&self) -> bool {
        self.flight.is_some() || self.held_by.is_some() || self.again.is_some() || self.paused || self.copy.in_flight()
    }

    /// The offset of the first unit waiting.
    fn front_offset(&self) -> Option<ReplOffset> {
        match self.queue.front()? {
            Item::Units(chunk) | Item::Pieces(chunk) | Item::Copy(chunk) => {
                chunk.segments.get(self.taken).map(|s| s.offset)
            }
            Item::Joint(joint) => Some(joint.offset()),
            Item::CopyEnd { offset, .. } => Some(*offset),
            Item::Hold(_) => None,
        }
    }
}

/// The lanes of one standalone target and what is on its way through them.
#[derive(Debug)]
pub struct Standalone {
    job_name: String,
    job: JobState,
    lanes: Vec<Lane>,
    routed: ReplOffset,
    routed_db: u32,
    now_ms: i64,
    queued_bytes: usize,
    /// What became of things beside the stream, to be told.
    settled: Vec<(Ticket, bool)>,
    replies_unseen: u64,
    /// Batches of another one are dropped.
    epoch: u64,
    distrusted: bool,
    /// MULTI goes alone, and the rest when it is taken (see [`Standalone::set_careful`]).
    careful: bool,
    #[cfg(test)]
    pub(crate) rules: super::rules::Rules,
}

impl Standalone {
    /// A target that holds nothing of this full sync yet: every lane begins with the copy.
    pub fn new(job_name: &str, job: JobState) -> Self {
        let lanes = (0..job.lanes).map(|_| Lane::default()).collect();
        Standalone {
            job_name: job_name.to_owned(),
            job,
            lanes,
            routed: ReplOffset(0),
            routed_db: 0,
            now_ms: 0,
            queued_bytes: 0,
            settled: Vec::new(),
            replies_unseen: 0,
            epoch: 0,
            distrusted: false,
            careful: false,
            #[cfg(test)]
            rules: super::rules::Rules::default(),
        }
    }

    /// A target that an earlier process has left, with the records of all lanes. The router starts behind the lowest.
    pub fn resume(job_name: &str, job: JobState, records: &[Record]) -> Self {
        let mut machine = Standalone::new(job_name, job);
        for (lane, record) in machine.lanes.iter_mut().zip(records) {
            lane.stand_at(record);
        }
        machine.stand_at_lowest();
        machine
    }

    /// Takes over what the router has made; every lane has seen everything up to the batch's end.
    ///
    /// Units that a lane has applied before the router started again are left out.
    pub fn push(&mut self, batch: Batch) {
        if batch.epoch != self.epoch {
            return;
        }
        self.queued_bytes += batch.bytes;
        self.lanes.iter_mut().for_each(|lane| lane.advance(self.routed, self.routed_db));
        self.routed = batch.routed;
        self.routed_db = batch.routed_db;
        for (lane, items) in batch.lanes.into_iter().enumerate() {
            for item in items {
                self.push_item(lane, item);
            }
        }
    }

    fn push_item(&mut self, lane: LaneId, item: Item) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        let item = match item {
            Item::Units(chunk) if state.following => {
                let done = chunk.segments.partition_point(|s| s.offset <= state.applied);
                if done == 0 {
                    Item::Units(chunk)
                } else {
                    self.queued_bytes = self.queued_bytes.saturating_sub(chunk.weight(0, done));
                    if done == chunk.segments.len() {
                        return;
                    }
                    Item::Units(Arc::new(chunk.without_first(done)))
                }
            }
            Item::Joint(joint) if state.following && joint.offset() <= state.applied => {
                if joint.lanes.iter().next() == Some(lane) {
                    self.queued_bytes =
                        self.queued_bytes.saturating_sub(joint.chunk.weight(0, joint.chunk.segments.len()));
                }
                return;
            }
            // Lanes hold no slots.
            Item::Hold(_) => return,
            item => item,
        };
        state.joints += usize::from(matches!(item, Item::Joint(_)));
        state.queue.push_back(item);
    }

    /// The lowest offset that is in the target's records for sure: what no break can take back but the target itself.
    pub fn recorded(&self) -> Option<ReplOffset> {
        self.lanes.iter().map(|l| l.recorded.filter(|_| l.following)).min().flatten()
    }

    /// Bytes that were pushed and aren't applied.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Flushes whose answers were lost, but which the records show as applied.
    pub fn replies_unseen(&self) -> u64 {
        self.replies_unseen
    }

    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// True while the target owes `lane` an answer.
    pub fn awaits_answer(&self, lane: LaneId) -> bool {
        self.lanes.get(lane).is_some_and(|l| l.flight.is_some() || l.copy.in_flight())
    }

    /// For servers before 6.0: they may refuse MULTI itself, and what follows would run bare. So it goes alone there, and
    /// the connection is closed after any transaction that fails, since nobody knows whether it still gathers one.
    pub fn set_careful(&mut self, careful: bool) {
        self.careful = careful;
    }

    /// The time that records are stamped with.
    pub fn set_time(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
    }

    /// The source's history has a new name from here on.
    pub fn set_replid(&mut self, replid: Option<crate::offset::ReplId>) {
        self.job.replid = replid;
    }

    /// Up to where every lane has applied everything; `None` while the copy isn't complete.
    pub fn applied(&self) -> Option<ReplOffset> {
        let position = |lane: &Lane| {
            let idle = lane.queue.is_empty() && lane.flight.is_none() && lane.held_by.is_none() && lane.again.is_none();
            lane.following.then(|| if idle { lane.applied.max(self.routed) } else { lane.applied })
        };
        self.lanes.iter().map(position).min().flatten()
    }

    /// True when nothing is queued or in flight.
    pub fn is_idle(&self) -> bool {
        self.lanes.iter().all(|l| l.queue.is_empty() && l.copy.is_idle() && !l.is_busy())
    }

    /// True when every lane's record says what the lane has applied.
    pub fn is_recorded(&self) -> bool {
        self.is_idle() && self.lanes.iter().all(|l| l.recorded.is_some_and(|r| r >= l.applied.max(self.routed)))
    }

    /// Appends to `out` what `lane` sends now. A task that must be done first is returned instead; after
    /// [`Standalone::task_done`] the lane sends the rest.
    pub fn send(&mut self, lane: LaneId, out: &mut Vec<u8>) -> Option<Task> {
        self.fill_copy(lane);
        let state = self.lanes.get_mut(lane)?;
        #[cfg(test)]
        {
            state.copy.hasty = !self.rules.select_awaited;
        }
        if let Some(flight) = &mut state.flight {
            flight.release(out);
        }
        let full = state.flight.is_some();
        #[cfg(test)]
        let full = full && (rule!(self, one_in_flight) || state.behind.is_some());
        if state.paused || full || state.held_by.is_some() {
            return None;
        }
        if !state.copy.is_idle() {
            state.copy.send(true, out);
            return None;
        }
        let mut flush = match state.again.take() {
            Some(flush) => flush,
            None => self.next_flush(lane)?,
        };
        if let Some(task) = flush.task.clone().filter(|_| flush.task_due) {
            flush.task_due = false;
            if rule!(self, task_holds) {
                self.hold(&flush);
            }
            let state = self.lanes.get_mut(flush.leader)?;
            state.again = Some(flush);
            state.paused = true;
            return Some(task);
        }
        self.launch(flush, out);
        None
    }

    /// The task that `lane` asked for is done.
    pub fn task_done(&mut self, lane: LaneId) {
        self.unpause(lane);
    }

    /// The time to wait after a refusal is over.
    pub fn unpause(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.paused = false;
        }
    }

    /// Has an idle lane write its record again, so that it names all that was routed, and a demoted server is noticed.
    pub fn send_record(&mut self, lane: LaneId, out: &mut Vec<u8>) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        state.advance(self.routed, self.routed_db);
        let idle = state.following && !state.is_busy() && state.queue.is_empty();
        #[cfg(test)]
        let idle = idle || self.writes_record_too_early(lane);
        if idle {
            self.launch(Flush::new(lane, LaneSet::one(lane), self.record(lane)), out);
        }
    }

    /// Takes the next answer on `lane`.
    /// # Errors
    /// When it can't be an answer to what was sent: the connection must be closed.
    pub fn answer(&mut self, lane: LaneId, scanned: Scanned<'_>) -> Result<Option<Event>, OutOfStep> {
        let state = self.lanes.get_mut(lane).ok_or(OutOfStep)?;
        let Some(flight) = &mut state.flight else {
            return self.copy_answer(lane, scanned);
        };
        let Some(outcome) = flight.answer(scanned)? else { return Ok(None) };
        let Some(flight) = state.flight.take() else { return Err(OutOfStep) };
        #[cfg(test)]
        {
            state.flight = state.behind.take();
        }
        // However a transaction ends, SELECTs in it that ran leave database 0 behind; one discarded ran none.
        if !matches!(outcome, Outcome::Refused { .. }) {
            state.copy.db = 0;
        }
        Ok(Some(match outcome {
            Outcome::Applied => {
                let lost = flight.lost_keys();
                match self.flush_applied(flight.flush) {
                    Event::Applied { commands } if !lost.is_empty() => Event::LostKeys { commands, lost },
                    event => event,
                }
            }
            #[cfg(test)]
            Outcome::AppliedBut(errors) if !rule!(self, one_transaction) => {
                let (at, words) = errors.into_iter().next().unwrap_or_default();
                self.flush_refused(flight, words, Some(at))
            }
            Outcome::AppliedBut(errors) => {
                let faults =
                    errors.into_iter().map(|(at, words)| flush_fault(&flight, at, words, true)).collect::<Vec<_>>();
                self.flush_applied(flight.flush);
                Event::Faults(faults)
            }
            Outcome::Refused { words, at } => self.flush_refused(flight, words, at),
        }))
    }

    /// What is queued can't be trusted: the next [`Standalone::reread`] starts again from the records.
    pub fn distrust(&mut self) {
        self.distrusted = true;
    }

    /// All connections to the target are gone. Nothing is sent until [`Standalone::reread`].
    pub fn broken(&mut self) {
        for lane in &mut self.lanes {
            lane.copy.broken();
            lane.paused = false;
        }
        self.drop_once();
    }

    /// After a break: goes on from what the records in the target say. `records` has one for each lane.
    ///
    /// Units at or below their lane's record are done; the rest is sent again.
    /// # Errors
    /// When a record is gone or of another lane count, or the copy has lost what was acknowledged.
    pub fn reread(&mut self, records: &[Option<Record>]) -> Result<Reread, Lost> {
        let generation = self.job.generation;
        let other = |r: &&Record| r.job.generation == generation && r.job.lanes != self.lanes.len();
        if let Some(record) = records.iter().flatten().find(other)
            && holds!("lane-count-read")
        {
            return Err(Lost::Lanes { lanes: record.job.lanes });
        }
        let found: Option<Vec<&Record>> = (0..self.lanes.len())
            .map(|lane| records.get(lane)?.as_ref().filter(|r| r.job.generation == generation))
            .collect();
        let Some(found) = found else {
            let lane = records.iter().position(|r| r.as_ref().is_none_or(|r| r.job.generation != generation));
            return Err(Lost::Record { lane: lane.unwrap_or(0) });
        };
        let fell_back = |(lane, record): (&Lane, &&Record)| {
            record.offset < lane.recorded.unwrap_or_default()
                || record.pieces < lane.pieces
                || lane.recorded.is_some() && record.phase == Phase::Copying
        };
        let fell_back = self.lanes.iter().zip(&found).any(fell_back) && rule!(self, record_falls_back);
        if std::mem::take(&mut self.distrusted) || fell_back {
            return self.rewind(&found);
        }
        for lane in 0..self.lanes.len() {
            let Some(state) = self.lanes.get_mut(lane) else { continue };
            let Some(flush) = state.flight.take().map(|f| f.flush).or_else(|| state.again.take()) else { continue };
            if found.get(flush.leader).is_some_and(|r| covers(r, &flush)) && rule!(self, record_read_back) {
                self.replies_unseen += 1;
                self.flush_applied(flush);
            } else {
                // The break may have ended the task, or the server that it was done on.
                let task_due = flush.task_due || flush.task.is_some() && rule!(self, task_again);
                state.again = Some(Flush { task_due, ..flush });
                self.drop_refused(lane);
            }
        }
        // The last bytes of an earlier process, which ran before its connection was killed, are in the records too.
        let ahead = |(lane, record): (&Lane, &&Record)| lane.following && record.offset > lane.applied;
        if self.lanes.iter().zip(&found).any(ahead) && rule!(self, record_read_back) {
            return self.rewind(&found);
        }
        Ok(Reread::Continue)
    }

    /// Drops everything and stands where the records are.
    fn rewind(&mut self, records: &[&Record]) -> Result<Reread, Lost> {
        if records.iter().any(|r| r.phase == Phase::Copying) {
            return Err(Lost::Copy);
        }
        self.epoch += 1;
        self.queued_bytes = 0;
        for (lane, record) in self.lanes.iter_mut().zip(records) {
            *lane = Lane::default();
            lane.stand_at(record);
        }
        let (offset, stream_db) = self.stand_at_lowest();
        Ok(Reread::Rewind { offset, stream_db, epoch: self.epoch })
    }

    /// Everything was routed up to the lowest record, which is returned with its database.
    fn stand_at_lowest(&mut self) -> (ReplOffset, u32) {
        let positions = self.lanes.iter().map(|l| (l.applied, l.applied_db));
        (self.routed, self.routed_db) = positions.min().unwrap_or_default();
        (self.routed, self.routed_db)
    }

    /// With a rule taken out: a lane that isn't idle writes its record all the same.
    #[cfg(test)]
    fn writes_record_too_early(&mut self, lane: LaneId) -> bool {
        let Some(state) = self.lanes.get_mut(lane).filter(|l| l.following && l.flight.is_none()) else { return false };
        if state.held_by.is_some() {
            return !self.rules.joined_writes_no_record;
        }
        if state.again.is_some() && !self.rules.record_acknowledged {
            state.applied = state.applied.max(self.routed);
            return true;
        }
        false
    }

    fn record(&self, lane: LaneId) -> Record {
        let state = self.lanes.get(lane);
        Record {
            job: self.job.clone(),
            phase: if state.is_some_and(|l| l.following) { Phase::Following } else { Phase::Copying },
            offset: state.map_or(ReplOffset(0), |l| l.applied),
            stream_db: state.map_or(0, |l| l.applied_db),
            pieces: state.map_or(0, |l| l.pieces),
            time_ms: self.now_ms,
        }
    }

    /// The record that says "the copy has begun", for `lane`.
    pub fn first_record(&self, lane: LaneId) -> Record {
        self.record(lane)
    }

    /// Moves copied values from the queue's front into the lane's window, as far as it has room.
    fn fill_copy(&mut self, lane: LaneId) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        while let Some(Item::Copy(chunk)) = state.queue.front() {
            Value::all(chunk).for_each(|value| state.copy.push(value));
            state.queue.pop_front();
        }
    }

    fn launch(&mut self, flush: Flush, out: &mut Vec<u8>) {
        for lane in flush.lanes.iter().filter_map(|l| self.lanes.get(l)) {
            let falls = lane.following && flush.record.offset < lane.applied;
            assert!(!falls, "a record doesn't fall back behind what its lane has applied");
        }
        failpoint!(match (flush.lanes.len(), flush.parts.len()) {
            (1, 0) => "record-launched",
            (1, _) => "flush-launched",
            _ => "joint-launched",
        });
        self.hold(&flush);
        let Some(leader) = self.lanes.get_mut(flush.leader) else { return };
        let db = leader.copy.db;
        let start = out.len();
        let moved = match (rule!(self, record_in_flush), rule!(self, joint_moves_all)) {
            (true, true) => flush.lanes,
            (false, _) if !flush.parts.is_empty() => LaneSet::default(),
            _ => LaneSet::one(flush.leader),
        };
        let queued = flush.encode(&self.job_name, db, moved, out);
        #[cfg(test)]
        if !rule!(self, one_transaction) {
            out.drain(start..start + b"*1\r\n$5\r\nMULTI\r\n".len());
            out.truncate(out.len() - b"*1\r\n$4\r\nEXEC\r\n".len());
            leader.flight = Some(Flight::bare(flush, db, queued));
            return;
        }
        let mut flight = Flight::new(flush, db, queued);
        if self.careful && rule!(self, multi_awaited) {
            flight.hold_back(out, start);
        }
        let flight = Some(flight);
        #[cfg(test)]
        if leader.flight.is_some() {
            leader.behind = flight;
            return;
        }
        leader.flight = flight;
    }

    /// The other lanes of a flush wait for its leader.
    fn hold(&mut self, flush: &Flush) {
        for member in flush.lanes.iter().filter(|m| *m != flush.leader) {
            if let Some(member) = self.lanes.get_mut(member) {
                member.held_by = Some(flush.leader);
            }
        }
    }

    /// Forms the next flush of `lane`, if it has one to send.
    fn next_flush(&mut self, lane: LaneId) -> Option<Flush> {
        let group = self.lanes.get(lane)?.group;
        if !group.is_empty() {
            let flush = self.joint_flush(lane, group);
            if flush.is_some() || !self.lanes.get(lane)?.group.is_empty() {
                return flush;
            }
        }
        let state = self.lanes.get_mut(lane)?;
        match state.queue.front()? {
            Item::Copy(_) | Item::Hold(_) => None,
            Item::CopyEnd { offset, stream_db } => {
                state.applied = *offset;
                state.applied_db = *stream_db;
                state.following = true;
                state.queue.pop_front();
                failpoint!("copy-end");
                Some(Flush::new(lane, LaneSet::one(lane), self.record(lane)))
            }
            Item::Pieces(chunk) => {
                let chunk = Arc::clone(chunk);
                let mut flush = Flush::new(lane, LaneSet::one(lane), self.record(lane));
                let applied = flush.record.clone();
                self.take_unit(lane, &chunk, &mut flush);
                // A piece has no place in the stream: the count of pieces is what names it.
                flush.record = Record { pieces: applied.pieces + u64::from(rule!(self, pieces_counted)), ..applied };
                Some(flush)
            }
            #[cfg(test)]
            Item::Joint(joint) if !rule!(self, joint_starts_drained) => {
                let lanes = joint.lanes;
                self.joint_flush(lane, lanes)
            }
            Item::Joint(_) => self.joint_flush(lane, LaneSet::one(lane)),
            Item::Units(_) => {
                let mut flush = Flush::new(lane, LaneSet::one(lane), self.record(lane));
                while let Some(Item::Units(chunk)) = self.lanes.get(lane)?.queue.front() {
                    let chunk = Arc::clone(chunk);
                    if self.is_full(&flush, &chunk, self.lanes.get(lane)?.taken) {
                        break;
                    }
                    self.take_unit(lane, &chunk, &mut flush);
                }
                Some(flush)
            }
        }
    }

    /// Takes the next unit of `chunk`, the front item of `lane`, into `flush`.
    fn take_unit(&mut self, lane: LaneId, chunk: &Arc<Chunk>, flush: &mut Flush) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        let from = state.taken;
        let to = chunk.unit_end(from);
        flush.add(Holder::Chunk(Arc::clone(chunk)), from, to);
        if to >= chunk.segments.len() {
            state.queue.pop_front();
            state.taken = 0;
        } else {
            state.taken = to;
        }
    }

    /// True when the unit at segment `taken` of `chunk` doesn't fit into `flush` any more.
    fn is_full(&self, flush: &Flush, chunk: &Chunk, taken: usize) -> bool {
        let Some(segment) = chunk.segments.get(taken).filter(|_| !flush.parts.is_empty()) else { return false };
        if segment.offset == flush.record.offset && rule!(self, offset_whole) {
            // Another lane's share of the same command: the record names both or none.
            return false;
        }
        let to = chunk.unit_end(taken);
        let commands: u32 = chunk.segments.get(taken..to).unwrap_or_default().iter().map(|s| s.commands).sum();
        #[cfg(not(test))]
        let most = FLUSH_COMMANDS_MAX;
        #[cfg(test)]
        let most = self.rules.flush_commands_max;
        flush.commands + commands > most || flush.bytes + chunk.weight(taken, to) > FLUSH_BYTES_MAX
    }

    fn flush_applied(&mut self, flush: Flush) -> Event {
        failpoint!(match (flush.lanes.len(), flush.parts.len()) {
            (1, 0) => "record-answered",
            (1, _) => "flush-answered",
            _ => "joint-answered",
        });
        self.settle(&flush);
        let mut joins_on = false;
        for lane in flush.lanes.iter() {
            let Some(lane) = self.lanes.get_mut(lane) else { continue };
            lane.held_by = None;
            lane.applied = flush.record.offset;
            lane.applied_db = flush.record.stream_db;
            lane.pieces = flush.record.pieces;
            if flush.record.phase == Phase::Following && (rule!(self, record_in_flush) || flush.parts.is_empty()) {
                lane.recorded = Some(flush.record.offset);
            }
            joins_on |= lane.joints > 0;
        }
        if flush.lanes.len() > 1 && !joins_on {
            self.dissolve(flush.lanes);
        }
        self.queued_bytes = self.queued_bytes.saturating_sub(flush.bytes);
        Event::Applied { commands: u64::from(flush.commands) }
    }

    fn flush_refused(&mut self, flight: Flight, words: String, at: Option<usize>) -> Event {
        let leader = flight.flush.leader;
        let kind = match refusal(&words) {
            Refusal::Elsewhere if !rule!(self, elsewhere_closes) => Refusal::Passing,
            kind => kind,
        };
        let event = match kind {
            Refusal::Passing if self.careful => Event::Elsewhere { words },
            Refusal::Passing => Event::Refused { words },
            Refusal::Elsewhere => Event::Elsewhere { words },
            Refusal::ForGood => Event::Faults(vec![flush_fault(&flight, at.unwrap_or(usize::MAX), words, false)]),
        };
        let mut flush = flight.flush;
        if kind == Refusal::ForGood
            && let Some(located) = at.and_then(|at| flush.parts.locate(at, flight.db))
        {
            // Left out is as good as applied for whoever waits for it.
            self.settle(&flush);
            flush.remove_unit(&located);
        }
        if let Some(lane) = self.lanes.get_mut(leader) {
            lane.again = Some(flush);
            lane.paused = true;
        }
        event
    }

    fn copy_answer(&mut self, lane: LaneId, scanned: Scanned<'_>) -> Result<Option<Event>, OutOfStep> {
        let state = self.lanes.get_mut(lane).ok_or(OutOfStep)?;
        Ok(match state.copy.answer(scanned)? {
            Answer::Selected => None,
            Answer::Applied { bytes } => {
                self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
                Some(Event::Copied { values: 1 })
            }
            Answer::Refused { words, refusal: Refusal::Passing, .. } => {
                state.paused = true;
                Some(Event::Refused { words })
            }
            Answer::Refused { words, .. } => Some(Event::Elsewhere { words }),
            Answer::Fault { words, what, bytes } => {
                self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
                Some(Event::Faults(what.into_iter().map(|dropped| dropped.fault(&words)).collect()))
            }
        })
    }
}

/// True when a lane's record shows that the flush was applied.
fn covers(record: &Record, flush: &Flush) -> bool {
    // Phases and pieces as well: the offset of a copying lane's record says nothing. Nor does anything tell of a task
    // in the copy, which is simply done again.
    let phase = record.phase == Phase::Following || record.phase == flush.record.phase && flush.task.is_none();
    phase && record.offset >= flush.record.offset && record.pieces >= flush.record.pieces
}

/// A command that was refused for good: the one at `at` among those of `parts`, for a connection that began with database
/// `db`. `offset`: that of the whole, where the command can't be told.
pub(super) fn fault(parts: &Parts, (at, db): (usize, u32), offset: ReplOffset, words: String, applied: bool) -> Fault {
    let located: Option<Located> = parts.locate(at, db);
    // What follows a SELECT that failed was done to another database.
    let selected = located.is_none().then(|| parts.locate(at.saturating_add(1), db)).flatten();
    let what = match (located, selected) {
        (Some(located), _) => parts.describe(&located),
        (None, Some(next)) => {
            let next = parts.describe(&next);
            Described { command: SELECT.into(), key: next.db.to_string().into_bytes(), ..next }
        }
        (None, None) => Described { command: "EXEC".into(), key: Vec::new(), db: 0, offset },
    };
    let suspects = located.or(selected).map(|l| parts.commands_from(&l, !applied)).unwrap_or_default();
    Fault { words, what, applied, suspects, copied: None }
}

/// The same of a flush.
fn flush_fault(flight: &Flight, at: usize, words: String, applied: bool) -> Fault {
    fault(&flight.flush.parts, (at, flight.db), flight.flush.record.offset, words, applied)
}
