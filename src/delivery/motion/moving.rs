//! One set of keys in motion.

use std::collections::BTreeMap;

use super::dirty::{Dirty, Standing};
use super::state::{Offsets, Shard, State};
use super::{Effect, Unit, Verdict};
#[cfg(test)]
use crate::delivery::rules::MotionRules;
use crate::delivery::rules::rule;
use crate::offset::ReplOffset;

/// Names something that a shard's lanes were given beside the stream, and that they acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How far a set in motion is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// It isn't known to have come to rest.
    Unrest,
    /// All views named this owner. Then every shard was asked for its offset; its stream must be judged up to there.
    Receiving { owner: Shard, until: Offsets },
    /// The views named it once more: its units are applied again, and the noted keys are copied from it.
    Copying { owner: Shard, until: Offsets },
    /// The lanes have the switch, behind all that was copied.
    Switching { owner: Shard, until: Offsets, from: ReplOffset, ticket: Ticket },
}

/// Whether all keys are to be copied, and not only those that were noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    No,
    /// They must be listed.
    Marked,
    /// They are being listed.
    Listing,
    /// They were, at this offset of the owner, and are noted.
    Listed(ReplOffset),
}

/// What a judgement rests on besides the set.
pub struct By {
    /// Up to where each shard's lanes have acknowledged.
    pub applied: Offsets,
    /// Nobody's lanes take units of a set in motion.
    pub held: bool,
    #[cfg(test)]
    pub rules: MotionRules,
}

/// A set that nobody feeds.
#[derive(Debug)]
pub struct Moving {
    pub number: u64,
    pub starts: Offsets,
    pub whole: Whole,
    pub dirty: Dirty,
    pub stage: Stage,
    /// Counts the changes of stage, so that what was begun in an earlier one can be told.
    pub serial: u64,
    /// What the target was told before this motion.
    pub before: Option<State>,
    /// The target is known to say "moving", with these starts.
    pub stored: bool,
    /// Shards whose lanes were given this motion's state, and with which unit.
    pub writes: Offsets,
    /// The starts have changed since: what lanes were given says other ones.
    pub outdated: bool,
    /// Shards that may have applied units of the set shortly before they saw that it moves: up to where, once they have
    /// said so.
    pub fences: BTreeMap<Shard, Option<ReplOffset>>,
    /// Shards whose lanes hold the set, and what stands for their giving it up, once they were told to.
    pub holders: BTreeMap<Shard, Option<Ticket>>,
    /// What lanes have been given of it and haven't acknowledged.
    pub tickets: BTreeMap<Ticket, Shard>,
    /// How often the target is being told beside the streams what is thought of the set: nothing is done for it meanwhile.
    pub telling: u32,
    pub since_ms: i64,
}

impl Moving {
    pub fn new(number: u64, starts: Offsets, since_ms: i64) -> Self {
        Moving {
            number,
            starts,
            whole: Whole::No,
            dirty: Dirty::default(),
            stage: Stage::Unrest,
            serial: 0,
            before: None,
            stored: false,
            writes: Offsets::new(),
            outdated: false,
            fences: BTreeMap::new(),
            holders: BTreeMap::new(),
            tickets: BTreeMap::new(),
            telling: 0,
            since_ms,
        }
    }

    pub fn state(&self) -> State {
        State::Moving { number: self.number, starts: self.starts.clone(), whole: self.whole != Whole::No }
    }

    /// The shard that the set is being copied from.
    pub fn owner(&self) -> Option<Shard> {
        match &self.stage {
            Stage::Copying { owner, .. } | Stage::Switching { owner, .. } => Some(*owner),
            Stage::Unrest | Stage::Receiving { .. } => None,
        }
    }

