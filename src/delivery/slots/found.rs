//! What was found in a cluster, and where its slots stand by that.

use super::NodeId;
use super::record::{Floor, SlotRecord};
use crate::delivery::record::Phase;
use crate::offset::ReplOffset;
use crate::slot::{Slot, Slots};

/// What one node holds, of slots that it owns.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub node: NodeId,
    /// All slots that it owns.
    pub owned: Slots,
    /// The slots that were looked at, and their records.
    pub records: Vec<(Slot, Option<SlotRecord>)>,
    /// Every floor that stands in a slot of the node.
    pub floors: Vec<Floor>,
    /// Slots that the node gives away or takes just now, key by key.
    pub moving: Slots,
    /// Slots of `records` that aren't what the shard had made of them.
    pub strays: Slots,
}

/// Where a slot stands: it has every unit up to there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    pub offset: ReplOffset,
    pub stream_db: u32,
}

impl Found {
    /// Leaves out floors that name slots of other nodes: they came with a slot, and say nothing of those that came apart
    /// from it.
    pub fn new(node: NodeId, owned: Slots, records: Vec<(Slot, Option<SlotRecord>)>, floors: Vec<Floor>) -> Self {
        let whole = |floor: &Floor| floor.slots.iter().all(|slot| owned.contains(slot));
        let floors = floors.into_iter().filter(whole).collect();
        Found { node, owned, records, floors, ..Found::default() }
    }

    /// The highest floor here that names a slot, of a full sync and a shard; with a `home`, of those written there.
    pub fn floor(&self, slot: Slot, generation: u64, shard: u32, home: Option<&str>) -> Option<Position> {
        let ours = |floor: &&Floor| {
            let record = &floor.record;
            let of_job = record.job.generation == generation && record.phase == Phase::Following;
            let here = home.is_none_or(|home| floor.home == home);
            record.job.shard == shard && of_job && here && floor.slots.contains(slot)
        };
        let position = |floor: &Floor| Position { offset: floor.record.offset, stream_db: floor.record.stream_db };
        self.floors.iter().filter(ours).map(position).max()
    }
}

/// Where a slot stands by its record and the floors of its node; `None` while it is being copied.
pub fn position(record: &SlotRecord, floor: Option<Position>) -> Option<Position> {
    let own = Position { offset: record.offset, stream_db: record.stream_db };
    (record.phase == Phase::Following).then(|| floor.map_or(own, |floor| floor.max(own)))
}
