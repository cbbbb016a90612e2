//! Sets of keys that no stream can be trusted for, until they have come to rest: slots that move between the source's
//! shards, and whatever else is to be noted and then copied at an offset.
//!
//! Each shard's stream is ordered in itself and not against the others. So while a set is in motion its units aren't
//! applied but noted; when it has come to rest at an owner, the noted keys are copied from there, each at an offset, and
//! from then on the owner's stream feeds the set. No marker of any kind of move is read.
//!
//! [`Motion`] is pure: threads report what they judged, lanes what they have acknowledged, and someone what the source's
//! servers say of who owns what. A set is a slot, or whatever `S` names: one of all keys has one member.

mod dirty;
mod holding;
pub mod kept;
mod looking;
mod moving;
mod state;
mod work;

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::rules::rule;
use crate::offset::ReplOffset;

pub use dirty::Name;
pub use looking::Look;
use moving::{By, Moving, Whole};
pub use moving::{Stage, Ticket};
pub use state::{Offsets, Shard, State};
pub use work::{Part, Work};

/// Keys noted in all sets, beyond which a set is copied whole instead: about so much memory.
pub const NOTED_BYTES_MAX: usize = 64 << 20;

/// What a unit does to the keys of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Anything that isn't one of the others.
    Writes,
    /// It only removes the keys that it names: DEL, UNLINK.
    Removes,
    /// The shard has given up the set's keys, which it doesn't name: TRIMSLOTS.
    Trims,
    /// The set's keys are removed without being named: FLUSHSLOT, FLUSHALL, FLUSHDB.
    Empties,
}

/// A unit of a shard's stream, as far as it concerns one set.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a, S> {
    pub shard: Shard,
    pub offset: ReplOffset,
    pub set: S,
    /// With their source databases; those that it reads as well.
    pub keys: &'a [(u32, &'a [u8])],
    pub effect: Effect,
    /// The shard's record has passed it: it comes again in a later life, and its lane leaves it out.
    pub passed: bool,
}

/// What becomes of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the lanes.
    Apply,
    /// It has no effect any more.
    Drop,
    /// It is not applied: its keys are copied when the set has come to rest. `write` goes into the target, in the lane
    /// of the set, as if it were the unit.
    Noted { write: Option<State> },
    /// Something on its way to the target must be acknowledged first: ask again then.
    Wait,
}

/// What is known of a shard.
#[derive(Debug, Default)]
struct Known {
    /// Up to where its units were judged.
    decoded: ReplOffset,
    /// Its lanes have dropped everything, and its thread doesn't yet know it.
    rewinding: bool,
    /// Which server and history it last read the states from.
    target: u64,
}

/// Who feeds a set at rest, from which offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Feed {
    shard: Shard,
    from: ReplOffset,
}

impl Feed {
    fn state(self) -> State {
        State::Fed { shard: self.shard, from: self.from }
    }
}

/// A motion that has ended, but whose end a failover of the target could undo.
#[derive(Debug)]
struct Kept {
    starts: Offsets,
    shard: Shard,
    from: ReplOffset,
}

/// All sets, and what is known of the shards.
#[derive(Debug)]
pub struct Motion<S> {
    /// A set is here or in `moving`.
    fed: BTreeMap<S, Feed>,
    moving: BTreeMap<S, Moving>,
    shards: BTreeMap<Shard, Known>,
    /// Up to where each shard's lanes have acknowledged everything.
    applied: Offsets,
    kept: Vec<Kept>,
    numbers: u64,
    tickets: u64,
    now_ms: i64,
    noted_bytes_max: usize,
    /// Lanes hold the sets that they feed, see [`Motion::held_by_feeders`].
    held: bool,
    /// Sets whose feeder has changed.
    changed: Vec<S>,
    #[cfg(test)]
    pub(crate) rules: super::rules::MotionRules,
}