    pub fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.serial += 1;
    }

    /// It moves again, or what was done can't be relied on: nothing of it counts any more but what was noted.
    pub fn start_over(&mut self) {
        if let Some(owner) = self.owner() {
            self.fences.insert(owner, None);
        }
        self.doubt();
        self.enter(Stage::Unrest);
    }

    fn doubt(&mut self) {
        self.dirty.doubt();
        if self.whole != Whole::No {
            self.mark_whole();
        }
    }

    /// Every key of the set may differ. Those noted are among them.
    pub fn mark_whole(&mut self) {
        if let Some(owner) = self.owner() {
            // Its units were applied until now.
            self.fences.insert(owner, None);
        }
        self.whole = Whole::Marked;
        self.dirty.clear();
    }

    /// What a unit of the set becomes.
    pub fn judge<S>(&mut self, unit: &Unit<'_, S>, by: &By) -> Verdict {
        let from_owner = self.owner() == Some(unit.shard);
        let plain = matches!(unit.effect, Effect::Writes | Effect::Removes);
        let switching = matches!(self.stage, Stage::Switching { .. });
        if switching && !(from_owner && plain) && rule!(by, switch_awaited) {
            return Verdict::Wait;
        }
        let due = !self.is_told(unit);
        if due && self.outdated && !self.is_acknowledged_but_by(unit.shard, &by.applied) {
            // What an earlier write says would come behind this one's.
            return Verdict::Wait;
        }
        match unit.effect {
            // The keys have left the shard; it says nothing of where they are.
            Effect::Trims => {
                if from_owner {
                    self.start_over();
                }
                return self.noted(unit);
            }
            Effect::Empties => {
                if rule!(by, whole_when_emptied) {
                    self.mark_whole();
                    // What was sent on its way meant another content.
                    self.serial += 1;
                }
                return self.noted(unit);
            }
            Effect::Writes | Effect::Removes => {}
        }
        if from_owner {
            match self.judge_owners(unit, by) {
                Ruling::Apply => return Verdict::Apply,
                Ruling::Covered => return Verdict::Drop,
                Ruling::Note => {}
            }
        } else if self.owner().is_some() && !rule!(by, others_dirty) {
            return Verdict::Drop;
        }
        if self.whole != Whole::Marked {
            for (db, key) in unit.keys {
                self.dirty.note((*db, key.to_vec()));
            }
        }
        if unit.effect == Effect::Writes && self.is_news(unit) && rule!(by, moves_again) {
            self.start_over();
        }
        self.noted(unit)
    }

    /// True for a write of another shard than the owner, behind what it had been asked for: only who gets the set writes
    /// to it, so that it moves since then.
    fn is_news<S>(&self, unit: &Unit<'_, S>) -> bool {
        match &self.stage {
            Stage::Unrest => false,
            Stage::Receiving { owner, until } => {
                *owner != unit.shard && until.get(&unit.shard).is_none_or(|until| unit.offset > *until)
            }
            // All up to there was received before.
            Stage::Copying { owner, .. } | Stage::Switching { owner, .. } => *owner != unit.shard,
        }
    }

    /// A unit of the shard that the set is being copied from.
    fn judge_owners<S>(&self, unit: &Unit<'_, S>, by: &By) -> Ruling {
        match self.whole {
            Whole::Marked | Whole::Listing => return Ruling::Note,
            Whole::Listed(at) if unit.offset <= at => return Ruling::Note,
            Whole::Listed(_) | Whole::No => {}
        }
        let drained = matches!(self.stage, Stage::Switching { .. }) || self.is_drained(Some(unit.shard), &by.applied);
        if !drained && rule!(by, feeder_drained) {
            // It would overtake what the old feeder's lanes still hold.
            return Ruling::Note;
        }
        let (mut covered, mut free) = (0, 0);
        for (db, key) in unit.keys {
            match self.dirty.standing(&(*db, key.to_vec())) {
                Standing::Unknown => return Ruling::Note,
                Standing::At(at) if unit.offset <= at && rule!(by, guarded) => covered += 1,
                Standing::At(_) | Standing::Free => free += 1,
            }
        }
        match (covered, free) {
            (0, _) if by.held => Ruling::Note,
            (0, _) => Ruling::Apply,
            (_, 0) => Ruling::Covered,
            // The copies have the unit's effect, the other keys don't: one can't be told from the other's result.
            _ => Ruling::Note,
        }
    }

    /// The state goes with the first unit that a shard's record passes without its having been applied.
    fn noted<S>(&mut self, unit: &Unit<'_, S>) -> Verdict {
        if self.is_told(unit) {
            return Verdict::Noted { write: None };
        }
        self.writes.insert(unit.shard, unit.offset);
        self.outdated = false;
        Verdict::Noted { write: Some(self.state()) }
    }

    /// True when the target says that the set moves by the time that it is told of the unit.
    fn is_told<S>(&self, unit: &Unit<'_, S>) -> bool {
        self.stored || unit.passed || self.writes.contains_key(&unit.shard)
    }

    fn is_acknowledged_but_by(&self, shard: Shard, applied: &Offsets) -> bool {
        self.writes.iter().filter(|(of, _)| **of != shard).all(|(of, at)| applied.get(of).is_some_and(|a| a >= at))
    }

    /// True when the target has the state from every lane that was given it.
    pub fn is_acknowledged(&self, applied: &Offsets) -> bool {
        self.writes.iter().all(|(of, at)| applied.get(of).is_none_or(|a| a >= at))
    }

    /// True when nothing that the lanes of shards were given of the set is still on its way, `but` one shard's.
    pub fn is_drained(&self, but: Option<Shard>, applied: &Offsets) -> bool {
        let passed = |(shard, until): (&Shard, &Option<ReplOffset>)| {
            Some(*shard) == but || until.is_some_and(|until| applied.get(shard) >= Some(&until))
        };
        self.holders.is_empty() && self.fences.iter().all(passed) && self.tickets.values().all(|of| Some(*of) == but)
    }

    /// The lanes of `shard` have dropped what was on its way, and its units come again from `offset` on.
    pub fn rewinds(&mut self, shard: Shard, offset: ReplOffset) {
        self.begins_at(shard, offset);
        self.writes.remove(&shard);
        self.stored = false;
        self.holders.entry(shard).and_modify(|ticket| *ticket = None);
        self.tickets.retain(|_, of| *of != shard);
        match &mut self.stage {
            Stage::Switching { owner, until, .. } if *owner != shard => {
                // If the switch is dropped and given again: it heard what it had to of this shard.
                until.entry(shard).and_modify(|until| *until = offset.min(*until));
            }
            _ => self.start_over(),
        }
        // Nothing that its lanes were given is on its way any more.
        self.fences.remove(&shard);
    }

    /// Units of `shard` from `offset` on will be noted: a later process must note them as well.
    pub fn begins_at(&mut self, shard: Shard, offset: ReplOffset) {
        if self.starts.get(&shard).is_none_or(|start| *start > offset) {
            self.starts.insert(shard, offset);
            self.stored = false;
            self.outdated = true;
            self.writes.remove(&shard);
        }
    }
}

/// What becomes of a unit of the owner.
enum Ruling {
    Apply,
    /// The copies have it.
    Covered,
    Note,
}
