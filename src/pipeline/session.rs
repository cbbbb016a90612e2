//! One full sync and what follows it, until the job ends or must begin a new one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::copy_keys::CopyKeys;
use super::decode::{self, Parts, Snapshot};
use super::feed::Feed;
use super::finish::Closing;
use super::learn::Learner;
use super::prepare::Plan;
use super::receive::{self, Begun, Receive};
use super::stream::Stream;
use super::{Error, key_hash};
use crate::config::words::{Existing, OnError};
use crate::delivery::record::{self, JobState};
use crate::delivery::{Standalone, unit::Batch};
use crate::net::backoff::Backoff;
use crate::offset::ReplOffset;
use crate::route::Router;
use crate::source::side::Side;
use crate::source::{self, Ack};
use crate::status::Phase;
use crate::target::driver::{self, Driver, OnFault};
use crate::target;

/// Batches between the decode thread and the lanes.
const BATCHES_MAX: usize = 16;

/// How long the target may take to apply what was received before a signal to stop.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// How a session ended.
pub enum End {
    /// `--once`: everything is there.
    Complete,
    Stopped,
    StoppedInCopy,
    /// A new full sync is needed, for this reason.
    Again(String),
}

/// The running parts of a session.
struct Running {
    receive: JoinHandle<receive::End>,
    driver: JoinHandle<(Driver, Result<(), target::Error>)>,
    decode: oneshot::Receiver<Result<(), decode::Error>>,
    thread: std::thread::JoinHandle<()>,
    stop: watch::Sender<bool>,
    /// How far the target has applied everything; `None` while the copy isn't whole.
    applied: watch::Receiver<Option<ReplOffset>>,
}

/// Runs a full sync and follows the stream behind it.
///
/// # Errors
/// When an end fails for good, or for too long.
pub async fn run(plan: &Plan, backoff: &mut Backoff, mut signals: watch::Receiver<u32>) -> Result<End, Error> {
    plan.status.set_phase(Phase::Connecting);
    let begun = tokio::select! {
        begun = receive::begin(&plan.source, &plan.status, backoff) => begun?,
        _ = signals.wait_for(|n| *n > 0) => return Ok(End::StoppedInCopy),
    };
    plan.status.set_phase(Phase::Copying);
    tracing::info!(
        source = %plan.source.address, offset = %begun.offset, replid = begun.replid.map(|r| r.to_string()),
        generation = plan.generation, "full sync begins"
    );
    let mut running = start(plan, begun)?;
    let end = watch_over(plan, &mut running, backoff, signals).await;
    // Whatever the reason: nothing of this session may go on beside the next one.
    running.stop.send_replace(true);
    running.receive.abort();
    running.driver.abort();
    let thread = running.thread;
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    if !matches!(joined, Ok(Ok(()))) {
        return Err(Error::Lost("the decode thread"));
    }
    end
}

/// Starts the two tasks and the thread.
fn start(plan: &Plan, begun: Begun) -> Result<Running, Error> {
    let memory = usize::try_from(plan.job.memory_bytes).unwrap_or(usize::MAX);
    let feed = Arc::new(Feed::new(begun.replid, begun.offset, begun.framing, memory));
    if let Some(replid) = begun.replid {
        plan.shard.start(replid, begun.offset);
    }
    let ack = Arc::new(Ack::default());
    let (stop, stopped) = watch::channel(false);
    let receive = Receive {
        server: plan.source.clone(),
        feed: Arc::clone(&feed),
        ack: Arc::clone(&ack),
        status: Arc::clone(&plan.status),
        shard: Arc::clone(&plan.shard),
        retry_for: plan.job.retry_for,
    };
    let receive = tokio::spawn(receive.run(begun.link, stopped));
    let (batches, queue) = mpsc::channel(BATCHES_MAX);
    let (applied_to, applied) = watch::channel(None);
    let driver = driver(plan, &feed, &ack, applied_to, queue);
    let driver = tokio::spawn(async move {
        let mut driver = driver;
        let result = driver.run().await;
        (driver, result)
    });
    let (decoded, decode) = oneshot::channel();
    let parts = parts(plan, feed, ack, batches);
    let thread = std::thread::Builder::new().name("decode".into()).spawn(move || {
        // Nobody listens any more when the session ended otherwise.
        let _ = decoded.send(decode_all(parts));
    })?;
    Ok(Running { receive, driver, decode, thread, stop, applied })
}

