//! One source primary of a job, and its sessions one after the other.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::motion::Motions;
use super::prepare::{self, Plan, retrying};
use super::receive::Upstream;
use super::session::{self, Begin, Until};
use super::{Error, signalled};
use crate::clock::now_ms;
use crate::net::backoff::Backoff;
use crate::slot::{Slot, Slots};
use crate::source::origin::Origin;
use crate::status::Shard;
use crate::target::checkpoint::Checkpoint;
use crate::target::connect::Identity;

/// A source primary whose units a job applies.
pub struct ShardPlan {
    pub number: u32,
    /// Names its connections and records.
    pub identity: Identity,
    pub status: Arc<Shard>,
    pub upstream: Upstream,
    /// How many keys it held in scope at the start.
    pub source_keys: u64,
    /// `None`: every slot is its own, for the source is no cluster.
    pub slots: Option<OwnedSlots>,
    pub leader: Leader,
    /// The job ran before, and this primary wasn't of it: what the target holds of its slots comes from others.
    pub inherits: bool,
    pub orders: Orders,
}

impl ShardPlan {
    pub fn origin(&self) -> &Origin {
        &self.upstream.origin
    }

    /// What stands for the job in the keys of its records.
    pub fn records(&self) -> String {
        self.identity.records()
    }
}

/// The slots that a primary owns, by what was seen of its cluster last. A clone shares it.
#[derive(Debug, Clone, Default)]
pub struct OwnedSlots(Arc<Mutex<Arc<Slots>>>);

impl OwnedSlots {
    pub fn new(slots: Slots) -> Self {
        OwnedSlots(Arc::new(Mutex::new(Arc::new(slots))))
    }

    pub fn set(&self, slots: Slots) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(slots);
    }

    pub fn now(&self) -> Arc<Slots> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The slots whose units the shard applies now: those that it feeds, where slots may move, else those that it owns; `None`
/// for all.
pub fn slots_now(motions: Option<&Motions>, shard: u32, owned: Option<&OwnedSlots>) -> Option<Arc<Slots>> {
    match motions {
        Some(motions) => Some(Arc::new(motions.fed(shard))),
        None => owned.map(OwnedSlots::now),
    }
}

/// Which shard's units each key's are. A clone shares it.
#[derive(Debug, Clone, Default)]
pub struct Feeders(Arc<Mutex<Vec<Feeder>>>);

/// A shard and its slots; `None` for all.
type Feeder = (u32, Option<OwnedSlots>);

impl Feeders {
    /// One more shard, with its slots; `None` for all.
    pub fn add(&self, shard: u32, slots: Option<OwnedSlots>) {
        self.lock().push((shard, slots));
    }

    /// The shard has left.
    pub fn remove(&self, shard: u32) {
        self.lock().retain(|(number, _)| *number != shard);
    }

