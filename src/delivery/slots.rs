//! Delivery to a cluster: every unit in one transaction of its slot, with the slot's record; one in flight per slot, many
//! slots at a time on each connection.
//!
//! So each slot is what a lane is on a standalone target, with the same proof. What concerns all slots (a flush, functions)
//! is a barrier: everything before it is applied, then its task is done, then what is behind it goes on. After a loss it is
//! done again for the slots below it.

mod conn;
mod found;
mod queue;
pub mod record;
mod settle;
mod tend;

use std::collections::VecDeque;
use std::sync::Arc;

use super::copy::Value;
use super::record::{JobState, Phase};
use super::rules::rule;
use super::standalone::Fault;
use super::unit::{Batch, Chunk, Item, Joint, Task};
use crate::offset::{ReplId, ReplOffset};
use crate::slot::{SLOTS, Slot, Slots};
use conn::Connection;
use queue::{List, Mark, Queue};
use record::History;

pub use found::{Found, Position, position};

/// A server that is or was attached, by its place.
pub type NodeId = usize;

/// A connection, by its place: those of a server stand in a row.
pub type ConnId = usize;

/// Units taken from the router and not yet applied: some for each slot, where the target is what limits. Then a transaction
/// has several of them, and what goes with each (MULTI, its record, EXEC) costs the target less than they do.
const UNITS_MAX: usize = 64 * 1024;

/// Bytes taken from the router and not yet applied. A slot on the move holds whole chunks.
const QUEUED_BYTES_MAX: usize = 32 << 20;

/// No server: the slot's home isn't known.
const NOWHERE: u16 = u16::MAX;

/// What an answer of the target led to.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// So many values of the copy were applied.
    Copied { values: u64 },
    /// So many commands of the stream were applied.
    Applied { commands: u64 },
    /// The connection waits until [`Cluster::unpause`]; it then sends the same again.
    Refused { words: String },
    /// The slot waits by itself for a while, and then sends the same again.
    Held { words: String },
    /// The slot isn't there any more: it waits for [`Cluster::settle`].
    Moved,
    /// The node's connections must be closed: the server may be another one now.
    Elsewhere { words: String },
    /// Applied, but these commands, each with its target database, found no key where the source had one.
    LostKeys { commands: u64, lost: Vec<(u32, Vec<u8>)> },
    /// Commands that the target will never take. The slot, if there is one, waits for [`Cluster::go_on`].
    Faults { slot: Option<u16>, faults: Vec<Fault> },
}

/// What a slot is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing is to be sent.
    Resting,
    /// It stands in its connection's list.
    Ready,
    Flying,
    /// It is on the move: waits for a while.
    Held,
    /// A command was refused for good: waits for [`Cluster::go_on`].
    Stopped,
    /// Its record must be read before it goes on.
    Away,
}

#[derive(Debug, Clone, Copy)]
struct State {
    list: List,
    /// Units sent and not answered, the first of the list.
    sent: u32,
    applied_db: u32,
    /// Its last acknowledged unit, or where its record and floors said that it stands.
    applied: ReplOffset,
    /// What its own record is known to say.
    own: ReplOffset,
    /// Pieces of large values applied in this copy.
    pieces: u32,
    home: u16,
    stage: Stage,
    /// How often it was held in a row.
    holds: u8,
    /// Its record must be written, saying that the copy is complete.
    record_due: bool,
    /// Its record is to be written again, so that it isn't old.
    refresh: bool,
    /// A record was acknowledged that names a place in the stream.
    recorded: bool,
    /// A value of it was answered by MOVED.
    moved: bool,
}

impl State {
    const NEW: State = State {
        list: List::NEW,
        sent: 0,
        applied_db: 0,
        applied: ReplOffset(0),
        own: ReplOffset(0),
        pieces: 0,
        home: NOWHERE,
        stage: Stage::Away,
        holds: 0,
        record_due: false,
        refresh: false,
        recorded: false,
        moved: false,
    };

    fn has_work(&self) -> bool {
        !self.list.is_empty() || self.record_due || self.refresh
    }
}

/// A server and what stands on it.
#[derive(Debug)]
struct Server {
    /// Its run id and the name of its history: after a failover there is another.
    identity: String,
    attached: bool,
    /// Counts the slots that came to it.
    arrivals: u64,
    /// The offset of its last acknowledged floor, and the arrivals that it names.
    floor: Option<(ReplOffset, u64)>,
    floor_in_flight: bool,
}

