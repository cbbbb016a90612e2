//! Who owns a set: what the source's servers say, and what the target says after a break.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::moving::Stage;
use super::state::{Offsets, Shard, State};
use super::{Feed, Known, Motion};
use crate::delivery::rules::rule;
use crate::offset::ReplOffset;

/// A look at the source's servers that has begun.
#[derive(Debug)]
pub struct Look<S> {
    /// Sets of whose shards everything was received that is to be, each with its count of stages.
    received: BTreeMap<S, u64>,
}

impl<S: Copy + Ord + Debug> Motion<S> {
    /// A look begins: views are asked for from now on.
    pub fn look(&self) -> Look<S> {
        let received = self.moving.iter().filter_map(|(set, moving)| match &moving.stage {
            Stage::Receiving { owner, until } if self.has_received(*owner, until) => Some((*set, moving.serial)),
            _ => None,
        });
        Look { received: received.collect() }
    }

    fn has_received(&self, owner: Shard, until: &Offsets) -> bool {
        let reached = |(shard, known): (&Shard, &Known)| {
            let reached = until.get(shard).is_some_and(|until| known.decoded >= *until);
            !known.rewinding && (reached || !self.is_waited_for(*shard, owner))
        };
        self.shards.iter().all(reached)
    }

    /// True for every shard: also the losers' streams are waited for.
    fn is_waited_for(&self, _shard: Shard, _owner: Shard) -> bool {
        #[cfg(test)]
        if !rule!(self, received) || !rule!(self, received_of_all) && _shard != _owner {
            return false;
        }
        true
    }

    /// A look has ended. `rest`: the only owner that all views name, if none shows the set on the move. `offsets`: what
    /// the shards answered when they were asked for theirs, behind all views.
    pub fn looked(&mut self, look: &Look<S>, rest: impl Fn(S) -> Option<Shard>, offsets: &Offsets) {
        let sets: Vec<S> = self.moving.keys().copied().collect();
        for set in sets {
            let rest = rest(set).filter(|owner| self.shards.contains_key(owner));
            let Some(next) = self.next_stage(set, look, rest, offsets) else { continue };
            let Some(moving) = self.moving.get_mut(&set) else { continue };
            if moving.owner().is_some() {
                moving.start_over();
            }
            moving.enter(next);
        }
    }

    /// The stage that a set enters by what was seen of it.
    fn next_stage(&self, set: S, look: &Look<S>, rest: Option<Shard>, offsets: &Offsets) -> Option<Stage> {
        let moving = self.moving.get(&set)?;
        match (&moving.stage, rest) {
            (Stage::Switching { .. }, _) | (Stage::Unrest, None) => None,
            (Stage::Copying { owner, .. }, Some(rest)) if *owner == rest => None,
            (Stage::Receiving { owner, until }, Some(rest)) if *owner == rest => {
                if until.iter().any(|(shard, until)| offsets.get(shard).is_some_and(|now| now < until)) {
                    // A failover has cut the stream: it may never come to where it was.
                    return Some(Stage::Receiving { owner: rest, until: offsets.clone() });
                }
                let again = look.received.get(&set) == Some(&moving.serial);
                (again && self.has_received(*owner, until)).then(|| self.copying(rest, until))
            }
            (_, Some(owner)) => {
                let asked = self.shards.keys().all(|shard| offsets.contains_key(shard));
                Some(if asked { Stage::Receiving { owner, until: offsets.clone() } } else { Stage::Unrest })
            }
            (_, None) => Some(Stage::Unrest),
        }
    }

    /// With a rule taken out: what was received is copied at once.
    #[cfg(test)]
    pub(super) fn skip_second_look(&mut self) {
        let look = self.look();
        for (set, _) in look.received {
            let Some(Stage::Receiving { owner, until }) = self.moving.get(&set).map(|moving| moving.stage.clone())
            else {
                continue;
            };
            let next = self.copying(owner, &until);
            self.moving.get_mut(&set).into_iter().for_each(|moving| moving.enter(next.clone()));
        }
    }

    fn copying(&self, owner: Shard, until: &Offsets) -> Stage {
        let until = until.iter().filter(|(shard, _)| self.is_waited_for(**shard, owner));
        Stage::Copying { owner, until: until.map(|(shard, until)| (*shard, *until)).collect() }
    }

    /// A shard's lanes were connected anew, and read what the target says of all sets. What they know of their tickets
    /// comes before. `target` tells whether it is the server, and its history, that it was.
    ///
    /// Returns the sets of which it says what it said before: it has lost what it had acknowledged of them. All their
    /// keys are to be copied. (The records that it has are as old, so what it has to hear of them comes again.)
    pub fn reread(&mut self, shard: Shard, target: u64, there: impl Fn(S) -> Option<State>) -> Vec<S> {
        if !rule!(self, states_reread) {
            return Vec::new();
        }
        if let Some(known) = self.shards.get_mut(&shard) {
            known.target = target;
        }
        let other = |(set, feed): (&S, &Feed)| (there(*set) != Some(feed.state())).then_some(*set);
        let mut lost: Vec<S> = self.fed.iter().filter_map(other).collect();
        let mut switched = Vec::new();
        for (set, moving) in &mut self.moving {
            match (&moving.stage, there(*set)) {
                (_, Some(State::Moving { number, starts, .. })) if number == moving.number => {
                    moving.stored = starts == moving.starts;
                }
                (Stage::Switching { owner, from, .. }, Some(State::Fed { shard, from: at }))
                    if *owner == shard && *from == at =>
                {
                    switched.push(*set);
                }
                (_, there) if there == moving.before => moving.stored = false,
                _ => lost.push(*set),
            }
        }
        switched.into_iter().for_each(|set| self.switched(set));
        for set in &lost {
            let moving = self.set_in_motion(*set);
            moving.start_over();
            moving.mark_whole();
            moving.before = there(*set);
            moving.stored = false;
            moving.writes.clear();
        }
        lost
    }

    /// The shard's lanes have dropped everything: its units come again from `offset` on. Called by who connects, and
    /// once more as [`Motion::rewound`] by who judges, who may have gone on meanwhile.
    pub fn rewinds(&mut self, shard: Shard, offset: ReplOffset) {
        let Some(known) = self.shards.get_mut(&shard) else { return };
        known.decoded = offset;
        known.rewinding = true;
        self.applied.insert(shard, offset);
        self.moving.values_mut().for_each(|moving| moving.rewinds(shard, offset));
    }

    /// From here on the shard's units are judged again.
    pub fn rewound(&mut self, shard: Shard, offset: ReplOffset) {
        self.rewinds(shard, offset);
        if let Some(known) = self.shards.get_mut(&shard) {
            known.rewinding = false;
        }
    }
}
