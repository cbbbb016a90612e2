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
//! What has expired in the meantime stays gone, though the source may have renewed it. So a key that is due soon is noted
//! with its true time as one that can't be trusted (`delivery::guard`), and copied again when the stream goes on. Of the
//! others the marker says when the first is due: once that is past, nobody can tell which are missing.

mod batch;
mod find;
mod items;
mod marker;

use std::ops::RangeInclusive;
use std::pin::Pin;

use self::batch::{Batch, Writer};
use self::items::{Direction, Items, Place};
use self::marker::Marker;
use super::connect::{self, Identity};
use super::{Error, escape_key};
use crate::clock;
use crate::delivery::settling::Told;
use crate::net::conn::{self, Conn};
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::resp::encode;
use crate::resp::reply::Reply;

/// The first version whose MULTI is never refused: before, a BUSY would let what follows run bare.
const SURE_MULTI: (u16, u16, u16) = (6, 0, 0);

/// How far the target's clock may be ahead.
const CLOCKS_APART_MS: i64 = 10_000;

/// What is to be settled.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    pub server: &'a Locator,
    pub identity: &'a Identity,
    /// How late expiries were written; 0: exactly, so there is nothing to take off.
    pub late_ms: i64,
    /// Whether a key of a target database is one that the job writes.
    pub in_scope: &'a (dyn Fn(u32, &[u8]) -> bool + Send + Sync),
    /// The source databases that go to a target database.
    pub sources_of: &'a (dyn Fn(u32) -> Vec<u32> + Send + Sync),
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

/// What was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settled {
    pub keys: u64,
    pub fields: u64,
    /// Keys and fields at the largest time there is: how late they were written can't be told any more.
    pub left: u64,
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

/// The key of a job's marker.
pub fn key(job: &str) -> Vec<u8> {
    format!("keyferry:{job}:settling").into_bytes()
}

/// Gives every expiry in scope its true time, or goes on with that behind a marker: takes the lateness off, and sets
/// what the source says, if it is asked.
///
/// Bytes of earlier attempts can't arrive any more. Leaves the marker at the end, which goes with the job's records.
/// # Errors
/// When an end can't be reached or refuses; another attempt goes on where this one ended.
pub async fn settle<'a>(plan: &'a Plan<'a>, mut source: Option<&'a mut (dyn Source + 'a)>) -> Result<Settled, Error> {
    match &mut source {
        // Before the target is gone through: while the source is away an attempt is to cost no more than this.
        Some(source) => _ = source.times(0, &[]).await?,
        None if plan.late_ms == 0 => return Ok(Settled::default()),
        None => {}
    }
    let mut mover = Mover::start(plan, source, Direction::Settle).await?;
    let mut range = match mover.read_marker().await? {
        None => Place::FIRST..=Place::LAST,
        Some(marker) => {
            mover.marker = Marker { direction: Direction::Settle, ..marker };
            match marker.upto {
                Place::LAST => return Ok(marker.settled),
                Place(upto) => Place(upto + 1)..=Place::LAST,
            }
        }
    };
    loop {
        let done = mover.pass(range).await?;
        mover.set_marker(*done.end()).await?;
        match *done.end() {
            Place::LAST => break,
            Place(end) => range = Place(end + 1)..=Place::LAST,
        }
    }
    let settled = mover.marker.settled;
    if settled.left > 0 {
        tracing::warn!(left = settled.left, "expiries at the largest time there is were left as they are");
    }
    tracing::info!(keys = settled.keys, fields = settled.fields, "expiries settled");
    Ok(settled)
}

/// Writes late again what a broken-off settling had given its true time, and removes the marker, if there is one.
///
/// Must come before anything is applied. The lateness is the marker's own, whatever the plan's.
/// # Errors
/// When the target can't be reached or refuses; another attempt goes on where this one ended.
pub async fn unsettle(plan: &Plan<'_>) -> Result<Unsettled, Error> {
    let mut mover = Mover::start(plan, None, Direction::Unsettle).await?;
    let Some(marker) = mover.read_marker().await? else { return Ok(Unsettled::Never) };
    tracing::info!(late_ms = marker.late_ms, "settling was broken off: expiries are written late again");
    mover.marker = Marker { direction: Direction::Unsettle, ..marker };
    if marker.late_ms > 0 {
        mover.take_back(marker.upto).await?;
    }
    mover.conn.ask(&[&b"DEL"[..], &mover.writer.key]).await?;
    failpoint!("unsettled");
    let missing = marker.due_ms <= clock::now_ms().saturating_add(CLOCKS_APART_MS);
    Ok(if missing { Unsettled::Doubtful } else { Unsettled::Late })
}

/// Moves expiries and the marker with them.
struct Mover<'a> {
    writer: Writer<'a>,
    source: Option<&'a mut (dyn Source + 'a)>,
    conn: Conn,
    marker: Marker,
    sure_multi: bool,
}

