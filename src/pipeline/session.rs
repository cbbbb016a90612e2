//! One life of a job: a full sync or a resumption, and what follows it, until the job ends or must begin another one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Error;
use super::ask::Asking;
use super::copy_keys::CopyKeys;
use super::decode::{self, Parts, Snapshot};
use super::deliver::{Delivery, Progress};
use super::feed::Feed;
use super::learn::{Learner, SharedLearnt};
use super::past::PastLanes;
use super::prepare::{Plan, retrying};
use super::receive::{self, Joined, Receive, Resume};
use super::shard::{ShardPlan, slots_now};
use super::stream::Stream;
use crate::config::words::{Ack as AckWhen, Existing, OnError};
use crate::delivery::guard::Standing;
use crate::delivery::record::JobState;
use crate::delivery::standalone::Lost;
use crate::delivery::unit::{Batch, Task};
use crate::net::backoff::Backoff;
use crate::offset::ReplOffset;
use crate::route::Router;
use crate::source::{self, Ack};
use crate::status::Phase;
use crate::target;
use crate::target::checkpoint::Following;
use crate::target::cluster::past::Past;

/// Batches between the decode thread and the lanes.
const BATCHES_MAX: usize = 16;

/// How long the target may take to apply what was received before a signal to stop.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// Keys that a set of hashes may hold within this many bytes each.
const COPIED_KEY_BYTES: u64 = 16;

/// How a session begins.
pub enum Begin {
    /// With a full sync; on this link, if the source has begun one already.
    Full(Option<Box<Joined>>),
    /// Where the target's records stand.
    Resume(Box<Following>),
}

/// How a session ended.
pub enum End {
    /// Everything that the source had written by then is applied.
    CaughtUp,
    Stopped,
    StoppedInCopy,
    /// The source primary has left its cluster, and what was received of it is applied.
    Gone,
    /// A new full sync is needed, for this reason; on this link, if the source has begun one already.
    FullSync(String, Option<Box<Joined>>),
    /// The job goes on from the target's records.
    Resume(String),
}

/// When a session ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    Stopped,
    /// When the target has all that the source wrote until the copy was whole, or until the session began.
    CaughtUp,
    /// The same, when all shards of the job have come to there.
    AllCaughtUp,
}

/// The running parts of a session.
struct Running {
    receive: JoinHandle<receive::End>,
    delivery: Delivery,
    decode: oneshot::Receiver<Result<(), decode::Error>>,
    thread: std::thread::JoinHandle<()>,
    stop: watch::Sender<bool>,
    feed: Arc<Feed>,
    /// How far the target has applied everything; `None` while the copy isn't whole.
    applied: watch::Receiver<Option<ReplOffset>>,
}

/// What a session stands on once the source has answered.
struct Ground {
    joined: Joined,
    feed: Arc<Feed>,
    job: JobState,
    /// The target's records, where the session goes on from them.
    following: Option<Box<Following>>,
}

/// Runs a session to its end. `generation` counts the full syncs of the shard, and is counted on by one that begins here.
///
/// # Errors
/// When an end fails for good, or for too long.
pub async fn run(
    plan: &Plan,
    shard: &ShardPlan,
    begin: Begin,
    until: Until,
    generation: &mut u64,
    backoff: &mut Backoff,
) -> Result<End, Error> {
    plan.status.set_shard_phase(&shard.status, Phase::Connecting);
    plan.together.begin(shard.number);
    let stopped_before = if matches!(begin, Begin::Resume(_)) { End::Stopped } else { End::StoppedInCopy };
    let (mut stop, mut abandon, mut gone) = (shard.orders.clone(), shard.orders.clone(), shard.orders.clone());
    let ground = tokio::select! {
        ground = ground(plan, shard, begin, generation, backoff) => ground?,
        () = stop.stopped() => return Ok(stopped_before),
        () = abandon.abandoned() => return Ok(stopped_before),
        () = gone.gone() => return Ok(End::Gone),
        lost = plan.owner.lost() => return Err(lost.into()),
    };
    let in_copy = ground.following.is_none();
    plan.status.set_shard_phase(&shard.status, if in_copy { Phase::Copying } else { Phase::Following });
    let mut running = start(plan, shard, ground)?;
    let end = watch_over(plan, shard, &mut running, until, in_copy, backoff).await;
    // Whatever the reason: nothing of this session may go on beside the next one.
    running.stop.send_replace(true);
    running.feed.end();
    running.receive.abort();
    running.delivery.driver.abort();
    running.delivery.replicas.abort();
    if let Some(motions) = &plan.motions {
        motions.ended(shard.number);
    }
    let thread = running.thread;
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    if !matches!(joined, Ok(Ok(()))) {
        return Err(Error::Lost("the decode thread"));
    }
    end
}

