//! Routing: which lane a unit goes to, and the batches in which lanes get them.

use std::sync::Arc;

use crate::delivery::unit::{Batch, Chunk, Item, Joint, LaneId, LaneSet, Segment, Task};
use crate::offset::ReplOffset;
use crate::slot::Slot;

/// Commands of one unit that go to one target database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    db: u32,
    commands: u32,
    /// Where its bytes end.
    end: usize,
}

/// One unit while it is put together.
#[derive(Debug, Default)]
pub struct UnitBuilder {
    bytes: Vec<u8>,
    runs: Vec<Run>,
    lanes: LaneSet,
    task: Option<Task>,
}

impl UnitBuilder {
    /// Adds a command for target database `db`, whose keys are of `lanes`.
    pub fn command(&mut self, db: u32, lanes: LaneSet, raw: &[u8]) {
        self.bytes.extend_from_slice(raw);
        self.lanes = self.lanes.with(lanes);
        match self.runs.last_mut() {
            Some(run) if run.db == db => {
                run.commands += 1;
                run.end = self.bytes.len();
            }
            _ => self.runs.push(Run { db, commands: 1, end: self.bytes.len() }),
        }
    }

    /// Adds work that plain commands can't do; it concerns all lanes of `lanes`.
    pub fn task(&mut self, task: Task, lanes: LaneSet) {
        self.task = Some(task);
        self.lanes = self.lanes.with(lanes);
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.task.is_none()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.runs.clear();
        self.lanes = LaneSet::default();
        self.task = None;
    }

    fn append_to(&self, chunk: &mut Chunk, stream_db: u32, offset: ReplOffset) {
        let base = chunk.bytes.len();
        chunk.bytes.extend_from_slice(&self.bytes);
        let last = self.runs.len().saturating_sub(1);
        chunk.segments.extend(self.runs.iter().enumerate().map(|(i, run)| Segment {
            end: (base + run.end) as u32,
            commands: run.commands,
            db: run.db,
            stream_db,
            offset,
            last: i == last,
        }));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Copy,
    Pieces,
    Units,
}

#[derive(Debug, Default)]
struct LaneBuffer {
    items: Vec<Item>,
    open: Chunk,
    kind: Option<Kind>,
}

impl LaneBuffer {
    /// The chunk that takes things of this kind.
    fn open(&mut self, kind: Kind) -> &mut Chunk {
        if self.kind != Some(kind) {
            self.close();
            self.kind = Some(kind);
        }
        &mut self.open
    }

    fn close(&mut self) {
        let chunk = std::mem::take(&mut self.open);
        if let Some(kind) = self.kind.take()
            && !chunk.segments.is_empty()
        {
            let chunk = Arc::new(chunk);
            self.items.push(match kind {
                Kind::Copy => Item::Copy(chunk),
                Kind::Pieces => Item::Pieces(chunk),
                Kind::Units => Item::Units(chunk),
            });
        }
    }
}

/// Gathers what the lanes get, in the order of the stream.
#[derive(Debug)]
pub struct Router {
    lanes: Vec<LaneBuffer>,
    bytes: usize,
}

impl Router {
    pub fn new(lanes: usize) -> Self {
        Router { lanes: (0..lanes).map(|_| LaneBuffer::default()).collect(), bytes: 0 }
    }

    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The lane of a key. By its slot and not its database, which SWAPDB and MOVE change.
    pub fn lane_of(&self, key: &[u8]) -> LaneId {
        usize::from(Slot::of(key).number()) % self.lanes.len()
    }

    pub fn all_lanes(&self) -> LaneSet {
        LaneSet::all(self.lanes.len())
    }

    /// Bytes gathered since the last [`Router::take`].
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a copied value: `write` appends one command that replaces the whole key.
    pub fn copy(&mut self, lane: LaneId, db: u32, write: impl FnOnce(&mut Vec<u8>)) {
        self.one(lane, Kind::Copy, (db, 1), write);
    }

    /// Adds a piece of a large value: `commands` commands that go together, behind those of the piece before.
    pub fn piece(&mut self, lane: LaneId, db: u32, commands: u32, write: impl FnOnce(&mut Vec<u8>)) {
        self.one(lane, Kind::Pieces, (db, commands), write);
    }

    fn one(&mut self, lane: LaneId, kind: Kind, (db, commands): (u32, u32), write: impl FnOnce(&mut Vec<u8>)) {
        let Some(buffer) = self.lanes.get_mut(lane) else { return };
        let chunk = buffer.open(kind);
        let before = chunk.bytes.len();
        write(&mut chunk.bytes);
        self.bytes += chunk.bytes.len() - before;
        let (end, offset) = (chunk.bytes.len() as u32, ReplOffset(0));
        chunk.segments.push(Segment { end, commands, db, stream_db: 0, offset, last: true });
    }

    /// The snapshot is complete.
    pub fn copy_end(&mut self, offset: ReplOffset, stream_db: u32) {
        for lane in &mut self.lanes {
            lane.close();
            lane.items.push(Item::CopyEnd { offset, stream_db });
        }
    }

    /// Adds a unit of a single command on a single lane: what nearly every unit is.
    pub fn single(&mut self, lane: LaneId, db: u32, stream_db: u32, offset: ReplOffset, raw: &[u8]) {
        let Some(buffer) = self.lanes.get_mut(lane) else { return };
        let chunk = buffer.open(Kind::Units);
        chunk.bytes.extend_from_slice(raw);
        let end = chunk.bytes.len() as u32;
        chunk.segments.push(Segment { end, commands: 1, db, stream_db, offset, last: true });
        self.bytes += raw.len();
    }

    /// Adds the unit that was put together, and empties the builder.
    pub fn unit(&mut self, unit: &mut UnitBuilder, stream_db: u32, offset: ReplOffset) {
        self.bytes += unit.bytes.len();
        let mut members = unit.lanes.iter();
        match (members.next(), members.next(), &unit.task) {
            (None, ..) => assert!(unit.is_empty(), "a unit has lanes"),
            (Some(lane), None, None) => {
                if let Some(buffer) = self.lanes.get_mut(lane) {
                    unit.append_to(buffer.open(Kind::Units), stream_db, offset);
                }
            }
            _ => self.joint(unit, stream_db, offset),
        }
        unit.clear();
    }

    fn joint(&mut self, unit: &mut UnitBuilder, stream_db: u32, offset: ReplOffset) {
        let mut chunk = Chunk::default();
        unit.append_to(&mut chunk, stream_db, offset);
        if chunk.segments.is_empty() {
            // A task alone: its records must name the unit all the same.
            chunk.segments.push(Segment { end: 0, commands: 0, db: 0, stream_db, offset, last: true });
        }
        let joint = Arc::new(Joint { lanes: unit.lanes, chunk, task: unit.task.take() });
        for lane in unit.lanes.iter() {
            if let Some(buffer) = self.lanes.get_mut(lane) {
                buffer.close();
                buffer.items.push(Item::Joint(Arc::clone(&joint)));
            }
        }
    }

    /// Everything gathered, with all that was seen up to `routed`.
    pub fn take(&mut self, routed: ReplOffset, routed_db: u32) -> Batch {
        let lanes = self.lanes.iter_mut().map(|lane| {
            lane.close();
            std::mem::take(&mut lane.items)
        });
        Batch { epoch: 0, lanes: lanes.collect(), routed, routed_db, bytes: std::mem::take(&mut self.bytes) }
    }
}
