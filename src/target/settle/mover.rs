//! Moving expiries and the markers with them, batch by batch.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::find::{self, Search};
use super::items::{Direction, Item, Items, Place, Upto};
use super::marker::{self, Marker, Settled};
use super::{Error, Plan};
use crate::clock;
use crate::delivery::{guard, record, slots};
use crate::net::info::Info;
use crate::resp::encode;
use crate::resp::reply::Reply;
use crate::slot::Slot;
use crate::target::connect;
use crate::target::nodes::{Open, Target};
use crate::target::{ask, escape_key, refused};

/// Keys and fields that are moved in one transaction.
const BATCH_ITEMS_MAX: usize = 1000;
/// And the bytes of their commands, about.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Slots of which a transaction is on its way at once, and the bytes of their names.
const WINDOW_BATCHES_MAX: usize = 128;
const WINDOW_BYTES_MAX: usize = 4 << 20;
/// Markers that are asked for with one round trip.
const MARKERS_MAX: usize = 1000;

/// The largest expiry of a field that Redis' commands take. Source: redis 7.4 src/t_hash.c, HFE_MAX_ABS_TIME_MSEC.
const REDIS_FIELD_MS_MAX: i64 = (1 << 46) - 1;

/// The first version whose MULTI is never refused: before, a BUSY would let what follows run bare.
const SURE_MULTI: (u16, u16, u16) = (6, 0, 0);

/// What is due within this time is noted: so long a broken-off settling may lie back without doubt about the others.
const SOON_MS: i64 = 120_000;

/// Moves expiries and the markers with them.
pub(super) struct Mover<'a> {
    plan: &'a Plan<'a>,
    direction: Direction,
    all: Vec<Open>,
    markers: Markers,
    /// Whether fields take any time; on Redis they have a largest one.
    valkey: bool,
    sure_multi: bool,
}

/// The markers of a target: one for all, or one for each slot in which something was settled.
enum Markers {
    Whole(Option<Marker>),
    BySlot(Vec<Option<Marker>>),
}

/// A transaction, made before the ones ahead of it are answered.
struct Batch {
    /// The place among the connections of the one it goes to.
    node: usize,
    /// What follows MULTI.
    commands: Vec<u8>,
    count: usize,
}

impl<'a> Mover<'a> {
    /// Connects, kills what is left of other connections of the job, and reads the markers.
    pub async fn start(plan: &'a Plan<'a>, direction: Direction) -> Result<Self, Error> {
        let round = plan.identity.next_round();
        let mut all = plan.target.open(Some(plan.identity)).await?;
        let (mut valkey, mut sure_multi) = (true, true);
        for Open { node, conn } in &mut all {
            connect::kill(&node.server, conn, plan.identity, round).await?;
            let info = Info::parse(ask(conn, &[&b"INFO"[..]]).await?.bytes().unwrap_or_default());
            if let Some(role) = info.get("role").filter(|role| *role != "master") {
                let (address, role) = (conn.address().to_owned(), role.replace("slave", "replica"));
                return Err(Error::NotPrimary { address, role });
            }
            valkey &= info.is_valkey();
            sure_multi &= info.is_valkey() || info.version() >= SURE_MULTI;
        }
        let markers = match plan.target {
            Target::Standalone(_) => Markers::Whole(None),
            Target::Cluster(_) => Markers::BySlot(vec![None; usize::from(crate::slot::SLOTS)]),
        };
        let mut mover = Mover { plan, direction, all, markers, valkey, sure_multi };
        mover.read_markers().await?;
        Ok(mover)
    }

    async fn read_markers(&mut self) -> Result<(), Error> {
        for Open { node, conn } in &mut self.all {
            let slots: Vec<Slot> = node.slots.iter().collect();
            let slots = if self.plan.target.is_cluster() { slots } else { slots.into_iter().take(1).collect() };
            ask(conn, &[&b"SELECT"[..], b"0"]).await?;
            for slots in slots.chunks(MARKERS_MAX) {
                let mut out = Vec::new();
                let keys: Vec<Vec<u8>> = slots.iter().map(|slot| marker_key(self.plan, *slot)).collect();
                keys.iter().for_each(|key| encode::command(&mut out, &[&b"GET"[..], key]));
                conn.send(&out).await?;
                for (slot, key) in slots.iter().zip(&keys) {
                    let text = match conn.reply().await? {
                        Reply::Error(words) => return Err(refused(conn, b"GET", words)),
                        Reply::Bulk(text) => text,
                        _ => continue,
                    };
                    let marker = Marker::parse(&text).ok_or_else(|| Error::BadMarker { key: escape_key(key) })?;
                    let marker = Marker { direction: self.direction, ..marker };
                    self.markers.set(*slot, Some(marker));
                }
            }
        }
        Ok(())
    }

