//! All shards of a job at once: those that there are, those that come and those that leave.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::Error;
use super::members::{Change, Members};
use super::prepare::Plan;
use super::receive::Upstream;
use super::session::Until;
use super::shard::{self, Leader, Orders, OwnedSlots, ShardPlan};
use crate::net::cluster::Cluster;
use crate::source::origin::Origin;
use crate::status::Ending;
use crate::target::checkpoint::Checkpoint;

/// A shard of the start, or one that came later.
pub struct Start {
    pub number: u32,
    pub origin: Origin,
    pub slots: Option<OwnedSlots>,
    pub source_keys: u64,
    pub inherits: bool,
    pub checkpoint: Checkpoint,
}

/// The cluster that the shards are of.
pub struct Watched {
    pub cluster: Cluster,
    pub members: Members,
}

/// Runs all shards to their end: when all have caught up, a signal stops them, or one fails.
///
/// # Errors
/// The first of a shard's; the others are ended then.
pub async fn run(
    plan: Arc<Plan>,
    starts: Vec<Start>,
    watched: Option<Watched>,
    until: Until,
    signals: watch::Receiver<u32>,
) -> Result<Ending, Error> {
    let mut shards = Shards {
        plan,
        until,
        signals,
        abandon: watch::Sender::new(false),
        leader: Leader::default(),
        running: JoinSet::new(),
        all: Vec::new(),
        ends: Vec::new(),
    };
    // All of them before the first begins: none may take itself for the last.
    starts.iter().for_each(|start| shards.plan.together.join(start.number));
    let (changed, mut changes) = mpsc::unbounded_channel();
    // Ended when it's dropped.
    let mut watching = JoinSet::new();
    if let Some(watched) = watched {
        let cells = starts.iter().map(|start| Cell::of(start.number, &start.origin, start.slots.clone())).collect();
        let prefer_replica = shards.plan.job.prefer_replica;
        watching.spawn_local(watch_cluster(watched, cells, prefer_replica, changed));
        if let Some(motions) = shards.plan.motions.clone() {
            watching.spawn_local(motions.watch(Arc::clone(&shards.plan)));
        }
    }
    starts.into_iter().for_each(|start| shards.start(start));
    let mut failed = None;
    loop {
        tokio::select! {
            Some(change) = changes.recv() => shards.change(change),
            ended = shards.running.join_next() => match ended {
                None => break,
                Some(Ok((number, Ok(end)))) => shards.ended(number, end),
                Some(Ok((_, Err(error)))) => {
                    failed.get_or_insert(error);
                    shards.abandon.send_replace(true);
                }
                Some(Err(_)) => {
                    failed.get_or_insert(Error::Lost("the task of a shard"));
                    shards.abandon.send_replace(true);
                }
            },
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(shards.ending()),
    }
}

struct Shards {
    plan: Arc<Plan>,
    until: Until,
    signals: watch::Receiver<u32>,
    abandon: watch::Sender<bool>,
    leader: Leader,
    running: JoinSet<(u32, Result<shard::End, Error>)>,
    /// Those that run, and how each is told that its primary has left.
    all: Vec<(Arc<ShardPlan>, watch::Sender<bool>)>,
    ends: Vec<shard::End>,
}

impl Shards {
    fn start(&mut self, start: Start) {
        let Start { number, origin, slots, source_keys, inherits, checkpoint } = start;
        if let Some(motions) = &self.plan.motions {
            motions.add_shard(number, origin.clone());
        }
        let plan = Arc::clone(&self.plan);
        let (gone, is_gone) = watch::channel(false);
        let status = plan.status.add_shard(number, origin.primary().to_string());
        let shard = Arc::new(ShardPlan {
            number,
            identity: plan.identity.of_shard(number),
            upstream: Upstream { origin, status: Arc::clone(&plan.status), shard: Arc::clone(&status) },
            status,
            source_keys,
            slots,
            leader: self.leader.clone(),
            inherits,
            orders: Orders { signals: self.signals.clone(), abandoned: self.abandon.subscribe(), gone: is_gone },
        });
        self.all.push((Arc::clone(&shard), gone));
        self.counted();
        let until = self.until;
        self.running.spawn_local(async move { (number, shard::follow(&plan, &shard, checkpoint, until).await) });
    }

    fn change(&mut self, change: Seen) {
        let ending = *self.abandon.borrow() || *self.signals.borrow() > 0 || self.plan.together.has_ended();
        match change {
            Seen::New { number, origin, slots } if !ending => {
                tracing::info!(shard = number, source = %origin.primary(), "a primary has joined the source cluster");
                self.plan.together.join(number);
                let (source_keys, inherits, checkpoint) = (0, false, Checkpoint::None);
                let slots = Some(slots);
                self.plan.feeders.add(number, slots.clone());
                self.start(Start { number, origin, slots, source_keys, inherits, checkpoint });
            }
            Seen::New { .. } => {}
            Seen::Gone { number } => {
                if let Some((shard, gone)) = self.all.iter().find(|(shard, _)| shard.number == number) {
                    let source = shard.status.source();
                    tracing::warn!(shard = number, source, "a primary has left the source cluster");
                    gone.send_replace(true);
                }
            }
        }
    }

    fn ended(&mut self, number: u32, end: shard::End) {
        self.ends.push(end);
        if end != shard::End::Gone {
            return;
        }
        if let Some(at) = self.all.iter().position(|(shard, _)| shard.number == number) {
            self.plan.status.set_shard_gone(&self.all.swap_remove(at).0.status);
        }
        self.plan.together.leave(number);
        self.plan.feeders.remove(number);
        self.counted();
    }

    /// Tells everybody how many shards there are.
    fn counted(&self) {
        self.plan.shares.set_shards(self.all.len());
        self.plan.status.lanes.set((self.plan.lanes * self.all.len()) as u64);
        if let Some(lowest) = self.all.iter().map(|(shard, _)| shard.number).min() {
            self.leader.set(lowest);
        }
    }

    fn ending(&self) -> Ending {
        let any = |end| self.ends.contains(&end);
        match () {
            () if any(shard::End::StoppedInCopy) => Ending::StoppedInCopy,
            () if any(shard::End::Stopped) => Ending::Stopped,
            () => Ending::Complete,
        }
    }
}

/// What has been seen of the cluster that concerns more than one shard.
enum Seen {
    New { number: u32, origin: Origin, slots: OwnedSlots },
    Gone { number: u32 },
}

/// Where a shard is told what was seen of it.
struct Cell {
    number: u32,
    origin: Origin,
    slots: OwnedSlots,
}

impl Cell {
    fn of(number: u32, origin: &Origin, slots: Option<OwnedSlots>) -> Self {
        Cell { number, origin: origin.clone(), slots: slots.unwrap_or_default() }
    }
}

/// Looks at the cluster for ever, and tells what it sees.
async fn watch_cluster(
    watched: Watched,
    mut cells: Vec<Cell>,
    prefer_replica: bool,
    changed: mpsc::UnboundedSender<Seen>,
) {
    let Watched { cluster, mut members } = watched;
    let told = |change| {
        // Nobody listens any more when the job ends.
        let _ = changed.send(change);
    };
    cluster
        .watch(|topology| {
            for change in members.look(topology) {
                let cell = |number: u32| cells.iter().find(|cell| cell.number == number);
                match change {
                    Change::Moved { number, address } => {
                        if let Some(cell) = cell(number) {
                            tracing::warn!(shard = number, source = %address, "the shard's primary is another server now");
                            cell.origin.primary().tell(address);
                        }
                    }
                    Change::Slots { number, slots } => {
                        if let Some(cell) = cell(number) {
                            tracing::info!(shard = number, %slots, "the shard's slots are others now");
                            cell.slots.set(slots);
                        }
                    }
                    Change::Gone { number } => told(Seen::Gone { number }),
                    Change::New { number, address, slots } => {
                        let origin = Origin::shard(&cluster, address, prefer_replica);
                        let owned = OwnedSlots::new(slots);
                        cells.push(Cell::of(number, &origin, Some(owned.clone())));
                        told(Seen::New { number, origin, slots: owned });
                    }
                }
            }
        })
        .await;
}
