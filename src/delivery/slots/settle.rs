//! Servers that come and go, and going on from what their records say.

use super::found::{Found, Position, position};
use super::record::SlotRecord;
use super::{Barrier, Cluster, Connection, NOWHERE, NodeId, Server, Stage};
use crate::delivery::copy::Value;
use crate::delivery::rules::rule;
use crate::delivery::standalone::{Lost, Reread};
use crate::offset::ReplOffset;
use crate::slot::Slot;

/// How a slot came to the node that has it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// It was there, or nobody knows where it was.
    Same,
    /// The node that had it is still there: it moved with its keys.
    Moved,
    /// The server that had it is gone: what is here may lack what that one had acknowledged.
    Lossy,
}

/// What a slot's record says of it.
#[derive(Debug, Clone, Copy)]
struct Settled {
    slot: Slot,
    node: NodeId,
    record: SlotRecord,
    arrival: Arrival,
    /// `None` in the copy.
    position: Option<Position>,
    /// Units that were sent before a break, and are applied.
    unseen: u32,
    fell_back: bool,
    ahead: bool,
}

impl Cluster {
    /// A server is connected, fenced, and its connections are open. Returns its place.
    ///
    /// `identity`: its run id and replid, so that another server, or one with another history, is another.
    pub fn attach(&mut self, identity: &str) -> NodeId {
        let known = self.servers.iter().position(|server| server.identity == identity);
        let node = known.unwrap_or(self.servers.len());
        if known.is_none() {
            self.servers.push(Server {
                identity: identity.to_owned(),
                attached: false,
                arrivals: 0,
                floor: None,
                floor_in_flight: false,
            });
            self.conns.extend((0..self.lanes).map(|_| Connection::default()));
        }
        if let Some(server) = self.servers.get_mut(node) {
            server.attached = true;
            server.floor_in_flight = false;
        }
        self.conns.iter_mut().skip(node * self.lanes).take(self.lanes).for_each(|conn| conn.open = true);
        node
    }

    /// True if a server is connected that has this run id and replid.
    pub fn is_attached(&self, identity: &str) -> bool {
        self.servers.iter().any(|server| server.attached && server.identity == identity)
    }

    /// The connections of a server.
    pub fn conns_of(&self, node: NodeId) -> std::ops::Range<usize> {
        node * self.lanes..(node + 1) * self.lanes
    }

    /// All connections to a server are gone. Nothing is sent to its slots until [`Cluster::settle`].
    pub fn detach(&mut self, node: NodeId) {
        if let Some(server) = self.servers.get_mut(node) {
            server.attached = false;
            server.floor_in_flight = false;
        }
        for conn in self.conns_of(node) {
            if let Some(conn) = self.conns.get_mut(conn) {
                self.flying -= conn.close().count();
            }
        }
        let home = u16::try_from(node).unwrap_or(NOWHERE);
        for state in self.slots.iter_mut().filter(|s| s.home == home && s.stage != Stage::Away) {
            state.stage = Stage::Away;
            self.away += 1;
        }
        if self.barrier == Barrier::Running && rule!(self, task_again) {
            self.barrier = Barrier::Due;
        }
    }

    /// True while slots wait to be settled.
    pub fn needs_settling(&self) -> bool {
        self.away > 0
    }

    /// True if slots that wait have lost their server to another, which may lack what that one had. `node`: where they are.
    pub fn loses_homes(&self, node: impl Fn(Slot) -> Option<NodeId>) -> bool {
        let is_gone = |home: u16| self.servers.get(usize::from(home)).is_some_and(|server| !server.attached);
        let is_lost = |slot: Slot| {
            let state = self.slots.get(slot.index()).filter(|s| s.stage == Stage::Away && is_gone(s.home));
            state.is_some() && node(slot).is_some()
        };
        self.feeds.iter().any(is_lost)
    }

    /// True if the record of a slot is to be read from `node`, which owns it.
    pub fn wants(&self, slot: Slot, node: NodeId) -> bool {
        let state = self.slots.get(slot.index()).filter(|_| self.feeds.contains(slot));
        state.is_some_and(|s| s.stage == Stage::Away || usize::from(s.home) != node && s.stage == Stage::Resting)
    }

