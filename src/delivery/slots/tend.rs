//! What is done now and then: floors, the records of slots that rest, and slots that were held.

use super::{Cluster, ConnId, Event, NodeId, Stage};
use crate::delivery::answers::OutOfStep;
use crate::delivery::record::{Phase, Record};
use crate::delivery::refusal::{Refusal, refusal};
use crate::delivery::rules::rule;
use crate::delivery::slots::record::Floor;
use crate::offset::ReplOffset;
use crate::resp::reply::Scanned;
use crate::slot::{SLOTS, Slot, Slots};

/// How long a slot that is on the move waits at first, and at most; it doubles each time.
const HOLD_MS: i64 = 50;
const HOLD_MS_MAX: i64 = 1000;

/// So many calls of [`Cluster::refresh`] renew the record of every slot that rests.
const REFRESH_CALLS: u16 = 100;

impl Cluster {
    /// What says on a server up to where its slots have everything, and the connection it goes to. For every second: it
    /// also notices a server that was demoted. `None` if there is nothing to say, or the last isn't answered.
    pub fn floor(&mut self, node: NodeId) -> Option<(ConnId, Vec<u8>)> {
        #[cfg(not(test))]
        let (offset, stream_db) = self.acked?;
        #[cfg(test)]
        let (offset, stream_db) = if self.rules.floor_acknowledged { self.acked? } else { self.level };
        let slots = self.named(node);
        let lowest = slots.lowest()?;
        let conn = self.conn_of(u16::try_from(node).ok()?, lowest.number());
        if self.careful && self.awaits_answer(conn) {
            return None;
        }
        let server = self.servers.get_mut(node).filter(|s| s.attached && !s.floor_in_flight)?;
        server.floor_in_flight = true;
        let (arrivals, home) = (server.arrivals, server.identity.clone());
        let record = Record {
            job: self.job.clone(),
            phase: Phase::Following,
            offset,
            stream_db,
            pieces: 0,
            time_ms: self.now_ms,
        };
        let floor = Floor { record, slots, home };
        failpoint!("floor-launched");
        let mut out = Vec::new();
        self.put_floor(conn, (lowest.number(), arrivals), offset, &floor.encode(), &mut out);
        Some((conn, out))
    }

    /// The slots of a server that its floor names.
    fn named(&self, node: NodeId) -> Slots {
        let here = |slot: &Slot| {
            let state = self.slots.get(slot.index());
            state.is_some_and(|s| usize::from(s.home) == node && s.recorded && s.stage != Stage::Away)
        };
        self.feeds.iter().filter(here).collect()
    }

    pub(super) fn floor_answered(
        &mut self,
        conn: ConnId,
        (offset, arrivals): (ReplOffset, u64),
        scanned: Scanned<'_>,
    ) -> Result<Option<Event>, OutOfStep> {
        let server = self.servers.get_mut(conn / self.lanes).ok_or(OutOfStep)?;
        server.floor_in_flight = false;
        let words = match scanned {
            Scanned::Status(b"OK") => {
                failpoint!("floor-answered");
                server.floor = Some((offset, arrivals));
                self.count_floors();
                return Ok(None);
            }
            Scanned::Error(words) => String::from_utf8_lossy(words).into_owned(),
            _ => return Err(OutOfStep),
        };
        Ok(Some(match words.split(' ').next().unwrap_or_default() {
            "MOVED" => Event::Moved,
            "ASK" | "TRYAGAIN" => Event::Held { words },
            _ if refusal(&words) == Refusal::Elsewhere && rule!(self, elsewhere_closes) => Event::Elsewhere { words },
            _ => {
                if let Some(conn) = self.conns.get_mut(conn) {
                    conn.paused = true;
                }
                Event::Refused { words }
            }
        }))
    }

    /// The lowest of all floors, if every slot is named by one, is what the target can't lose by itself.
    fn count_floors(&mut self) {
        let mut owns = vec![false; self.servers.len()];
        for slot in self.feeds.iter() {
            let state = self.slots.get(slot.index()).filter(|s| s.stage != Stage::Away && s.recorded);
            match state.and_then(|s| owns.get_mut(usize::from(s.home))) {
                Some(owns) => *owns = true,
                None => return,
            }
        }
        let owners = self.servers.iter().zip(owns).filter(|(_, owns)| *owns).map(|(server, _)| server);
        let floors = owners.map(|s| s.floor.filter(|(_, arrivals)| *arrivals == s.arrivals).map(|(offset, _)| offset));
        if let Some(lowest) = floors.min().flatten() {
            self.recorded = Some(lowest);
        }
    }

    /// Renews the records of some slots that rest.
    pub fn refresh(&mut self) {
        for _ in 0..SLOTS.div_ceil(REFRESH_CALLS) {
            self.refresh_slot(self.next_refresh);
            self.next_refresh = (self.next_refresh + 1) % SLOTS;
        }
    }

    /// Renews the record of a slot if it rests and its record is older than it need be.
    pub fn refresh_slot(&mut self, slot: u16) {
        let (level, following) = (self.level, self.following);
        let Some(state) = self.slots.get_mut(usize::from(slot)) else { return };
        #[cfg(test)]
        if !self.rules.record_acknowledged && state.stage == Stage::Ready {
            (state.applied, state.applied_db) = level;
            state.refresh = true;
        }
        if following && state.stage == Stage::Resting && state.recorded && state.applied < level.0 {
            state.refresh = true;
            self.rouse(slot);
        }
    }

    /// A slot on the move waits, with all that it has.
    pub(super) fn hold(&mut self, slot: u16) {
        let Some(state) = self.slots.get_mut(usize::from(slot)) else { return };
        let wait = (HOLD_MS << state.holds.min(8)).min(HOLD_MS_MAX);
        state.holds = state.holds.saturating_add(1);
        if matches!(state.stage, Stage::Resting | Stage::Ready) {
            state.stage = Stage::Held;
        }
        self.held.push((self.now_ms + wait, slot));
    }

    /// When the next slot that is held may go on, Unix milliseconds.
    pub fn next_wake(&self) -> Option<i64> {
        self.held.iter().map(|(at, _)| *at).min()
    }

    /// Lets go on what was held for long enough.
    pub fn wake(&mut self) {
        let now = self.now_ms;
        let due: Vec<u16> = self.held.extract_if(.., |(at, _)| *at <= now).map(|(_, slot)| slot).collect();
        for slot in due {
            if let Some(state) = self.slots.get_mut(usize::from(slot)).filter(|s| s.stage == Stage::Held) {
                state.stage = Stage::Resting;
                self.rouse(slot);
            }
            let of_slot: Vec<_> = self.homeless.extract_if(.., |value| value.slot() == slot).collect();
            of_slot.into_iter().for_each(|value| self.house(value));
        }
    }
}
