//! Lanes that hold what they feed, as those to a cluster do: each slot has a record of one shard's stream.
//!
//! While such a set is in motion nobody's lanes hold it: the feeder's give it up, all its units are noted, and its owner
//! writes the copies and the switch past the lanes. With the switch the owner's lanes take it, and are told where the
//! copies stand that are ahead of the stream.

use std::fmt::Debug;

use super::dirty::Name;
use super::moving::Ticket;
use super::state::{Shard, State};
use super::{Motion, Stage};
use crate::offset::ReplOffset;

impl<S: Copy + Ord + Debug> Motion<S> {
    /// The same for lanes that hold the sets that they feed.
    pub fn held_by_feeders() -> Self {
        Motion { held: true, ..Motion::default() }
    }

    /// The sets that the shard's lanes are to give up, each with what stands for their having done so.
    pub fn to_give_up(&mut self, shard: Shard) -> Vec<(S, Ticket)> {
        let asked = |of: &super::Moving| of.holders.get(&shard) == Some(&None);
        let sets: Vec<S> = self.moving.iter().filter(|(_, moving)| asked(moving)).map(|(set, _)| *set).collect();
        let mut all = Vec::with_capacity(sets.len());
        for set in sets {
            let ticket = self.ticket();
            if let Some(moving) = self.moving.get_mut(&set) {
                moving.holders.insert(shard, Some(ticket));
                all.push((set, ticket));
            }
        }
        all
    }

    /// The copies of a set that stand behind the offset from which its owner feeds it.
    pub fn copies_ahead(&self, set: S) -> Vec<(Name, ReplOffset)> {
        let Some(moving) = self.moving.get(&set) else { return Vec::new() };
        let Stage::Switching { from, .. } = moving.stage else { return Vec::new() };
        moving.dirty.copies_behind(from)
    }

    /// What the target is to say of a set, and what it may still say if it moves.
    pub fn told_of(&self, set: S) -> Option<(State, Option<State>)> {
        let moving = || self.moving.get(&set).map(|moving| (moving.state(), moving.before.clone()));
        self.fed.get(&set).map(|feed| (feed.state(), None)).or_else(moving)
    }

    /// True while all keys of the set are to be copied, and weren't listed.
    pub fn is_to_be_listed(&self, set: S) -> bool {
        self.moving.get(&set).is_some_and(|moving| moving.whole == super::Whole::Marked)
    }

    /// The sets that a shard feeds since a switch.
    pub fn taken_by(&self, shard: Shard) -> Vec<(S, ReplOffset)> {
        let taken = self.fed.iter().filter(|(_, feed)| feed.shard == shard && feed.from.0 > 0);
        taken.map(|(set, feed)| (*set, feed.from)).collect()
    }
}
