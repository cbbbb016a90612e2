//! The end of a job: true expiries, and no trace of it in the target.

use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::prepare::{self, Plan, SourcesOf, retrying};
use super::shard::OwnedSlots;
use crate::delivery::refusal::is_redirection;
use crate::delivery::settling::{Expiry, Told};
use crate::net::conn;
use crate::net::locate::Locator;
use crate::slot::Slot;
use crate::source::side::Position;
use crate::source::times::Times;
use crate::status::{Phase, Status};
use crate::target::connect::Identity;
use crate::target::nodes::Target;
use crate::target::settle::{Answer, Unsettled};
use crate::target::{InScope, settle};

/// The part of the job's memory that names and times may take while settling: nothing else is buffered then.
const MEMORY_PART: u64 = 4;

/// The shard of a key.
type ShardOf = Arc<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// A source that only says how long keys have left (before 7.0): it is asked for their true times at the end.
#[derive(Debug, Clone)]
pub struct OldSource {
    /// The shard's number.
    pub number: u32,
    pub source: Locator,
    pub version: (u16, u16, u16),
    /// `None` where it is no node of a cluster.
    pub slots: Option<OwnedSlots>,
}

/// A job that is to leave its target.
pub struct Closing {
    target: Target,
    identity: Identity,
    /// How late the target's expiries were written.
    late_ms: i64,
    old_sources: Vec<OldSource>,
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
            old_sources: plan.old_sources.clone(),
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

    /// The sources that are to be asked, if there are any: the target stands where their streams were left.
    fn source(&self) -> Option<TrueTimes> {
        let asked = |old: &OldSource| {
            let shard = self.status.shard(old.number)?;
            let stands = Position { replid: shard.replid(), offset: shard.applied() };
            tracing::debug!(source = %old.source, offset = %stands.offset, "the source is asked for true expiries");
            let times = match old.slots {
                None => Times::new(old.source.clone(), old.version, stands),
                Some(_) => Times::of_node(old.source.clone(), stands),
            };
            Some((times, old.slots.clone()))
        };
        let all: Vec<_> = self.old_sources.iter().filter_map(asked).collect();
        (!all.is_empty()).then_some(TrueTimes(all))
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

/// The sources' word on when keys expire, for the target. Each says it of the keys of its slots.
struct TrueTimes(Vec<(Times, Option<OwnedSlots>)>);

/// What is said of a key that nobody was asked for.
const UNTOLD: Told = Told { expiry: Expiry::Never, level: false };

impl settle::Source for TrueTimes {
    fn times<'a>(&'a mut self, db: u32, keys: &'a [&'a [u8]]) -> Answer<'a> {
        Box::pin(async move {
            let mut told = vec![UNTOLD; keys.len()];
            for (times, slots) in &mut self.0 {
                let slots = slots.as_ref().map(OwnedSlots::now);
                let owns = |key: &[u8]| slots.as_ref().is_none_or(|slots| slots.contains(Slot::of(key)));
                let own = keys.iter().enumerate().filter(|(_, key)| owns(key)).map(|(at, key)| (at, *key));
                let (places, own): (Vec<usize>, Vec<&[u8]>) = own.unzip();
                let answers = match times.ask(db, &own).await {
                    // A slot has moved since: what the target has is as near as can be told.
                    Err(conn::Error::Refused { words, .. }) if is_redirection(&words) => continue,
                    answers => answers?,
                };
                for (at, answer) in places.into_iter().zip(answers) {
                    if let Some(told) = told.get_mut(at) {
                        *told = answer;
                    }
                }
            }
            Ok(told)
        })
    }
}
