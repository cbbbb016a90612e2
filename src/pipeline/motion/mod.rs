//! Slots that move between the shards of a source, as all threads and tasks of a job share what is known of them.

mod look;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::Error;
use super::prepare::{Plan, retrying};
use super::shards::Start;
use crate::clock::now_ms;
use crate::delivery::motion::kept::{self, Kept};
use crate::delivery::motion::{self, Motion, Shard, State};
use crate::net::cluster::Cluster;
use crate::offset::ReplOffset;
use crate::slot::{Slot, Slots};
use crate::source::origin::Origin;
use crate::target::checkpoint::{Checkpoint, Following};
use crate::target::connect::Identity;
use crate::target::states;

/// How long to wait before it is looked again whether a switch has landed.
const SWITCH_WAIT: Duration = Duration::from_millis(5);

/// What stands in the table of feeders for a slot that nobody feeds.
const NOBODY: u32 = u32::MAX;

/// The slots of a cluster source.
pub struct Motions {
    job: String,
    machine: Mutex<Motion<Slot>>,
    /// Who feeds each slot: asked for every unit, without a lock.
    feeders: Vec<AtomicU32>,
    /// How many slots are in motion.
    moving: watch::Sender<usize>,
    moving_now: AtomicUsize,
    /// Something begins to move, or there is another reason to look.
    wanted: Notify,
    origins: Mutex<BTreeMap<Shard, Origin>>,
    /// Shards that haven't joined their streams since the start.
    awaited: Mutex<BTreeSet<Shard>>,
    /// A shard is copied: once all streams are joined it must be looked whether slots moved meanwhile.
    unchecked: Mutex<Option<Unchecked>>,
    cluster: Cluster,
    /// The target is a cluster: slots in motion are nobody's there, and are written past the lanes.
    past_lanes: bool,
    /// The server of the target that has all that was acknowledged of a slot in motion.
    servers: Mutex<BTreeMap<Slot, String>>,
    /// Slots that the target has lost, which it hasn't been told.
    lost: Mutex<Vec<Slot>>,
}

impl Motions {
    /// Takes up what the target says of all slots. A job that begins writes there who owns what by `first`.
    ///
    /// # Errors
    /// When the target can't be asked or written.
    pub async fn begin(plan: &Plan, cluster: Cluster, starts: &[Start]) -> Result<Arc<Motions>, Error> {
        let read = async || Ok(states::read(&plan.target, &plan.job.name).await?);
        let (mut kept, servers) = retrying(&plan.status, "target", plan.job.retry_for, read).await?;
        let past_lanes = plan.target.is_cluster();
        let following = |start: &Start| match &start.checkpoint {
            Checkpoint::Following(following) if !plan.job.restart => Some(following.clone()),
            _ => None,
        };
        let anew = starts.iter().all(|start| following(start).is_none());
        if anew || kept.is_empty() && !past_lanes {
            let ranges = |start: &Start| {
                let slots = start.slots.as_ref().map(|slots| slots.now()).unwrap_or_default();
                slots.ranges().map(|range| (range, start.number)).collect::<Vec<_>>()
            };
            let text = kept::encode_first(starts.iter().flat_map(ranges));
            let write = async || Ok(states::write_first(&plan.target, &plan.identity, &text).await?);
            retrying(&plan.status, "target", plan.job.retry_for, write).await?;
            kept = Kept::read([(kept::FIRST, text.as_bytes())].into_iter());
        }
        let place =
            |start: &Start| following(start).and_then(|following| resume_point(start.number, &following, &kept));
        let places: BTreeMap<Shard, Option<ReplOffset>> =
            starts.iter().map(|start| (start.number, place(start))).collect();
        let other_db = |start: &Start| following(start).is_some_and(|following| following.stream_db() != 0);
        // Streams begin at their records although slots were in motion: what was noted of them won't come again.
        let unused = kept.whole || starts.iter().any(other_db);
        let motions = Motions {
            job: plan.job.name.clone(),
            machine: Mutex::new(if past_lanes { Motion::held_by_feeders() } else { Motion::default() }),
            feeders: Slot::all().map(|_| AtomicU32::new(NOBODY)).collect(),
            moving: watch::Sender::new(0),
            moving_now: AtomicUsize::new(0),
            wanted: Notify::new(),
            origins: Mutex::default(),
            awaited: Mutex::new(places.keys().copied().collect()),
            // Nodes of a cluster fall back apart from each other: one that has lost a slot's state while nobody looked
            // doesn't lose the records that have passed it.
            unchecked: Mutex::default(),
            cluster,
            past_lanes,
            servers: Mutex::new(servers),
            lost: Mutex::default(),
        };
        motions.with(|machine| {
            for (shard, place) in &places {
                machine.join(*shard, place.unwrap_or_default(), 0);
            }
            Slot::all().for_each(|slot| _ = kept.state(slot).map(|state| machine.begin(slot, &state)));
            if unused {
                let moving: Vec<Slot> = machine.in_motion().map(|(slot, ..)| slot).collect();
                moving.into_iter().for_each(|slot| _ = machine.doubt(slot));
            }
        });
        if past_lanes || places.values().any(Option::is_none) {
            motions.is_to_be_checked();
        }
        Ok(Arc::new(motions))
    }

