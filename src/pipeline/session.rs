//! One life of a job: a full sync or a resumption, and what follows it, until the job ends or must begin another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::ask::Asking;
use super::copy_keys::CopyKeys;
use super::decode::{self, Parts, Snapshot};
use super::feed::{Budget, Feed, Rewind};
use super::learn::Learner;
use super::prepare::{Plan, SourcesOf, retrying};
use super::receive::{self, Joined, Receive, Resume};
use super::stream::Stream;
use super::{Error, key_hash};
use crate::commands::{self, SmallKeys};
use crate::config::words::{Ack as AckWhen, Existing, OnError};
use crate::delivery::guard::Standing;
use crate::delivery::record::{self, JobState};
use crate::delivery::standalone::Lost;
use crate::delivery::{Standalone, unit::Batch};
use crate::net::backoff::Backoff;
use crate::offset::ReplOffset;
use crate::resp::command::{Parsed, Parser};
use crate::route::Router;
use crate::source::side::Side;
use crate::source::{self, Ack};
use crate::status::{Phase, Shard, Status};
use crate::target::checkpoint::Following;
use crate::target::driver::{self, Driver, OnFault};
use crate::target::{self, replicas};

/// Batches between the decode thread and the lanes.
const BATCHES_MAX: usize = 16;

/// How long the target may take to apply what was received before a signal to stop.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// The first version whose MULTI is never refused.
const SURE_MULTI: (u16, u16, u16) = (6, 0, 0);

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
}