impl<S: Copy + Ord + Debug> Default for Motion<S> {
    fn default() -> Self {
        Motion {
            fed: BTreeMap::new(),
            moving: BTreeMap::new(),
            shards: BTreeMap::new(),
            applied: Offsets::new(),
            kept: Vec::new(),
            numbers: 0,
            tickets: 0,
            now_ms: 0,
            noted_bytes_max: NOTED_BYTES_MAX,
            held: false,
            changed: Vec::new(),
            #[cfg(test)]
            rules: super::rules::MotionRules::default(),
        }
    }
}

impl<S: Copy + Ord + Debug> Motion<S> {
    /// Takes over what the target says of a set, or what it is to be told at the begin of a full sync.
    pub fn begin(&mut self, set: S, state: &State) {
        match state {
            State::Fed { shard, from } => {
                self.moving.remove(&set);
                self.fed.insert(set, Feed { shard: *shard, from: *from });
                if !self.shards.contains_key(shard) {
                    self.doubt(set);
                }
            }
            State::Moving { number, starts, whole } => {
                self.numbers = self.numbers.max(*number);
                let mut moving = Moving::new(*number, starts.clone(), self.now_ms);
                moving.stored = true;
                // A shard that is gone has said what nobody will hear again.
                let gone = starts.keys().any(|shard| !self.shards.contains_key(shard));
                if *whole || gone {
                    moving.mark_whole();
                }
                for (shard, known) in &self.shards {
                    moving.begins_at(*shard, known.decoded);
                }
                self.fed.remove(&set);
                self.moving.insert(set, moving);
            }
        }
        self.changed.push(set);
    }

    /// A shard's stream begins here. Shards join before the states are taken over.
    pub fn join(&mut self, shard: Shard, at: ReplOffset, target: u64) {
        self.shards.insert(shard, Known { decoded: at, rewinding: false, target });
        self.applied.insert(shard, at);
        self.moving.values_mut().for_each(|moving| moving.begins_at(shard, at));
    }

    /// A shard is gone for good: what of its stream hasn't been judged never will be. Returns the sets that it fed, or
    /// that are in motion: all their keys are to be copied.
    pub fn leave(&mut self, shard: Shard) -> Vec<S> {
        self.shards.remove(&shard);
        self.applied.remove(&shard);
        for moving in self.moving.values_mut() {
            moving.fences.remove(&shard);
            moving.writes.remove(&shard);
            moving.holders.remove(&shard);
            moving.tickets.retain(|_, of| *of != shard);
            if moving.owner() == Some(shard) {
                moving.start_over();
            }
        }
        let sets = self.of_feeder(shard).chain(self.moving.keys().copied()).collect::<Vec<S>>();
        sets.iter().for_each(|set| _ = self.doubt(*set));
        sets
    }

    /// All keys of the set are to be copied, for a reason that no stream tells.
    ///
    /// Returns what the target must be told before that is relied on. Lanes may yet bring what they were given of a set
    /// that was in motion, and overwrite it; so the target must be told as well that a later process is to doubt whatever
    /// it finds in motion, and to begin at the records. `None` while the switch is on its way, which can't be taken back:
    /// nothing is done then, and it must be tried again.
    pub fn doubt(&mut self, set: S) -> Option<State> {
        let moving = self.set_in_motion(set);
        if matches!(moving.stage, Stage::Switching { .. }) {
            return None;
        }
        moving.start_over();
        moving.mark_whole();
        Some(moving.state())
    }

    /// The target is about to be told of sets in motion beside the streams, or has been: what is done for them meanwhile
    /// could come before that.
    pub fn telling(&mut self, sets: &[S], begins: bool) {
        for set in sets {
            if let Some(moving) = self.moving.get_mut(set) {
                moving.telling = if begins { moving.telling + 1 } else { moving.telling.saturating_sub(1) };
            }
        }
    }

    /// Up to where the shard's units were judged; `None` if it hasn't joined.
    pub fn decoded_until(&self, shard: Shard) -> Option<ReplOffset> {
        self.shards.get(&shard).map(|known| known.decoded)
    }

