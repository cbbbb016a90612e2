//! The target's side of a session: what takes the batches, and what watches over how safe they are there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::decode;
use super::feed::{Feed, Rewind};
use super::key_hash;
use super::learn::{self, SharedLearnt};
use super::motion::Motions;
use super::prepare::{Plan, SourcesOf};
use super::session::FULL_SYNC;
use super::shard::ShardPlan;
use crate::commands::{self, SmallKeys};
use crate::config::words::OnError;
use crate::delivery::guard::Standing;
use crate::delivery::motion::{State, Ticket};
use crate::delivery::record::{self, JobState};
use crate::delivery::slots::{GivenUp, Position};
use crate::delivery::unit::{Batch, Task};
use crate::delivery::{Cluster, Standalone};
use crate::offset::{ReplId, ReplOffset};
use crate::resp::command::{Parsed, Parser};
use crate::slot::{Slot, Slots};
use crate::source::Ack;
use crate::status::{Phase, Shard, Status};
use crate::target::checkpoint::{Following, Places};
use crate::target::driver::{self, Driver, OnFault};
use crate::target::nodes::Target;
use crate::target::replicas::Recorded;
use crate::target::{self, cluster, replicas};

/// The first version whose MULTI is never refused.
const SURE_MULTI: (u16, u16, u16) = (6, 0, 0);

/// The running tasks of the target's side.
pub struct Delivery {
    /// Ends well when all batches are applied and recorded, and no more come.
    pub driver: JoinHandle<Result<(), target::Error>>,
    pub replicas: JoinHandle<()>,
}

impl Delivery {
    /// Starts what delivers the batches of `queue`, from the records in `following` on where there are any; else the copy
    /// begins, behind `empty_first`.
    pub fn start(
        plan: &Plan,
        shard: &ShardPlan,
        (job, following): (&JobState, Option<&Following>),
        empty_first: Option<Task>,
        progress: Progress,
        queue: mpsc::Receiver<Batch>,
    ) -> Self {
        let progress = Arc::new(progress);
        let driver_plan = driver::Plan {
            identity: shard.identity.clone(),
            on_fault: match plan.job.on_error {
                OnError::Stop => OnFault::Stop,
                OnError::Skip => OnFault::Skip,
                OnError::Recopy => OnFault::Recopy,
            },
            retry_for: plan.job.retry_for,
            rate: plan.shares.rate(),
            in_scope: Arc::clone(&plan.in_scope),
            key_hash,
            large: Arc::clone(&progress.feed.large),
            status: Arc::clone(&plan.status),
            shard: Arc::clone(&shard.status),
            resumes: following.is_some(),
            empty_first,
            progress: Box::new(Arc::clone(&progress)),
        };
        let stream_db = following.map_or(0, Following::stream_db);
        let from = Position { offset: progress.feed.offset, stream_db };
        let careful = !plan.caps.valkey && plan.caps.version < SURE_MULTI;
        let at = following.map(|following| &following.at);
        let driver = match &plan.target {
            Target::Standalone(server) => {
                let mut machine = match at {
                    Some(Places::Lanes(records)) => Standalone::resume(&shard.records(), job.clone(), records),
                    _ => Standalone::new(&shard.records(), job.clone()),
                };
                machine.set_careful(careful);
                let mut driver = Driver::new(driver_plan, server.clone(), machine, queue);
                tokio::spawn(async move { driver.run().await })
            }
            Target::Cluster(cluster) => {
                let (name, lanes) = (&plan.job.name, plan.lanes);
                let mut machine = match at {
                    Some(Places::Slots { positions, .. }) => {
                        let feeds = |(slot, _): &(Slot, Position)| progress.feeds(*slot);
                        let positions: Vec<_> = positions.iter().copied().filter(feeds).collect();
                        Cluster::resume(name, job.clone(), positions, from, lanes)
                    }
                    _ => Cluster::new(name, job.clone(), progress.fed().unwrap_or_else(|| feeds(shard)), lanes),
                };
                machine.set_careful(careful);
                let target = (plan.target.clone(), cluster.clone());
                let mut driver = cluster::driver::Driver::new(driver_plan, target, (machine, lanes), queue);
                tokio::task::spawn_local(async move { driver.run().await })
            }
        };
        let target = plan.target.clone();
        Delivery { driver, replicas: tokio::spawn(async move { replicas::watch(&target, &*progress).await }) }
    }
}

/// The slots whose keys a shard writes.
fn feeds(shard: &ShardPlan) -> Slots {
    shard.slots.as_ref().map_or_else(Slots::all, |slots| (*slots.now()).clone())
}

/// Hands on how far the target is.
pub struct Progress {
    pub feed: Arc<Feed>,
    pub ack: Arc<Ack>,
    pub shard: Arc<Shard>,
    pub status: Arc<Status>,
    /// How far the target has applied everything; `None` while the copy isn't whole.
    pub applied: watch::Sender<Option<ReplOffset>>,
    /// False once the target is known to have none: then its records are as safe as they get.
    pub has_replicas: AtomicBool,
    pub sources_of: SourcesOf,
    /// Slots that move between shards, and this shard's number.
    pub motions: Option<(Arc<Motions>, u32)>,
    /// Commands that the table lacks.
    pub learnt: SharedLearnt,
    /// The run ids of the servers whose records are told of.
    pub servers: Mutex<Vec<String>>,
}

