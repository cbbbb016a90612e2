//! Settling: expiries that were written late get their true times.
//!
//! While it lasts nothing else is written, so the target stands at one offset of the source, and the true time of whatever
//! expires is its own time less the lateness. What is in the past by that is gone: the source has deleted it, or will.
//!
//! Everything that expires has its place in an order. Batches go through it, and each moves, in one transaction, a marker
//! in the target: *everything up to this place has its true time, nothing behind it*. So an interruption loses nothing:
//! [`settle`] goes on behind the marker, and [`unsettle`] takes back what lies up to it, before anything is applied again.
//!
//! What has expired in the meantime stays gone, though the source may have renewed it. So a key that is due soon is noted
//! with its true time as one that can't be trusted (`delivery::guard`), and copied again when the stream goes on. Of the
//! others the marker says when the first is due: once that is past, nobody can tell which are missing.

mod find;
mod items;

use std::fmt::Write;
use std::ops::RangeInclusive;

use self::items::{Direction, Item, Items, Place};
use super::connect::{self, Identity};
use super::{Error, escape_key};
use crate::clock;
use crate::delivery::guard;
use crate::net::conn::Conn;
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::resp::encode;
use crate::resp::reply::Reply;

/// Keys and fields that are moved in one transaction.
const BATCH_ITEMS_MAX: usize = 1000;
/// And the bytes of their commands, about.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// The largest expiry of a field that Redis' commands take. Source: redis 7.4 src/t_hash.c, HFE_MAX_ABS_TIME_MSEC.
const REDIS_FIELD_MS_MAX: i64 = (1 << 46) - 1;

/// The first version whose MULTI is never refused: before, a BUSY would let what follows run bare.
const SURE_MULTI: (u16, u16, u16) = (6, 0, 0);

/// What is to be settled.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    pub server: &'a Locator,
    pub identity: &'a Identity,
    /// How late expiries were written; 0: exactly, so there is nothing to do.
    pub late_ms: i64,
    /// Whether a key of a target database is one that the job writes.
    pub in_scope: &'a (dyn Fn(u32, &[u8]) -> bool + Send + Sync),
    /// The source databases that go to a target database.
    pub sources_of: &'a (dyn Fn(u32) -> Vec<u32> + Send + Sync),
    /// Memory for names and times, about; what doesn't fit is done in further passes over the target.
    pub bytes_max: usize,
}

/// What was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settled {
    pub keys: u64,
    pub fields: u64,
    /// Keys and fields at the largest time there is: how late they were written can't be told any more.
    pub left: u64,
}

/// How far settling has got, as it stands in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Marker {
    /// Only for people: what a marker says is the same in either direction.
    direction: Direction,
    late_ms: i64,
    /// The last place whose expiries are true.
    upto: Place,
    /// What was settled up to there.
    settled: Settled,
    /// When the first of what was settled, and not noted, is due.
    due_ms: i64,
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

/// What is due within this time is noted: so long a broken-off settling may lie back without doubt about the others.
const SOON_MS: i64 = 120_000;
/// How far the target's clock may be ahead.
const CLOCKS_APART_MS: i64 = 10_000;

/// The format's version, first word of a marker. A new one is due with any other order of places.
const VERSION: &str = "kf1";

/// The key of a job's marker.
pub fn key(job: &str) -> Vec<u8> {
    format!("keyferry:{job}:settling").into_bytes()
}

/// Takes the lateness off every expiry in scope, or goes on with that behind a marker.
///
/// Bytes of earlier attempts can't arrive any more. Leaves the marker at the end, which goes with the job's records.
/// # Errors
/// When the target can't be reached or refuses; another attempt goes on where this one ended.
pub async fn settle(plan: &Plan<'_>) -> Result<Settled, Error> {
    if plan.late_ms == 0 {
        return Ok(Settled::default());
    }
    let mut mover = Mover::start(plan, Direction::Settle).await?;
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
    let mut mover = Mover::start(plan, Direction::Unsettle).await?;
    let Some(marker) = mover.read_marker().await? else { return Ok(Unsettled::Never) };
    tracing::info!("settling was broken off: expiries are written late again");
    mover.marker = Marker { direction: Direction::Unsettle, ..marker };
    let mut range = Place::FIRST..=marker.upto;
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
    mover.conn.ask(&[&b"DEL"[..], &mover.key]).await?;
    failpoint!("unsettled");
    let missing = marker.due_ms <= clock::now_ms().saturating_add(CLOCKS_APART_MS);
    Ok(if missing { Unsettled::Doubtful } else { Unsettled::Late })
}

/// Moves expiries and the marker with them.
struct Mover<'a> {
    plan: &'a Plan<'a>,
    conn: Conn,
    key: Vec<u8>,
    marker: Marker,
    /// Whether fields take any time; on Redis they have a largest one.
    valkey: bool,
    sure_multi: bool,
}

/// A transaction, made before the one ahead of it is answered.
#[derive(Default)]
struct Batch {
    /// What follows MULTI.
    commands: Vec<u8>,
    count: usize,
    marker: Option<Marker>,
}