    /// Goes on from what was found, in slots that [`Cluster::wants`] names; units at or below their positions are done, the
    /// rest is sent again.
    ///
    /// # Errors
    /// When a record is gone, what was acknowledged in the copy may be, or keys may have been lost on a move.
    pub fn settle(&mut self, found: &[Found]) -> Result<Reread, Lost> {
        self.drop_strays(found);
        let mut settled = Vec::new();
        for here in found {
            for (slot, record) in here.records.iter().filter(|(slot, _)| self.feeds.contains(*slot)) {
                settled.push(self.look(found, here, *slot, record.as_ref())?);
            }
        }
        self.look_for_torn(found, &settled)?;
        let distrusted = std::mem::take(&mut self.distrusted);
        let rewinds = distrusted || settled.iter().any(|s| s.fell_back || s.ahead);
        if rewinds && !self.is_all_known(&settled) && rule!(self, rewinds_at_rest) {
            self.distrusted = true;
            return Ok(Reread::ReadAll);
        }
        let lowest = settled.iter().filter(|s| s.fell_back).filter_map(|s| s.position).min();
        for settled in &settled {
            self.take_home(settled);
        }
        self.house_again();
        if rewinds {
            return self.rewind(lowest);
        }
        for settled in &settled {
            self.rouse(settled.slot.number());
        }
        self.distribute();
        Ok(Reread::Continue)
    }

    /// True when nothing is in flight and no slot waits but these: what is routed again may become other commands than it
    /// did before, so that none of those may run any more, and it must be known which have.
    fn is_all_known(&self, settled: &[Settled]) -> bool {
        let waiting = |s: &&Settled| self.slots.get(s.slot.index()).is_some_and(|state| state.stage == Stage::Away);
        self.flying == 0 && self.away == settled.iter().filter(waiting).count()
    }

    /// True while slots have a home, to which more may be sent.
    pub fn has_homes(&self) -> bool {
        self.away < self.feeds.len()
    }

    /// What is to be thought of one slot's record; changes nothing.
    fn look(&self, all: &[Found], found: &Found, slot: Slot, record: Option<&SlotRecord>) -> Result<Settled, Lost> {
        let gone = Lost::Slot { slot: slot.number() };
        let ours = |r: &&SlotRecord| r.generation == self.job.generation && r.shard == self.job.shard;
        let record = *record.filter(ours).ok_or(gone.clone())?;
        let state = self.slots.get(slot.index()).ok_or(gone)?;
        let arrival = match self.servers.get(usize::from(state.home)) {
            None => Arrival::Same,
            Some(_) if usize::from(state.home) == found.node => Arrival::Same,
            Some(home) if home.attached => Arrival::Moved,
            Some(_) => Arrival::Lossy,
        };
        let position = position(&record, self.floor_of(found, all, slot, arrival));
        let mut settled =
            Settled { slot, node: found.node, record, arrival, position, unseen: 0, fell_back: false, ahead: false };
        let Some(at) = position else {
            // Copied values have no records: another server may lack what its predecessor acknowledged.
            let lost = arrival == Arrival::Lossy && rule!(self, copy_is_lost) || record.pieces < state.pieces;
            if state.recorded || lost {
                return Err(Lost::Copy);
            }
            settled.unseen = u32::from(state.sent > 0 && record.pieces > state.pieces);
            return Ok(settled);
        };
        if !self.following {
            return Err(Lost::Copy);
        }
        let last = (state.sent as usize).checked_sub(1).and_then(|n| self.queue.iter(state.list).nth(n));
        let covered = last.and_then(|unit| unit.last()).is_some_and(|last| last.offset <= record.offset);
        if covered && rule!(self, record_read_back) {
            settled.unseen = state.sent;
        }
        if state.recorded {
            let barrier = if rule!(self, barrier_remembered) { self.barrier_done } else { ReplOffset(0) };
            // Floors don't move along with a slot, but to where a replica takes over.
            let less = match arrival {
                Arrival::Same if state.home == NOWHERE => at.offset < state.applied,
                Arrival::Same | Arrival::Moved => record.offset < state.own,
                Arrival::Lossy => at.offset < state.applied.max(barrier),
            };
            settled.fell_back = less && rule!(self, record_falls_back);
        }
        // Of this process's own nothing can be there yet: the last bytes of an earlier one ran before they were killed.
        settled.ahead = state.home == NOWHERE && record.offset > state.applied && rule!(self, record_read_back);
        Ok(settled)
    }

    /// The floor that counts for a slot: one that names it, and stands on its node; of a node that took over from another
    /// one that was written to that.
    fn floor_of(&self, found: &Found, all: &[Found], slot: Slot, arrival: Arrival) -> Option<Position> {
        #[cfg(test)]
        if !self.rules.floor_at_owner {
            return all.iter().filter_map(|found| found.floor(slot, self.job.generation, self.job.shard, None)).max();
        }
        #[cfg(test)]
        if !self.rules.floor_names_slots {
            let at = |f: &super::record::Floor| Position { offset: f.record.offset, stream_db: f.record.stream_db };
            return found.floors.iter().map(at).max();
        }
        let _ = all;
        let state = self.slots.get(slot.index()).filter(|_| arrival == Arrival::Lossy);
        let gone = state.and_then(|s| self.servers.get(usize::from(s.home))).map(|server| server.identity.as_str());
        found.floor(slot, self.job.generation, self.job.shard, gone)
    }