impl<'a> Mover<'a> {
    /// Connects, and kills what is left of other connections of the job.
    async fn start(
        plan: &'a Plan<'a>,
        source: Option<&'a mut (dyn Source + 'a)>,
        direction: Direction,
    ) -> Result<Self, Error> {
        let lanes = connect::connect(plan.server, plan.identity, 1).await?;
        let address = || plan.server.to_string();
        let mut conn = lanes.conns.into_iter().next().ok_or_else(|| Error::OutOfStep { address: address() })?;
        let info = Info::parse(conn.ask(&[&b"INFO"[..], b"server"]).await?.bytes().unwrap_or_default());
        let settled = Settled::default();
        let marker = Marker { direction, late_ms: plan.late_ms, upto: Place::FIRST, settled, due_ms: i64::MAX };
        Ok(Mover {
            writer: Writer { plan, key: key(&plan.identity.job), valkey: info.is_valkey() },
            source,
            conn,
            marker,
            sure_multi: info.is_valkey() || info.version() >= SURE_MULTI,
        })
    }

    async fn read_marker(&mut self) -> Result<Option<Marker>, Error> {
        self.select(0).await?;
        let reply = self.conn.ask(&[&b"GET"[..], &self.writer.key]).await?;
        let Some(text) = reply.bytes() else { return Ok(None) };
        match Marker::parse(text) {
            Some(marker) => Ok(Some(marker)),
            None => Err(Error::BadMarker { key: escape_key(&self.writer.key) }),
        }
    }

    async fn set_marker(&mut self, upto: Place) -> Result<(), Error> {
        self.marker.upto = upto;
        self.select(0).await?;
        let text = self.marker.encode();
        self.conn.ask(&[&b"SET"[..], &self.writer.key, text.as_bytes()]).await?;
        failpoint!("settle-marker");
        Ok(())
    }

    async fn select(&mut self, db: u32) -> Result<(), Error> {
        self.conn.ask(&[b"SELECT", db.to_string().as_bytes()]).await?;
        Ok(())
    }

    /// Writes late again what stands up to `upto`.
    async fn take_back(&mut self, upto: Place) -> Result<(), Error> {
        let mut range = Place::FIRST..=upto;
        loop {
            match *self.pass(range).await?.start() {
                Place::FIRST => return Ok(()),
                Place(start) => {
                    self.set_marker(Place(start - 1)).await?;
                    range = Place::FIRST..=Place(start - 1);
                }
            }
        }
    }

    /// Moves what stands in `range`, or in as much from its beginning as there is memory for; returns that part.
    async fn pass(&mut self, range: RangeInclusive<Place>) -> Result<RangeInclusive<Place>, Error> {
        let plan = self.writer.plan;
        let mut items = Items::new(self.marker.direction, range, plan.bytes_max);
        find::find(plan, &mut self.conn, &mut items).await?;
        items.sort();
        tracing::debug!(count = items.len(), direction = self.marker.direction.name(), "expiries found");
        let mut from = 0;
        let mut ahead = self.writer.batch(batch::pick(&items, &mut from), self.marker, &mut self.source).await?;
        while let Some(batch) = ahead {
            // Never two on their way: if the first were refused in passing, the marker of the second would hide that.
            self.send(&batch).await?;
            failpoint!("settle-sent");
            self.marker = batch.marker;
            let next = self.writer.batch(batch::pick(&items, &mut from), self.marker, &mut self.source);
            let answered = await_replies(&mut self.conn, batch.count + usize::from(self.sure_multi));
            (ahead, ()) = tokio::try_join!(async { next.await.map_err(Error::from) }, answered)?;
            failpoint!("settle-batch");
        }
        Ok(items.range().clone())
    }

    async fn send(&mut self, batch: &Batch) -> Result<(), Error> {
        if !self.sure_multi {
            self.conn.ask(&[b"MULTI"]).await?;
            return Ok(self.conn.send(&batch.commands).await?);
        }
        let mut out = Vec::with_capacity(batch.commands.len() + 16);
        encode::command(&mut out, &[b"MULTI"]);
        out.extend_from_slice(&batch.commands);
        Ok(self.conn.send(&out).await?)
    }
}

/// Reads what a transaction is answered with: `queued` replies, and EXEC's.
async fn await_replies(conn: &mut Conn, queued: usize) -> Result<(), Error> {
    let mut refused = None;
    for _ in 0..queued {
        if let Reply::Error(words) = conn.reply().await? {
            refused.get_or_insert(words);
        }
    }
    let replies = match conn.reply().await? {
        Reply::Array(replies) => replies,
        Reply::Error(words) => {
            return Err(conn.refused(b"EXEC", refused.unwrap_or(words)).into());
        }
        _ => return Err(Error::OutOfStep { address: conn.address().to_owned() }),
    };
    let failed = replies.into_iter().find_map(|reply| match reply {
        Reply::Error(words) => Some(words),
        _ => None,
    });
    match failed {
        Some(words) => Err(conn.refused(b"PEXPIREAT", words).into()),
        None => Ok(()),
    }
}