    /// The marker of a standalone target.
    pub fn marker(&self) -> Option<Marker> {
        match &self.markers {
            Markers::Whole(marker) => *marker,
            Markers::BySlot(_) => None,
        }
    }

    /// Whether anything was settled before.
    pub fn has_markers(&self) -> bool {
        self.markers.all().next().is_some()
    }

    /// When the first of what was settled, and not noted, is due.
    pub fn due_ms(&self) -> i64 {
        self.markers.all().map(|marker| marker.due_ms).min().unwrap_or(i64::MAX)
    }

    /// What was settled, up to all markers.
    pub fn settled(&self) -> Settled {
        self.markers.all().fold(Settled::default(), |sum, marker| sum.plus(marker.settled))
    }

    /// Writes that a whole pass is done, also where it found nothing. Slots need no such word: whatever a slot's own
    /// marker doesn't cover is looked for again.
    pub async fn set_marker(&mut self, upto: Place) -> Result<(), Error> {
        let Markers::Whole(marker) = &mut self.markers else { return Ok(()) };
        let marker = marker.get_or_insert(Marker::new(self.direction, self.plan.late_ms));
        marker.upto = upto;
        let (text, key) = (marker.encode(), marker::key(&self.plan.identity.job));
        for Open { conn, .. } in &mut self.all {
            ask(conn, &[&b"SELECT"[..], b"0"]).await?;
            ask(conn, &[&b"SET"[..], &key, text.as_bytes()]).await?;
        }
        failpoint!("settle-marker");
        Ok(())
    }

    /// Removes all markers: everything is late again.
    pub async fn remove_markers(&mut self) -> Result<(), Error> {
        for Open { node, conn } in &mut self.all {
            ask(conn, &[&b"SELECT"[..], b"0"]).await?;
            let marked: Vec<Slot> = node.slots.iter().filter(|slot| self.markers.get(*slot).is_some()).collect();
            let marked = if self.plan.target.is_cluster() { marked } else { marked.into_iter().take(1).collect() };
            for slot in marked {
                ask(conn, &[&b"DEL"[..], &marker_key(self.plan, slot)]).await?;
            }
        }
        Ok(())
    }

    /// Moves what stands in `range`, or in as much from its beginning as there is memory for; returns that part.
    pub async fn pass(&mut self, range: RangeInclusive<Place>) -> Result<RangeInclusive<Place>, Error> {
        let mut items = Items::new(self.direction, self.markers.upto(), range, self.plan.bytes_max);
        for Open { node, conn } in &mut self.all {
            let slots = self.plan.target.is_cluster().then_some(&node.slots);
            find::find(&Search { plan: self.plan, slots }, conn, &mut items).await?;
        }
        // A slot that has moved meanwhile may have taken keys to where they weren't looked for: its marker must not pass
        // over them.
        self.plan.target.hold(&mut self.all).await?;
        items.sort();
        tracing::debug!(count = items.len(), direction = self.direction.name(), "expiries found");
        let mut from = 0;
        let mut ahead = self.window(&items, &mut from);
        while !ahead.is_empty() {
            let window = std::mem::take(&mut ahead);
            // Never two of one marker on their way: if the first were refused in passing, the second's would hide that.
            self.send(&window).await?;
            failpoint!("settle-sent");
            ahead = self.window(&items, &mut from);
            self.await_replies(&window).await?;
            failpoint!("settle-batch");
        }
        Ok(items.range().clone())
    }

    /// The next transactions, each of another marker; moves `from` on.
    fn window(&mut self, items: &Items, from: &mut usize) -> Vec<Batch> {
        let (mut window, mut bytes, mut last) = (Vec::new(), 0, None);
        while let Some((place, item)) = items.get(*from) {
            let slot = self.markers.slot_of(place);
            if last == Some(slot) || window.len() >= WINDOW_BATCHES_MAX || bytes >= WINDOW_BYTES_MAX {
                break;
            }
            let batch = self.batch(items, from, self.node_of(item.key));
            bytes += batch.commands.len();
            window.push(batch);
            last = Some(slot);
        }
        window
    }

    fn node_of(&self, key: &[u8]) -> usize {
        let slot = Slot::of(key);
        self.all.iter().position(|open| open.node.slots.contains(slot)).unwrap_or(0)
    }

