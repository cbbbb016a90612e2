//! The end of a job: true expiries, and no trace of it in the target.

use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::prepare::{self, Plan, SourcesOf, retrying};
use crate::status::{Phase, Status};
use crate::target::connect::Identity;
use crate::target::nodes::Target;
use crate::target::settle::Unsettled;
use crate::target::{InScope, settle};

/// The part of the job's memory that names and times may take while settling: nothing else is buffered then.
const MEMORY_PART: u64 = 4;

/// The shard of a key.
type ShardOf = Arc<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// A job that is to leave its target.
pub struct Closing {
    target: Target,
    identity: Identity,
    /// How late the target's expiries were written.
    late_ms: i64,
    in_scope: InScope,
    sources_of: SourcesOf,
    shard_of: ShardOf,
    memory_bytes: u64,
    retry_for: Option<Duration>,
    status: Arc<Status>,
}

impl Closing {
    pub fn of(plan: &Plan) -> Self {
        let feeders = plan.feeders.clone();
        Closing {
            target: plan.target.clone(),
            identity: plan.identity.clone(),
            late_ms: plan.late_ms,
            in_scope: Arc::clone(&plan.in_scope),
            sources_of: Arc::clone(&plan.sources_of),
            shard_of: Arc::new(move |key| feeders.shard_of(key)),
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
        let settle = async || Ok(settle::settle(&self.plan()).await?);
        let settled = retrying(&self.status, "target", self.retry_for, settle).await?;
        self.status.keys_settled.set(settled.keys);
        self.status.fields_settled.set(settled.fields);
        Ok(())
    }

    /// Takes back what a broken-off settling did. Must come before anything is applied.
    ///
    /// # Errors
    /// As for [`Closing::settle`].
    pub async fn unsettle(&self) -> Result<Unsettled, Error> {
        let unsettle = async || Ok(settle::unsettle(&self.plan()).await?);
        retrying(&self.status, "target", self.retry_for, unsettle).await
    }

    /// Removes everything that the job keeps in the target; returns how many keys that were.
    ///
    /// # Errors
    /// As for [`Closing::settle`].
    pub async fn forget(&self) -> Result<u64, Error> {
        let remove = async || prepare::remove_records(&self.target, &self.identity).await;
        let removed = retrying(&self.status, "target", self.retry_for, remove).await?;
        tracing::info!(keys = removed, "the job's records are removed");
        Ok(removed)
    }

    fn plan(&self) -> settle::Plan<'_> {
        settle::Plan {
            target: &self.target,
            identity: &self.identity,
            late_ms: self.late_ms,
            in_scope: &*self.in_scope,
            sources_of: &*self.sources_of,
            shard_of: &*self.shard_of,
            bytes_max: usize::try_from(self.memory_bytes / MEMORY_PART).unwrap_or(usize::MAX),
        }
    }
}