impl<'a> Mover<'a> {
    /// Connects, and kills what is left of other connections of the job.
    async fn start(plan: &'a Plan<'a>, direction: Direction) -> Result<Self, Error> {
        let lanes = connect::connect(plan.server, plan.identity, 1).await?;
        let address = || plan.server.to_string();
        let mut conn = lanes.conns.into_iter().next().ok_or_else(|| Error::OutOfStep { address: address() })?;
        let info = Info::parse(conn.ask(&[&b"INFO"[..], b"server"]).await?.bytes().unwrap_or_default());
        let settled = Settled::default();
        let marker = Marker { direction, late_ms: plan.late_ms, upto: Place::FIRST, settled, due_ms: i64::MAX };
        Ok(Mover {
            plan,
            conn,
            key: key(&plan.identity.job),
            marker,
            valkey: info.is_valkey(),
            sure_multi: info.is_valkey() || info.version() >= SURE_MULTI,
        })
    }

    async fn read_marker(&mut self) -> Result<Option<Marker>, Error> {
        self.select(0).await?;
        let reply = self.conn.ask(&[&b"GET"[..], &self.key]).await?;
        let Some(text) = reply.bytes() else { return Ok(None) };
        match Marker::parse(text) {
            Some(marker) => Ok(Some(marker)),
            None => Err(Error::BadMarker { key: escape_key(&self.key) }),
        }
    }

    async fn set_marker(&mut self, upto: Place) -> Result<(), Error> {
        self.marker.upto = upto;
        self.select(0).await?;
        let text = self.marker.encode();
        self.conn.ask(&[&b"SET"[..], &self.key, text.as_bytes()]).await?;
        failpoint!("settle-marker");
        Ok(())
    }

    async fn select(&mut self, db: u32) -> Result<(), Error> {
        self.conn.ask(&[b"SELECT", db.to_string().as_bytes()]).await?;
        Ok(())
    }

    /// Moves what stands in `range`, or in as much from its beginning as there is memory for; returns that part.
    async fn pass(&mut self, range: RangeInclusive<Place>) -> Result<RangeInclusive<Place>, Error> {
        let mut items = Items::new(self.marker.direction, range, self.plan.bytes_max);
        find::find(self.plan, &mut self.conn, &mut items).await?;
        items.sort();
        tracing::debug!(count = items.len(), direction = self.marker.direction.name(), "expiries found");
        let mut from = 0;
        let mut ahead = self.batch(&items, &mut from);
        while ahead.marker.is_some() {
            let batch = std::mem::take(&mut ahead);
            // Never two on their way: if the first were refused in passing, the marker of the second would hide that.
            self.send(&batch).await?;
            failpoint!("settle-sent");
            self.marker = batch.marker.unwrap_or(self.marker);
            ahead = self.batch(&items, &mut from);
            self.await_replies(batch.count).await?;
            failpoint!("settle-batch");
        }
        Ok(items.range().clone())
    }

    /// The commands for the items from the `from`th on; moves that on. Without a marker when there are none.
    fn batch(&self, items: &Items, from: &mut usize) -> Batch {
        let mut batch: Vec<Item<'_>> = Vec::new();
        let (mut bytes, mut last) = (0, None);
        while let Some((place, item)) = items.get(*from) {
            // What has one place moves together: a marker can't part it.
            if (batch.len() >= BATCH_ITEMS_MAX || bytes >= BATCH_BYTES_MAX) && last != Some(place) {
                break;
            }
            bytes += item.key.len() + item.field.map_or(0, <[u8]>::len);
            batch.push(item);
            last = Some(place);
            *from += 1;
        }
        let Some(last) = last else { return Batch::default() };
        let mut marker = self.marker;
        marker.upto = match marker.direction {
            Direction::Settle => last,
            Direction::Unsettle => Place(last.0.saturating_sub(1)),
        };
        let unsettled = marker.direction == Direction::Unsettle && last == Place::FIRST;
        batch.sort_unstable();
        self.commands(&batch, marker, unsettled)
    }

