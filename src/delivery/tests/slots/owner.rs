//! A process that delivers to a cluster: the machine, its router and its connections.

use super::node::{JOB, Nodes};
use super::source::{Source, feeds};
use crate::delivery::Cluster;
use crate::delivery::record::JobState;
use crate::delivery::rules::SlotRules;
use crate::delivery::slots::Position;
use crate::delivery::slots::record::slot_key;
use crate::delivery::unit::{Batch, Task};
use crate::offset::ReplOffset;
use crate::resp::reply::Scanner;
use crate::route::Router;
use crate::slot::Slot;

#[derive(Debug, Default)]
pub struct Io {
    /// The connection on its node.
    pub conn: usize,
    pub scanner: Scanner,
    pub input: Vec<u8>,
}

#[derive(Debug)]
pub struct Owner {
    pub id: u64,
    pub machine: Cluster,
    pub router: Router,
    /// The next unit to be routed; `None` when the copy wasn't.
    pub next: Option<usize>,
    /// By node, its place in the machine and its connections, while it is connected.
    pub links: Vec<Option<(usize, Vec<Io>)>>,
    pub applied: Option<ReplOffset>,
    pub epoch: u64,
    /// A task that is being done.
    pub running: Option<(Task, ReplOffset)>,
}

pub fn job(generation: u64) -> JobState {
    JobState { shard: 0, replid: None, generation, lanes: 0, late_ms: 0, scope: 0 }
}

impl Owner {
    pub fn copying(id: u64, nodes: &Nodes, lanes: usize, rules: SlotRules, generation: u64) -> Self {
        let mut machine = Cluster::new(JOB, job(generation), feeds(), lanes);
        machine.rules = rules;
        let links = nodes.nodes.iter().map(|_| None).collect();
        let (router, next, running) = (Router::by_slot(), None, None);
        Owner { id, machine, router, next, links, applied: None, epoch: 0, running }
    }

    /// Slots that stand at their positions.
    pub fn following(mut self, source: &Source, positions: &[(Slot, Position)], lanes: usize, generation: u64) -> Self {
        let rules = self.machine.rules;
        let lowest = positions.iter().map(|(_, p)| *p).min().unwrap_or_default();
        self.machine = Cluster::resume(JOB, job(generation), positions.iter().copied(), lowest, lanes);
        self.machine.rules = rules;
        self.next = Some(source.behind(lowest.offset));
        self
    }

    /// The router starts again behind `offset`. What it had on its way before comes to nothing.
    pub fn rewind(&mut self, source: &Source, offset: ReplOffset, epoch: u64) {
        self.push(source, 2, true);
        self.epoch = epoch;
        self.router = Router::by_slot();
        self.next = Some(source.behind(offset));
        self.applied = None;
        self.running = None;
    }

    pub fn write_first_records(&self, nodes: &mut Nodes) {
        for slot in feeds().iter() {
            let mut text = Vec::new();
            self.machine.record(slot).encode(&mut text);
            nodes.run(nodes.owner[&slot], vec![vec![b"SET".to_vec(), slot_key(JOB, slot), text]]);
        }
    }

    /// Routes the copy if it wasn't, or so many units of the stream.
    pub fn push(&mut self, source: &Source, units: usize, leftovers: bool) {
        let Some(next) = self.next else {
            source.route_copy(&mut self.router, leftovers);
            self.machine.push(self.router.take(source.copy_end.0, source.copy_end.1));
            self.next = Some(0);
            return;
        };
        let to = next.saturating_add(units).min(source.units.len());
        for at in next..to {
            source.route(at, &mut self.router);
        }
        if let Some(last) = source.units.get(to.wrapping_sub(1)).filter(|_| to > next) {
            let batch = self.router.take(last.offset, last.stream_db);
            self.machine.push(Batch { epoch: self.epoch, ..batch });
        }
        self.next = Some(to);
    }
}
