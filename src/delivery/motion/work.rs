//! What the owner of a set at rest does for it: list, copy, switch.

use std::fmt::Debug;

use super::dirty::Name;
use super::moving::{Moving, Stage, Ticket, Whole};
use super::state::{Offsets, Shard, State};
use super::{Feed, Kept, Motion};
use crate::delivery::rules::rule;
use crate::offset::ReplOffset;

/// A set, and the stage of its motion that something was begun in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<S> {
    pub set: S,
    serial: u64,
}

/// What a shard's thread is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work<S> {
    /// List the set's keys at the shard, with the offset at which they are those, and in the target.
    List(Part<S>),
    /// Read these keys from the shard.
    Copy(Part<S>, Vec<Name>),
    /// Give this to the set's lane, behind everything else.
    Switch { set: S, state: State, ticket: Ticket },
}

impl<S: Copy + Ord + Debug> Motion<S> {
    /// The next thing to do for sets at rest that `shard` owns; of copies, at most `keys_max` keys.
    pub fn work(&mut self, shard: Shard, keys_max: usize) -> Option<Work<S>> {
        if self.shards.get(&shard).is_none_or(|known| known.rewinding) {
            return None;
        }
        let sets: Vec<S> = self.moving.keys().copied().collect();
        #[cfg(test)]
        if !rule!(self, looked_twice) {
            self.skip_second_look();
        }
        sets.into_iter().find_map(|set| self.work_of(shard, set, keys_max))
    }

    fn work_of(&mut self, shard: Shard, set: S, keys_max: usize) -> Option<Work<S>> {
        let moving = self.moving.get_mut(&set)?;
        let Stage::Copying { owner, until } = &moving.stage else { return None };
        if *owner != shard || moving.telling > 0 {
            return None;
        }
        let until = until.clone();
        // The set's lane keeps copies behind what it had before; but what it still holds isn't in the target's list.
        let but = (moving.whole != Whole::Marked).then_some(shard);
        if !moving.is_drained(but, &self.applied) && rule!(self, feeder_drained) {
            return None;
        }
        let part = Part { set, serial: moving.serial };
        if moving.whole == Whole::Marked {
            moving.whole = Whole::Listing;
            return Some(Work::List(part));
        }
        if !moving.dirty.is_clean() {
            let keys = moving.dirty.take(keys_max);
            return (!keys.is_empty()).then_some(Work::Copy(part, keys));
        }
        let from = self.switch_from(shard, set, &until)?;
        let ticket = self.ticket();
        let moving = self.moving.get_mut(&set)?;
        moving.enter(Stage::Switching { owner: shard, until, from, ticket });
        Some(Work::Switch { set, state: State::Fed { shard, from }, ticket })
    }

    /// The offset from which on the owner may feed a set whose keys are all copied; `None` while it may not.
    fn switch_from(&self, owner: Shard, set: S, until: &Offsets) -> Option<ReplOffset> {
        let moving = self.moving.get(&set)?;
        let from = self.shards.get(&owner)?.decoded;
        let copied = match moving.whole {
            Whole::Listing | Whole::Marked => return None,
            Whole::Listed(at) => at.max(moving.dirty.until()),
            Whole::No => moving.dirty.until(),
        };
        // Lanes that hold what they feed are told where each copy stands.
        let copied = from >= copied || self.held || !rule!(self, switch_behind_copies);
        let reached = |shard: &Shard| until.get(shard).is_none_or(|until| self.applied.get(shard) >= Some(until));
        let all = moving.is_acknowledged(&self.applied) && self.shards.keys().all(reached);
        let all = all || !rule!(self, switch_behind_all);
        let target = self.shards.get(&owner)?.target;
        let one = self.shards.values().all(|known| known.target == target && !known.rewinding);
        let one = one || self.held || !rule!(self, switch_on_one_target);
        (copied && all && one).then_some(from)
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// True while what was begun for a part of a motion is still wanted.
    fn part(&mut self, part: Part<S>) -> Option<&mut Moving> {
        self.moving.get_mut(&part.set).filter(|moving| moving.serial == part.serial)
    }

    /// The set's keys were listed, as they were at `at` of the owner, and as the target has them.
    pub fn listed(&mut self, part: Part<S>, keys: impl IntoIterator<Item = Name>, at: ReplOffset) {
        if let Some(moving) = self.part(part).filter(|moving| moving.whole == Whole::Listing) {
            moving.whole = Whole::Listed(at);
            keys.into_iter().for_each(|key| moving.dirty.note(key));
        }
    }

    /// Keys were read, as they were at `at`. The values go to the set's lane, and their acknowledgement has this ticket;
    /// `None` if nobody wants them any more.
    pub fn copied(&mut self, part: Part<S>, keys: &[Name], at: ReplOffset) -> Option<Ticket> {
        let ticket = self.ticket();
        let moving = self.part(part)?;
        let Stage::Copying { owner, .. } = moving.stage else { return None };
        moving.dirty.copied(keys, at);
        moving.tickets.insert(ticket, owner);
        Some(ticket)
    }

    /// What was begun couldn't be done: it is to be done again.
    pub fn failed(&mut self, part: Part<S>) {
        if let Some(moving) = self.part(part) {
            moving.dirty.give_back();
            if moving.whole == Whole::Listing {
                moving.whole = Whole::Marked;
            }
        }
    }

    /// The owner says that the set, or a key of it, isn't there.
    pub fn redirected(&mut self, part: Part<S>) {
        if self.part(part).is_some() {
            self.sign(part.set);
        }
    }

    /// The target has what the ticket stands for.
    pub fn acknowledged(&mut self, ticket: Ticket) {
        let mut switched = None;
        for (set, moving) in &mut self.moving {
            moving.tickets.remove(&ticket);
            moving.holders.retain(|_, of| *of != Some(ticket));
            if matches!(&moving.stage, Stage::Switching { ticket: of, .. } if *of == ticket) {
                switched = Some(*set);
            }
        }
        if let Some(set) = switched {
            self.switched(set);
        }
    }

    /// The lanes have dropped the switch, at a break, before they sent it.
    pub fn dropped(&mut self, ticket: Ticket) {
        for moving in self.moving.values_mut() {
            if let Stage::Switching { owner, until, ticket: of, .. } = &moving.stage
                && *of == ticket
            {
                let (owner, until) = (*owner, until.clone());
                moving.enter(Stage::Copying { owner, until });
            }
        }
    }

    /// The target says that the set is fed by its owner.
    pub(super) fn switched(&mut self, set: S) {
        let Some(Stage::Switching { owner, from, .. }) = self.moving.get(&set).map(|m| m.stage.clone()) else { return };
        let starts = self.moving.remove(&set).map(|moving| moving.starts).unwrap_or_default();
        self.kept.push(Kept { starts, shard: owner, from });
        self.fed.insert(set, Feed { shard: owner, from });
        self.changed.push(set);
    }
}