impl Progress {
    /// The slots whose units are applied as they come, where some aren't.
    fn fed(&self) -> Option<Slots> {
        self.motions.as_ref().map(|(motions, shard)| motions.fed(*shard))
    }

    fn feeds(&self, slot: Slot) -> bool {
        self.motions.as_ref().is_none_or(|(motions, shard)| motions.feeds(*shard, slot))
    }

    /// The target's records are as safe up to `offset` as they get: the journal before that may go, but for what slots in
    /// motion may need again.
    fn cover(&self, offset: ReplOffset) {
        let Some((motions, shard)) = &self.motions else { return self.feed.cover(offset) };
        let keep = motions.with(|machine| {
            machine.covered(*shard, offset);
            machine.keep_from(*shard)
        });
        self.feed.cover(keep.map_or(offset, |keep| keep.min(offset)));
    }
}

impl driver::Progress for Arc<Progress> {
    fn applied(&self, offset: ReplOffset) {
        if self.applied.borrow().is_none() {
            self.status.set_shard_phase(&self.shard, Phase::Following);
            self.status.clear(&self.shard.place(FULL_SYNC));
        }
        self.shard.set_applied(offset);
        if let Some((motions, shard)) = &self.motions {
            motions.with(|machine| machine.applied(*shard, offset));
        }
        self.ack.set_applied(offset);
        self.applied.send_replace(Some(offset));
    }

    fn recorded(&self, offset: ReplOffset) {
        self.feed.set_recorded(offset);
        if !self.has_replicas.load(Ordering::Relaxed) {
            self.cover(offset);
        }
    }

    fn keys_written(&self, db: u32, command: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut parser = Parser::new();
        let (Ok(Some(Parsed::Command { .. })), mut keys) = (parser.parse(command), SmallKeys::new()) else {
            return Vec::new();
        };
        let args = parser.args(command);
        let learnt = learn::lock(&self.learnt);
        let spec = commands::lookup(args).or_else(|| learnt.lookup(args));
        let known = spec.is_some_and(|spec| commands::keys(spec, args, &mut keys).is_ok());
        let written = keys.iter().filter(|key| known && key.role.writes());
        let with_db = written.flat_map(|key| {
            let name = args.get(key.index).unwrap_or_default().to_vec();
            (self.sources_of)(key.db.unwrap_or(db)).into_iter().map(move |source| (source, name.clone()))
        });
        with_db.filter(|(_, key)| !record::is_own_key(key)).collect()
    }

    fn not_copied(&self, db: u32, head: &[u8]) {
        let Some(kind) = decode::type_of_head(head) else { return };
        // Of several source databases that go there, any that has one such key counted.
        (self.sources_of)(db).into_iter().any(|source| self.shard.copied.uncount(source, kind.as_str()));
    }

    fn replid(&self) -> Option<ReplId> {
        self.feed.replid()
    }

    fn servers(&self, run_ids: Vec<String>) {
        *self.servers.lock().unwrap_or_else(PoisonError::into_inner) = run_ids;
        // Another server may have replicas.
        self.has_replicas.store(true, Ordering::Relaxed);
    }

    fn settled(&self, ticket: Ticket, applied: bool) {
        if let Some((motions, _)) = &self.motions {
            motions.with(|machine| if applied { machine.acknowledged(ticket) } else { machine.dropped(ticket) });
        }
    }

    fn states_key(&self) -> Option<Vec<u8>> {
        self.motions.as_ref().map(|(motions, _)| motions.key())
    }

    fn connected(&self, run_id: &str, states: &[(Vec<u8>, Vec<u8>)], rewinds: Option<ReplOffset>) {
        if let Some((motions, shard)) = &self.motions {
            motions.connected(*shard, run_id, states, rewinds);
        }
    }

    fn is_given_up(&self, what: GivenUp) {
        if let Some((motions, _)) = &self.motions {
            what.server.into_iter().for_each(|server| motions.is_left_at(what.slot, server));
            motions.with(|machine| machine.acknowledged(what.ticket));
        }
    }

    fn is_stray(&self, slot: Slot, says: Option<&State>) -> bool {
        self.motions.as_ref().is_some_and(|(motions, shard)| motions.is_stray(*shard, slot, says))
    }

    fn are_lost(&self, slots: Vec<Slot>) {
        if let Some((motions, _)) = &self.motions {
            motions.are_lost(slots);
        }
    }

    fn rewind(&self, offset: ReplOffset, epoch: u64, standing: Standing) -> bool {
        self.feed.rewind(Rewind { offset, epoch, standing })
    }
}

impl replicas::Watcher for Progress {
    fn recorded(&self) -> Option<Recorded> {
        let following = self.applied.borrow().is_some();
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        following.then(|| Recorded { offset: self.feed.recorded(), servers })
    }

    fn covered(&self, offset: ReplOffset, replicas: usize) {
        self.has_replicas.store(replicas > 0, Ordering::Relaxed);
        self.cover(offset);
    }
}