    /// The transaction of the items of one marker from the `from`th on; moves that on.
    fn batch(&mut self, items: &Items, from: &mut usize, node: usize) -> Batch {
        let mut batch: Vec<Item<'_>> = Vec::new();
        let (mut bytes, mut last) = (0, Place::FIRST);
        while let Some((place, item)) = items.get(*from) {
            let other = !batch.is_empty() && self.markers.slot_of(place) != self.markers.slot_of(last);
            // What has one place moves together: a marker can't part it.
            if other || (batch.len() >= BATCH_ITEMS_MAX || bytes >= BATCH_BYTES_MAX) && last != place {
                break;
            }
            bytes += item.key.len() + item.field.map_or(0, <[u8]>::len);
            batch.push(item);
            last = place;
            *from += 1;
        }
        let slot = self.markers.slot_of(last);
        let before = self.markers.get(slot);
        let mut marker = before.unwrap_or(Marker::new(self.direction, self.plan.late_ms));
        marker.upto = match self.direction {
            Direction::Settle => last,
            Direction::Unsettle => Place(last.0.saturating_sub(1)),
        };
        let unsettled = self.direction == Direction::Unsettle && last == Place::FIRST;
        batch.sort_unstable();
        let (commands, count) = self.commands(&batch, slot, &mut marker, unsettled);
        self.markers.set(slot, Some(marker));
        Batch { node, commands, count }
    }

    /// Items of one transaction, by database, and its marker; that goes when everything is `unsettled`.
    fn commands(&self, items: &[Item<'_>], slot: Slot, marker: &mut Marker, unsettled: bool) -> (Vec<u8>, usize) {
        let (mut out, mut count, mut db) = (Vec::with_capacity(items.len() * 80), 0, None);
        let soon = clock::now_ms().saturating_add(SOON_MS);
        let mut noted: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
        for item in items {
            let Some(at_ms) = self.moved(item, marker.late_ms) else {
                marker.settled.left += 1;
                continue;
            };
            match self.direction {
                Direction::Settle if at_ms <= soon => {
                    let fields = (self.plan.sources_of)(item.db).into_iter().map(|db| guard::field(db, item.key));
                    noted.entry(guards_key(self.plan, slot, item.key)).or_default().extend(fields);
                }
                Direction::Settle => marker.due_ms = marker.due_ms.min(at_ms),
                Direction::Unsettle => {}
            }
            if db != Some(item.db) {
                db = Some(item.db);
                encode::command(&mut out, &[b"SELECT", item.db.to_string().as_bytes()]);
                count += 1;
            }
            write_item(&mut out, item, at_ms);
            match item.field {
                None => marker.settled.keys += 1,
                Some(_) => marker.settled.fields += 1,
            }
            count += 1;
        }
        if db != Some(0) {
            encode::command(&mut out, &[&b"SELECT"[..], b"0"]);
            count += 1;
        }
        for (hash, fields) in noted.iter().filter(|(_, fields)| !fields.is_empty()) {
            encode::array_header(&mut out, 2 + 2 * fields.len());
            encode::bulk(&mut out, b"HMSET");
            encode::bulk(&mut out, hash);
            fields.iter().flat_map(|field| [&field[..], b"0"]).for_each(|word| encode::bulk(&mut out, word));
            count += 1;
        }
        let key = marker_key(self.plan, slot);
        match unsettled {
            true => encode::command(&mut out, &[&b"DEL"[..], &key]),
            false => encode::command(&mut out, &[&b"SET"[..], &key, marker.encode().as_bytes()]),
        }
        encode::command(&mut out, &[b"EXEC"]);
        (out, count + 1)
    }

    /// The time that an item is to have; `None` if that can't be told.
    fn moved(&self, item: &Item<'_>, late_ms: i64) -> Option<i64> {
        let largest = if item.field.is_some() && !self.valkey { REDIS_FIELD_MS_MAX } else { i64::MAX };
        if item.at_ms >= largest {
            return None;
        }
        let moved = match self.direction {
            Direction::Settle => item.at_ms.saturating_sub(late_ms),
            Direction::Unsettle => item.at_ms.saturating_add(late_ms).min(largest),
        };
        Some(moved.max(1))
    }

    async fn send(&mut self, window: &[Batch]) -> Result<(), Error> {
        if !self.sure_multi {
            return self.send_one_by_one(window).await;
        }
        for (node, open) in self.all.iter_mut().enumerate() {
            let mut out = Vec::new();
            for batch in window.iter().filter(|batch| batch.node == node) {
                encode::command(&mut out, &[b"MULTI"]);
                out.extend_from_slice(&batch.commands);
            }
            if !out.is_empty() {
                open.conn.send(&out).await?;
            }
        }
        Ok(())
    }

    /// Each behind the answer to its MULTI and, but for the last, its own.
    async fn send_one_by_one(&mut self, window: &[Batch]) -> Result<(), Error> {
        for (n, batch) in window.iter().enumerate() {
            let address = || Error::OutOfStep { address: self.plan.target.to_string() };
            let open = self.all.get_mut(batch.node).ok_or_else(address)?;
            ask(&mut open.conn, &[b"MULTI"]).await?;
            open.conn.send(&batch.commands).await?;
            if n + 1 < window.len() {
                self.await_batch(batch).await?;
            }
        }
        Ok(())
    }

    /// Reads what the transactions of a window are answered with.
    async fn await_replies(&mut self, window: &[Batch]) -> Result<(), Error> {
        if !self.sure_multi {
            return match window.last() {
                Some(batch) => self.await_batch(batch).await,
                None => Ok(()),
            };
        }
        for batch in window {
            self.await_batch(batch).await?;
        }
        Ok(())
    }

    async fn await_batch(&mut self, batch: &Batch) -> Result<(), Error> {
        let address = || self.plan.target.to_string();
        let open = self.all.get_mut(batch.node).ok_or_else(|| Error::OutOfStep { address: address() })?;
        let conn = &mut open.conn;
        let queued = batch.count + usize::from(self.sure_multi);
        let mut failed = None;
        for _ in 0..queued {
            if let Reply::Error(words) = conn.reply().await? {
                failed.get_or_insert(words);
            }
        }
        let replies = match conn.reply().await? {
            Reply::Array(replies) => replies,
            Reply::Error(words) => return Err(refused(conn, b"EXEC", failed.unwrap_or(words))),
            _ => return Err(Error::OutOfStep { address: address() }),
        };
        let failed = replies.into_iter().find_map(|reply| match reply {
            Reply::Error(words) => Some(words),
            _ => None,
        });
        match failed {
            Some(words) => Err(refused(conn, b"PEXPIREAT", words)),
            None => Ok(()),
        }
    }
}

impl Markers {
    /// The slot whose marker covers a place; any where there is one for all.
    fn slot_of(&self, place: Place) -> Slot {
        let slot = match self {
            Markers::Whole(_) => None,
            Markers::BySlot(_) => place.slot(),
        };
        slot.unwrap_or(FIRST_SLOT)
    }