    /// Items of one transaction, by database, and its marker; that goes when everything is `unsettled`.
    fn commands(&self, items: &[Item<'_>], mut marker: Marker, unsettled: bool) -> Batch {
        let (mut out, mut count, mut db) = (Vec::with_capacity(items.len() * 80), 0, None);
        let soon = clock::now_ms().saturating_add(SOON_MS);
        let mut noted = Vec::new();
        for item in items {
            let Some(at_ms) = self.moved(item, marker.late_ms) else {
                marker.settled.left += 1;
                continue;
            };
            match marker.direction {
                Direction::Settle if at_ms <= soon => {
                    noted.extend((self.plan.sources_of)(item.db).into_iter().map(|db| guard::field(db, item.key)));
                }
                Direction::Settle => marker.due_ms = marker.due_ms.min(at_ms),
                Direction::Unsettle => {}
            }
            if db != Some(item.db) {
                db = Some(item.db);
                encode::command(&mut out, &[b"SELECT", item.db.to_string().as_bytes()]);
                count += 1;
            }
            encode::array_header(&mut out, if item.field.is_some() { 6 } else { 3 });
            encode::bulk(&mut out, if item.field.is_some() { b"HPEXPIREAT" } else { b"PEXPIREAT" });
            encode::bulk(&mut out, item.key);
            encode::bulk_number(&mut out, at_ms);
            match item.field {
                None => marker.settled.keys += 1,
                Some(field) => {
                    [&b"FIELDS"[..], b"1", field].iter().for_each(|word| encode::bulk(&mut out, word));
                    marker.settled.fields += 1;
                }
            }
            count += 1;
        }
        if db != Some(0) {
            encode::command(&mut out, &[&b"SELECT"[..], b"0"]);
            count += 1;
        }
        if !noted.is_empty() {
            encode::array_header(&mut out, 2 + 2 * noted.len());
            encode::bulk(&mut out, b"HMSET");
            encode::bulk(&mut out, &guard::hash_key(&self.plan.identity.job, 0));
            noted.iter().flat_map(|field| [&field[..], b"0"]).for_each(|word| encode::bulk(&mut out, word));
            count += 1;
        }
        match unsettled {
            true => encode::command(&mut out, &[&b"DEL"[..], &self.key]),
            false => encode::command(&mut out, &[&b"SET"[..], &self.key, marker.encode().as_bytes()]),
        }
        encode::command(&mut out, &[b"EXEC"]);
        Batch { commands: out, count: count + 1, marker: Some(marker) }
    }

    /// The time that an item is to have; `None` if that can't be told.
    fn moved(&self, item: &Item<'_>, late_ms: i64) -> Option<i64> {
        let largest = if item.field.is_some() && !self.valkey { REDIS_FIELD_MS_MAX } else { i64::MAX };
        if item.at_ms >= largest {
            return None;
        }
        let moved = match self.marker.direction {
            Direction::Settle => item.at_ms.saturating_sub(late_ms),
            Direction::Unsettle => item.at_ms.saturating_add(late_ms).min(largest),
        };
        Some(moved.max(1))
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

    /// Reads what a transaction of `count` commands is answered with.
    async fn await_replies(&mut self, count: usize) -> Result<(), Error> {
        let queued = count + usize::from(self.sure_multi);
        let mut refused = None;
        for _ in 0..queued {
            if let Reply::Error(words) = self.conn.reply().await? {
                refused.get_or_insert(words);
            }
        }
        let replies = match self.conn.reply().await? {
            Reply::Array(replies) => replies,
            Reply::Error(words) => {
                return Err(self.conn.refused(b"EXEC", refused.unwrap_or(words)).into());
            }
            _ => return Err(Error::OutOfStep { address: self.plan.server.to_string() }),
        };
        let failed = replies.into_iter().find_map(|reply| match reply {
            Reply::Error(words) => Some(words),
            _ => None,
        });
        match failed {
            Some(words) => Err(self.conn.refused(b"PEXPIREAT", words).into()),
            None => Ok(()),
        }
    }
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Direction::Settle => "down",
            Direction::Unsettle => "up",
        }
    }
}

impl Marker {
    fn encode(&self) -> String {
        let mut out = String::with_capacity(80);
        let Settled { keys, fields, left } = self.settled;
        let (direction, late_ms, Place(upto)) = (self.direction.name(), self.late_ms, self.upto);
        // Writing to a String can't fail.
        let _ = write!(
            out,
            "{VERSION} {direction} {late_ms} {upto:016x} keys={keys} fields={fields} left={left} due={}",
            self.due_ms
        );
        out
    }

    fn parse(text: &[u8]) -> Option<Marker> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        if words.next()? != VERSION {
            return None;
        }
        let direction = [Direction::Settle, Direction::Unsettle];
        let name = words.next()?;
        let direction = direction.into_iter().find(|direction| direction.name() == name)?;
        let late_ms = words.next()?.parse().ok().filter(|ms| *ms > 0)?;
        let upto = Place(u64::from_str_radix(words.next()?, 16).ok()?);
        let mut number = |name: &str| words.next()?.strip_prefix(name)?.parse::<u64>().ok();
        let settled = Settled { keys: number("keys=")?, fields: number("fields=")?, left: number("left=")? };
        Some(Marker { direction, late_ms, upto, settled, due_ms: number("due=")?.try_into().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_round_trips_and_one_of_another_version_is_none() {
        for direction in [Direction::Settle, Direction::Unsettle] {
            let settled = Settled { keys: 7, fields: 8, left: 9 };
            let marker = Marker { direction, late_ms: 3_600_000, upto: Place(0xfeed), settled, due_ms: i64::MAX };
            let text = marker.encode();
            assert_eq!(Marker::parse(text.as_bytes()), Some(marker));
            assert_eq!(Marker::parse(text.replace("kf1", "kf2").as_bytes()), None);
            assert_eq!(Marker::parse(text.get(..text.len() / 2).unwrap_or_default().as_bytes()), None);
        }
    }
}
