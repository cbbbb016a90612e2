//! Motion: the threads and tasks between a source and a target, wired together.
//!
//! ```text
//! source socket ──receive (task)──► journal ──(A)──► decode (thread): snapshot, then stream
//!    ──batches──(B)──► target::driver (task): the delivery machine and all lanes
//! ```
//!
//! All of this once for each primary of the source: a shard. They only meet in the target, where each has its own records.

mod ask;
mod copy_keys;
mod decode;
mod deliver;
mod feed;
mod finish;
mod holdings;
mod learn;
mod members;
mod modules;
mod motion;
mod past;
mod prepare;
mod receive;
mod session;
mod shard;
mod shards;
mod shares;
mod sources;
mod stream;
mod together;
mod value;

use std::sync::Arc;

use tokio::sync::watch;

use crate::config::valid::Job;
use crate::filter::Scope;
use crate::net::tls;
use crate::status::{Ending, Phase, Status, Summary};
use crate::target::checkpoint::Checkpoint;
use crate::target::owner::Owner;
use crate::target::settle::Unsettled;
use crate::{source, target};
use finish::Closing;
use prepare::{Plan, Prepared};
use session::Until;

pub use decode::key_hash;

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error(transparent)]
    Source(#[from] source::Error),
    #[error(transparent)]
    Target(#[from] target::Error),
    #[error(transparent)]
    Decode(#[from] decode::Error),
    #[error("source and target are the same server (run id {run_id})")]
    SameServer { run_id: String },
    #[error("source and target replicate from each other (replid {replid})")]
    SameHistory { replid: String },
    #[error("the records of job {job} in the target are those of {other}")]
    OtherJob { job: String, other: &'static str },
    #[error("job {job} was stopped by a command, and must be told what to do about it: {words}")]
    StoppedBefore { job: String, words: String },
    #[error("the target holds no records of job {job}")]
    NoSuchJob { job: String },
    /// An earlier `finish` had done all but removing the last records.
    #[error("job {job} was ended before")]
    JobEnded { job: String },
    #[error("stopped before the job was finished")]
    FinishStopped,
    #[error("stopped at once by a second signal: what was received last may not be applied")]
    Interrupted,
    #[error("the target did not take what was received within {seconds} s of the signal to stop")]
    NotDrained { seconds: u64 },
    #[error("{0} ended in a way it never should: this is a fault of keyferry")]
    Lost(&'static str),
    #[error("starting the runtime: {0}")]
    Runtime(#[from] std::io::Error),
}

/// What a job's failure means for the caller: how the program should end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Failed,
    Usage,
    NoGo,
    Resumable,
}

impl Error {
    pub fn severity(&self) -> Severity {
        match self {
            Error::SameServer { .. } | Error::SameHistory { .. } => Severity::Usage,
            Error::OtherJob { .. } | Error::StoppedBefore { .. } => Severity::NoGo,
            Error::Source(source::Error::Journal(_)) | Error::Decode(decode::Error::Journal(_)) => Severity::Resumable,
            Error::Target(
                target::Error::ExistingKeys { .. }
                | target::Error::NoDatabase { .. }
                | target::Error::Evicts { .. }
                | target::Error::Cluster { .. }
                | target::Error::Unfenced { .. }
                | target::Error::Owned { .. },
            ) => Severity::NoGo,
            Error::Source(error) if error.is_passing() => Severity::Resumable,
            Error::Target(error) if error.is_passing() => Severity::Resumable,
            Error::Decode(error) if error.is_passing() => Severity::Resumable,
            Error::NotDrained { .. } | Error::FinishStopped => Severity::Resumable,
            Error::Tls(_)
            | Error::Source(_)
            | Error::Target(_)
            | Error::Decode(_)
            | Error::NoSuchJob { .. }
            | Error::JobEnded { .. }
            | Error::Interrupted
            | Error::Lost(_)
            | Error::Runtime(_) => Severity::Failed,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Tls(error) => error.hint(),
            Error::Source(error) => error.hint(),
            Error::Target(error) => error.hint(),
            Error::Decode(error) => error.hint(),
            Error::SameServer { .. } => Some("name two different servers".into()),
            Error::SameHistory { .. } => {
                Some("end the replication between them first: what is copied would come back as new writes".into())
            }
            Error::OtherJob { .. } => Some(
                "end that job with keyferry finish, give this one another --job, or copy again with --restart".into(),
            ),
            Error::StoppedBefore { .. } => Some(
                "--on-error recopy copies its keys again from the source, --on-error skip leaves them as they are, \
                 --restart copies everything again"
                    .into(),
            ),
            Error::NoSuchJob { .. } => Some("take the same source, target and --job that sync was started with".into()),
            Error::JobEnded { .. } | Error::Interrupted | Error::Lost(_) | Error::Runtime(_) => None,
            Error::FinishStopped => Some("the same command goes on from here, and so does sync".into()),
            Error::NotDrained { .. } => Some("look at the target, then start again".into()),
        }
    }
}

/// Runs a job to its end, or until a signal stops it.
///
/// # Errors
/// See [`Error`].
pub fn run(job: Job, scope: Scope, status: Arc<Status>) -> Result<Summary, Error> {
    block_on(run_job(job, scope, status))
}

/// Ends a job that ran before: catches up with the source, gives expiries their true times, removes the records.
///
/// # Errors
/// See [`Error`].
pub fn finish(job: Job, scope: Scope, status: Arc<Status>, source_gone: bool) -> Result<Summary, Error> {
    block_on(finish_job(job, scope, status, source_gone))
}

fn block_on(work: impl Future<Output = Result<Summary, Error>>) -> Result<Summary, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The shards' tasks are of this thread alone.
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

async fn run_job(job: Job, scope: Scope, status: Arc<Status>) -> Result<Summary, Error> {
    let signals = stop_on_signals()?;
    let mut owned = None;
    let work = async {
        let mut stop = signals.clone();
        let prepared = tokio::select! {
            prepared = prepare::prepare(job, scope, Arc::clone(&status), true, &mut owned) => prepared?,
            () = signalled(&mut stop, 1) => return Ok(status.summary(Ending::StoppedInCopy)),
        };
        let plan = Arc::clone(&prepared.plan);
        let until = if plan.job.once { Until::AllCaughtUp } else { Until::Stopped };
        let end = run_shards(prepared, until, signals.clone()).await?;
        if end == Ending::Complete {
            end_well(&plan, signals.clone()).await?;
        }
        Ok(status.summary(end))
    };
    let result = interruptible(work, &status, signals.clone()).await;
    release(owned, &result).await;
    result
}

async fn finish_job(mut job: Job, scope: Scope, status: Arc<Status>, source_gone: bool) -> Result<Summary, Error> {
    let signals = stop_on_signals()?;
    let mut owned = None;
    let work = async {
        if source_gone {
            prepare::forget(&job, &status, &mut owned).await?;
            return Ok(status.summary(Ending::Forgotten { late: job.expiry_grace }));
        }
        // Whatever else the job was started with: an end of it never empties anything.
        if holds!("finish-never-flushes") {
            (job.restart, job.flush_target) = (false, false);
        }
        let may_be_new = !holds!("finish-needs-records");
        let prepared = prepare::prepare(job, scope, Arc::clone(&status), may_be_new, &mut owned).await;
        if matches!(prepared, Err(Error::JobEnded { .. })) {
            return Ok(status.summary(Ending::Finished));
        }
        let prepared = prepared?;
        let plan = Arc::clone(&prepared.plan);
        let end = run_shards(prepared, Until::AllCaughtUp, signals.clone()).await?;
        if end == Ending::Complete {
            end_well(&plan, signals.clone()).await?;
            return Ok(status.summary(Ending::Finished));
        }
        Err(Error::FinishStopped)
    };
    let result = interruptible(work, &status, signals.clone()).await;
    release(owned, &result).await;
    result
}

/// Takes back what a broken-off `finish` did, then runs all shards. Where that can't be taken back whole there is nothing
/// to go on from.
async fn run_shards(prepared: Prepared, until: Until, signals: watch::Receiver<u32>) -> Result<Ending, Error> {
    let Prepared { plan, mut starts, watched } = prepared;
    if holds!("unsettled-first") && Closing::of(&plan).unsettle().await? == Unsettled::Doubtful {
        for start in &mut starts {
            if let Checkpoint::Following(following) = &start.checkpoint {
                let why =
                    "a finish was broken off so long ago that keys may have expired here which the source has renewed";
                tracing::warn!(shard = start.number, reason = why, "a new full sync begins");
                plan.status.error("full sync again");
                start.checkpoint = Checkpoint::Copying { job: following.job() };
            }
        }
    }
    shards::run(plan, starts, watched, until, signals).await
}

/// What comes after the last write: true expiries, and no trace of the job. A signal breaks it off, for another run.
async fn end_well(plan: &Plan, mut signals: watch::Receiver<u32>) -> Result<(), Error> {
    let closing = Closing::of(plan);
    let close = async {
        closing.settle().await?;
        closing.forget().await.map(|_| ())
    };
    tokio::select! {
        closed = close => closed,
        () = signalled(&mut signals, 1) => Err(Error::FinishStopped),
        lost = plan.owner.lost() => Err(lost.into()),
    }
}

/// Ends `work` at once when a second signal comes.
async fn interruptible(
    work: impl Future<Output = Result<Summary, Error>>,
    status: &Status,
    mut signals: watch::Receiver<u32>,
) -> Result<Summary, Error> {
    let result = tokio::select! {
        result = work => result,
        () = signalled(&mut signals, 2) => Err(Error::Interrupted),
    };
    status.set_phase(Phase::Stopped);
    result
}

/// Gives the lease back, but for a job that a second signal ended: that is to end at once, and the lease runs out.
async fn release(owned: Option<Arc<Owner>>, result: &Result<Summary, Error>) {
    if let Some(owner) = owned
        && !matches!(result, Err(Error::Interrupted))
    {
        owner.release().await;
    }
}

/// Waits for so many signals. Lets go of what it looked at: the next signal must be able to be counted.
async fn signalled(signals: &mut watch::Receiver<u32>, count: u32) {
    if signals.wait_for(|n| *n >= count).await.is_err() {
        std::future::pending().await
    }
}

/// Counts SIGINT and SIGTERM.
fn stop_on_signals() -> Result<watch::Receiver<u32>, Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (count, signals) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                Some(()) = int.recv() => {}
                Some(()) = term.recv() => {}
                else => return,
            }
            count.send_modify(|n| *n += 1);
        }
    });
    Ok(signals)
}