    /// Up to where the target relies on the shard's history by what it says of sets at rest.
    pub fn relied_until(&self, shard: Shard) -> ReplOffset {
        let of_shard = self.fed.values().filter(|feed| feed.shard == shard);
        of_shard.map(|feed| feed.from).max().unwrap_or_default()
    }

    /// The shard begins anew: it feeds what it fed from this offset on. Returns what the target must be told of that.
    pub fn feed_anew(&mut self, shard: Shard, at: ReplOffset) -> Vec<(S, State)> {
        let old = self.fed.iter_mut().filter(|(_, feed)| feed.shard == shard && feed.from.0 > 0);
        let anew = old.map(|(set, feed)| {
            feed.from = at;
            (*set, feed.state())
        });
        anew.collect()
    }

    /// The sets that a shard feeds.
    pub fn of_feeder(&self, shard: Shard) -> impl Iterator<Item = S> {
        self.fed.iter().filter(move |(_, feed)| feed.shard == shard).map(|(set, _)| *set)
    }

    /// Something says that the set moves: a redirection.
    pub fn sign(&mut self, set: S) {
        let moving = self.set_in_motion(set);
        if !matches!(moving.stage, Stage::Switching { .. }) {
            moving.start_over();
        }
    }

    /// The time by which [`Motion::in_motion`] tells how long.
    pub fn set_time(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
    }

    pub fn set_noted_bytes_max(&mut self, bytes: usize) {
        self.noted_bytes_max = bytes;
    }

    /// What becomes of a unit.
    pub fn judge(&mut self, unit: &Unit<'_, S>) -> Verdict {
        let feed = self.fed.get(&unit.set).copied();
        match feed {
            // It is in the target, or was looked at when it came the first time.
            Some(_) if unit.passed => return Verdict::Drop,
            Some(feed) if feed.shard == unit.shard => {
                if matches!(unit.effect, Effect::Writes | Effect::Removes) {
                    return if unit.offset > feed.from { Verdict::Apply } else { Verdict::Drop };
                }
            }
            // The cleanup of a set that has left the shard.
            Some(_) if unit.effect != Effect::Writes => return Verdict::Drop,
            Some(_) => {}
            // Nobody owned it when all others were looked at.
            None if !self.moving.contains_key(&unit.set) => self.set_in_motion(unit.set).mark_whole(),
            None => {}
        }
        let starts = self.starts_for(unit.shard, feed);
        let by = By {
            applied: self.applied.clone(),
            held: self.held,
            #[cfg(test)]
            rules: self.rules,
        };
        let moving = self.set_in_motion(unit.set);
        if let Some(starts) = starts {
            moving.starts = starts;
        }
        let verdict = moving.judge(unit, &by);
        self.bound_noted(unit.set);
        match verdict {
            Verdict::Noted { .. } if !rule!(self, state_stored) => Verdict::Noted { write: None },
            verdict => verdict,
        }
    }

    /// With a rule taken out: the starts of only these two, when the set begins to move.
    fn starts_for(&self, _sign: Shard, _feed: Option<Feed>) -> Option<Offsets> {
        #[cfg(test)]
        if let Some(feed) = _feed.filter(|_| !self.rules.starts_of_all) {
            return Some(self.offsets().into_iter().filter(|(of, _)| [_sign, feed.shard].contains(of)).collect());
        }
        None
    }

    fn offsets(&self) -> Offsets {
        self.shards.iter().map(|(shard, known)| (*shard, known.decoded)).collect()
    }

    /// The set, in motion from now on if it wasn't.
    fn set_in_motion(&mut self, set: S) -> &mut Moving {
        if !self.moving.contains_key(&set) {
            self.numbers += 1;
            let mut moving = Moving::new(self.numbers, self.offsets(), self.now_ms);
            if let Some(feed) = self.fed.remove(&set) {
                moving.before = Some(feed.state());
                let held = self.held && self.shards.contains_key(&feed.shard);
                moving.holders.extend(held.then_some((feed.shard, None)));
                moving.fences.extend(self.shards.contains_key(&feed.shard).then_some((feed.shard, None)));
            }
            self.changed.push(set);
            self.moving.insert(set, moving);
        }
        match self.moving.get_mut(&set) {
            Some(moving) => moving,
            None => unreachable!("put there above"),
        }
    }