/// What waits for a barrier.
#[derive(Debug)]
enum Pending {
    Item(Item),
    /// The end of a batch.
    Mark(Mark),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Barrier {
    /// None has been reached.
    Clear,
    /// The one in front is to be carried out.
    Due,
    Running,
    Done,
}

/// The slots of one cluster, as far as one shard of the source feeds them, and what is on its way to them.
#[derive(Debug)]
pub struct Cluster {
    job: JobState,
    history: Option<History>,
    feeds: Slots,
    names: record::Names,
    /// Connections to each server.
    lanes: usize,
    slots: Vec<State>,
    servers: Vec<Server>,
    conns: Vec<Connection>,
    queue: Queue,
    pending: VecDeque<Pending>,
    barrier: Barrier,
    /// Copied values whose slot has no home now.
    homeless: Vec<Value>,
    /// When held slots may go on, in Unix milliseconds.
    held: Vec<(i64, u16)>,
    /// Copied values that aren't applied, and their bytes.
    values: usize,
    copy_bytes: usize,
    /// Transactions in flight.
    flying: usize,
    /// Slots that wait to be settled.
    away: usize,
    /// The copy was handed over whole.
    following: bool,
    copy_end: u32,
    /// Everything up to here was given to the slots, and every barrier up to here is done.
    level: Mark,
    /// Everything up to here is applied, in every slot.
    acked: Option<Mark>,
    /// The last barrier that was done.
    barrier_done: ReplOffset,
    recorded: Option<ReplOffset>,
    next_refresh: u16,
    now_ms: i64,
    epoch: u64,
    replies_unseen: u64,
    distrusted: bool,
    careful: bool,
    scratch: Vec<u8>,
    #[cfg(test)]
    pub(crate) rules: super::rules::SlotRules,
}

impl Cluster {
    /// A target that holds nothing of this full sync yet.
    ///
    /// `feeds`: the slots that the shard writes; `lanes`: connections to each server.
    pub fn new(job_name: &str, job: JobState, feeds: Slots, lanes: usize) -> Self {
        let mut slots = vec![State::NEW; usize::from(SLOTS)];
        let others = Slot::all().filter(|slot| !feeds.contains(*slot));
        others.for_each(|slot| {
            if let Some(state) = slots.get_mut(slot.index()) {
                state.stage = Stage::Resting
            }
        });
        Cluster {
            history: job.replid.as_ref().and_then(History::of),
            names: record::Names::new(job_name, job.shard),
            job,
            lanes: lanes.max(1),
            slots,
            servers: Vec::new(),
            conns: Vec::new(),
            queue: Queue::default(),
            pending: VecDeque::new(),
            barrier: Barrier::Clear,
            homeless: Vec::new(),
            held: Vec::new(),
            values: 0,
            copy_bytes: 0,
            flying: 0,
            away: feeds.len(),
            feeds,
            following: false,
            copy_end: 0,
            level: Mark::default(),
            acked: None,
            barrier_done: ReplOffset(0),
            recorded: None,
            next_refresh: 0,
            now_ms: 0,
            epoch: 0,
            replies_unseen: 0,
            distrusted: false,
            careful: false,
            scratch: Vec::new(),
            #[cfg(test)]
            rules: super::rules::SlotRules::default(),
        }
    }

    /// A target that an earlier process has left, with the position of every slot that is fed. The router starts behind
    /// the lowest.
    pub fn resume(
        job_name: &str,
        job: JobState,
        positions: impl IntoIterator<Item = (Slot, Position)>,
        lanes: usize,
    ) -> Self {
        let positions: Vec<(Slot, Position)> = positions.into_iter().collect();
        let feeds = positions.iter().map(|(slot, _)| *slot).collect();
        let mut machine = Cluster::new(job_name, job, feeds, lanes);
        machine.following = true;
        let mut lowest: Option<Mark> = None;
        for (slot, position) in positions {
            let Some(state) = machine.slots.get_mut(slot.index()) else { continue };
            (state.applied, state.applied_db, state.recorded) = (position.offset, position.stream_db, true);
            let mark = (position.offset, position.stream_db);
            lowest = Some(lowest.map_or(mark, |lowest| lowest.min(mark)));
        }
        machine.level = lowest.unwrap_or_default();
        machine.acked = Some(machine.level);
        machine.recorded = Some(machine.level.0);
        machine
    }

    /// Takes over what the router has made, in the order of the stream.
    ///
    /// Units that a slot has applied before the router started again are left out.
    pub fn push(&mut self, batch: Batch) {
        if batch.epoch != self.epoch {
            return;
        }
        self.pending.extend(batch.lanes.into_iter().flatten().map(Pending::Item));
        self.pending.push_back(Pending::Mark((batch.routed, batch.routed_db)));
        self.distribute();
    }

