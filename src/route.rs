//! Routing: which lane a unit goes to, and the batches in which lanes get them.

use std::sync::Arc;

use crate::delivery::unit::{Batch, Beside, Chunk, Hold, Item, Joint, LaneId, LaneSet, Segment, Task};
use crate::offset::ReplOffset;
use crate::resp::encode;
use crate::slot::Slot;

/// Where a command goes: to lanes of a standalone target, or to a slot of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    lanes: LaneSet,
    slot: u16,
}

impl From<LaneSet> for Place {
    fn from(lanes: LaneSet) -> Place {
        Place { lanes, slot: 0 }
    }
}

impl Place {
    /// The place of keys of both; on a standalone target only.
    pub fn with(self, other: Place) -> Place {
        Place { lanes: self.lanes.with(other.lanes), slot: self.slot }
    }

    /// True if it is more than one lane.
    pub fn is_several(&self) -> bool {
        self.lanes.len() > 1
    }

    /// Its lanes, as [`Router::single`] takes them; none of a place of no key.
    pub fn lanes(&self) -> impl Iterator<Item = LaneId> {
        self.lanes.iter()
    }
}

/// Commands of one unit that go to one target database, and to one slot of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    db: u32,
    slot: u16,
    commands: u32,
    /// Where its bytes are.
    start: usize,
    end: usize,
}

/// One unit while it is put together.
#[derive(Debug, Default)]
pub struct UnitBuilder {
    bytes: Vec<u8>,
    runs: Vec<Run>,
    lanes: LaneSet,
    task: Option<Task>,
    /// Bytes of large arguments that its commands have stand-ins for.
    outside: usize,
}

impl UnitBuilder {
    /// Adds a command for target database `db`, which goes to `place`.
    pub fn command(&mut self, db: u32, place: Place, raw: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(raw);
        self.lanes = self.lanes.with(place.lanes);
        match self.runs.last_mut() {
            Some(run) if run.db == db && run.slot == place.slot => {
                run.commands += 1;
                run.end = self.bytes.len();
            }
            _ => self.runs.push(Run { db, slot: place.slot, commands: 1, start, end: self.bytes.len() }),
        }
    }

    /// Says that the command which comes has stand-ins for so many bytes.
    pub fn add_outside(&mut self, bytes: usize) {
        self.outside += bytes;
    }

    /// Adds work that plain commands can't do; it concerns all of `place`. It is done before the unit's commands.
    pub fn task(&mut self, task: Task, place: Place) {
        self.task = Some(match self.task.take() {
            Some(first) => first.then(task),
            None => task,
        });
        self.lanes = self.lanes.with(place.lanes);
    }

    /// Its commands and how many they are, to be sent by themselves: they begin and end in database 0. It is emptied.
    pub fn take_commands(&mut self) -> (Vec<u8>, u32) {
        let (mut out, mut count, mut db) = (Vec::with_capacity(self.bytes.len()), 0, 0);
        let mut select = |to: u32, out: &mut Vec<u8>| {
            if std::mem::replace(&mut db, to) != to {
                encode::command(out, &[&b"SELECT"[..], to.to_string().as_bytes()]);
                return 1;
            }
            0
        };
        for run in &self.runs {
            count += select(run.db, &mut out) + run.commands;
            out.extend_from_slice(self.bytes.get(run.start..run.end).unwrap_or_default());
        }
        count += select(0, &mut out);
        self.clear();
        (out, count)
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.task.is_none()
    }

    /// True if commands of several slots are in it.
    pub fn is_over_slots(&self) -> bool {
        self.runs.windows(2).any(|pair| matches!(pair, [a, b] if a.slot != b.slot))
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.runs.clear();
        self.lanes = LaneSet::default();
        self.task = None;
        self.outside = 0;
    }

    /// Drops the commands, but not what is to be done before them.
    pub fn clear_commands(&mut self) {
        let (task, lanes) = (self.task.take(), self.lanes);
        self.clear();
        if task.is_some() {
            (self.task, self.lanes) = (task, lanes);
        }
    }

