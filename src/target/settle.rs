//! Settling: expiries that were written late get their true times.
//!
//! While it lasts nothing else is written, so the target stands at one offset of the source, and the true time of whatever
//! expires is its own time less the lateness. What is in the past by that is gone: the source has deleted it, or will.
//! Only a source before 7.0 must be asked: it streams how long keys have left, which was counted from when that was
//! received (`delivery::settling`).
//!
//! Everything that expires has its place in an order. Batches go through it, and each moves, in one transaction, a marker
//! in the target: *everything up to this place has its true time, nothing behind it*. So an interruption loses nothing:
//! [`settle`] goes on behind the marker, and [`unsettle`] takes back what lies up to it, before anything is applied again.
//!
//! On a cluster no transaction spans slots, and slots move. So each slot has a marker of its own, which moves with it, and
//! the order is slot by slot. A slot without a marker is one in which nothing was settled.
//!
//! What has expired in the meantime stays gone, though the source may have renewed it. So a key that is due soon is noted
//! with its true time as one that can't be trusted (`delivery::guard`), and copied again when the stream goes on. Of the
//! others the marker says when the first is due: once that is past, nobody can tell which are missing.

mod batch;
mod find;
mod items;
mod marker;
mod mover;

use std::pin::Pin;

use self::items::{Direction, Place};
pub use self::marker::{Settled, key};
use self::mover::Mover;
use super::Error;
use super::connect::Identity;
use super::nodes::Target;
use crate::clock;
use crate::delivery::settling::Told;
use crate::net::conn;

/// What is to be settled.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    pub target: &'a Target,
    pub identity: &'a Identity,
    /// How late expiries were written; 0: exactly, so there is nothing to take off.
    pub late_ms: i64,
    /// Whether a key of a target database is one that the job writes.
    pub in_scope: &'a (dyn Fn(u32, &[u8]) -> bool + Send + Sync),
    /// The source databases that go to a target database.
    pub sources_of: &'a (dyn Fn(u32) -> Vec<u32> + Send + Sync),
    /// The shard of a key: the source primary whose records tell of it.
    pub shard_of: &'a (dyn Fn(&[u8]) -> u32 + Send + Sync),
    /// Memory for names and times, about; what doesn't fit is done in further passes over the target.
    pub bytes_max: usize,
}

/// An answer of the source that is waited for.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Vec<Told>, conn::Error>> + 'a>>;

/// A source that must be asked for the true times of keys.
pub trait Source {
    /// What it says of keys of its database `db`, in their order; without keys, only that it can be asked.
    fn times<'a>(&'a mut self, db: u32, keys: &'a [&'a [u8]]) -> Answer<'a>;
}

/// How a target stands that is to be gone on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsettled {
    /// No settling was broken off.
    Never,
    /// Everything is late again.
    Late,
    /// Keys may have expired that the source has renewed since, and they can't be told.
    Doubtful,
}

/// How far the target's clock may be ahead.
const CLOCKS_APART_MS: i64 = 10_000;

/// Gives every expiry in scope its true time, or goes on with that behind the markers: takes the lateness off, and sets
/// what the source says, if it is asked.
///
/// Bytes of earlier attempts can't arrive any more. Leaves the markers at the end, which go with the job's records.
/// # Errors
/// When an end can't be reached or refuses, or slots are on the move; another attempt goes on where this one ended.
pub async fn settle<'a>(plan: &'a Plan<'a>, mut source: Option<&'a mut (dyn Source + 'a)>) -> Result<Settled, Error> {
    match &mut source {
        // Before the target is gone through: while the source is away an attempt is to cost no more than this.
        Some(source) => _ = source.times(0, &[]).await?,
        None if plan.late_ms == 0 => return Ok(Settled::default()),
        None => {}
    }
    let mut mover = Mover::start(plan, source, Direction::Settle).await?;
    let mut range = match mover.marker().map(|marker| marker.upto) {
        None => Place::FIRST..=Place::LAST,
        Some(Place::LAST) => return Ok(mover.settled()),
        Some(Place(upto)) => Place(upto + 1)..=Place::LAST,
    };
    loop {
        let done = mover.pass(range).await?;
        mover.set_marker(*done.end()).await?;
        match *done.end() {
            Place::LAST => break,
            Place(end) => range = Place(end + 1)..=Place::LAST,
        }
    }
    let settled = mover.settled();
    if settled.left > 0 {
        tracing::warn!(left = settled.left, "expiries at the largest time there is were left as they are");
    }
    tracing::info!(keys = settled.keys, fields = settled.fields, "expiries settled");
    Ok(settled)
}

/// Writes late again what a broken-off settling had given its true time, and removes the markers, if there are any.
///
/// Must come before anything is applied. The lateness is the markers' own, whatever the plan's.
/// # Errors
/// When the target can't be reached or refuses, or slots are on the move; another attempt goes on where this one ended.
pub async fn unsettle(plan: &Plan<'_>) -> Result<Unsettled, Error> {
    let mut mover = Mover::start(plan, None, Direction::Unsettle).await?;
    if !mover.has_markers() {
        return Ok(Unsettled::Never);
    }
    tracing::info!("settling was broken off: expiries are written late again");
    let due_ms = mover.due_ms();
    if mover.takes_back() {
        let mut range = Place::FIRST..=mover.marker().map_or(Place::LAST, |marker| marker.upto);
        loop {
            let done = mover.pass(range).await?;
            match *done.start() {
                Place::FIRST => break,
                Place(start) => {
                    mover.set_marker(Place(start - 1)).await?;
                    range = Place::FIRST..=Place(start - 1);
                }
            }
        }
    }
    mover.remove_markers().await?;
    failpoint!("unsettled");
    let missing = due_ms <= clock::now_ms().saturating_add(CLOCKS_APART_MS);
    Ok(if missing { Unsettled::Doubtful } else { Unsettled::Late })
}