    /// Gives to the slots what no barrier holds back.
    fn distribute(&mut self) {
        while let Some(next) = self.pending.front() {
            match next {
                Pending::Mark(mark) => {
                    if self.following {
                        self.level = *mark;
                        self.queue.mark(*mark, 0);
                    }
                }
                Pending::Item(Item::Units(chunk)) => {
                    let chunk = Arc::clone(chunk);
                    self.append(&chunk, false);
                }
                Pending::Item(Item::Pieces(chunk)) => {
                    let chunk = Arc::clone(chunk);
                    self.append(&chunk, true);
                }
                Pending::Item(Item::Copy(chunk)) => {
                    let chunk = Arc::clone(chunk);
                    self.copy_bytes += chunk.bytes.len();
                    Value::all(&chunk).for_each(|value| self.push_value(value));
                }
                Pending::Item(Item::CopyEnd { offset, stream_db }) => {
                    let mark = (*offset, *stream_db);
                    if !self.is_drained() {
                        return;
                    }
                    self.end_copy(mark);
                }
                Pending::Item(Item::Joint(joint)) => {
                    let joint = Arc::clone(joint);
                    if !self.pass(&joint) {
                        return;
                    }
                }
            }
            self.pending.pop_front();
        }
        self.reach();
    }

    /// True if the barrier in front is done, and what belongs to it is given to the slots.
    fn pass(&mut self, joint: &Joint) -> bool {
        let drained = self.is_drained() || !rule!(self, barrier_drains);
        match self.barrier {
            Barrier::Clear if drained => self.barrier = Barrier::Due,
            Barrier::Done => {
                self.barrier = Barrier::Clear;
                let chunk = Arc::new(joint.chunk.clone());
                self.append(&chunk, false);
                let mark = chunk.segments.last().map_or(self.level, |last| (last.offset, last.stream_db));
                if self.following {
                    self.level = mark;
                    self.barrier_done = mark.0;
                    self.queue.mark(mark, 0);
                }
                return true;
            }
            Barrier::Clear | Barrier::Due | Barrier::Running => {}
        }
        false
    }

    fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.values == 0 && self.flying == 0
    }

    /// The snapshot is in the target: from here on every slot's record names a place in the stream.
    fn end_copy(&mut self, mark: Mark) {
        failpoint!("copy-end");
        self.following = true;
        self.level = mark;
        let mut count = 0;
        for slot in self.feeds.iter() {
            let Some(state) = self.slots.get_mut(slot.index()) else { continue };
            (state.applied, state.applied_db, state.record_due) = (mark.0, mark.1, true);
            count += 1;
        }
        self.copy_end = self.queue.mark(mark, count);
        (0..SLOTS).for_each(|slot| self.rouse(slot));
    }

    fn append(&mut self, chunk: &Arc<Chunk>, pieces: bool) {
        self.queue.open(chunk, pieces);
        let mut from = 0;
        while let Some(segment) = chunk.segments.get(from) {
            let state = self.slots.get_mut(usize::from(segment.slot));
            if let Some(state) = state.filter(|s| segment.commands > 0 && (pieces || segment.offset > s.applied)) {
                self.queue.append(&mut state.list, from);
                if state.stage == Stage::Resting {
                    self.rouse(segment.slot);
                }
            }
            from = if segment.last { from + 1 } else { chunk.unit_end(from) };
        }
        self.queue.close();
    }

    fn push_value(&mut self, value: Value) {
        self.values += 1;
        self.house(value);
    }

    /// Gives a value to the connection of its slot.
    fn house(&mut self, value: Value) {
        let slot = value.slot();
        let state = self.slots.get(usize::from(slot)).filter(|s| !matches!(s.stage, Stage::Away | Stage::Held));
        match state.filter(|s| !s.moved).map(|s| s.home) {
            Some(home) => {
                let conn = self.conn_of(home, slot);
                match self.conns.get_mut(conn) {
                    Some(conn) => conn.copy.push(value),
                    None => self.homeless.push(value),
                }
            }
            None => self.homeless.push(value),
        }
    }

    fn conn_of(&self, home: u16, slot: u16) -> ConnId {
        usize::from(home) * self.lanes + usize::from(slot) % self.lanes
    }

    /// Puts a resting slot on its connection's list if it has something to send.
    fn rouse(&mut self, slot: u16) {
        let Some(state) = self.slots.get_mut(usize::from(slot)) else { return };
        if state.stage != Stage::Resting || !state.has_work() {
            return;
        }
        state.stage = Stage::Ready;
        let home = state.home;
        let conn = self.conn_of(home, slot);
        if let Some(conn) = self.conns.get_mut(conn) {
            conn.ready.push_back(slot);
        }
    }

    /// Looks how far everything is applied.
    fn reach(&mut self) {
        if let Some(mark) = self.queue.reached() {
            self.acked = Some(mark);
        }
    }

