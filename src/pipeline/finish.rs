//! The end of a job: true expiries, and no trace of it in the target.

use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::prepare::{self, InScope, Plan, retrying};
use crate::config::valid::Job;
use crate::filter::Scope;
use crate::net::Side;
use crate::net::conn::Server;
use crate::status::{Ending, Phase, Status, Summary};
use crate::target::connect::{self, Identity};
use crate::target::{records, settle};

/// The part of the job's memory that names and times may take while settling: nothing else is buffered then.
const MEMORY_PART: u64 = 4;

/// A job that is to leave its target.
pub struct Closing {
    target: Server,
    identity: Identity,
    /// How late the target's expiries were written.
    late_ms: i64,
    in_scope: InScope,
    memory_bytes: u64,
    retry_for: Option<Duration>,
    status: Arc<Status>,
}

impl Closing {
    pub fn of(plan: &Plan) -> Self {
        Closing {
            target: plan.target.clone(),
            identity: plan.identity.clone(),
            late_ms: plan.late_ms,
            in_scope: Arc::clone(&plan.in_scope),
            memory_bytes: plan.job.memory_bytes,
            retry_for: plan.job.retry_for,
            status: Arc::clone(&plan.status),
        }
    }

    /// Gives every key and field in scope its true expiry. Nothing may be applied any more.
    ///
    /// # Errors
    /// When the target can't be reached for too long, or refuses for good.
    pub async fn settle(&self) -> Result<(), Error> {
        self.status.set_phase(Phase::Settling);
        let mut attempt = 0;
        let settled = retrying(&self.status, "target", self.retry_for, async || {
            attempt += 1;
            Ok(settle::settle(&self.plan(), attempt).await?)
        });
        let settled = settled.await?;
        self.status.keys_settled.set(settled.keys);
        self.status.fields_settled.set(settled.fields);
        Ok(())
    }

    /// Takes back what a broken-off settling did. Must come before anything is applied.
    ///
    /// # Errors
    /// As for [`Closing::settle`].
    pub async fn unsettle(&self) -> Result<(), Error> {
        let mut attempt = 0;
        let unsettled = retrying(&self.status, "target", self.retry_for, async || {
            attempt += 1;
            Ok(settle::unsettle(&self.plan(), attempt).await?)
        });
        unsettled.await.map(|_| ())
    }

    /// Removes everything that the job keeps in the target; returns how many keys that were.
    ///
    /// # Errors
    /// As for [`Closing::settle`].
    pub async fn forget(&self) -> Result<u64, Error> {
        let remove = async || Ok(records::remove(&self.target, &self.identity.job).await?);
        let removed = retrying(&self.status, "target", self.retry_for, remove).await?;
        tracing::info!(keys = removed, "the job's records are removed");
        Ok(removed)
    }

    fn plan(&self) -> settle::Plan<'_> {
        settle::Plan {
            server: &self.target,
            identity: &self.identity,
            late_ms: self.late_ms,
            in_scope: &*self.in_scope,
            bytes_max: usize::try_from(self.memory_bytes / MEMORY_PART).unwrap_or(usize::MAX),
        }
    }
}

/// Ends a job that is not running: its target's expiries get their true times, and its records go.
///
/// The target must have all that the source wrote. With `source_gone` only the records go, and expiries stay late.
///
/// # Errors
/// `UnknownJob` when the target has no records of the job, `OtherScope` when they are of another filter or database map;
/// else as for [`super::run`].
pub async fn finish(job: Job, scope: Scope, status: Arc<Status>, source_gone: bool) -> Result<Summary, Error> {
    let target = prepare::server(Side::Target, &job.target)?;
    let find = async || Ok(records::find(&target, &job.name).await?);
    let found = retrying(&status, "target", job.retry_for, find).await?;
    if found.names.is_empty() {
        return Err(Error::UnknownJob { job: job.name, address: target.address.to_string() });
    }
    let recorded = found.lanes.first().map(|record| &record.job);
    let late_ms = match recorded {
        Some(recorded) => i64::try_from(recorded.late_ms).unwrap_or(i64::MAX),
        None => i64::try_from(job.expiry_grace.as_millis()).unwrap_or(i64::MAX),
    };
    if !source_gone && recorded.is_some_and(|recorded| recorded.scope != scope.fingerprint()) {
        return Err(Error::OtherScope { job: job.name });
    }
    let closing = Closing {
        identity: Identity { job: job.name.clone(), token: prepare::token(), unfenced: job.unfenced },
        late_ms,
        in_scope: prepare::in_scope(&job, &Arc::new(scope)),
        memory_bytes: job.memory_bytes,
        retry_for: job.retry_for,
        status: Arc::clone(&status),
        target,
    };
    if source_gone {
        // A run that is still going must not write its records again.
        let fence = async || Ok(connect::connect(&closing.target, &closing.identity, 1, 1).await?);
        drop(retrying(&status, "target", job.retry_for, fence).await?);
        closing.forget().await?;
        return Ok(status.summary(Ending::Forgotten { late: Duration::from_millis(late_ms.unsigned_abs()) }));
    }
    closing.settle().await?;
    closing.forget().await?;
    Ok(status.summary(Ending::Finished))
}
