//! The end of a job: true expiries, and no trace of it in the target.

use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::prepare::{self, Plan, SourcesOf, retrying};
use crate::net::locate::Locator;
use crate::source::side::Position;
use crate::source::times::Times;
use crate::status::{Phase, Shard, Status};
use crate::target::connect::Identity;
use crate::target::settle::{Answer, Unsettled};
use crate::target::{InScope, settle};

/// The part of the job's memory that names and times may take while settling: nothing else is buffered then.
const MEMORY_PART: u64 = 4;

/// A job that is to leave its target.
pub struct Closing {
    target: Locator,
    identity: Identity,
    /// How late the target's expiries were written.
    late_ms: i64,
    /// A source that is to be asked for the true times, and its version.
    asked: Option<(Locator, (u16, u16, u16))>,
    shard: Arc<Shard>,
    in_scope: InScope,
    sources_of: SourcesOf,
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
            asked: plan.relative_times.map(|version| (plan.source.clone(), version)),
            shard: Arc::clone(&plan.shard),
            in_scope: Arc::clone(&plan.in_scope),
            sources_of: Arc::clone(&plan.sources_of),
            memory_bytes: plan.job.memory_bytes,
            retry_for: plan.job.retry_for,
            status: Arc::clone(&plan.status),
        }
    }

    /// Gives every key and field in scope its true expiry. Nothing may be applied any more.
    ///
    /// # Errors
    /// When an end can't be reached for too long, or refuses for good.
    pub async fn settle(&self) -> Result<(), Error> {
        self.status.set_phase(Phase::Settling);
        let mut source = self.source();
        let settle = async || {
            let source = source.as_mut().map(|source| source as &mut dyn settle::Source);
            Ok(settle::settle(&self.plan(), source).await?)
        };
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

    /// The source, if it is to be asked: the target stands where the stream was left.
    fn source(&self) -> Option<TrueTimes> {
        let (server, version) = self.asked.clone()?;
        let stands = Position { replid: self.shard.replid(), offset: self.shard.applied() };
        tracing::debug!(source = %server, offset = %stands.offset, "the source is asked for true expiries");
        Some(TrueTimes(Times::new(server, version, stands)))
    }

    fn plan(&self) -> settle::Plan<'_> {
        settle::Plan {
            server: &self.target,
            identity: &self.identity,
            late_ms: self.late_ms,
            in_scope: &*self.in_scope,
            sources_of: &*self.sources_of,
            bytes_max: usize::try_from(self.memory_bytes / MEMORY_PART).unwrap_or(usize::MAX),
        }
    }
}

/// The source's word on when keys expire, for the target.
struct TrueTimes(Times);

impl settle::Source for TrueTimes {
    fn times<'a>(&'a mut self, db: u32, keys: &'a [&'a [u8]]) -> Answer<'a> {
        Box::pin(self.0.ask(db, keys))
    }
}