/// Joins the source and finds out whether it goes on or begins anew.
async fn ground(
    plan: &Plan,
    shard: &ShardPlan,
    begin: Begin,
    generation: &mut u64,
    backoff: &mut Backoff,
) -> Result<Ground, Error> {
    let (mut joined, following) = match begin {
        Begin::Full(Some(joined)) => (*joined, None),
        Begin::Full(None) => (shard.upstream.join(backoff, None).await?, None),
        Begin::Resume(following) => {
            let resume = following.resume_point().map(|(replid, offset)| Resume {
                replid,
                offset: plan.motions.as_ref().map_or(offset, |motions| motions.resume_point(shard.number, offset)),
                highest: plan
                    .motions
                    .as_ref()
                    .map_or(following.highest(), |motions| following.highest().max(motions.relied_until(shard.number))),
            });
            (shard.upstream.join(backoff, resume).await?, Some(following))
        }
    };
    let budget = plan.shares.budget(shard.number);
    let source = joined.chosen.server.address.clone();
    if joined.full {
        if following.is_some() {
            say_full_again(
                plan,
                shard,
                "the source can't go on from where this job was: its backlog is too short, or it has another history",
            );
        }
        *generation += 1;
        let framing = shard.upstream.framing(&mut joined).await?;
        tracing::info!(
            shard = shard.number, %source, offset = %joined.offset, replid = joined.replid.map(|r| r.to_string()),
            generation = *generation, "full sync begins"
        );
        if let Some(motions) = &plan.motions {
            motions.copies(plan, &shard.identity, shard.number, joined.offset).await?;
        }
        let feed = Arc::new(Feed::new(joined.replid, joined.offset, Some(framing), &budget));
        let job = job_state(plan, shard, &joined, *generation, plan.lanes);
        return Ok(Ground { joined, feed, job, following: None });
    }
    if let Some(motions) = &plan.motions {
        motions.resumes(shard.number, joined.offset);
        let before = following.as_ref().and_then(|following| following.job().replid);
        if before != joined.replid {
            motions.forked(plan, &shard.identity, shard.number).await?;
        }
        if let Some(following) = &following {
            motions.doubt_unrecorded(plan, &shard.identity, shard.number, following).await?;
        }
    }
    let lanes = following.as_ref().and_then(|f| f.lanes()).unwrap_or(plan.lanes);
    tracing::info!(
        shard = shard.number, %source, offset = %joined.offset, generation = *generation, lanes, "resumed"
    );
    let feed = Arc::new(Feed::new(joined.replid, joined.offset, None, &budget));
    let job = job_state(plan, shard, &joined, *generation, lanes);
    Ok(Ground { joined, feed, job, following })
}

/// Where the status line has the reason for another full sync, until that is done.
pub const FULL_SYNC: &str = "full sync";

/// A full sync costs the source a fork: nobody should find it out by chance.
pub fn say_full_again(plan: &Plan, shard: &ShardPlan, why: &str) {
    tracing::warn!(shard = shard.number, source = shard.status.source(), reason = why, "a new full sync begins");
    plan.status.waiting(&shard.status.place(FULL_SYNC), &format!("a new full sync begins: {why}"));
    plan.status.error("full sync again");
    shard.status.copied.restart();
}

fn job_state(plan: &Plan, shard: &ShardPlan, joined: &Joined, generation: u64, lanes: usize) -> JobState {
    JobState {
        shard: shard.number,
        replid: joined.replid,
        generation,
        lanes,
        late_ms: plan.late_ms.unsigned_abs(),
        scope: plan.scope.fingerprint(),
    }
}