    /// Appends the unit: of a cluster one for each slot, since no transaction can span two.
    fn append_to(&mut self, chunk: &mut Chunk, stream_db: u32, offset: ReplOffset) {
        if self.is_over_slots() {
            self.runs.sort_by_key(|run| run.slot);
        }
        for (i, run) in self.runs.iter().enumerate() {
            chunk.bytes.extend_from_slice(self.bytes.get(run.start..run.end).unwrap_or_default());
            chunk.segments.push(Segment {
                end: chunk.bytes.len() as u32,
                commands: run.commands,
                db: run.db,
                stream_db,
                offset,
                slot: run.slot,
                last: self.runs.get(i + 1).is_none_or(|next| next.slot != run.slot),
            });
        }
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

/// Gathers what the lanes get, in the order of the stream; or, for a cluster, what all slots get.
#[derive(Debug)]
pub struct Router {
    lanes: Vec<LaneBuffer>,
    by_slot: bool,
    bytes: usize,
}

impl Router {
    pub fn new(lanes: usize) -> Self {
        Router { lanes: (0..lanes).map(|_| LaneBuffer::default()).collect(), by_slot: false, bytes: 0 }
    }

    /// For a cluster: one queue, in which every unit names its slot.
    pub fn by_slot() -> Self {
        Router { by_slot: true, ..Router::new(1) }
    }

    /// The same with nothing gathered.
    pub fn anew(&self) -> Self {
        Router { by_slot: self.by_slot, ..Router::new(self.lanes.len()) }
    }

    pub fn is_by_slot(&self) -> bool {
        self.by_slot
    }

    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The lane of a key; for a cluster its slot. By the slot and not the database, which SWAPDB and MOVE change.
    pub fn lane_of(&self, key: &[u8]) -> LaneId {
        self.lane_of_slot(Slot::of(key))
    }

    /// The lane of a slot's keys; for a cluster the slot.
    pub fn lane_of_slot(&self, slot: Slot) -> LaneId {
        if self.by_slot { slot.index() } else { slot.index() % self.lanes.len() }
    }

    /// The place of a key.
    pub fn place_of(&self, key: &[u8]) -> Place {
        self.place(self.lane_of(key))
    }

    /// The place of a lane, or of a slot.
    pub fn place(&self, lane: LaneId) -> Place {
        match self.by_slot {
            true => Place { lanes: LaneSet::one(0), slot: lane as u16 },
            false => LaneSet::one(lane).into(),
        }
    }

    /// The place of what concerns everything.
    pub fn everywhere(&self) -> Place {
        LaneSet::all(self.lanes.len()).into()
    }

    /// What gathers for a lane or slot, and the slot that its segments name.
    fn buffer(&mut self, lane: LaneId) -> Option<(&mut LaneBuffer, u16)> {
        match self.by_slot {
            true => self.lanes.first_mut().map(|buffer| (buffer, lane as u16)),
            false => self.lanes.get_mut(lane).map(|buffer| (buffer, 0)),
        }
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
        let Some((buffer, slot)) = self.buffer(lane) else { return };
        let chunk = buffer.open(kind);
        let before = chunk.bytes.len();
        write(&mut chunk.bytes);
        let (end, offset, added) = (chunk.bytes.len() as u32, ReplOffset(0), chunk.bytes.len() - before);
        chunk.segments.push(Segment { end, commands, db, stream_db: 0, offset, slot, last: true });
        self.bytes += added;
    }

    /// Adds what was put together as something beside the stream, and empties the builder: it goes alone, exactly once,
    /// behind what the lane was given before.
    pub fn beside(&mut self, lane: LaneId, unit: &mut UnitBuilder, beside: Beside) {
        if let Some(buffer) = self.lanes.get_mut(lane) {
            buffer.close();
            let mut chunk = Chunk { beside: Some(beside), ..Chunk::default() };
            unit.append_to(&mut chunk, 0, ReplOffset(0));
            self.bytes += chunk.bytes.len();
            buffer.items.push(Item::Pieces(Arc::new(chunk)));
        }
        unit.clear();
    }

    /// A slot of a cluster comes to these lanes or leaves them.
    pub fn hold(&mut self, hold: Hold) {
        if let Some(buffer) = self.lanes.first_mut() {
            buffer.close();
            buffer.items.push(Item::Hold(hold));
        }
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
        let Some((buffer, slot)) = self.buffer(lane) else { return };
        let chunk = buffer.open(Kind::Units);
        chunk.bytes.extend_from_slice(raw);
        let end = chunk.bytes.len() as u32;
        chunk.segments.push(Segment { end, commands: 1, db, stream_db, offset, slot, last: true });
        self.bytes += raw.len();
    }

    /// Adds the unit that was put together, and empties the builder.
    pub fn unit(&mut self, unit: &mut UnitBuilder, stream_db: u32, offset: ReplOffset) {
        self.bytes += unit.bytes.len() + unit.outside;
        let mut members = unit.lanes.iter();
        match (members.next(), members.next(), &unit.task) {
            (None, ..) => assert!(unit.is_empty(), "a unit has lanes"),
            (Some(lane), None, None) => {
                if let Some(buffer) = self.lanes.get_mut(lane) {
                    // Large ones are weighed each for itself.
                    if unit.outside > 0 {
                        buffer.close();
                    }
                    let chunk = buffer.open(Kind::Units);
                    unit.append_to(chunk, stream_db, offset);
                    chunk.outside = unit.outside;
                    if unit.outside > 0 {
                        buffer.close();
                    }
                }
            }
            _ => self.joint(unit, stream_db, offset),
        }
        unit.clear();
    }

    fn joint(&mut self, unit: &mut UnitBuilder, stream_db: u32, offset: ReplOffset) {
        let mut chunk = Chunk { outside: unit.outside, ..Chunk::default() };
        unit.append_to(&mut chunk, stream_db, offset);
        if chunk.segments.is_empty() {
            // A task alone: its records must name the unit all the same.
            chunk.segments.push(Segment { end: 0, commands: 0, db: 0, stream_db, offset, slot: 0, last: true });
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
