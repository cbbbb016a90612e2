//! Units on slots that are in motion on the source, and the copies that stand for them once they are at rest.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Command, Stream};
use crate::args::{Args, OwnedArgs};
use crate::commands::{self, CopyKey, KeyAt, Shape};
use crate::delivery::motion::kept::{field, hash_key};
use crate::delivery::motion::{Effect, Name, Part, State, Ticket, Unit, Verdict, Work};
use crate::delivery::record::is_own_key;
use crate::delivery::unit::Beside;
use crate::offset::ReplOffset;
use crate::pipeline::copy_keys::CopyError;
use crate::pipeline::decode::Error;
use crate::pipeline::motion::Motions;
use crate::slot::Slot;

/// Keys of a slot that are read from the source at a time: it stands still for them.
const KEYS_MAX: usize = 256;

/// Things done for slots at rest before the stream is read on.
const WORK_MAX: usize = 64;

/// How long to wait before it is asked again whether a unit may go on.
const ASK_AGAIN: Duration = Duration::from_millis(2);

impl Stream<'_> {
    /// Whether the shard's units on this key are to be applied as they come.
    pub(super) fn feeds(&self, key: &[u8]) -> bool {
        self.parts.motions.is_none() || self.feeds_slot(Slot::of(key))
    }

    pub(super) fn feeds_slot(&self, slot: Slot) -> bool {
        self.parts.motions.as_ref().is_none_or(|motions| motions.feeds(self.parts.number, slot))
    }

    /// Looks whether a command concerns keys that this stream doesn't feed. If so it isn't sent.
    pub(super) fn is_stopped_by_motion(&mut self, command: Command<'_>) -> Result<bool, Error> {
        let Some(motions) = self.parts.motions.clone() else { return Ok(false) };
        match command.spec.shape {
            Shape::FlushSlot => {
                let number = command.args.get(2).and_then(|slot| std::str::from_utf8(slot).ok()?.parse().ok());
                if let Some(slot) = number.and_then(Slot::new) {
                    self.judge(&motions, slot, &[], Effect::Empties)?;
                }
                return Ok(true);
            }
            Shape::FlushAll | Shape::FlushDb | Shape::SwapDb | Shape::Global | Shape::Infrastructure => {
                return Ok(false);
            }
            _ => {}
        }
        commands::keys(command.spec, command.args, &mut self.keys).map_err(|error| self.bad(error))?;
        let foreign = |at: KeyAt| command.args.get(at.index).is_some_and(|key| !is_own_key(key) && !self.feeds(key));
        if !self.keys.iter().any(foreign) {
            return Ok(false);
        }
        let mut slots: BTreeMap<Slot, Vec<CopyKey>> = BTreeMap::new();
        for key in self.keys.iter().map(|at| self.copy_key(command.args, at)) {
            if !is_own_key(&key.key) && self.parts.scope.key_in(key.db, &key.key) {
                slots.entry(Slot::of(&key.key)).or_default().push(key);
            }
        }
        let removes = matches!(&*command.spec.name, "DEL" | "UNLINK");
        let effect = if removes { Effect::Removes } else { Effect::Writes };
        let (all, mut applied) = (slots.len(), Vec::new());
        for (slot, keys) in slots {
            let names: Vec<(u32, &[u8])> = keys.iter().map(|key| (key.db, &key.key[..])).collect();
            if self.judge(&motions, slot, &names, effect)? {
                applied.push(keys);
            }
        }
        if applied.len() == all {
            return Ok(false);
        }
        // What it does to the other slots can't be told from it any more.
        let rest: Vec<CopyKey> = applied.into_iter().flatten().collect();
        self.copy(&rest)?;
        Ok(true)
    }

    /// The slots of TRIMSLOTS have left the shard.
    pub(super) fn trim_slots(&mut self, args: Args<'_>) -> Result<(), Error> {
        let Some(motions) = self.parts.motions.clone() else { return Ok(()) };
        // TRIMSLOTS RANGES count first last ...
        let number = |at: usize| args.get(at).and_then(|word| std::str::from_utf8(word).ok()?.parse::<u16>().ok());
        let ranges = (3..args.len()).step_by(2).filter_map(|at| Some((number(at)?, number(at + 1)?)));
        for slot in ranges.flat_map(|(first, last)| first..=last).filter_map(Slot::new) {
            self.judge(&motions, slot, &[], Effect::Trims)?;
        }
        Ok(())
    }

    /// A command empties the shard, or a database of it, and so whatever it holds of slots in motion.
    pub(super) fn empty_moving(&mut self) -> Result<(), Error> {
        let Some(motions) = self.parts.motions.clone().filter(|motions| motions.is_moving()) else { return Ok(()) };
        let moving: Vec<Slot> = motions.with(|machine| machine.in_motion().map(|(slot, ..)| slot).collect());
        moving.into_iter().try_for_each(|slot| self.judge(&motions, slot, &[], Effect::Empties).map(|_| ()))
    }

    /// Judges the unit at hand for one slot; true if it is to be applied. What the target must be told with it is added.
    pub(super) fn judge(
        &mut self,
        motions: &Motions,
        slot: Slot,
        keys: &[(u32, &[u8])],
        effect: Effect,
    ) -> Result<bool, Error> {
        let passed = self.has_passed_lane(self.parts.router.lane_of_slot(slot));
        let (shard, offset) = (self.parts.number, self.offset);
        let unit = Unit { shard, offset, set: slot, keys, effect, passed };
        loop {
            match motions.with(|machine| machine.judge(&unit)) {
                Verdict::Apply => return Ok(true),
                Verdict::Drop => return Ok(false),
                Verdict::Noted { write } => {
                    write.iter().try_for_each(|state| self.tell_state(motions, slot, state))?;
                    return Ok(false);
                }
                Verdict::Wait => {
                    // What is waited for may be in this thread's own hands.
                    self.hand_over()?;
                    self.parts.copy_keys.pause(ASK_AGAIN)?;
                }
            }
        }
    }

    /// Keys of one slot that were to be copied are elsewhere by the word of the source: they are copied when the slot has
    /// come to rest.
    pub(super) fn note_moved(&mut self, keys: &[Name]) -> Result<(), Error> {
        let (Some(motions), Some((_, first))) = (self.parts.motions.clone(), keys.first()) else { return Ok(()) };
        let slot = Slot::of(first);
        motions.with(|machine| machine.sign(slot));
        let names: Vec<(u32, &[u8])> = keys.iter().map(|(db, key)| (*db, &key[..])).collect();
        self.judge(&motions, slot, &names, Effect::Writes).map(|_| ())
    }

    /// Says that a slot moves, before any record passes the unit at hand.
    fn tell_state(&mut self, motions: &Motions, slot: Slot, state: &State) -> Result<(), Error> {
        if motions.is_past_lanes() {
            return self.tell_past_lanes(motions, slot, state, false);
        }
        self.write_state(slot, state);
        Ok(())
    }

    fn write_state(&mut self, slot: Slot, state: &State) {
        let place = self.parts.router.place(self.parts.router.lane_of_slot(slot));
        let (key, text) = (hash_key(&self.parts.job), state.encode());
        let hset = OwnedArgs::new(&[b"HSET", &key[..], &field(slot), text.as_bytes()]);
        self.unit.command(0, place, hset.args().raw());
        failpoint!("state-given");
    }

    /// Tells how far this stream was judged, and does what is to be done for slots at rest that the shard owns.
    pub(super) fn look_after_motions(&mut self) -> Result<(), Error> {
        let Some(motions) = self.parts.motions.clone() else { return Ok(()) };
        let (shard, offset) = (self.parts.number, self.whole.0);
        motions.with(|machine| machine.decoded(shard, offset));
        self.is_busy_with_motions = motions.is_moving();
        if self.in_transaction {
            return Ok(());
        }
        self.give_up_moving(&motions);
        let mut lists = Vec::new();
        for _ in 0..WORK_MAX {
            if !motions.is_moving() {
                break;
            }
            match motions.with(|machine| machine.work(shard, KEYS_MAX)) {
                Some(Work::List(part)) => lists.push(part),
                Some(Work::Copy(part, keys)) => self.copy_moved(&motions, part, &keys)?,
                Some(Work::Switch { set, state, ticket }) if motions.is_past_lanes() => {
                    self.switch_past_lanes(&motions, (set, state), ticket)?;
                }
                Some(Work::Switch { set, state, ticket }) => {
                    self.write_state(set, &state);
                    self.give_beside(set, ticket, true);
                }
                None => break,
            }
        }
        self.list(&motions, lists)
    }

    fn give_beside(&mut self, slot: Slot, ticket: Ticket, once: bool) {
        let lane = self.parts.router.lane_of_slot(slot);
        self.parts.router.beside(lane, &mut self.unit, Beside { ticket, once });
    }

    /// Copies keys of a slot that has come to rest here.
    fn copy_moved(&mut self, motions: &Motions, part: Part<Slot>, names: &[Name]) -> Result<(), Error> {
        let answer = match self.parts.copy_keys.read_moved(names, self.whole.0) {
            Err(error @ CopyError::Ended) => {
                motions.with(|machine| machine.failed(part));
                return Err(error.into());
            }
            answer => answer?,
        };
        let Some((found, at)) = answer else {
            motions.with(|machine| machine.redirected(part));
            return Ok(());
        };
        let Some(ticket) = motions.with(|machine| machine.copied(part, names, at)) else { return Ok(()) };
        // The builder is empty but for what belongs to the next unit of the stream.
        let before = std::mem::take(&mut self.unit);
        for ((db, key), found) in names.iter().zip(&found) {
            if !self.is_kept(&CopyKey { db: *db, key: key.clone() }) {
                self.put(*db, key, found)?;
            }
        }
        if motions.is_past_lanes() {
            self.write_past_lanes(motions, part.set, ticket)?;
        } else {
            self.give_beside(part.set, ticket, false);
        }
        self.unit = before;
        Ok(())
    }

    /// Lists the keys of slots here and in the target.
    fn list(&mut self, motions: &Motions, parts: Vec<Part<Slot>>) -> Result<(), Error> {
        if parts.is_empty() {
            return Ok(());
        }
        let slots: Vec<Slot> = parts.iter().map(|part| part.set).collect();
        let listed = self.list_slots(&slots);
        let Ok(mut listed) = listed else {
            parts.iter().for_each(|part| motions.with(|machine| machine.failed(*part)));
            return listed.map(|_| ());
        };
        for part in parts {
            if let Some((keys, at)) = listed.remove(&part.set) {
                motions.with(|machine| machine.listed(part, keys, at));
            }
        }
        Ok(())
    }

    fn list_slots(&mut self, slots: &[Slot]) -> Result<BTreeMap<Slot, (Vec<Name>, ReplOffset)>, Error> {
        let mut listed = BTreeMap::new();
        for slot in slots {
            listed.insert(*slot, self.parts.copy_keys.list_slot(*slot, self.whole.0)?);
        }
        // Keys of the target go by the source databases that may have written them.
        for (db, key) in self.keys_of_slots(slots)? {
            let sources = (self.parts.sources_of)(db);
            if let Some((keys, _)) = listed.get_mut(&Slot::of(&key)) {
                keys.extend(sources.into_iter().map(|db| (db, key.clone())));
            }
        }
        for (keys, _) in listed.values_mut() {
            keys.retain(|(db, key)| !is_own_key(key) && self.parts.scope.key_in(*db, key));
        }
        Ok(listed)
    }
}