/// Starts the tasks and the thread.
fn start(plan: &Plan, shard: &ShardPlan, ground: Ground) -> Result<Running, Error> {
    let Ground { joined, feed, job, following } = ground;
    if let Some(replid) = joined.replid {
        shard.status.start(replid, joined.offset);
    }
    let ack = Arc::new(Ack::new(plan.job.ack == AckWhen::Received));
    let (stop, stopped) = watch::channel(false);
    let receive = Receive {
        upstream: shard.upstream.clone(),
        feed: Arc::clone(&feed),
        ack: Arc::clone(&ack),
        retry_for: plan.job.retry_for,
        full: AtomicBool::new(false),
        motions: plan.motions.clone().map(|motions| (motions, shard.number)),
    };
    let receive = tokio::spawn(receive.run(joined.link, joined.chosen, stopped));
    let (batches, queue) = mpsc::channel(BATCHES_MAX);
    let (applied_to, applied) = watch::channel(None);
    let learnt = SharedLearnt::default();
    let progress = Progress {
        feed: Arc::clone(&feed),
        ack: Arc::clone(&ack),
        shard: Arc::clone(&shard.status),
        status: Arc::clone(&plan.status),
        applied: applied_to,
        has_replicas: AtomicBool::new(true),
        sources_of: Arc::clone(&plan.sources_of),
        motions: plan.motions.clone().map(|motions| (motions, shard.number)),
        learnt: Arc::clone(&learnt),
        servers: Default::default(),
    };
    let leftovers = if following.is_none() { leftovers(plan, shard, &job) } else { decode::Leftovers::None };
    let slots = || slots_now(plan.motions.as_deref(), shard.number, shard.slots.as_ref());
    let scope = || Task::RemoveScope { databases: None, slots: slots() };
    let empty_first = (leftovers == decode::Leftovers::EmptyFirst).then(scope);
    let delivery = Delivery::start(plan, shard, (&job, following.as_deref()), empty_first, progress, queue);
    let (decoded, decode) = oneshot::channel();
    let standing = following.map(|f| f.standing()).unwrap_or_default();
    let asking = Asking::new(tokio::runtime::Handle::current(), Arc::clone(&feed));
    let ended = Arc::clone(&feed);
    let parts = parts(
        plan,
        shard,
        (feed, learnt),
        (ack, batches),
        (job.lanes, standing, leftovers),
        (job.shard, job.generation),
        asking,
    );
    let name = format!("decode {}", shard.number);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        // Nobody listens any more when the session ended otherwise.
        let _ = decoded.send(decode_all(parts));
    })?;
    Ok(Running { receive, delivery, decode, thread, stop, feed: ended, applied })
}

fn decode_all(mut parts: Parts) -> Result<(), decode::Error> {
    let db = match Snapshot::new(&mut parts) {
        Some(snapshot) => Some(snapshot.run()?),
        None => None,
    };
    match db {
        Some(db) => Stream::new(&mut parts, db).run(),
        None => Stream::resume(&mut parts).run(),
    }
}

fn parts(
    plan: &Plan,
    shard: &ShardPlan,
    (feed, learnt): (Arc<Feed>, SharedLearnt),
    (ack, batches): (Arc<Ack>, mpsc::Sender<Batch>),
    (lanes, standing, leftovers): (usize, Standing, decode::Leftovers),
    of: (u32, u64),
    asking: Asking,
) -> Parts {
    // Before 7.0 replicas of a cluster refuse transactions that ask for more than keys, such as for the offset.
    let side = match plan.old_sources.is_empty() {
        true => shard.origin().side(),
        false => shard.origin().primary_side(),
    };
    let past = plan.motions.as_ref().and_then(|_| Past::new(&plan.target, &shard.identity));
    Parts {
        feed,
        scope: Arc::clone(&plan.scope),
        writer: plan.writer,
        caps: plan.caps,
        copy_keys: CopyKeys::new(side, asking.clone(), plan.job.retry_for).with_redirections(plan.motions.is_some()),
        router: if plan.target.is_cluster() { Router::by_slot() } else { Router::new(lanes) },
        batches,
        status: Arc::clone(&plan.status),
        shard: Arc::clone(&shard.status),
        ack,
        skip_faults: plan.job.on_error != OnError::Stop,
        kept: plan.kept.clone(),
        leftovers,
        records: shard.records(),
        job: plan.job.name.clone(),
        slots: shard.slots.clone(),
        motions: plan.motions.clone(),
        sources_of: Arc::clone(&plan.sources_of),
        number: shard.number,
        leads: (shard.leader.clone(), shard.number),
        standing,
        past: past.map(|past| PastLanes::new(past, asking.clone(), Arc::clone(&plan.status), &plan.job.name, of)),
        learner: Learner::new(plan.target.clone(), asking, learnt),
        modules: plan.modules.clone(),
    }
}

