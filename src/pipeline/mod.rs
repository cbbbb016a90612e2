//! Motion: the threads and tasks between a source and a target, wired together.
//!
//! ```text
//! source socket ──receive (task)──► journal ──(A)──► decode (thread): snapshot, then stream
//!    ──batches──(B)──► target::driver (task): the delivery machine and all lanes
//! ```

mod ask;
mod copy_keys;
mod decode;
mod feed;
mod finish;
mod learn;
mod prepare;
mod receive;
mod session;
mod stream;
mod value;

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use crate::config::valid::Job;
use crate::filter::Scope;
use crate::net::backoff::Backoff;
use crate::net::tls;
use crate::status::{Ending, Phase, Status, Summary};
use crate::target::checkpoint::Checkpoint;
use crate::target::owner::Owner;
use crate::target::settle::Unsettled;
use crate::{source, target};
use finish::Closing;
use prepare::{Plan, retrying};
use session::{Begin, Until};

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
    #[error("source {address} is a cluster, which keyferry can't copy from yet")]
    SourceCluster { address: String },
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
            Error::SourceCluster { .. } | Error::OtherJob { .. } | Error::StoppedBefore { .. } => Severity::NoGo,
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
            Error::SourceCluster { .. }
            | Error::JobEnded { .. }
            | Error::Interrupted
            | Error::Lost(_)
            | Error::Runtime(_) => None,
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
    runtime.block_on(work)
}

async fn run_job(job: Job, scope: Scope, status: Arc<Status>) -> Result<Summary, Error> {
    let signals = stop_on_signals()?;
    let mut owned = None;
    let work = async {
        let mut stop = signals.clone();
        let (plan, checkpoint) = tokio::select! {
            prepared = prepare::prepare(job, scope, Arc::clone(&status), true, &mut owned) => prepared?,
            () = signalled(&mut stop, 1) => return Ok(status.summary(Ending::StoppedInCopy)),
        };
        let checkpoint = unsettle(&plan, checkpoint).await?;
        let until = if plan.job.once { Until::CaughtUp } else { Until::Stopped };
        let end = sessions(&plan, checkpoint, until, signals.clone()).await?;
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
        (job.restart, job.flush_target) = (false, false);
        let prepared = prepare::prepare(job, scope, Arc::clone(&status), false, &mut owned).await;
        if matches!(prepared, Err(Error::JobEnded { .. })) {
            return Ok(status.summary(Ending::Finished));
        }
        let (plan, checkpoint) = prepared?;
        let checkpoint = unsettle(&plan, checkpoint).await?;
        let end = sessions(&plan, checkpoint, Until::CaughtUp, signals.clone()).await?;
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

/// Takes back what a broken-off `finish` did. Where that can't be taken back whole there is nothing to go on from.
async fn unsettle(plan: &Plan, checkpoint: Checkpoint) -> Result<Checkpoint, Error> {
    Ok(match (Closing::of(plan).unsettle().await?, checkpoint) {
        (Unsettled::Doubtful, Checkpoint::Following(following)) => {
            session::say_full_again(
                plan,
                "a finish was broken off so long ago that keys may have expired here which the source has renewed",
            );
            Checkpoint::Copying { job: following.job() }
        }
        (_, checkpoint) => checkpoint,
    })
}

/// Runs one session after the other, until one ends the job.
async fn sessions(
    plan: &Plan,
    checkpoint: Checkpoint,
    until: Until,
    signals: watch::Receiver<u32>,
) -> Result<Ending, Error> {
    let mut backoff = Backoff::new(plan.job.retry_for);
    let mut generation = checkpoint.job().map_or(0, |job| job.generation);
    let mut begin = match checkpoint {
        Checkpoint::Following(following) if !plan.job.restart => Begin::Resume(Box::new(following)),
        _ => Begin::Full(None),
    };
    loop {
        if let Begin::Resume(following) = &begin
            && following.records.len() != plan.lanes
        {
            begin = change_lanes(plan, begin, &mut generation, &mut backoff, signals.clone()).await?;
        }
        let before = plan.shard.applied();
        let end = session::run(plan, begin, until, &mut generation, &mut backoff, signals.clone()).await?;
        if plan.shard.applied() > before {
            backoff.progress();
        }
        match end {
            session::End::CaughtUp => return Ok(Ending::Complete),
            session::End::Stopped => return Ok(Ending::Stopped),
            session::End::StoppedInCopy => return Ok(Ending::StoppedInCopy),
            session::End::FullSync(why, joined) => {
                session::say_full_again(plan, &why);
                begin = Begin::Full(joined);
            }
            session::End::Resume(why) => {
                tracing::warn!(reason = why, "going on from the target's records");
                begin = from_records(plan).await?;
            }
        }
        if let Some(wait) = backoff.failed(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
    }
}

/// Goes on where the target's records stand; begins anew if they don't say.
async fn from_records(plan: &Plan) -> Result<Begin, Error> {
    let read = async || prepare::read_checkpoint(&plan.target, &plan.job.name).await;
    Ok(match retrying(&plan.status, "target", plan.job.retry_for, read).await? {
        Checkpoint::Following(following) => Begin::Resume(Box::new(following)),
        _ => Begin::Full(None),
    })
}

/// Goes on with the lanes that the target's records know until all stand at one offset, then over to the wanted ones.
async fn change_lanes(
    plan: &Plan,
    begin: Begin,
    generation: &mut u64,
    backoff: &mut Backoff,
    signals: watch::Receiver<u32>,
) -> Result<Begin, Error> {
    match session::run(plan, begin, Until::CaughtUp, generation, backoff, signals).await? {
        session::End::FullSync(why, joined) => {
            session::say_full_again(plan, &why);
            return Ok(Begin::Full(joined));
        }
        session::End::CaughtUp => {
            let change = async || prepare::change_lanes(plan).await;
            retrying(&plan.status, "target", plan.job.retry_for, change).await?;
        }
        session::End::Stopped | session::End::StoppedInCopy | session::End::Resume(_) => {}
    }
    from_records(plan).await
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
