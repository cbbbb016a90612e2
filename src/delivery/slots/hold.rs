//! Slots that come to a shard's lanes or leave them while the job runs, since they move on the source.

use super::{Cluster, Found, Stage, State};
use crate::delivery::motion::Ticket;
use crate::delivery::unit::Hold;
use crate::slot::Slot;

/// A slot of which nothing more will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenUp {
    pub slot: Slot,
    pub ticket: Ticket,
    /// Which server acknowledged what was written of it (see [`Cluster::attach`]), if anything was.
    pub server: Option<String>,
}

/// Slots on their way out of a machine.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// To be given up when nothing of them is on its way any more.
    leaving: Vec<(Slot, Ticket)>,
    given_up: Vec<GivenUp>,
    /// Slots that were taken for held, and that the target says something else of.
    strays: Vec<Slot>,
    /// All nodes were connected once: nothing of an earlier session is on its way.
    fenced: bool,
}

impl Cluster {
    /// A slot comes, or is to go.
    pub(super) fn hold_or_give_up(&mut self, hold: Hold) {
        match hold {
            Hold::Take { slot, offset, stream_db } => {
                // Told again when the router has started again.
                if self.feeds.contains(slot) {
                    return;
                }
                let taken = State {
                    applied: offset,
                    applied_db: stream_db,
                    own: offset,
                    recorded: true,
                    stage: Stage::Away,
                    ..State::NEW
                };
                if let Some(state) = self.slots.get_mut(slot.index()) {
                    *state = taken;
                    self.feeds.insert(slot);
                    self.away += 1;
                }
            }
            Hold::GiveUp { slot, ticket } => {
                self.holding.leaving.push((slot, ticket));
                self.let_go();
            }
        }
    }

    /// Gives up what is to be, as far as nothing of it is on its way.
    pub fn let_go(&mut self) {
        if self.holding.leaving.is_empty() {
            return;
        }
        let mut leaving = std::mem::take(&mut self.holding.leaving);
        leaving.retain(|(slot, ticket)| {
            let held = self.feeds.contains(*slot);
            let gone = if held { self.is_quiet(*slot) } else { self.holding.fenced };
            if gone {
                let server = self.home_of(*slot).filter(|_| held);
                self.remove(*slot);
                self.holding.given_up.push(GivenUp { slot: *slot, ticket: *ticket, server });
            }
            !gone
        });
        self.holding.leaving = leaving;
        self.reach();
    }

    /// Nothing of the slot is queued or in flight.
    fn is_quiet(&mut self, slot: Slot) -> bool {
        let Some(state) = self.slots.get_mut(slot.index()) else { return true };
        match state.stage {
            Stage::Resting => state.list.is_empty() && !state.record_due,
            // Only its record was to be written again.
            Stage::Ready if state.list.is_empty() && !state.record_due => {
                state.refresh = false;
                false
            }
            _ => false,
        }
    }

    /// The server that has all that was acknowledged of a slot.
    fn home_of(&self, slot: Slot) -> Option<String> {
        let home = self.slots.get(slot.index())?.home;
        self.servers.get(usize::from(home)).map(|server| server.identity.clone())
    }

    fn remove(&mut self, slot: Slot) {
        self.feeds.remove(slot);
        if let Some(state) = self.slots.get_mut(slot.index()) {
            self.away -= usize::from(state.stage == Stage::Away);
            self.queue.cut(&mut state.list, 0);
            *state = State { stage: Stage::Foreign, ..State::NEW };
        }
    }

    /// Drops the slots that the target says to be something else than what this machine left there.
    pub(super) fn drop_strays(&mut self, found: &[Found]) {
        for slot in found.iter().flat_map(|found| found.strays.iter()) {
            if self.following && self.feeds.contains(slot) {
                self.remove(slot);
                self.holding.strays.push(slot);
            }
        }
        self.reach();
    }

    /// All nodes are connected, and what is left of an earlier session's connections is killed.
    pub fn set_fenced(&mut self) {
        self.holding.fenced = true;
        self.let_go();
    }

    /// What was given up since the last call.
    pub fn take_given_up(&mut self) -> Vec<GivenUp> {
        std::mem::take(&mut self.holding.given_up)
    }

    /// The slots that were lost since the last call.
    pub fn take_strays(&mut self) -> Vec<Slot> {
        std::mem::take(&mut self.holding.strays)
    }

    /// No slot's record says how far this shard is: what is applied is as safe as it gets.
    pub(super) fn recorded_without_slots(&mut self) {
        if self.feeds.is_empty() && self.following {
            self.recorded = self.acked.map(|(offset, _)| offset).or(self.recorded);
        }
    }
}
