//! A process that delivers: the machine, its router and its connections.

use super::server::{JOB, Server};
use super::source::Source;
use crate::delivery::Standalone;
use crate::delivery::record::{self, JobState, Record};
use crate::delivery::rules::Rules;
use crate::delivery::unit::Batch;
use crate::offset::ReplOffset;
use crate::resp::reply::Scanner;
use crate::route::Router;

#[derive(Debug, Default)]
pub struct Io {
    pub conn: usize,
    pub scanner: Scanner,
    pub input: Vec<u8>,
}

/// A process: the machine and its connections.
#[derive(Debug)]
pub struct Owner {
    pub id: u64,
    pub machine: Standalone,
    pub router: Router,
    /// The next unit to be routed; `None` when the copy wasn't.
    pub next: Option<usize>,
    pub lanes: Vec<Io>,
    pub connected: bool,
    pub applied: Option<ReplOffset>,
    /// What the router counts its batches by.
    pub epoch: u64,
    /// Only for `break_all` taken out: the lane that broke.
    pub cut: Option<usize>,
}

impl Owner {
    pub fn copying(id: u64, source: &Source, rules: Rules, generation: u64) -> Self {
        let job = JobState { shard: 0, replid: None, generation, lanes: source.lanes, late_ms: 0, scope: 0 };
        let mut machine = Standalone::new(JOB, job);
        machine.rules = rules;
        let router = Router::new(source.lanes);
        let (lanes, next) = (Vec::new(), None);
        Owner { id, machine, router, next, lanes, connected: false, applied: None, epoch: 0, cut: None }
    }

    /// Lanes that stand at their records.
    pub fn following(id: u64, source: &Source, rules: Rules, records: &[Record]) -> Self {
        let mut owner = Owner::copying(id, source, rules, records[0].job.generation);
        owner.machine = Standalone::resume(JOB, records[0].job.clone(), records);
        owner.machine.rules = rules;
        let lowest = records.iter().map(|r| r.offset).min().unwrap_or_default();
        owner.next = Some(source.behind(lowest));
        owner
    }

    /// The router starts again behind `offset`. What it had on its way before comes to nothing.
    pub fn rewind(&mut self, source: &Source, offset: ReplOffset, epoch: u64) {
        self.push(source, 2, true);
        self.epoch = epoch;
        self.router = Router::new(source.lanes);
        self.next = Some(source.behind(offset));
        self.applied = None;
    }

    pub fn write_first_records(&self, server: &mut Server) {
        for lane in 0..self.machine.lanes() {
            let text = self.machine.first_record(lane).encode().into_bytes();
            server.run(0, vec![vec![b"SET".to_vec(), record::key(JOB, lane), text]]);
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