    /// The shard whose slot the key's is; the first where nobody owns it.
    pub fn shard_of(&self, key: &[u8]) -> u32 {
        let (slot, all) = (Slot::of(key), self.lock());
        let owns = |(_, slots): &&Feeder| slots.as_ref().is_none_or(|s| s.now().contains(slot));
        all.iter().find(owns).or_else(|| all.first()).map_or(0, |(shard, _)| *shard)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Feeder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shard with the lowest number: from it alone come functions and scripts, which every primary of a cluster has.
#[derive(Debug, Clone, Default)]
pub struct Leader(Arc<AtomicU32>);

impl Leader {
    pub fn set(&self, number: u32) {
        self.0.store(number, Ordering::Relaxed);
    }

    pub fn is(&self, number: u32) -> bool {
        self.0.load(Ordering::Relaxed) == number
    }
}

/// What a shard's sessions are told from outside.
#[derive(Debug, Clone)]
pub struct Orders {
    /// Counts the signals to stop.
    pub signals: watch::Receiver<u32>,
    /// The job has failed elsewhere: end at once.
    pub abandoned: watch::Receiver<bool>,
    /// The primary has left its cluster.
    pub gone: watch::Receiver<bool>,
}

impl Orders {
    /// Returns when the job is to stop.
    ///
    /// Cancel-safe.
    pub async fn stopped(&mut self) {
        signalled(&mut self.signals, 1).await;
    }

    /// Returns when the job has failed elsewhere.
    ///
    /// Cancel-safe.
    pub async fn abandoned(&mut self) {
        told(&mut self.abandoned).await;
    }

    /// Returns when the primary has left its cluster.
    ///
    /// Cancel-safe.
    pub async fn gone(&mut self) {
        told(&mut self.gone).await;
    }
}

async fn told(what: &mut watch::Receiver<bool>) {
    if what.wait_for(|told| *told).await.is_err() {
        std::future::pending().await
    }
}

/// How a shard ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Complete,
    Stopped,
    StoppedInCopy,
    /// Its primary has left the cluster, and its records the target.
    Gone,
}

/// Runs one session of the shard after the other, until one ends it.
///
/// # Errors
/// When an end fails for good, or for too long.
pub async fn follow(plan: &Plan, shard: &ShardPlan, checkpoint: Checkpoint, until: Until) -> Result<End, Error> {
    let mut backoff = Backoff::new(plan.job.retry_for);
    let mut generation = checkpoint.job().map_or(0, |job| job.generation);
    let mut begin = match checkpoint {
        Checkpoint::Following(following) if !plan.job.restart && following.is_too_old(now_ms()) => {
            session::say_full_again(
                plan,
                shard,
                "the job stood still for longer than --expiry-grace, so keys may have expired here which the source has \
                 renewed",
            );
            Begin::Full(None)
        }
        Checkpoint::Following(following) if !plan.job.restart => Begin::Resume(Box::new(following)),
        _ => Begin::Full(None),
    };
    loop {
        if let Begin::Resume(following) = &begin
            && following.lanes().is_some_and(|lanes| lanes != plan.lanes)
        {
            begin = change_lanes(plan, shard, begin, &mut generation, &mut backoff).await?;
        }
        let before = shard.status.applied();
        let end = session::run(plan, shard, begin, until, &mut generation, &mut backoff).await?;
        if shard.status.applied() > before {
            backoff.progress();
        }
        match end {
            session::End::CaughtUp => return Ok(End::Complete),
            session::End::Stopped => return Ok(End::Stopped),
            session::End::StoppedInCopy => return Ok(End::StoppedInCopy),
            session::End::Gone => {
                if let Some(motions) = &plan.motions {
                    motions.leave(plan, shard.number).await?;
                }
                let forget = async || prepare::remove_shard(plan, shard.number).await;
                retrying(&plan.status, &shard.status.place("target"), plan.job.retry_for, forget).await?;
                return Ok(End::Gone);
            }
            session::End::FullSync(why, joined) => {
                session::say_full_again(plan, shard, &why);
                begin = Begin::Full(joined);
            }
            session::End::Resume(why) => {
                tracing::warn!(source = shard.status.source(), reason = why, "going on from the target's records");
                begin = from_records(plan, shard).await?;
            }
        }
        if let Some(wait) = backoff.failed(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
    }
}

/// Goes on where the target's records stand; begins anew if they don't say.
async fn from_records(plan: &Plan, shard: &ShardPlan) -> Result<Begin, Error> {
    let read = async || prepare::read_checkpoint(&plan.target, &shard.identity, shard.number).await;
    let place = shard.status.place("target");
    Ok(match retrying(&plan.status, &place, plan.job.retry_for, read).await? {
        Checkpoint::Following(following) => Begin::Resume(Box::new(following)),
        _ => Begin::Full(None),
    })
}

/// Goes on with the lanes that the target's records know until all stand at one offset, then over to the wanted ones.
async fn change_lanes(
    plan: &Plan,
    shard: &ShardPlan,
    begin: Begin,
    generation: &mut u64,
    backoff: &mut Backoff,
) -> Result<Begin, Error> {
    let end = if holds!("lanes-level-first") {
        session::run(plan, shard, begin, Until::CaughtUp, generation, backoff).await?
    } else {
        session::End::CaughtUp
    };
    match end {
        session::End::FullSync(why, joined) => {
            session::say_full_again(plan, shard, &why);
            return Ok(Begin::Full(joined));
        }
        session::End::CaughtUp => {
            let change = async || prepare::change_lanes(plan, &shard.identity).await;
            retrying(&plan.status, &shard.status.place("target"), plan.job.retry_for, change).await?;
        }
        session::End::Stopped | session::End::StoppedInCopy | session::End::Gone | session::End::Resume(_) => {}
    }
    from_records(plan, shard).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_of_the_shard_that_owns_its_slot() {
        let feeders = Feeders::default();
        assert_eq!(feeders.shard_of(b"foo"), 0);
        // 12182 and 5061, by the servers' word.
        let upper = OwnedSlots::new("8000-16383".parse().unwrap());
        feeders.add(3, Some(OwnedSlots::new("0-7999".parse().unwrap())));
        feeders.add(5, Some(upper.clone()));
        assert_eq!((feeders.shard_of(b"foo"), feeders.shard_of(b"bar")), (5, 3));
        upper.set(Slots::default());
        assert_eq!(feeders.shard_of(b"foo"), 3, "nobody's");
        feeders.remove(3);
        feeders.add(6, None);
        assert_eq!(feeders.shard_of(b"bar"), 6);
    }
}