    /// Keeps what is noted within its bound.
    fn bound_noted(&mut self, set: S) {
        let noted = |moving: &Moving| if moving.whole == Whole::No { moving.dirty.bytes() } else { 0 };
        // Looked at only when this set has its share of it: it's asked for every unit noted.
        let share = self.noted_bytes_max / 64;
        if self.moving.get(&set).map_or(0, noted) <= share {
            return;
        }
        let all: usize = self.moving.values().map(noted).sum();
        if let Some(moving) = self.moving.get_mut(&set).filter(|_| all > self.noted_bytes_max)
            && !matches!(moving.stage, Stage::Switching { .. })
        {
            moving.mark_whole();
            moving.serial += 1;
        }
    }

    /// The shard's units were judged up to here.
    pub fn decoded(&mut self, shard: Shard, offset: ReplOffset) {
        let Some(known) = self.shards.get_mut(&shard).filter(|known| !known.rewinding) else { return };
        known.decoded = offset;
        for moving in self.moving.values_mut() {
            if let Some(fence @ None) = moving.fences.get_mut(&shard) {
                *fence = Some(offset);
            }
        }
    }

    /// The shard's lanes have acknowledged everything up to here.
    pub fn applied(&mut self, shard: Shard, offset: ReplOffset) {
        if self.shards.get(&shard).is_some_and(|known| !known.rewinding) {
            let applied = self.applied.entry(shard).or_insert(offset);
            *applied = offset.max(*applied);
        }
    }

    /// A replica of the target has the shard's records up to here, or there is none.
    pub fn covered(&mut self, shard: Shard, offset: ReplOffset) {
        self.kept.retain(|kept| kept.shard != shard || offset <= kept.from);
    }

    /// The journal of `shard` is needed from here on, whatever the records say.
    pub fn keep_from(&self, shard: Shard) -> Option<ReplOffset> {
        let moving = self.moving.values().filter_map(|moving| moving.starts.get(&shard));
        let kept = self.kept.iter().filter_map(|kept| kept.starts.get(&shard));
        moving.chain(kept).min().copied().filter(|_| rule!(self, journals_kept))
    }

    /// The feeder of a set; `None` while it moves.
    pub fn feeder(&self, set: S) -> Option<Shard> {
        self.fed.get(&set).map(|feed| feed.shard)
    }

    /// The sets whose [`Motion::feeder`] may have changed since the last call.
    pub fn take_changed(&mut self) -> Vec<S> {
        std::mem::take(&mut self.changed)
    }

    /// How many sets are in motion.
    pub fn count_in_motion(&self) -> usize {
        self.moving.len()
    }

    /// The sets in motion, since when, and how far they are.
    pub fn in_motion(&self) -> impl Iterator<Item = (S, i64, &Stage)> {
        self.moving.iter().map(|(set, moving)| (*set, moving.since_ms, &moving.stage))
    }
}

/// Where a shard's stream must be resumed, whose lowest record is `record`, by what the target says of all sets.
pub fn resume_from<'a>(shard: Shard, record: ReplOffset, states: impl Iterator<Item = &'a State>) -> ReplOffset {
    let start = |state: &'a State| match state {
        State::Moving { starts, .. } => starts.get(&shard).copied(),
        State::Fed { .. } => None,
    };
    states.filter_map(start).fold(record, ReplOffset::min)
}

/// Up to where the target relies on a shard's history by what it says of all sets, as it does up to its records.
pub fn relied_until<'a>(shard: Shard, states: impl Iterator<Item = &'a State>) -> ReplOffset {
    let from = |state: &State| match state {
        State::Fed { shard: feeder, from } if *feeder == shard => Some(*from),
        State::Fed { .. } | State::Moving { .. } => None,
    };
    states.filter_map(from).max().unwrap_or_default()
}

#[cfg(test)]
mod tests;