/// What is to be done about keys that an earlier copy of the job left and the source has deleted since.
fn leftovers(plan: &Plan, shard: &ShardPlan, job: &JobState) -> decode::Leftovers {
    if job.generation <= 1 && !shard.inherits {
        return decode::Leftovers::None;
    }
    if plan.job.existing != Existing::Refuse {
        tracing::warn!(
            "keys that the source deleted since an earlier copy stay on the target, and its later writes to such names \
             build on them: with --existing keep or replace they can't be told from others"
        );
        return decode::Leftovers::None;
    }
    let bytes = usize::try_from(shard.source_keys.saturating_mul(COPIED_KEY_BYTES)).unwrap_or(usize::MAX);
    if bytes > plan.shares.memory() / 2 {
        tracing::warn!(keys = shard.source_keys, "too many keys to remember: the scope is emptied before the copy");
        return decode::Leftovers::EmptyFirst;
    }
    decode::Leftovers::RemoveAfter
}

/// Waits for whatever ends the session.
async fn watch_over(
    plan: &Plan,
    shard: &ShardPlan,
    running: &mut Running,
    until: Until,
    in_copy: bool,
    backoff: &mut Backoff,
) -> Result<End, Error> {
    let (feed, applied) = (Arc::clone(&running.feed), running.applied.clone());
    let mut caught_up = std::pin::pin!(caught_up(plan, shard, until, Arc::clone(&feed), applied));
    let (mut stop, mut abandon, mut gone) = (shard.orders.clone(), shard.orders.clone(), shard.orders.clone());
    let mut memory = plan.shares.memory();
    let mut received = None;
    loop {
        tokio::select! {
            end = &mut running.receive, if received.is_none() => {
                match end.map_err(|_| Error::Lost("the receiving task"))? {
                    // The thread and the lanes finish what was received.
                    receive::End::Stopped => received = Some(()),
                    end => return receive_ended(shard, end, backoff),
                }
            }
            decoded = &mut running.decode => return decode_ended(shard, running, decoded, backoff).await,
            done = &mut running.delivery.driver => {
                // The lanes end well when the decode thread has: then it says why.
                let Ok(Ok(())) = done else { return driver_ended(done) };
                let decoded = (&mut running.decode).await;
                return decode_ended(shard, running, decoded, backoff).await;
            }
            reached = &mut caught_up => {
                reached?;
                return drained(running, End::CaughtUp).await;
            }
            share = plan.shares.changed(memory) => {
                memory = share;
                feed.set_memory(share);
            }
            () = stop.stopped() => return stopped(running, in_copy).await,
            () = abandon.abandoned() => return Ok(End::Stopped),
            () = gone.gone() => return drained(running, End::Gone).await,
            lost = plan.owner.lost() => return Err(lost.into()),
        }
    }
}

fn receive_ended(shard: &ShardPlan, end: receive::End, backoff: &mut Backoff) -> Result<End, Error> {
    match end {
        receive::End::Stopped => Err(Error::Lost("the source's stream")),
        receive::End::FullSync { why, begun } => Ok(End::FullSync(why, Some(begun))),
        receive::End::Forked => Ok(End::Resume("the source's history has forked".into())),
        receive::End::Failed(error) => again(shard, error, backoff),
    }
}

