//! Motion: the threads and tasks between a source and a target, wired together.
//!
//! ```text
//! source socket ──receive (task)──► journal ──(A)──► decode (thread): snapshot, then stream
//!    ──batches──(B)──► target::driver (task): the delivery machine and all lanes
//! ```

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
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::config::valid::Job;
use crate::filter::Scope;
use crate::net::backoff::Backoff;
use crate::net::tls;
use crate::status::{Ending, Phase, Status, Summary};
use crate::{source, target};

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
    #[error("source {address} is a cluster, which keyferry can't copy from yet")]
    SourceCluster { address: String },
    #[error("target {address} has no records of job {job}: it was never run there, or is finished already")]
    UnknownJob { job: String, address: String },
    #[error("job {job} was run with another filter or database map")]
    OtherScope { job: String },
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
            Error::SameServer { .. } => Severity::Usage,
            Error::SourceCluster { .. } => Severity::NoGo,
            Error::Target(
                target::Error::ExistingKeys { .. }
                | target::Error::NoDatabase { .. }
                | target::Error::Evicts { .. }
                | target::Error::Cluster { .. }
                | target::Error::Unfenced { .. },
            ) => Severity::NoGo,
            Error::Source(error) if error.is_passing() => Severity::Resumable,
            Error::Target(error) if error.is_passing() => Severity::Resumable,
            Error::Decode(error) if error.is_passing() => Severity::Resumable,
            Error::NotDrained { .. } | Error::FinishStopped => Severity::Resumable,
            Error::Tls(_)
            | Error::Source(_)
            | Error::Target(_)
            | Error::Decode(_)
            | Error::UnknownJob { .. }
            | Error::OtherScope { .. }
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
            Error::UnknownJob { .. } => Some(
                "give the same two addresses as to sync, or the same --job: the job's name is derived from them; \
                 redis-cli --scan --pattern 'keyferry:*' lists the jobs of a target"
                    .into(),
            ),
            Error::OtherScope { .. } => Some("give the same --db, --db-map, --key and other filters as to sync".into()),
            Error::SourceCluster { .. } | Error::Interrupted | Error::Lost(_) | Error::Runtime(_) => None,
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run_job(job, scope, status))
}

/// Ends a job that is not running: gives true expiries and removes the records; with `source_gone` only the latter.
///
/// # Errors
/// See [`Error`].
pub fn finish(job: Job, scope: Scope, status: Arc<Status>, source_gone: bool) -> Result<Summary, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = stop_on_signals()?;
        let result = tokio::select! {
            result = finish::finish(job, scope, Arc::clone(&status), source_gone) => result,
            // Whatever it is at: run again, it goes on from there.
            _ = signals.wait_for(|signals| *signals > 0) => Err(Error::FinishStopped),
        };
        status.set_phase(Phase::Stopped);
        result
    })
}

async fn run_job(job: Job, scope: Scope, status: Arc<Status>) -> Result<Summary, Error> {
    let stop = stop_on_signals()?;
    let mut interrupted = stop.clone();
    let work = async {
        let mut plan = prepare::prepare(job, scope, Arc::clone(&status)).await?;
        finish::Closing::of(&plan).unsettle().await?;
        let mut backoff = Backoff::new(plan.job.retry_for);
        loop {
            match session::run(&plan, &mut backoff, stop.clone()).await? {
                session::End::Complete => return Ok(status.summary(Ending::Complete)),
                session::End::Stopped => return Ok(status.summary(Ending::Stopped)),
                session::End::StoppedInCopy => return Ok(status.summary(Ending::StoppedInCopy)),
                session::End::Again(why) => {
                    tracing::warn!(reason = why, "a new full sync begins");
                    status.waiting("source", &format!("a new full sync begins: {why}"));
                    status.error("full sync again");
                    plan.generation += 1;
                    status.restart_copy();
                    if let Some(wait) = backoff.failed(Instant::now()) {
                        tokio::time::sleep(wait).await;
                    }
                }
            }
        }
    };
    let result = tokio::select! {
        result = work => result,
        _ = interrupted.wait_for(|signals| *signals > 1) => Err(Error::Interrupted),
    };
    status.set_phase(Phase::Stopped);
    result
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

/// The time in Unix milliseconds.
fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