fn decode_all(mut parts: Parts) -> Result<(), decode::Error> {
    let db = Snapshot::new(&mut parts).run()?;
    Stream::new(&mut parts, db).run()
}

fn driver(
    plan: &Plan,
    feed: &Arc<Feed>,
    ack: &Arc<Ack>,
    applied: watch::Sender<Option<ReplOffset>>,
    queue: mpsc::Receiver<Batch>,
) -> Driver {
    let job = JobState {
        replid: feed.replid(),
        generation: plan.generation,
        lanes: plan.lanes,
        late_ms: plan.late_ms.unsigned_abs(),
        scope: plan.scope.fingerprint(),
    };
    let (ack, shard, status) = (Arc::clone(ack), Arc::clone(&plan.shard), Arc::clone(&plan.status));
    let report = move |offset| {
        if applied.borrow().is_none() {
            status.set_phase(Phase::Following);
        }
        shard.set_applied(offset);
        ack.set_applied(offset);
        applied.send_replace(Some(offset));
    };
    let machine = Standalone::new(&plan.job.name, job);
    let plan = driver::Plan {
        server: plan.target.clone(),
        identity: plan.identity.clone(),
        on_fault: if plan.job.on_error == OnError::Stop { OnFault::Stop } else { OnFault::Skip },
        retry_for: plan.job.retry_for,
        rate: plan.job.rate_bytes_s,
        in_scope: Arc::clone(&plan.in_scope),
        key_hash,
        status: Arc::clone(&plan.status),
        applied: Box::new(report),
    };
    Driver::new(plan, machine, queue)
}

fn parts(plan: &Plan, feed: Arc<Feed>, ack: Arc<Ack>, batches: mpsc::Sender<Batch>) -> Parts {
    let runtime = tokio::runtime::Handle::current();
    let side = Side::new(plan.source.clone());
    Parts {
        feed,
        scope: Arc::clone(&plan.scope),
        writer: plan.writer,
        caps: plan.caps,
        copy_keys: CopyKeys::new(side, runtime.clone(), plan.job.retry_for),
        router: Router::new(plan.lanes),
        batches,
        status: Arc::clone(&plan.status),
        ack,
        skip_faults: plan.job.on_error != OnError::Stop,
        kept: plan.kept.clone(),
        remove_leftovers: plan.generation > 1 && plan.job.existing == Existing::Refuse,
        record_keys: (0..plan.lanes).map(|lane| record::key(&plan.job.name, lane)).collect(),
        learner: Learner::new(plan.target.clone(), runtime),
    }
}

/// Waits for whatever ends the session.
async fn watch_over(
    plan: &Plan,
    running: &mut Running,
    backoff: &mut Backoff,
    mut signals: watch::Receiver<u32>,
) -> Result<End, Error> {
    let mut caught_up = std::pin::pin!(caught_up(plan, running.applied.clone()));
    let mut received = None;
    loop {
        tokio::select! {
            end = &mut running.receive, if received.is_none() => {
                let end = end.map_err(|_| Error::Lost("the receiving task"))?;
                match end {
                    // The thread and the lanes finish what was received.
                    receive::End::Stopped => received = Some(()),
                    receive::End::FullSync(why) => return Ok(End::Again(why)),
                    receive::End::Failed(error) => return again(plan, error, backoff),
                }
            }
            decoded = &mut running.decode => return decode_ended(running, decoded).await,
            done = &mut running.driver => return driver_ended(done),
            reached = &mut caught_up => {
                reached?;
                return finish(plan, running).await;
            }
            _ = signals.wait_for(|n| *n > 0) => return stopped(plan, running).await,
        }
    }
}

