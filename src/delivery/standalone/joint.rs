//! Joint flushes: units of several lanes, once these have drained.

use std::sync::Arc;

use super::{Lane, Standalone};
use crate::delivery::flight::Flush;
use crate::delivery::parts::Holder;
use crate::delivery::record::Phase;
use crate::delivery::rules::rule;
use crate::delivery::unit::{Item, Joint, LaneId, LaneSet};

impl Standalone {
    /// Forms a flush of several lanes, carried by `leader`, in the order of the stream. `lanes` is the leader's group,
    /// or the leader alone with a joint unit at its front.
    ///
    /// A joint unit brings in lanes that stand right before it, with all they sent acknowledged. So nothing that a lane
    /// has applied lies behind the flush's end, which its record will name. The flush goes on behind the joint unit:
    /// what else waits for its lanes comes along. So a stream of nothing but such units flows like one lane.
    pub(super) fn joint_flush(&mut self, leader: LaneId, mut lanes: LaneSet) -> Option<Flush> {
        if lanes.iter().any(|l| self.lanes.get(l).is_none_or(|l| l.is_busy()) && rule!(self, joined_drain)) {
            return None;
        }
        let mut flush = Flush::new(leader, lanes, self.record(leader));
        loop {
            let front = |l: LaneId| self.lanes.get(l).and_then(Lane::front_offset).map(|offset| (offset, l));
            let Some((_, lane)) = lanes.iter().filter_map(front).min() else { break };
            match self.lanes.get(lane).and_then(|l| l.queue.front()) {
                Some(Item::Units(chunk)) => {
                    let chunk = Arc::clone(chunk);
                    let taken = self.lanes.get(lane).map_or(0, |l| l.taken);
                    if self.is_full(&flush, &chunk, taken) {
                        break;
                    }
                    self.take_unit(lane, &chunk, &mut flush);
                }
                Some(Item::Joint(joint)) => {
                    let joint = Arc::clone(joint);
                    let more = joint.lanes.without(lanes);
                    let full = self.is_full(&flush, &joint.chunk, 0);
                    let alone = joint.task.is_some() && !flush.parts.is_empty();
                    if full || alone || !more.iter().all(|l| self.is_drained_to(l, &joint, flush.record.phase)) {
                        break;
                    }
                    if rule!(self, groups_apart) {
                        self.dissolve(more);
                    }
                    lanes = lanes.with(more);
                    self.take_joint(&joint, &mut flush);
                    if flush.task.is_some() {
                        break;
                    }
                }
                _ => break,
            }
        }
        if flush.parts.is_empty() {
            self.dissolve(lanes);
            return None;
        }
        flush.lanes = lanes;
        // One text for all: no lane's count may seem to have fallen back.
        let counted = lanes.iter().filter(|l| *l == leader || rule!(self, joint_counts_pieces));
        flush.record.pieces = counted.filter_map(|l| self.lanes.get(l)).map(|l| l.pieces).max().unwrap_or(0);
        for lane in lanes.iter().filter(|_| lanes.len() > 1) {
            if let Some(lane) = self.lanes.get_mut(lane) {
                lane.group = lanes;
            }
        }
        Some(flush)
    }

    /// True when `lane` has sent and acknowledged everything before `joint`, and is as far in the full sync.
    fn is_drained_to(&self, lane: LaneId, joint: &Arc<Joint>, phase: Phase) -> bool {
        self.lanes.get(lane).is_some_and(|l| {
            let at_it = matches!(l.queue.front(), Some(Item::Joint(front)) if Arc::ptr_eq(front, joint));
            let drained = !l.is_busy() && l.copy.is_idle() || !rule!(self, joined_drain);
            at_it && drained && l.following == (phase == Phase::Following)
        })
    }

    fn take_joint(&mut self, joint: &Arc<Joint>, flush: &mut Flush) {
        for lane in joint.lanes.iter() {
            if let Some(lane) = self.lanes.get_mut(lane) {
                let front = lane.queue.pop_front();
                assert!(
                    matches!(&front, Some(Item::Joint(j)) if Arc::ptr_eq(j, joint)),
                    "a joint unit stands at the front of each of its lanes"
                );
                lane.joints -= 1;
            }
        }
        flush.task.clone_from(&joint.task);
        flush.task_due = joint.task.is_some();
        flush.add(Holder::Joint(Arc::clone(joint)), 0, joint.chunk.segments.len());
    }

    /// Lanes of a group flow by themselves again.
    pub(super) fn dissolve(&mut self, lanes: LaneSet) {
        let groups = lanes.iter().filter_map(|l| self.lanes.get(l)).fold(lanes, |set, l| set.with(l.group));
        for lane in groups.iter() {
            if let Some(lane) = self.lanes.get_mut(lane) {
                lane.group = LaneSet::default();
            }
        }
    }
}