/// The running parts of a session.
struct Running {
    receive: JoinHandle<receive::End>,
    driver: JoinHandle<Result<(), target::Error>>,
    replicas: JoinHandle<()>,
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

/// Runs a session to its end. `generation` counts the full syncs of the job, and is counted on by one that begins here.
///
/// # Errors
/// When an end fails for good, or for too long.
pub async fn run(
    plan: &Plan,
    begin: Begin,
    until: Until,
    generation: &mut u64,
    backoff: &mut Backoff,
    mut signals: watch::Receiver<u32>,
) -> Result<End, Error> {
    plan.status.set_phase(Phase::Connecting);
    let stopped_before = if matches!(begin, Begin::Resume(_)) { End::Stopped } else { End::StoppedInCopy };
    let ground = tokio::select! {
        ground = ground(plan, begin, generation, backoff) => ground?,
        () = super::signalled(&mut signals, 1) => return Ok(stopped_before),
        lost = plan.owner.lost() => return Err(lost.into()),
    };
    let in_copy = ground.following.is_none();
    plan.status.set_phase(if in_copy { Phase::Copying } else { Phase::Following });
    let mut running = start(plan, ground)?;
    let end = watch_over(plan, &mut running, until, in_copy, backoff, signals).await;
    // Whatever the reason: nothing of this session may go on beside the next one.
    running.stop.send_replace(true);
    running.feed.end();
    running.receive.abort();
    running.driver.abort();
    running.replicas.abort();
    let thread = running.thread;
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    if !matches!(joined, Ok(Ok(()))) {
        return Err(Error::Lost("the decode thread"));
    }
    end
}

/// Joins the source and finds out whether it goes on or begins anew.
async fn ground(plan: &Plan, begin: Begin, generation: &mut u64, backoff: &mut Backoff) -> Result<Ground, Error> {
    let (mut joined, following) = match begin {
        Begin::Full(Some(joined)) => (*joined, None),
        Begin::Full(None) => (receive::join(&plan.source, &plan.status, backoff, None).await?, None),
        Begin::Resume(following) => {
            let resume = following.resume_point().map(|(replid, offset)| Resume {
                replid,
                offset,
                highest: following.highest(),
            });
            (receive::join(&plan.source, &plan.status, backoff, resume).await?, Some(following))
        }
    };
    let budget = Budget {
        memory_bytes: usize::try_from(plan.job.memory_bytes).unwrap_or(usize::MAX),
        spool: plan.job.spool_dir.clone().map(|dir| (dir, plan.job.spool_bytes)),
    };
    if joined.full {
        if following.is_some() {
            say_full_again(
                plan,
                "the source can't go on from where this job was: its backlog is too short, or it has another history",
            );
        }
        *generation += 1;
        let framing = receive::framing(&mut joined, &plan.status).await?;
        tracing::info!(
            source = %plan.source, offset = %joined.offset, replid = joined.replid.map(|r| r.to_string()),
            generation = *generation, "full sync begins"
        );
        let feed = Arc::new(Feed::new(joined.replid, joined.offset, Some(framing), &budget));
        let job = job_state(plan, &joined, *generation, plan.lanes);
        return Ok(Ground { joined, feed, job, following: None });
    }
    let lanes = following.as_ref().map_or(plan.lanes, |f| f.records.len());
    tracing::info!(source = %plan.source, offset = %joined.offset, generation = *generation, lanes, "resumed");
    let feed = Arc::new(Feed::new(joined.replid, joined.offset, None, &budget));
    let job = job_state(plan, &joined, *generation, lanes);
    Ok(Ground { joined, feed, job, following })
}

/// A full sync costs the source a fork: nobody should find it out by chance.
pub fn say_full_again(plan: &Plan, why: &str) {
    tracing::warn!(reason = why, "a new full sync begins");
    plan.status.waiting("source", &format!("a new full sync begins: {why}"));
    plan.status.error("full sync again");
    plan.status.restart_copy();
}

fn job_state(plan: &Plan, joined: &Joined, generation: u64, lanes: usize) -> JobState {
    JobState {
        replid: joined.replid,
        generation,
        lanes,
        late_ms: plan.late_ms.unsigned_abs(),
        scope: plan.scope.fingerprint(),
    }
}

/// Starts the tasks and the thread.
fn start(plan: &Plan, ground: Ground) -> Result<Running, Error> {
    let Ground { joined, feed, job, following } = ground;
    if let Some(replid) = joined.replid {
        plan.shard.start(replid, joined.offset);
    }
    let ack = Arc::new(Ack::new(plan.job.ack == AckWhen::Received));
    let (stop, stopped) = watch::channel(false);
    let receive = Receive {
        source: plan.source.clone(),
        feed: Arc::clone(&feed),
        ack: Arc::clone(&ack),
        status: Arc::clone(&plan.status),
        shard: Arc::clone(&plan.shard),
        retry_for: plan.job.retry_for,
        full: AtomicBool::new(false),
    };
    let receive = tokio::spawn(receive.run(joined.link, stopped));
    let (batches, queue) = mpsc::channel(BATCHES_MAX);
    let (applied_to, applied) = watch::channel(None);
    let progress = Arc::new(Progress {
        feed: Arc::clone(&feed),
        ack: Arc::clone(&ack),
        shard: Arc::clone(&plan.shard),
        status: Arc::clone(&plan.status),
        applied: applied_to,
        has_replicas: AtomicBool::new(true),
        sources_of: Arc::clone(&plan.sources_of),
    });
    let leftovers = if following.is_none() { leftovers(plan, &job) } else { decode::Leftovers::None };
    let mut machine = match &following {
        None => Standalone::new(&plan.job.name, job.clone()),
        Some(following) => Standalone::resume(&plan.job.name, job.clone(), &following.records),
    };
    machine.set_careful(!plan.caps.valkey && plan.caps.version < SURE_MULTI);
    let mut driver =
        Driver::new(driver_plan(plan, Arc::clone(&progress), following.is_some(), leftovers), machine, queue);
    let driver = tokio::spawn(async move { driver.run().await });
    let server = plan.target.clone();
    let replicas = tokio::spawn(async move { replicas::watch(&server, &*progress).await });
    let (decoded, decode) = oneshot::channel();
    let standing = following.map(|f| f.standing()).unwrap_or_default();
    let asking = Asking::new(tokio::runtime::Handle::current(), Arc::clone(&feed));
    let ended = Arc::clone(&feed);
    let parts = parts(plan, feed, ack, batches, (job.lanes, standing, leftovers), asking);
    let thread = std::thread::Builder::new().name("decode".into()).spawn(move || {
        // Nobody listens any more when the session ended otherwise.
        let _ = decoded.send(decode_all(parts));
    })?;
    Ok(Running { receive, driver, replicas, decode, thread, stop, feed: ended, applied })
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

fn driver_plan(plan: &Plan, progress: Arc<Progress>, resumes: bool, leftovers: decode::Leftovers) -> driver::Plan {
    driver::Plan {
        server: plan.target.clone(),
        identity: plan.identity.clone(),
        on_fault: match plan.job.on_error {
            OnError::Stop => OnFault::Stop,
            OnError::Skip => OnFault::Skip,
            OnError::Recopy => OnFault::Recopy,
        },
        retry_for: plan.job.retry_for,
        rate: plan.job.rate_bytes_s,
        in_scope: Arc::clone(&plan.in_scope),
        key_hash,
        status: Arc::clone(&plan.status),
        resumes,
        empty_first: leftovers == decode::Leftovers::EmptyFirst,
        progress: Box::new(progress),
    }
}

fn parts(
    plan: &Plan,
    feed: Arc<Feed>,
    ack: Arc<Ack>,
    batches: mpsc::Sender<Batch>,
    (lanes, standing, leftovers): (usize, Standing, decode::Leftovers),
    asking: Asking,
) -> Parts {
    let side = Side::new(plan.source.clone());
    Parts {
        feed,
        scope: Arc::clone(&plan.scope),
        writer: plan.writer,
        caps: plan.caps,
        copy_keys: CopyKeys::new(side, asking.clone(), plan.job.retry_for),
        router: Router::new(lanes),
        batches,
        status: Arc::clone(&plan.status),
        ack,
        skip_faults: plan.job.on_error != OnError::Stop,
        kept: plan.kept.clone(),
        leftovers,
        job: plan.job.name.clone(),
        standing,
        learner: Learner::new(plan.target.clone(), asking),
    }
}

/// What is to be done about keys that an earlier copy of the job left and the source has deleted since.
fn leftovers(plan: &Plan, job: &JobState) -> decode::Leftovers {
    if job.generation <= 1 {
        return decode::Leftovers::None;
    }
    if plan.job.existing != Existing::Refuse {
        tracing::warn!(
            "keys that the source deleted since an earlier copy stay on the target, and its later writes to such names \
             build on them: with --existing keep or replace they can't be told from others"
        );
        return decode::Leftovers::None;
    }
    let bytes = plan.source_keys.saturating_mul(COPIED_KEY_BYTES);
    if bytes > plan.job.memory_bytes / 2 {
        tracing::warn!(keys = plan.source_keys, "too many keys to remember: the scope is emptied before the copy");
        return decode::Leftovers::EmptyFirst;
    }
    decode::Leftovers::RemoveAfter
}

/// Hands on how far the lanes are.
struct Progress {
    feed: Arc<Feed>,
    ack: Arc<Ack>,
    shard: Arc<Shard>,
    status: Arc<Status>,
    applied: watch::Sender<Option<ReplOffset>>,
    /// False once the target is known to have none: then its records are as safe as they get.
    has_replicas: AtomicBool,
    sources_of: SourcesOf,
}

impl driver::Progress for Arc<Progress> {
    fn applied(&self, offset: ReplOffset) {
        if self.applied.borrow().is_none() {
            self.status.set_phase(Phase::Following);
        }
        self.shard.set_applied(offset);
        self.ack.set_applied(offset);
        self.applied.send_replace(Some(offset));
    }

    fn recorded(&self, offset: ReplOffset) {
        self.feed.set_recorded(offset);
        if !self.has_replicas.load(Ordering::Relaxed) {
            self.feed.cover(offset);
        }
    }

    fn keys_written(&self, db: u32, command: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut parser = Parser::new();
        let (Ok(Some(Parsed::Command { .. })), mut keys) = (parser.parse(command), SmallKeys::new()) else {
            return Vec::new();
        };
        let args = parser.args(command);
        let known = commands::lookup(args).is_some_and(|spec| commands::keys(spec, args, &mut keys).is_ok());
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
        (self.sources_of)(db).into_iter().any(|source| self.status.uncount(source, kind.as_str()));
    }

    fn rewind(&self, offset: ReplOffset, epoch: u64, standing: Standing) -> bool {
        self.feed.rewind(Rewind { offset, epoch, standing })
    }
}

impl replicas::Watcher for Progress {
    fn recorded(&self) -> Option<ReplOffset> {
        let offset = self.feed.recorded();
        self.applied.borrow().is_some().then_some(offset)
    }

    fn covered(&self, offset: ReplOffset, replicas: usize) {
        self.has_replicas.store(replicas > 0, Ordering::Relaxed);
        self.feed.cover(offset);
    }
}

/// Waits for whatever ends the session.
async fn watch_over(
    plan: &Plan,
    running: &mut Running,
    until: Until,
    in_copy: bool,
    backoff: &mut Backoff,
    mut signals: watch::Receiver<u32>,
) -> Result<End, Error> {
    let mut caught_up = std::pin::pin!(caught_up(plan, until, Arc::clone(&running.feed), running.applied.clone()));
    let mut received = None;
    loop {
        tokio::select! {
            end = &mut running.receive, if received.is_none() => {
                match end.map_err(|_| Error::Lost("the receiving task"))? {
                    // The thread and the lanes finish what was received.
                    receive::End::Stopped => received = Some(()),
                    end => return receive_ended(plan, end, backoff),
                }
            }
            decoded = &mut running.decode => return decode_ended(plan, running, decoded, backoff).await,
            done = &mut running.driver => {
                // The lanes end well when the decode thread has: then it says why.
                let Ok(Ok(())) = done else { return driver_ended(done) };
                let decoded = (&mut running.decode).await;
                return decode_ended(plan, running, decoded, backoff).await;
            }
            reached = &mut caught_up => {
                reached?;
                return drained(running, End::CaughtUp).await;
            }
            () = super::signalled(&mut signals, 1) => return stopped(running, in_copy).await,
            lost = plan.owner.lost() => return Err(lost.into()),
        }
    }
}

fn receive_ended(plan: &Plan, end: receive::End, backoff: &mut Backoff) -> Result<End, Error> {
    match end {
        receive::End::Stopped => Err(Error::Lost("the source's stream")),
        receive::End::FullSync { why, begun } => Ok(End::FullSync(why, Some(begun))),
        receive::End::Forked => Ok(End::Resume("the source's history has forked".into())),
        receive::End::Failed(error) => again(plan, error, backoff),
    }
}

/// A passing failure of the source in the copy means another copy; any other ends the job.
fn again(plan: &Plan, error: source::Error, backoff: &mut Backoff) -> Result<End, Error> {
    let copying = plan.status.phase() == Phase::Copying;
    if copying && error.is_passing() && backoff.failed(std::time::Instant::now()).is_some() {
        return Ok(End::FullSync(error.to_string(), None));
    }
    Err(error.into())
}

/// The decode thread only ends by itself when something is wrong, or behind the end of the stream.
async fn decode_ended(
    plan: &Plan,
    running: &mut Running,
    decoded: Result<Result<(), decode::Error>, oneshot::error::RecvError>,
    backoff: &mut Backoff,
) -> Result<End, Error> {
    match decoded {
        // The lanes have ended first: their error is the one to tell.
        Ok(Err(decode::Error::Ended)) => driver_ended((&mut running.driver).await),
        // The source broke the snapshot or the stream off: the link's own error is the one to tell.
        Ok(Err(decode::Error::SnapshotCut { .. }) | Ok(())) => match (&mut running.receive).await {
            Ok(end) => receive_ended(plan, end, backoff),
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
    let mut side = Side::new(plan.source.clone());
    let ask = async || Ok(side.position().await.map_err(source::Error::from)?);
    let position = retrying(&plan.status, "source", plan.job.retry_for, ask).await?;
    let goal = feed.trusted().await.max(position.offset);
    let whole = |at: &Option<ReplOffset>| at.is_some_and(|at| at >= goal);
    match applied.wait_for(whole).await {
        Ok(_) => Ok(()),
        Err(_) => std::future::pending().await,
    }
}

/// Nothing more is received: the lanes apply what was, and their records say so.
async fn drained(running: &mut Running, end: End) -> Result<End, Error> {
    running.stop.send_replace(true);
    match (&mut running.driver).await {
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