    /// Does something to the machine, and hands on what that changed.
    pub fn with<T>(&self, work: impl FnOnce(&mut Motion<Slot>) -> T) -> T {
        let mut machine = lock(&self.machine);
        machine.set_time(now_ms());
        let result = work(&mut machine);
        for slot in machine.take_changed() {
            if let Some(feeder) = self.feeders.get(slot.index()) {
                feeder.store(machine.feeder(slot).unwrap_or(NOBODY), Ordering::Release);
            }
        }
        let moving = machine.count_in_motion();
        if self.moving_now.swap(moving, Ordering::Release) != moving {
            self.moving.send_replace(moving);
            self.wanted.notify_one();
        }
        result
    }

    /// True while slots are in motion.
    pub fn is_moving(&self) -> bool {
        self.moving_now.load(Ordering::Acquire) > 0
    }

    /// Returns when no slot is in motion.
    ///
    /// Cancel-safe.
    pub async fn at_rest(&self) {
        // The sender lives as long as this.
        let _ = self.moving.subscribe().wait_for(|moving| *moving == 0).await;
    }

    /// Whether the shard's units on keys of `slot` are to be applied as they come.
    pub fn feeds(&self, shard: Shard, slot: Slot) -> bool {
        self.feeders.get(slot.index()).is_some_and(|feeder| feeder.load(Ordering::Acquire) == shard)
    }

    /// The slots that the shard feeds now.
    pub fn fed(&self, shard: Shard) -> Slots {
        Slot::all().filter(|slot| self.feeds(shard, *slot)).collect()
    }

    /// The hash in the target.
    pub fn key(&self) -> Vec<u8> {
        kept::hash_key(&self.job)
    }

    /// Where to find a shard's servers.
    pub fn add_shard(&self, shard: Shard, origin: Origin) {
        lock(&self.origins).insert(shard, origin);
    }

    /// Where a shard's stream goes on, by its records and what is kept of slots in motion.
    pub fn resume_point(&self, shard: Shard, record: ReplOffset) -> ReplOffset {
        let joined = self.with(|machine| machine.decoded_until(shard));
        joined.filter(|at| at.0 > 0).map_or(record, |at| at.min(record))
    }

    /// Up to where the target relies on the shard's history by what it says of slots.
    pub fn relied_until(&self, shard: Shard) -> ReplOffset {
        self.with(|machine| machine.relied_until(shard))
    }

    /// A session of the shard begins, and goes on behind `at`.
    pub fn resumes(&self, shard: Shard, at: ReplOffset) {
        self.with(|machine| {
            machine.rewinds(shard, at);
            machine.rewound(shard, at);
        });
        self.has_begun(shard);
    }

    /// A session of the shard begins with a full sync, whose snapshot stands at `at`. What its stream would have said
    /// of slots in motion nobody will hear.
    ///
    /// # Errors
    /// When the target can't be told.
    pub async fn copies(&self, plan: &Plan, id: &Identity, shard: Shard, at: ReplOffset) -> Result<(), Error> {
        let anew = self.with(|machine| {
            if machine.decoded_until(shard).is_none() {
                machine.join(shard, at, 0);
            }
            machine.rewinds(shard, at);
            machine.rewound(shard, at);
            // The records of a cluster's slots say from where on.
            machine.feed_anew(shard, if self.past_lanes { ReplOffset(0) } else { at })
        });
        if !anew.is_empty() {
            self.tell(plan, id, &anew, false).await?;
        }
        self.doubt(plan, id, self.doubtful(shard, &self.seen_owners())).await?;
        self.is_to_be_checked();
        self.has_begun(shard);
        Ok(())
    }

    /// A session of the shard has ended: what its lanes were given and haven't acknowledged doesn't count.
    pub fn ended(&self, shard: Shard) {
        self.with(|machine| {
            if let Some(at) = machine.decoded_until(shard) {
                machine.rewinds(shard, at);
            }
        });
    }

    /// Streams begin that haven't told of what went before. What is known to be in motion is told of otherwise.
    fn is_to_be_checked(&self) {
        let moved_before = self.with(|machine| machine.in_motion().map(|(slot, ..)| slot).collect());
        *lock(&self.unchecked) = Some(Unchecked { moved_before });
    }

