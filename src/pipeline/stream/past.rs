//! Slots in motion where the target is a cluster: no lane holds them, and what is copied is written past the lanes.

use super::Stream;
use crate::delivery::guard::Standing;
use crate::delivery::motion::{Effect, Name, State, Ticket};
use crate::delivery::unit::Hold;
use crate::pipeline::decode::Error;
use crate::pipeline::learn::AskError;
use crate::pipeline::motion::Motions;
use crate::pipeline::past::{PastLanes, Switch};
use crate::slot::Slot;

impl Stream<'_> {
    fn past(&mut self) -> Result<&mut PastLanes, Error> {
        self.parts.past.as_mut().ok_or(Error::Ended)
    }

    /// The target knows when this returns.
    pub(super) fn tell_past_lanes(
        &mut self,
        motions: &Motions,
        slot: Slot,
        state: &State,
        doubts: bool,
    ) -> Result<(), Error> {
        let server = self.past()?.tell(slot, state, doubts)?;
        motions.is_told(slot, server);
        failpoint!("state-given");
        Ok(())
    }

    /// Has the lanes give up slots that began to move.
    pub(super) fn give_up_moving(&mut self, motions: &Motions) {
        if !motions.is_past_lanes() || !motions.is_moving() {
            return;
        }
        let shard = self.parts.number;
        for (slot, ticket) in motions.with(|machine| machine.to_give_up(shard)) {
            self.parts.router.hold(Hold::GiveUp { slot, ticket });
        }
    }

    /// The router has started again: what it had told the lanes of slots that came may be lost.
    pub(super) fn take_again(&mut self) {
        let Some(motions) = self.parts.motions.clone().filter(|motions| motions.is_past_lanes()) else { return };
        let (shard, stream_db) = (self.parts.number, self.whole.1);
        for (slot, offset) in motions.with(|machine| machine.taken_by(shard)) {
            self.parts.router.hold(Hold::Take { slot, offset, stream_db });
        }
    }

    /// Adds the guards of slots that the lanes didn't hold yet when those of the others were read.
    pub(super) fn add_switched(&mut self, standing: &mut Standing) {
        let mut switched = std::mem::take(&mut self.switched);
        let held = |slot: &Slot| standing.lanes.get(slot.index()).is_some_and(|at| at.0 > 0);
        switched.retain(|slot, _| !held(slot) && self.feeds_slot(*slot));
        standing.guards.keys.extend(switched.values().flatten().cloned());
        self.switched = switched;
    }

    /// Notes keys in slots that no lane of the shard holds, whose copies would go nowhere: they are copied when their slot
    /// has come to rest. Returns the others.
    pub(super) fn note_unheld(&mut self, keys: Vec<Name>) -> Result<Vec<Name>, Error> {
        let Some(motions) = self.parts.motions.clone().filter(|motions| motions.is_past_lanes()) else {
            return Ok(keys);
        };
        let (held, unheld): (Vec<Name>, Vec<Name>) = keys.into_iter().partition(|(_, key)| self.feeds(key));
        for (db, key) in unheld {
            self.judge(&motions, Slot::of(&key), &[(db, &key)], Effect::Writes)?;
        }
        Ok(held)
    }

    /// Writes the values that the builder has of a slot, and empties it.
    pub(super) fn write_past_lanes(&mut self, motions: &Motions, slot: Slot, ticket: Ticket) -> Result<(), Error> {
        let (raw, commands) = self.unit.take_commands();
        if commands > 0 {
            self.past()?.write(slot, &raw, commands)?;
        }
        motions.with(|machine| machine.acknowledged(ticket));
        Ok(())
    }

    /// The shard feeds a slot from here on, and its lanes hold it.
    pub(super) fn switch_past_lanes(
        &mut self,
        motions: &Motions,
        (slot, state): (Slot, State),
        ticket: Ticket,
    ) -> Result<(), Error> {
        let (offset, stream_db) = self.whole;
        // Keys that the shard had copied ahead before the slot began to move stand there still: what the target has of
        // guards is another shard's, but for these.
        let mut ahead = self.parts.copy_keys.ahead_in(slot, offset);
        ahead.extend(motions.with(|machine| machine.copies_ahead(slot)));
        let switch = Switch { state, offset, stream_db, ahead };
        let switched = match motions.server_of(slot) {
            Some(server) => self.past()?.switch(slot, &server, &switch)?,
            None => false,
        };
        if !switched {
            // The server that has the slot now may lack what another one had acknowledged.
            tracing::warn!(slot = slot.number(), "another server of the target has the slot: all its keys are copied");
            motions.forget_server(slot);
            let state = motions.with(|machine| {
                machine.dropped(ticket);
                machine.doubt(slot)
            });
            return state.map_or(Ok(()), |state| self.tell_past_lanes(motions, slot, &state, true));
        }
        motions.forget_server(slot);
        if !switch.ahead.is_empty() {
            self.parts.copy_keys.stand(switch.ahead.clone());
            self.guards_stored = true;
            self.guarded.insert(self.parts.router.lane_of_slot(slot));
            self.switched.insert(slot, switch.ahead);
        }
        motions.with(|machine| machine.acknowledged(ticket));
        self.parts.router.hold(Hold::Take { slot, offset, stream_db });
        Ok(())
    }

    /// The keys that the target has of slots, with its databases.
    pub(super) fn keys_of_slots(&mut self, slots: &[Slot]) -> Result<Vec<(u32, Vec<u8>)>, AskError> {
        let Some(motions) = self.parts.motions.clone().filter(|motions| motions.is_past_lanes()) else {
            return self.parts.learner.keys_of_slots(slots);
        };
        let Some(past) = &mut self.parts.past else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for slot in slots {
            let (keys, server) = past.keys(*slot)?;
            motions.is_listed_at(*slot, server);
            all.extend(keys);
        }
        Ok(all)
    }
}