/// A passing failure of the source in the copy means another copy; any other ends the job.
fn again(plan: &Plan, error: source::Error, backoff: &mut Backoff) -> Result<End, Error> {
    if plan.status.phase() == Phase::Copying && error.is_passing() && backoff.failed(std::time::Instant::now()).is_some()
    {
        return Ok(End::Again(error.to_string()));
    }
    Err(error.into())
}

/// The decode thread only ends by itself when something is wrong.
async fn decode_ended(
    running: &mut Running,
    decoded: Result<Result<(), decode::Error>, oneshot::error::RecvError>,
) -> Result<End, Error> {
    match decoded {
        // The lanes have ended first: their error is the one to tell.
        Ok(Err(decode::Error::Ended)) => driver_ended((&mut running.driver).await),
        // The source broke the snapshot off: the link's own error is the one to tell.
        Ok(Err(decode::Error::SnapshotCut { .. })) => match (&mut running.receive).await {
            Ok(receive::End::Failed(error)) if error.is_passing() => Ok(End::Again(error.to_string())),
            Ok(receive::End::Failed(error)) => Err(error.into()),
            _ => Ok(End::Again("the snapshot broke off".into())),
        },
        Ok(Err(error)) if error.is_passing() => Ok(End::Again(error.to_string())),
        Ok(Err(error)) => Err(error.into()),
        Ok(Ok(())) => match (&mut running.receive).await {
            Ok(receive::End::FullSync(why)) => Ok(End::Again(why)),
            Ok(receive::End::Failed(error)) => Err(error.into()),
            _ => Err(Error::Lost("the source's stream")),
        },
        Err(_) => Err(Error::Lost("the decode thread")),
    }
}

fn driver_ended(
    done: Result<(Driver, Result<(), target::Error>), tokio::task::JoinError>,
) -> Result<End, Error> {
    match done {
        Ok((_, Err(target::Error::Lost { lost, .. }))) => Ok(End::Again(lost.to_string())),
        Ok((_, Err(error))) => Err(error.into()),
        Ok((_, Ok(()))) | Err(_) => Err(Error::Lost("the task of the lanes")),
    }
}

/// With `--once`, returns when the target has all that the source wrote until the copy was whole; else never.
async fn caught_up(plan: &Plan, mut applied: watch::Receiver<Option<ReplOffset>>) -> Result<(), Error> {
    if !plan.job.once {
        return std::future::pending().await;
    }
    // The driver's own end is noticed elsewhere.
    if applied.wait_for(Option::is_some).await.is_err() {
        return std::future::pending().await;
    }
    let mut side = Side::new(plan.source.clone());
    let position = side.position().await.map_err(source::Error::from)?;
    let whole = |at: &Option<ReplOffset>| at.is_some_and(|at| at >= position.offset);
    match applied.wait_for(whole).await {
        Ok(_) => Ok(()),
        Err(_) => std::future::pending().await,
    }
}

/// Ends a `--once`: nothing more is received, the lanes drain, expiries get their true times, the records go.
async fn finish(plan: &Plan, running: &mut Running) -> Result<End, Error> {
    running.stop.send_replace(true);
    let (_, result) = (&mut running.driver).await.map_err(|_| Error::Lost("the task of the lanes"))?;
    result?;
    end_well(plan).await?;
    Ok(End::Complete)
}

/// Ends a job on a signal: the lanes apply what was received.
async fn stopped(plan: &Plan, running: &mut Running) -> Result<End, Error> {
    running.stop.send_replace(true);
    if running.applied.borrow().is_none() {
        return Ok(End::StoppedInCopy);
    }
    match timeout(DRAIN_MAX, &mut running.driver).await {
        Ok(Ok((_, result))) => {
            result?;
            end_well(plan).await?;
            Ok(End::Stopped)
        }
        Ok(Err(_)) => Err(Error::Lost("the task of the lanes")),
        Err(_) => Err(Error::NotDrained { seconds: DRAIN_MAX.as_secs() }),
    }
}

/// What comes after the last write: true expiries, and no trace of the job.
async fn end_well(plan: &Plan) -> Result<(), Error> {
    let closing = Closing::of(plan);
    closing.settle().await?;
    closing.forget().await?;
    Ok(())
}