    /// A server that fell back while slots moved may have lost keys of them, whatever their records say.
    fn look_for_torn(&self, found: &[Found], settled: &[Settled]) -> Result<(), Lost> {
        if !rule!(self, torn_is_lost) {
            return Ok(());
        }
        let lossy = settled.iter().any(|s| s.arrival == Arrival::Lossy);
        let moving = found.iter().filter(|_| lossy).flat_map(|found| found.moving.iter());
        let moving = moving.filter(|slot| self.feeds.contains(*slot)).min();
        let fallen = |node: NodeId| settled.iter().any(|s| s.node == node && s.arrival == Arrival::Lossy);
        let doubtful = |s: &&Settled| {
            let here = found.iter().find(|found| found.node == s.node);
            let named = here.is_some_and(|f| self.floor_of(f, found, s.slot, s.arrival).is_some());
            match s.arrival {
                // Whatever fell back, the slot was there: a floor says so.
                Arrival::Lossy => self.following && !named,
                Arrival::Moved => s.fell_back,
                Arrival::Same => false,
            }
        };
        // What has come to a server that fell back, from one that is still there, may have come before that.
        let came = |found: &&Found| found.owned.iter().filter(|slot| self.has_moved_to(*slot, found.node)).min();
        let came = found.iter().filter(|found| fallen(found.node)).find_map(|found| came(&found));
        let torn = moving.or(came).or_else(|| settled.iter().find(doubtful).map(|s| s.slot));
        torn.map_or(Ok(()), |slot| Err(Lost::Torn { slot: slot.number() }))
    }

    fn has_moved_to(&self, slot: Slot, node: NodeId) -> bool {
        let home = self.slots.get(slot.index()).filter(|_| self.feeds.contains(slot)).map(|s| usize::from(s.home));
        home.is_some_and(|home| home != node && self.servers.get(home).is_some_and(|server| server.attached))
    }

    /// A slot has its home, and stands where its record says.
    fn take_home(&mut self, settled: &Settled) {
        let index = settled.slot.index();
        if settled.unseen > 0 {
            self.replies_unseen += 1;
            let piece = settled.position.is_none();
            let mark = (settled.record.offset, settled.record.stream_db);
            self.transaction_applied(index, mark, settled.unseen as usize, piece);
        }
        let home = u16::try_from(settled.node).unwrap_or(NOWHERE);
        let Some(state) = self.slots.get_mut(index) else { return };
        self.away -= usize::from(state.stage == Stage::Away);
        state.sent = 0;
        state.stage = Stage::Resting;
        state.moved = false;
        if state.home != home {
            state.home = home;
            state.refresh = self.following;
            if let Some(server) = self.servers.get_mut(settled.node) {
                server.arrivals += 1;
            }
        }
        if let Some(position) = settled.position {
            if position.offset > state.applied || settled.fell_back {
                (state.applied, state.applied_db) = (position.offset, position.stream_db);
            }
            (state.own, state.recorded) = (settled.record.offset, true);
            if std::mem::take(&mut state.record_due) {
                self.queue.done(self.copy_end);
            }
        }
    }

    /// Copied values whose slot has a home again go there.
    fn house_again(&mut self) {
        let homeless = std::mem::take(&mut self.homeless);
        // What waits on connections that are gone, too.
        let closed = self.conns.iter_mut().filter(|conn| !conn.open);
        let stranded: Vec<Value> = closed.flat_map(|conn| conn.copy.take_out(|_| true)).collect();
        homeless.into_iter().chain(stranded).for_each(|value| self.house(value));
    }

    /// Drops everything that isn't in flight; the router starts again.
    fn rewind(&mut self, lowest: Option<Position>) -> Result<Reread, Lost> {
        let Some(acked) = self.acked else { return Err(Lost::Copy) };
        let lowest = lowest.map_or(acked, |position| acked.min((position.offset, position.stream_db)));
        for state in &mut self.slots {
            self.queue.cut(&mut state.list, state.sent as usize);
        }
        self.pending.clear();
        self.barrier = Barrier::Clear;
        self.queue.forget_marks();
        self.queue.mark(lowest, 0);
        self.level = lowest;
        self.acked = Some(lowest);
        self.recorded = Some(lowest.0);
        self.epoch += 1;
        for slot in self.feeds.iter().map(Slot::number).collect::<Vec<_>>() {
            self.rouse(slot);
        }
        Ok(Reread::Rewind { offset: lowest.0, stream_db: lowest.1, epoch: self.epoch })
    }
}
