//! What the target is told of slots, and what it turns out to have lost of them.

use super::{Motions, lock};
use crate::delivery::motion::{Shard, State};
use crate::pipeline::Error;
use crate::pipeline::prepare::{Plan, retrying};
use crate::slot::{Slot, Slots};
use crate::target::checkpoint::{Following, Places};
use crate::target::connect::Identity;
use crate::target::states;

impl Motions {
    /// True where slots in motion are written past the lanes.
    pub fn is_past_lanes(&self) -> bool {
        self.past_lanes
    }

    pub(super) async fn tell(
        &self,
        plan: &Plan,
        id: &Identity,
        states: &[(Slot, State)],
        doubts: bool,
    ) -> Result<(), Error> {
        let write = async || Ok(states::write(&plan.target, id, states, doubts).await?);
        let servers = retrying(&plan.status, "target", plan.job.retry_for, write).await?;
        servers.into_iter().for_each(|(slot, server)| self.is_told(slot, server));
        Ok(())
    }

    /// A server of the target was told that a slot is in motion. If it isn't the one that was told before, that one may
    /// have been acknowledged what this one lacks.
    pub fn is_told(&self, slot: Slot, server: String) {
        lock(&self.servers).entry(slot).or_insert(server);
    }

    /// The lanes that held a slot had all that they wrote acknowledged by this server. Another one that was told may lack
    /// some of that: then none is known to have all.
    pub fn is_left_at(&self, slot: Slot, server: String) {
        let mut servers = lock(&self.servers);
        match servers.get_mut(&slot) {
            Some(told) if *told != server => told.clear(),
            Some(_) => {}
            None => _ = servers.insert(slot, server),
        }
    }

    /// All that will be acknowledged of a slot's keys is on this server.
    pub fn is_listed_at(&self, slot: Slot, server: String) {
        lock(&self.servers).insert(slot, server);
    }

    /// The server that has all of a slot.
    pub fn server_of(&self, slot: Slot) -> Option<String> {
        lock(&self.servers).get(&slot).cloned()
    }

    /// It doesn't matter any more, or isn't known.
    pub fn forget_server(&self, slot: Slot) {
        lock(&self.servers).remove(&slot);
    }

    /// Whether a node of the target, asked anew, says something else of a slot that the shard's lanes hold than what it
    /// was told.
    pub fn is_stray(&self, shard: Shard, slot: Slot, says: Option<&State>) -> bool {
        let first = State::Fed { shard, from: Default::default() };
        let says = says.unwrap_or(&first);
        match self.with(|machine| machine.told_of(slot)) {
            None => false,
            Some((now, before)) => {
                let same = match (&now, says) {
                    (State::Moving { number, .. }, State::Moving { number: said, .. }) => number == said,
                    (now, says) => now == says,
                };
                !same && before.as_ref() != Some(says)
            }
        }
    }

    /// The target has lost what it was told of slots that the shard's lanes held.
    pub fn are_lost(&self, slots: Vec<Slot>) {
        tracing::warn!(slots = slots.len(), "the target has lost what it knew of slots: all their keys are copied");
        self.with(|machine| slots.iter().for_each(|slot| _ = machine.doubt(*slot)));
        lock(&self.lost).extend(slots);
        self.wanted.notify_one();
    }

    /// Tells the target of what it has lost.
    pub(super) async fn tell_lost(&self, plan: &Plan) -> Result<(), Error> {
        let lost = std::mem::take(&mut *lock(&self.lost));
        if lost.is_empty() {
            return Ok(());
        }
        let told = self.doubt(plan, &plan.identity, lost.clone()).await;
        if told.is_err() {
            lock(&self.lost).extend(lost);
        }
        told
    }

    /// A session of the shard goes on from records: slots that it feeds and that have none are copied.
    ///
    /// # Errors
    /// When the target can't be told.
    pub async fn doubt_unrecorded(
        &self,
        plan: &Plan,
        id: &Identity,
        shard: Shard,
        following: &Following,
    ) -> Result<(), Error> {
        let Places::Slots { positions, .. } = &following.at else { return Ok(()) };
        let recorded: Slots = positions.iter().map(|(slot, _)| *slot).collect();
        let missing: Vec<Slot> = self.fed(shard).iter().filter(|slot| !recorded.contains(*slot)).collect();
        self.doubt(plan, id, missing).await
    }
}
