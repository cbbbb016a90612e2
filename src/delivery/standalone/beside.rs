//! What stands beside the stream: who waits for it is told what became of it.

use super::{Lane, Standalone};
use crate::delivery::flight::Flush;
use crate::delivery::motion::Ticket;
use crate::delivery::unit::{Beside, Item};

impl Standalone {
    /// What became of things beside the stream since the last call: each was applied, or dropped at a break. Those of
    /// lanes that start again from their records aren't told of.
    pub fn take_settled(&mut self) -> Vec<(Ticket, bool)> {
        std::mem::take(&mut self.settled)
    }

    /// The target has the flush.
    pub(super) fn settle(&mut self, flush: &Flush) {
        self.settled.extend(besides(flush).map(|beside| (beside.ticket, true)));
    }

    /// Drops what is not to be sent after a break, unless it may have been applied.
    pub(super) fn drop_once(&mut self) {
        let settled = &mut self.settled;
        for lane in &mut self.lanes {
            lane.queue.retain(|item| match item {
                Item::Pieces(chunk) if chunk.beside.is_some_and(|beside| beside.once) => {
                    settled.extend(chunk.beside.map(|beside| (beside.ticket, false)));
                    self.queued_bytes = self.queued_bytes.saturating_sub(chunk.bytes.len());
                    false
                }
                _ => true,
            });
        }
        for lane in 0..self.lanes.len() {
            self.drop_refused(lane);
        }
    }

    /// The same of what a lane is to send again.
    pub(super) fn drop_refused(&mut self, lane: usize) {
        let once = |flush: &mut Flush| besides(flush).any(|beside| beside.once);
        let Some(flush) = self.lanes.get_mut(lane).and_then(|Lane { again, .. }| again.take_if(once)) else { return };
        self.queued_bytes = self.queued_bytes.saturating_sub(flush.bytes);
        self.settled.extend(besides(&flush).map(|beside| (beside.ticket, false)));
    }
}

fn besides(flush: &Flush) -> impl Iterator<Item = Beside> {
    flush.parts.spans().filter_map(|span| span.chunk.beside)
}