/// A passing failure of the source in the copy means another copy; any other ends the job.
fn again(shard: &ShardPlan, error: source::Error, backoff: &mut Backoff) -> Result<End, Error> {
    let copying = shard.status.phase() == Phase::Copying;
    if copying && error.is_passing() && backoff.failed(std::time::Instant::now()).is_some() {
        return Ok(End::FullSync(error.to_string(), None));
    }
    Err(error.into())
}

/// The decode thread only ends by itself when something is wrong, or behind the end of the stream.
async fn decode_ended(
    shard: &ShardPlan,
    running: &mut Running,
    decoded: Result<Result<(), decode::Error>, oneshot::error::RecvError>,
    backoff: &mut Backoff,
) -> Result<End, Error> {
    match decoded {
        // The lanes have ended first: their error is the one to tell.
        Ok(Err(decode::Error::Ended)) => driver_ended((&mut running.delivery.driver).await),
        // The source broke the snapshot or the stream off: the link's own error is the one to tell.
        Ok(Err(decode::Error::SnapshotCut { .. }) | Ok(())) => match (&mut running.receive).await {
            Ok(end) => receive_ended(shard, end, backoff),
            Err(_) => Err(Error::Lost("the receiving task")),
        },
        Ok(Err(error)) if error.is_passing() => Ok(End::Resume(error.to_string())),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Error::Lost("the decode thread")),
    }
}

fn driver_ended(done: Result<Result<(), target::Error>, tokio::task::JoinError>) -> Result<End, Error> {
    match done {
        Ok(Err(error @ target::Error::Lost { lost: Lost::Lanes { .. }, .. })) => Ok(End::Resume(error.to_string())),
        Ok(Err(target::Error::Lost { lost, .. })) => Ok(End::FullSync(lost.to_string(), None)),
        Ok(Err(error @ target::Error::FellBack { .. })) => Ok(End::Resume(error.to_string())),
        Ok(Err(error)) => Err(error.into()),
        Ok(Ok(())) | Err(_) => Err(Error::Lost("the task of the lanes")),
    }
}

/// Returns when the target has all that it should before the session ends by itself; else never.
async fn caught_up(
    plan: &Plan,
    shard: &ShardPlan,
    until: Until,
    feed: Arc<Feed>,
    mut applied: watch::Receiver<Option<ReplOffset>>,
) -> Result<(), Error> {
    if until == Until::Stopped {
        return std::future::pending().await;
    }
    // The driver's own end is noticed elsewhere.
    if applied.wait_for(Option::is_some).await.is_err() {
        return std::future::pending().await;
    }
    let mut side = shard.origin().primary_side();
    let ask = async || Ok(side.position().await.map_err(source::Error::from)?);
    let position = retrying(&plan.status, &shard.status.place("source"), plan.job.retry_for, ask).await?;
    let trusted = if holds!("suspects-awaited") { feed.trusted().await } else { ReplOffset(0) };
    let goal = trusted.max(position.offset);
    let whole = |at: &Option<ReplOffset>| at.is_some_and(|at| at >= goal);
    if applied.wait_for(whole).await.is_err() {
        return std::future::pending().await;
    }
    if let Some(motions) = &plan.motions {
        motions.at_rest().await;
    }
    if until == Until::AllCaughtUp {
        plan.together.level(shard.number).await;
    }
    Ok(())
}

/// Nothing more is received: the lanes apply what was, and their records say so.
async fn drained(running: &mut Running, end: End) -> Result<End, Error> {
    running.stop.send_replace(true);
    match (&mut running.delivery.driver).await {
        Ok(Ok(())) => Ok(end),
        done => driver_ended(done),
    }
}

/// Ends a job on a signal.
async fn stopped(running: &mut Running, in_copy: bool) -> Result<End, Error> {
    running.stop.send_replace(true);
    if in_copy && running.applied.borrow().is_none() {
        return Ok(End::StoppedInCopy);
    }
    match timeout(DRAIN_MAX, drained(running, End::Stopped)).await {
        Ok(end) => end,
        Err(_) => Err(Error::NotDrained { seconds: DRAIN_MAX.as_secs() }),
    }
}
