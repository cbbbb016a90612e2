//! Keys that are copied from the source, since the stream alone can't tell what they hold: their guards, and the units
//! that are made into copies.

use std::collections::BTreeMap;

use super::{COPY_KEYS_MAX, COPY_KEYS_OF_UNIT_MAX, Command, Stream};
use crate::args::{Args, OwnedArgs};
use crate::commands::{self, CopyKey, Databases, KeyAt, SmallKeys};
use crate::delivery::guard::{self, Guards};
use crate::delivery::record::is_own_key;
use crate::delivery::unit::Task;
use crate::offset::ReplOffset;
use crate::pipeline::copy_keys::{CopyError, Guard};
use crate::pipeline::decode::{Error, key_hash, type_of};
use crate::pipeline::value::Attributes;
use crate::rdb;
use crate::slot::Slot;
use crate::source::side::Found;

impl Stream<'_> {
    /// Removes the guards from the target when every lane's record has passed them.
    pub(super) fn drop_guards(&mut self) {
        let copy_keys = &self.parts.copy_keys;
        let pending = self.in_transaction || !self.trusted;
        let passed = self.parts.feed.recorded() >= copy_keys.until() || !holds!("guards-until-recorded");
        if !self.guards_stored || self.parts.router.is_by_slot() || pending || !passed {
            return;
        }
        failpoint!("guards-dropped");
        self.guards_stored = false;
        for lane in self.parts.router.everywhere().lanes() {
            let del = OwnedArgs::new(&[&b"DEL"[..], &self.guards_key(lane)]);
            let (offset, db) = self.whole;
            self.parts.router.single(lane, 0, db, offset, del.args().raw());
        }
    }

    /// Copies, with the unit that is at hand, the keys that can't be trusted and weren't named by the stream since.
    pub(super) fn copy_suspects(&mut self) -> Result<(), Error> {
        // A unit that only some lanes leave out would never be whole.
        if self.offset <= self.passed.1 {
            return Ok(());
        }
        let suspects = self.parts.copy_keys.suspects(COPY_KEYS_OF_UNIT_MAX);
        let keys: Vec<CopyKey> = suspects.into_iter().map(|(db, key)| CopyKey { db, key }).collect();
        for some in keys.chunks(COPY_KEYS_MAX) {
            self.copy(some)?;
        }
        self.parts.copy_keys.trust(&keys);
        if !self.parts.copy_keys.has_suspects() {
            self.trusted = true;
            self.parts.feed.set_trusted(Some(self.offset));
        }
        Ok(())
    }

    /// Database 0 was flushed, which holds the guards of all databases.
    pub(super) fn store_guards_again(&mut self) {
        if !holds!("guards-written-again") {
            return;
        }
        let guards = self.parts.copy_keys.guards_behind(self.offset);
        for ((db, key), at) in guards.keys {
            self.store_guard(db, &key, at);
        }
        for (db, at) in guards.databases {
            self.store_guard_field(0, &guard::database_field(db), at);
        }
    }

    /// Looks whether keys of the command stand elsewhere than the stream. If so the command isn't sent: its keys are
    /// left alone or copied.
    pub(super) fn is_stopped_by_guard(&mut self, command: Command<'_>, keys: &SmallKeys) -> Result<bool, Error> {
        let guarded = self.parts.copy_keys.guards(self.offset);
        let own = |at: KeyAt| command.args.get(at.index).is_some_and(is_own_key);
        if !guarded && self.parts.kept.is_none() && !keys.iter().any(own) {
            return Ok(false);
        }
        let all: Vec<(CopyKey, bool)> =
            keys.iter().map(|k| (self.copy_key(command.args, k), k.role.writes())).collect();
        let free = |(key, _): &(CopyKey, bool)| {
            let guard = self.parts.copy_keys.guard(key.db, &key.key, self.offset);
            (!guarded || guard == Guard::Free) && !self.is_kept(key)
        };
        if all.iter().all(free) || !holds!("partly-guarded-copied") && all.iter().any(free) {
            return Ok(false);
        }
        if commands::is_key_list(command.spec, keys) && all.iter().any(free) {
            // Each key for itself: those that stand stay, the others get the command.
            let kept: Vec<bool> = all.iter().map(free).collect();
            let nth = |at: KeyAt| keys.iter().position(|k| k == at).and_then(|i| kept.get(i)) == Some(&true);
            if let Some(part) = commands::cut(command.args, command.spec, keys, nth) {
                let unknown: Vec<CopyKey> = self.to_copy(all);
                self.copy(&unknown)?;
                return self.place_cut(&part).map(|()| true);
            }
        }
        let copies = match all.len() {
            // A unit on one key that stands behind it is in the key already.
            1 => self.to_copy(all),
            // What one of several keys holds isn't what the command found: its result is copied.
            _ => {
                let written = all.into_iter().filter(|(_, writes)| *writes).map(|(key, _)| key);
                written.filter(|key| !self.is_kept(key)).collect()
            }
        };
        self.filtered += u64::from(copies.is_empty() && !guarded);
        self.copy(&copies)?;
        Ok(true)
    }

    pub(super) fn place_cut(&mut self, part: &OwnedArgs) -> Result<(), Error> {
        let args = part.args();
        match commands::lookup(args) {
            Some(spec) => self.place_keys(Command { args, spec }, true),
            None => unreachable!("a command of the table that was cut is still one"),
        }
    }

    /// Those of the keys whose state nobody knows.
    pub(super) fn to_copy(&self, keys: Vec<(CopyKey, bool)>) -> Vec<CopyKey> {
        let unknown = |key: &CopyKey| {
            self.parts.copy_keys.guard(key.db, &key.key, self.offset) == Guard::Unknown && !self.is_kept(key)
        };
        keys.into_iter().map(|(key, _)| key).filter(unknown).collect()
    }

    pub(super) fn copy_key(&self, args: Args<'_>, at: KeyAt) -> CopyKey {
        let key = args.get(at.index).unwrap_or_default().to_vec();
        CopyKey { db: at.db.unwrap_or(self.db), key }
    }

    /// True for a key of the target that stays as it is: one that `--existing keep` found there, or keyferry's own.
    pub(super) fn is_kept(&self, key: &CopyKey) -> bool {
        if is_own_key(&key.key) {
            return true;
        }
        let db = self.parts.scope.target_database(key.db);
        self.parts.kept.as_ref().is_some_and(|kept| kept.contains(&key_hash(db, &key.key)))
    }

    pub(super) fn written_keys(&mut self, command: Command<'_>) -> Result<Vec<CopyKey>, Error> {
        commands::keys(command.spec, command.args, &mut self.keys).map_err(|error| self.bad(error))?;
        let written = self.keys.iter().filter(|k| k.role.writes());
        let keys = written.map(|k| self.copy_key(command.args, k));
        Ok(keys.filter(|k| self.parts.scope.key_in(k.db, &k.key)).collect())
    }

    /// Makes keys equal to the source's, by copying them at an offset.
    ///
    /// A key whose lane has the unit already was copied by it in an earlier life, and stands where the guard in the
    /// target says: another copy would be left out by the lane, and its guard must not seem to be there.
    pub(super) fn copy(&mut self, keys: &[CopyKey]) -> Result<(), Error> {
        let wanted: Vec<(u32, Vec<u8>)> = keys
            .iter()
            .filter(|key| !self.is_kept(key) && !self.has_passed(&key.key))
            .map(|key| (key.db, key.key.clone()))
            .collect();
        let mut wanted = self.note_unheld(wanted)?;
        if wanted.is_empty() {
            return Ok(());
        }
        let rules = self.with_rules(&mut wanted)?;
        for together in self.askable(wanted) {
            let (found, offset) = match self.parts.copy_keys.read(&together, self.offset) {
                Err(error) if error.is_redirection() => {
                    self.note_moved(&together)?;
                    continue;
                }
                answer => answer?,
            };
            for ((db, key), found) in together.iter().zip(&found) {
                self.put(*db, key, found)?;
                self.store_guard(*db, key, offset);
            }
            self.put_rules(&rules, &together, &found);
        }
        Ok(())
    }

    /// The keys that can be asked for in one transaction: with a cluster those of one slot.
    fn askable(&self, keys: Vec<(u32, Vec<u8>)>) -> Vec<Vec<(u32, Vec<u8>)>> {
        if self.parts.slots.is_none() {
            return vec![keys];
        }
        let mut slots: BTreeMap<Slot, Vec<(u32, Vec<u8>)>> = BTreeMap::new();
        keys.into_iter().for_each(|(db, key)| slots.entry(Slot::of(&key)).or_default().push((db, key)));
        slots.into_values().collect()
    }

    /// Adds the record "this key stands at that offset", which a later process finds.
    pub(super) fn store_guard(&mut self, db: u32, key: &[u8], offset: ReplOffset) {
        self.store_guard_field(self.parts.router.lane_of(key), &guard::field(db, key), offset);
    }

    /// Adds what makes the target's key equal to `found`.
    pub(super) fn put(&mut self, source_db: u32, key: &[u8], found: &Found) -> Result<(), Error> {
        let db = self.parts.scope.target_database(source_db);
        let place = self.parts.router.place_of(key);
        #[cfg(feature = "failpoints")]
        if !holds!("copy-in-order") {
            return self.put_beside(db, key, found);
        }
        let verified = match &found.payload {
            Some(payload) => Some(rdb::verify(payload, false).map_err(CopyError::Damaged)?),
            None => None,
        };
        let Some(value) = verified.filter(|v| self.parts.scope.type_in(type_of(&v.value))) else {
            let del = OwnedArgs::new(&[&b"DEL"[..], key]);
            self.unit.command(db, place, del.args().raw());
            return Ok(());
        };
        let expires_at_ms = self.parts.writer.late(found.expires_at_ms);
        self.put_value(source_db, key, &value, &Attributes { expires_at_ms, ..Attributes::default() })
    }

    /// Adds what replaces the target's key with a value.
    pub(super) fn put_value(
        &mut self,
        source_db: u32,
        key: &[u8],
        value: &rdb::Verified<'_>,
        attributes: &Attributes,
    ) -> Result<(), Error> {
        if let Err(error) = self.parts.holds(&value.value) {
            return self.cannot_put(source_db, key, error);
        }
        let db = self.parts.scope.target_database(source_db);
        let place = self.parts.router.place_of(key);
        let (writer, unit) = (self.parts.writer, &mut self.unit);
        let put = writer.replace(key, &value.value, value.meta, attributes, |raw| unit.command(db, place, raw));
        match put {
            Ok(lost) => {
                self.parts.lost(lost, (source_db, key));
                Ok(())
            }
            Err(error) => self.cannot_put(source_db, key, error),
        }
    }

    /// The same ahead of the units that wait, for a rule taken out.
    #[cfg(feature = "failpoints")]
    fn put_beside(&mut self, db: u32, key: &[u8], found: &Found) -> Result<(), Error> {
        let payload = found.payload.as_deref().unwrap_or_default();
        Ok(self.parts.learner.write_beside(db, &[b"RESTORE", key, b"0", payload, b"REPLACE"])?)
    }

    /// Deletes what is in scope of source databases, where the target's may hold more than that.
    pub(super) fn flush(&mut self, databases: &Databases) -> Result<(), Error> {
        let flushed = |db: u32| match databases {
            Databases::All => true,
            Databases::These(list) => list.contains(&db),
        };
        let targets: Option<Vec<u32>> = match databases {
            Databases::All => None,
            Databases::These(list) => Some(list.iter().map(|db| self.parts.scope.target_database(*db)).collect()),
        };
        let forgotten: Vec<Guards> = match databases {
            Databases::All => vec![self.forget(None)],
            Databases::These(list) => list.iter().map(|db| self.forget(Some(*db))).collect(),
        };
        // What the transaction did before is gone with the flush, but for what lies elsewhere.
        self.unit.clear_commands();
        let elsewhere: Vec<CopyKey> = self.written.drain(..).filter(|key| !flushed(key.db)).collect();
        let slots = self.parts.slots_now();
        let everywhere = self.parts.router.everywhere();
        self.unit.task(Task::RemoveScope { databases: targets.clone(), slots }, everywhere);
        forgotten.iter().for_each(|guards| self.remove_guards(guards));
        self.copy(&elsewhere)?;
        // A target database that others flow into as well has lost their keys too.
        let Some(targets) = targets else { return Ok(()) };
        for db in self.flowing_into(&targets)? {
            if !flushed(db) {
                self.copy_database(db)?;
            }
        }
        Ok(())
    }

    /// The source databases in scope that hold keys now and go to one of `targets`.
    pub(super) fn flowing_into(&mut self, targets: &[u32]) -> Result<Vec<u32>, Error> {
        let filled = self.parts.copy_keys.databases(self.offset)?.into_iter();
        let scope = &self.parts.scope;
        let flows = |db: &u32| scope.database_in(*db) && targets.contains(&scope.target_database(*db));
        Ok(filled.filter(flows).collect())
    }

    /// Two source databases change places, and the target's can't simply do the same.
    pub(super) fn swap(&mut self, a: u32, b: u32) -> Result<(), Error> {
        let scope = &self.parts.scope;
        let sides: Vec<u32> = [a, b].into_iter().filter(|db| scope.database_in(*db)).collect();
        let targets: Vec<u32> = sides.iter().map(|db| scope.target_database(*db)).collect();
        self.unit.clear_commands();
        let elsewhere: Vec<CopyKey> = self.written.drain(..).filter(|key| !sides.contains(&key.db)).collect();
        let all = self.parts.router.everywhere();
        let slots = self.parts.slots_now();
        self.unit.task(Task::RemoveScope { databases: Some(targets.clone()), slots }, all);
        for db in &sides {
            let forgotten = self.forget(Some(*db));
            self.remove_guards(&forgotten);
        }
        self.copy(&elsewhere)?;
        for db in self.flowing_into(&targets)? {
            self.copy_database(db)?;
        }
        for db in sides {
            self.doubt(db)?;
        }
        Ok(())
    }

    /// Copies every key in scope of a source database, at offsets.
    pub(super) fn copy_database(&mut self, db: u32) -> Result<(), Error> {
        let mut cursor = b"0".to_vec();
        loop {
            let page = self.parts.copy_keys.scan(db, &mut cursor, self.offset)?;
            let in_scope = page.into_iter().filter(|key| self.parts.scope.key_in(db, key));
            let keys: Vec<CopyKey> = in_scope.map(|key| CopyKey { db, key }).collect();
            for some in keys.chunks(COPY_KEYS_MAX) {
                self.copy(some)?;
            }
            if cursor == b"0" {
                break;
            }
        }
        // Keys that came and went while they were listed: the stream's units on them can't build on what is here.
        self.doubt(db)
    }
}
