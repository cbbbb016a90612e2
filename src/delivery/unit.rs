//! Units on their way to a lane: RESP bytes ready to be sent, cut into segments.

use std::sync::Arc;

use super::motion::Ticket;
use crate::offset::ReplOffset;
use crate::slot::{Slot, Slots};

/// A lane of one target: an index below [`LANES_MAX`].
pub type LaneId = usize;

/// Most lanes of a target, so that a set of them fits in a [`LaneSet`].
pub const LANES_MAX: usize = 64;

/// A set of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneSet(u64);

impl LaneSet {
    pub fn all(lanes: usize) -> Self {
        LaneSet(if lanes >= 64 { u64::MAX } else { (1 << lanes) - 1 })
    }

    pub fn one(lane: LaneId) -> Self {
        LaneSet(1 << lane)
    }

    pub fn with(self, other: LaneSet) -> Self {
        LaneSet(self.0 | other.0)
    }

    pub fn has(self, lane: LaneId) -> bool {
        self.0 >> lane & 1 == 1
    }

    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Lanes of this set that `other` lacks.
    pub fn without(self, other: LaneSet) -> Self {
        LaneSet(self.0 & !other.0)
    }

    /// The lanes, in order.
    pub fn iter(self) -> impl Iterator<Item = LaneId> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let lane = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                lane
            })
        })
    }
}

/// Commands of one unit that go to one target database; a unit is one segment or several in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where its bytes end in the chunk; they begin where the segment before it ends.
    pub end: u32,
    pub commands: u32,
    /// The target's database.
    pub db: u32,
    /// The database selected in the source's stream behind this unit.
    pub stream_db: u32,
    /// The unit's offset: the one behind its last byte in the stream.
    pub offset: ReplOffset,
    /// The hash slot of its keys, where the target is a cluster; else 0.
    pub slot: u16,
    /// True for the unit's last segment.
    pub last: bool,
}

/// Something that has no place in the stream, and whose acknowledgement is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beside {
    pub ticket: Ticket,
    /// It isn't sent again after a break: what it says may not be true any more.
    pub once: bool,
}

/// Segments and the commands they are made of, encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunk {
    pub bytes: Vec<u8>,
    pub segments: Vec<Segment>,
    pub beside: Option<Beside>,
    /// Bytes of large arguments that only stand-ins are here of; such a chunk is one unit of the source.
    pub outside: usize,
}

impl Chunk {
    /// The bytes of the segments `from..to`.
    pub fn slice(&self, from: usize, to: usize) -> &[u8] {
        self.bytes.get(self.start(from)..self.start(to)).unwrap_or_default()
    }

    /// How many bytes the segments `from..to` are to a target.
    pub fn weight(&self, from: usize, to: usize) -> usize {
        self.slice(from, to).len() + if from == 0 { self.outside } else { 0 }
    }

    /// The same without its first `count` segments.
    pub fn without_first(&self, count: usize) -> Chunk {
        let from = self.start(count);
        let rest = self.segments.get(count..).unwrap_or_default().iter();
        Chunk {
            bytes: self.bytes.get(from..).unwrap_or_default().to_vec(),
            segments: rest.map(|s| Segment { end: s.end - from as u32, ..*s }).collect(),
            beside: self.beside,
            outside: 0,
        }
    }

    /// Where the unit that begins with segment `from` ends.
    pub fn unit_end(&self, from: usize) -> usize {
        let rest = self.segments.get(from..).unwrap_or_default();
        from + rest.iter().position(|s| s.last).map_or(rest.len(), |i| i + 1)
    }

    fn start(&self, segment: usize) -> usize {
        match segment {
            0 => 0,
            n => self.segments.get(n - 1).map_or(self.bytes.len(), |s| s.end as usize),
        }
    }
}