    fn get(&self, slot: Slot) -> Option<Marker> {
        match self {
            Markers::Whole(marker) => *marker,
            Markers::BySlot(markers) => markers.get(slot.index()).copied().flatten(),
        }
    }

    fn set(&mut self, slot: Slot, marker: Option<Marker>) {
        match self {
            Markers::Whole(known) => *known = marker,
            Markers::BySlot(markers) => {
                if let Some(known) = markers.get_mut(slot.index()) {
                    *known = marker;
                }
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &Marker> {
        let (whole, by_slot) = match self {
            Markers::Whole(marker) => (marker.as_ref(), &[][..]),
            Markers::BySlot(markers) => (None, &markers[..]),
        };
        whole.into_iter().chain(by_slot.iter().flatten())
    }

    fn upto(&self) -> Upto {
        match self {
            Markers::Whole(_) => Upto::Whole,
            Markers::BySlot(markers) => {
                Upto::BySlot(markers.iter().map(|marker| marker.map(|marker| marker.upto)).collect())
            }
        }
    }
}

/// Stands for all slots of a standalone target.
const FIRST_SLOT: Slot = Slot::FIRST;

fn marker_key(plan: &Plan<'_>, slot: Slot) -> Vec<u8> {
    let job = &plan.identity.job;
    if plan.target.is_cluster() { marker::slot_key(job, slot) } else { marker::key(job) }
}

/// Where a key is noted that can't be trusted when the stream goes on: among the records of its shard, or its slot.
fn guards_key(plan: &Plan<'_>, slot: Slot, key: &[u8]) -> Vec<u8> {
    let job = &plan.identity.job;
    match plan.target.is_cluster() {
        true => slots::record::guards_key(job, slot),
        false => guard::hash_key(&record::of_shard(job, (plan.shard_of)(key)), 0),
    }
}

/// Gives a key or a field a time.
fn write_item(out: &mut Vec<u8>, item: &Item<'_>, at_ms: i64) {
    encode::array_header(out, if item.field.is_some() { 6 } else { 3 });
    encode::bulk(out, if item.field.is_some() { b"HPEXPIREAT" } else { b"PEXPIREAT" });
    encode::bulk(out, item.key);
    encode::bulk_number(out, at_ms);
    if let Some(field) = item.field {
        [&b"FIELDS"[..], b"1", field].iter().for_each(|word| encode::bulk(out, word));
    }
}