    /// What must be done now in the whole target, with nothing in flight; [`Cluster::task_done`] says that it was. It
    /// concerns the slots for which [`Cluster::is_below`] the offset holds.
    pub fn task(&mut self) -> Option<(Task, ReplOffset)> {
        let Some(Pending::Item(Item::Joint(joint))) = self.pending.front() else { return None };
        if self.barrier != Barrier::Due || self.away > 0 {
            return None;
        }
        self.barrier = Barrier::Running;
        match &joint.task {
            Some(task) => Some((task.clone(), joint.offset())),
            None => {
                self.task_done();
                None
            }
        }
    }

    pub fn task_done(&mut self) {
        self.barrier = Barrier::Done;
        self.distribute();
    }

    /// True if a slot has not passed the place of a barrier.
    pub fn is_below(&self, slot: Slot, offset: ReplOffset) -> bool {
        let state = self.slots.get(slot.index());
        state.is_some_and(|s| !self.following || s.applied < offset) && self.feeds.contains(slot)
    }

    /// The offset behind which each slot's units are to be applied.
    pub fn positions(&self) -> Vec<ReplOffset> {
        self.slots.iter().map(|state| state.applied).collect()
    }

    /// True when nothing more should be pushed for now.
    pub fn is_full(&self) -> bool {
        // Little more of the copy than can be in flight: the rest would have left the processor's cache when it's sent.
        let open = self.conns.iter().filter(|conn| conn.open).count().max(1);
        let copy_max = open * (conn::WINDOW_BYTES + conn::WINDOW_BYTES / 3);
        self.queue.left() >= UNITS_MAX || self.copy_bytes >= copy_max || self.queued_bytes() >= QUEUED_BYTES_MAX
    }

    /// Bytes that were pushed and aren't applied; a unit that waits long holds its whole chunk.
    pub fn queued_bytes(&self) -> usize {
        let pending = self.pending.iter().map(|pending| match pending {
            Pending::Item(Item::Copy(chunk) | Item::Pieces(chunk) | Item::Units(chunk)) => chunk.bytes.len(),
            Pending::Item(Item::Joint(joint)) => joint.chunk.bytes.len(),
            Pending::Item(Item::CopyEnd { .. }) | Pending::Mark(_) => 0,
        });
        pending.sum::<usize>() + self.queue.bytes() + self.copy_bytes
    }

    /// Flushes whose answers were lost, but which the records show as applied.
    pub fn replies_unseen(&self) -> u64 {
        self.replies_unseen
    }

    /// For servers before 6.0, see `Standalone::set_careful`: one transaction at a time on each connection.
    pub fn set_careful(&mut self, careful: bool) {
        self.careful = careful;
    }

    /// The time now, Unix milliseconds.
    pub fn set_time(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
    }

    /// The source's history has a new name from here on.
    pub fn set_replid(&mut self, replid: Option<ReplId>) {
        self.job.replid = replid;
        self.history = replid.as_ref().and_then(History::of);
    }

    /// What is queued can't be trusted: the next [`Cluster::settle`], of all slots, starts again from the records.
    pub fn distrust(&mut self) {
        self.distrusted = true;
    }

    /// Up to where everything is applied; `None` while the copy isn't complete.
    pub fn applied(&self) -> Option<ReplOffset> {
        self.acked.map(|(offset, _)| offset)
    }

    /// The lowest offset that is in the target's records: what no break can take back but the target itself.
    pub fn recorded(&self) -> Option<ReplOffset> {
        self.recorded
    }

    /// True when nothing is queued or in flight.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.is_drained()
    }

    /// True when the records say that everything is applied.
    pub fn is_recorded(&self) -> bool {
        self.is_idle() && self.following && self.recorded.is_some_and(|recorded| recorded >= self.level.0)
    }

    /// The record of a slot as it is known here: before anything was written, "the copy has begun".
    pub fn record(&self, slot: Slot) -> record::SlotRecord {
        let state = self.slots.get(slot.index()).copied().unwrap_or(State::NEW);
        record::SlotRecord {
            shard: self.job.shard,
            generation: self.job.generation,
            phase: if self.following { Phase::Following } else { Phase::Copying },
            offset: state.applied,
            stream_db: state.applied_db,
            pieces: state.pieces,
            history: self.history,
        }
    }

    /// What says on every primary that a copy has begun, and what kind of job it is.
    pub fn first_floor(&self) -> record::Floor {
        let (job, offset) = (self.job.clone(), ReplOffset(0));
        let record =
            super::record::Record { job, phase: Phase::Copying, offset, stream_db: 0, pieces: 0, time_ms: self.now_ms };
        record::Floor { record, slots: Slots::default(), home: String::new() }
    }

    /// The task couldn't be done: it is due again.
    pub fn task_failed(&mut self) {
        if self.barrier == Barrier::Running {
            self.barrier = Barrier::Due;
        }
    }

    /// Which of the source's shards this is.
    pub fn shard(&self) -> u32 {
        self.job.shard
    }

    /// The slots that are fed.
    pub fn feeds(&self) -> &Slots {
        &self.feeds
    }
}
