//! What is different where the target is a cluster: a unit is cut per slot, and what can't be cut is copied or done on
//! every primary.

use std::collections::BTreeSet;

use super::{Command, Stream};
use crate::args::OwnedArgs;
use crate::commands::{self, CopyKey, SmallKeys};
use crate::delivery::guard::Guards;
use crate::delivery::unit::{LaneId, Task};
use crate::pipeline::decode::Error;

impl Stream<'_> {
    /// Adds a command to the slots of its keys. Of one that is a list of independent keys each slot gets its own; of any
    /// other over several slots the keys that it changes are copied.
    pub(super) fn place_in_slots(&mut self, command: Command<'_>, keys: &SmallKeys) -> Result<(), Error> {
        let Command { args, spec } = command;
        let router = &self.parts.router;
        let slot_of = |index: usize| router.lane_of(args.get(index).unwrap_or_default());
        let mut places = keys.iter().map(|at| slot_of(at.index));
        let Some(first) = places.next() else {
            return self.over_slots(command);
        };
        let db = self.parts.scope.target_database(self.db);
        if !keys.reads_undeclared && places.all(|slot| slot == first) {
            self.unit.command(db, router.place(first), args.raw());
            return Ok(());
        }
        if !commands::is_key_list(spec, keys) {
            let written = keys.iter().filter(|at| at.role.writes()).map(|at| self.copy_key(args, at));
            let written: Vec<CopyKey> = written.filter(|key| self.parts.scope.key_in(key.db, &key.key)).collect();
            return self.copy(&written);
        }
        let mut by_slot: Vec<(LaneId, usize)> = keys.iter().map(|at| (slot_of(at.index), at.index)).collect();
        by_slot.sort();
        for of_slot in by_slot.chunk_by(|a, b| a.0 == b.0) {
            let kept: Vec<usize> = of_slot.iter().map(|(_, index)| *index).collect();
            let slot = of_slot.first().map_or(0, |(slot, _)| *slot);
            if let Some(part) = commands::cut_to(args, spec, keys, &kept) {
                self.unit.command(db, self.parts.router.place(slot), part.args().raw());
            }
        }
        Ok(())
    }

    /// A command that names no key but may change some.
    fn over_slots(&mut self, Command { spec, .. }: Command<'_>) -> Result<(), Error> {
        if self.parts.skip_faults {
            self.skip(&spec.name);
            return Ok(());
        }
        Err(Error::OverSlots { command: spec.name.to_string(), db: self.db, offset: self.offset })
    }

    /// Adds a command that every primary gets.
    pub(super) fn everywhere(&mut self, raw: &[u8]) -> Result<(), Error> {
        self.unit.task(Task::Everywhere { commands: vec![raw.to_vec()] }, self.parts.router.everywhere());
        Ok(())
    }

    /// What was copied into a database is gone with the rest; but not in a slot that has this unit behind it already.
    pub(super) fn forget(&mut self, db: Option<u32>) -> Guards {
        let parts = &mut *self.parts;
        let ((lanes, highest), offset) = (&self.passed, self.offset);
        let by_slot = parts.router.is_by_slot() && offset <= *highest;
        let stays = |key: &[u8]| by_slot && lanes.get(parts.router.lane_of(key)).is_some_and(|at| offset <= *at);
        parts.copy_keys.forget(db, stays)
    }

    /// Removes the guards from the target when every slot's record has passed them, along with the unit that comes.
    pub(super) fn drop_guards_of_slots(&mut self) {
        let pending = self.in_transaction || !self.trusted || !self.unit.is_empty();
        if pending || self.parts.feed.recorded() < self.parts.copy_keys.until() {
            return;
        }
        failpoint!("guards-dropped");
        self.guards_stored = false;
        self.switched.clear();
        for slot in std::mem::take(&mut self.guarded) {
            let del = OwnedArgs::new(&[&b"DEL"[..], &self.guards_key(slot)]);
            self.unit.command(0, self.parts.router.place(slot), del.args().raw());
        }
    }

    /// The slots of a cluster that hold guards.
    pub(super) fn slots_of(&self, guards: &Guards) -> BTreeSet<LaneId> {
        if !self.parts.router.is_by_slot() {
            return BTreeSet::new();
        }
        let databases = guards.databases.keys().map(|_| 0);
        guards.keys.keys().map(|(_, key)| self.parts.router.lane_of(key)).chain(databases).collect()
    }
}