/// Work in the target that a plain command can't do, done with all lanes drained, before the records move past it.
/// Doing it twice is the same as once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Remove every key in scope, of these slots, from these target databases; `None`: of all, from all.
    RemoveScope { databases: Option<Vec<u32>>, slots: Option<Arc<Slots>> },
    /// Remove the keys in scope, of these slots, that the copy didn't write (`copied`: hashes, see `pipeline::decode`).
    RemoveLeftovers { copied: Arc<std::collections::HashSet<u64>>, slots: Option<Arc<Slots>> },
    /// Run these commands on every primary of a cluster: functions and scripts belong to no slot.
    Everywhere { commands: Vec<Vec<u8>> },
    /// One after the other.
    InOrder(Vec<Task>),
}

impl Task {
    /// This, and then another.
    pub fn then(self, next: Task) -> Task {
        let list = |task| match task {
            Task::InOrder(list) => list,
            one => vec![one],
        };
        Task::InOrder([list(self), list(next)].concat())
    }

    /// What it is made of, in order.
    pub fn steps(&self) -> &[Task] {
        match self {
            Task::InOrder(list) => list,
            one => std::slice::from_ref(one),
        }
    }

    /// Whether the task concerns a key at all: one shard of a cluster speaks for its own slots only.
    pub fn concerns(&self, key: &[u8]) -> bool {
        match self {
            Task::RemoveScope { slots, .. } | Task::RemoveLeftovers { slots, .. } => {
                slots.as_ref().is_none_or(|slots| slots.contains(Slot::of(key)))
            }
            Task::Everywhere { .. } | Task::InOrder(_) => false,
        }
    }
}

/// A unit of several lanes.
#[derive(Debug, PartialEq, Eq)]
pub struct Joint {
    pub lanes: LaneSet,
    pub chunk: Chunk,
    pub task: Option<Task>,
}

impl Joint {
    pub fn offset(&self) -> ReplOffset {
        self.chunk.segments.last().map_or(ReplOffset(0), |s| s.offset)
    }
}

/// A slot that comes to a shard's lanes, or leaves them, since it has moved on the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Its record says that it stands here.
    Take { slot: Slot, offset: ReplOffset, stream_db: u32 },
    /// Nothing of it is to be written any more; the ticket says when that is so.
    GiveUp { slot: Slot, ticket: Ticket },
}

/// What a lane's queue holds, in the order of the stream.
#[derive(Debug, Clone)]
pub enum Item {
    /// Values of the copy: each segment one command that replaces a whole key.
    Copy(Arc<Chunk>),
    /// Pieces of one large value: each segment goes alone, exactly once, in order. Or what stands beside the stream.
    Pieces(Arc<Chunk>),
    /// The snapshot is complete; it stands at this offset, and the stream comes next.
    CopyEnd { offset: ReplOffset, stream_db: u32 },
    /// Units of this lane alone.
    Units(Arc<Chunk>),
    /// A unit that this lane shares; each lane of it has the same item.
    Joint(Arc<Joint>),
    /// Which slots the lanes of a cluster hold from here on.
    Hold(Hold),
}

/// What the decode thread hands over at a time.
#[derive(Debug, Default)]
pub struct Batch {
    /// Counts how often the router has started again: what it made before the last time is of no use.
    pub epoch: u64,
    /// Per lane, what to append to its queue.
    pub lanes: Vec<Vec<Item>>,
    /// Everything up to here has been routed: a lane that has got nothing stands here.
    pub routed: ReplOffset,
    /// The database selected in the source's stream there.
    pub routed_db: u32,
    /// Bytes of all items.
    pub bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_set_holds_its_lanes_up_to_the_last() {
        let set = LaneSet::one(0).with(LaneSet::one(63));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63]);
        assert!(set.has(63) && !set.has(62));
        assert_eq!(LaneSet::all(LANES_MAX).len(), LANES_MAX);
        assert_eq!(LaneSet::all(4).without(set).iter().collect::<Vec<_>>(), [1, 2, 3]);
    }
}