    fn has_begun(&self, shard: Shard) {
        lock(&self.awaited).remove(&shard);
        self.wanted.notify_one();
    }

    /// The shard's history has another name: what of the old one nobody received may be lost. True if that matters to
    /// a slot that it gives away or takes.
    pub fn is_doubtful(&self, shard: Shard) -> bool {
        !self.doubtful(shard, &self.seen_owners()).is_empty()
    }

    /// Copies all keys of the slots that a new history of the shard puts in doubt.
    ///
    /// # Errors
    /// When the target can't be told.
    pub async fn forked(&self, plan: &Plan, id: &Identity, shard: Shard) -> Result<(), Error> {
        let doubtful = self.doubtful(shard, &self.seen_owners());
        self.doubt(plan, id, doubtful).await
    }

    /// The shard has left its cluster.
    ///
    /// # Errors
    /// When the target can't be told.
    pub async fn leave(&self, plan: &Plan, shard: Shard) -> Result<(), Error> {
        lock(&self.origins).remove(&shard);
        // It may never have begun.
        self.has_begun(shard);
        let doubtful = self.with(|machine| machine.leave(shard));
        self.doubt(plan, &plan.identity, doubtful).await
    }

    /// Slots in motion, and those that the shard feeds and others own, or the other way round.
    fn doubtful(&self, shard: Shard, owners: &BTreeMap<Slot, Shard>) -> Vec<Slot> {
        self.with(|machine| {
            let moving: Vec<Slot> = machine.in_motion().map(|(slot, ..)| slot).collect();
            let odd = owners.iter().filter(|(slot, owner)| {
                let feeder = machine.feeder(**slot);
                feeder.is_some_and(|feeder| feeder != **owner && (feeder == shard || **owner == shard))
            });
            let odd: Vec<Slot> = odd.map(|(slot, _)| *slot).collect();
            moving.into_iter().chain(odd).collect()
        })
    }

    /// Who owns each slot by the last look, as far as it is known which shard that is.
    fn seen_owners(&self) -> BTreeMap<Slot, Shard> {
        let Some(seen) = self.cluster.seen() else { return BTreeMap::new() };
        look::owners(&seen, &lock(&self.origins))
    }

    /// Has all keys of these slots copied.
    async fn doubt(&self, plan: &Plan, id: &Identity, mut slots: Vec<Slot>) -> Result<(), Error> {
        let mut states: Vec<(Slot, State)> = Vec::new();
        let mut telling = Telling(Vec::new(), self);
        loop {
            self.with(|machine| {
                slots.retain(|slot| match machine.doubt(*slot) {
                    Some(state) => {
                        machine.telling(&[*slot], true);
                        telling.0.push(*slot);
                        states.push((*slot, state));
                        false
                    }
                    None => true,
                });
            });
            if slots.is_empty() {
                break;
            }
            tokio::time::sleep(SWITCH_WAIT).await;
        }
        if states.is_empty() {
            return Ok(());
        }
        tracing::info!(slots = states.len(), "all keys of slots are copied: their streams may not have told of all");
        self.tell(plan, id, &states, true).await
    }

    /// A shard's lanes were connected anew, and the target has these fields.
    pub fn connected(&self, shard: Shard, run_id: &str, fields: &[(Vec<u8>, Vec<u8>)], rewinds: Option<ReplOffset>) {
        let kept = Kept::read(fields.iter().map(|(field, value)| (&field[..], &value[..])));
        let mut hasher = std::hash::DefaultHasher::new();
        run_id.hash(&mut hasher);
        let target = hasher.finish();
        let lost = self.with(|machine| {
            let lost = machine.reread(shard, target, |slot| kept.state(slot));
            if let Some(offset) = rewinds {
                machine.rewinds(shard, offset);
            }
            lost
        });
        if !lost.is_empty() {
            tracing::warn!(
                shard,
                slots = lost.len(),
                "the target has lost what it knew of slots: all their keys are copied"
            );
        }
    }
}

/// What is to be looked at anew: all slots but those that were known to be in motion.
#[derive(Debug)]
struct Unchecked {
    moved_before: BTreeSet<Slot>,
}

/// Slots that the target is being told of.
struct Telling<'a>(Vec<Slot>, &'a Motions);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.1.with(|machine| machine.telling(&self.0, false));
    }
}

/// Where a shard goes on: at its lowest record, or before it where a slot has begun to move.
///
/// `None` when that can't be told.
fn resume_point(shard: Shard, following: &Following, kept: &Kept) -> Option<ReplOffset> {
    let (_, record) = following.resume_point()?;
    if kept.whole || following.stream_db() != 0 {
        // Which database is selected before the record isn't known.
        return Some(record);
    }
    Some(motion::resume_from(shard, record, kept.changed()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
