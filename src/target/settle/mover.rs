//! Moving expiries and the markers with them, batch by batch.

use std::ops::RangeInclusive;

use super::batch::{self, Batch, Writer, marker_key};
use super::find::{self, Search};
use super::items::{Direction, Items, Place};
use super::marker::{self, Marker, Markers, Settled};
use super::{Error, Plan, Source};
use crate::net::info::Info;
use crate::resp::encode;
use crate::resp::reply::Reply;
use crate::slot::{Slot, Slots};
use crate::target::connect;
use crate::target::nodes::{Open, Target};
use crate::target::{ask, escape_key, read_exec, refused};

/// Slots of which a transaction is on its way at once, and the bytes of their names.
const WINDOW_BATCHES_MAX: usize = 128;
const WINDOW_BYTES_MAX: usize = 4 << 20;
/// Markers that are asked for with one round trip.
const MARKERS_MAX: usize = 1000;

/// The first version whose MULTI is never refused: before, a BUSY would let what follows run bare.
const SURE_MULTI: (u16, u16, u16) = (6, 0, 0);

/// Moves expiries and the markers with them.
pub(super) struct Mover<'a> {
    writer: Writer<'a>,
    source: Option<&'a mut (dyn Source + 'a)>,
    conns: Conns,
    markers: Markers,
}

/// The connections to all primaries.
struct Conns {
    all: Vec<Open>,
    sure_multi: bool,
}

/// Transactions of as many markers, and the place among the connections of the one that each goes to.
type Window = Vec<(usize, Batch)>;

impl<'a> Mover<'a> {
    /// Connects, kills what is left of other connections of the job, and reads the markers.
    pub async fn start(
        plan: &'a Plan<'a>,
        source: Option<&'a mut (dyn Source + 'a)>,
        direction: Direction,
    ) -> Result<Self, Error> {
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
        let writer = Writer { plan, direction, valkey };
        let mut mover = Mover { writer, source, conns: Conns { all, sure_multi }, markers };
        mover.read_markers().await?;
        Ok(mover)
    }

    async fn read_markers(&mut self) -> Result<(), Error> {
        let plan = self.writer.plan;
        for Open { node, conn } in &mut self.conns.all {
            let slots: Vec<Slot> = node.slots.iter().collect();
            let slots = if plan.target.is_cluster() { slots } else { slots.into_iter().take(1).collect() };
            ask(conn, &[&b"SELECT"[..], b"0"]).await?;
            for slots in slots.chunks(MARKERS_MAX) {
                let mut out = Vec::new();
                let keys: Vec<Vec<u8>> = slots.iter().map(|slot| marker_key(plan, *slot)).collect();
                keys.iter().for_each(|key| encode::command(&mut out, &[&b"GET"[..], key]));
                conn.send(&out).await?;
                for (slot, key) in slots.iter().zip(&keys) {
                    let text = match conn.reply().await? {
                        Reply::Error(words) => return Err(refused(conn, b"GET", words)),
                        Reply::Bulk(text) => text,
                        _ => continue,
                    };
                    let marker = Marker::parse(&text).ok_or_else(|| Error::BadMarker { key: escape_key(key) })?;
                    let marker = Marker { direction: self.writer.direction, ..marker };
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

    /// Whether what was settled stands earlier than it was written, so that there is something to take back.
    pub fn takes_back(&self) -> bool {
        self.markers.all().any(|marker| marker.late_ms > 0)
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
        let plan = self.writer.plan;
        let marker = marker.get_or_insert(Marker::new(self.writer.direction, plan.late_ms));
        marker.upto = upto;
        let (text, key) = (marker.encode(), marker::key(&plan.identity.job));
        for Open { conn, .. } in &mut self.conns.all {
            ask(conn, &[&b"SELECT"[..], b"0"]).await?;
            ask(conn, &[&b"SET"[..], &key, text.as_bytes()]).await?;
        }
        failpoint!("settle-marker");
        Ok(())
    }

    /// Removes all markers: everything is late again.
    pub async fn remove_markers(&mut self) -> Result<(), Error> {
        let plan = self.writer.plan;
        for Open { node, conn } in &mut self.conns.all {
            ask(conn, &[&b"SELECT"[..], b"0"]).await?;
            let marked: Vec<Slot> = node.slots.iter().filter(|slot| self.markers.get(*slot).is_some()).collect();
            let marked = if plan.target.is_cluster() { marked } else { marked.into_iter().take(1).collect() };
            for slot in marked {
                ask(conn, &[&b"DEL"[..], &marker_key(plan, slot)]).await?;
            }
        }
        Ok(())
    }

    /// Moves what stands in `range`, or in as much from its beginning as there is memory for; returns that part.
    pub async fn pass(&mut self, range: RangeInclusive<Place>) -> Result<RangeInclusive<Place>, Error> {
        let plan = self.writer.plan;
        let mut items = Items::new(self.writer.direction, self.markers.upto(), range, plan.bytes_max);
        for Open { node, conn } in &mut self.conns.all {
            let slots = plan.target.is_cluster().then_some(&node.slots);
            find::find(&Search { plan, slots }, conn, &mut items).await?;
        }
        // A slot that has moved meanwhile may have taken keys to where they weren't looked for: its marker must not pass
        // over them.
        plan.target.hold(&mut self.conns.all).await?;
        items.sort();
        tracing::debug!(count = items.len(), direction = self.writer.direction.name(), "expiries found");
        let owned: Vec<Slots> = self.conns.all.iter().map(|open| open.node.slots.clone()).collect();
        let mut from = 0;
        let mut ahead = self.window(&items, &mut from, &owned).await?;
        while !ahead.is_empty() {
            let window = std::mem::take(&mut ahead);
            // Never two of one marker on their way: if the first were refused in passing, the second's would hide that.
            self.conns.send(&window).await?;
            failpoint!("settle-sent");
            let Mover { writer, source, conns, markers } = self;
            let next = next_window(writer, source, markers, (&items, &mut from), &owned);
            (ahead, ()) = tokio::try_join!(next, conns.await_replies(&window))?;
            failpoint!("settle-batch");
        }
        Ok(items.range().clone())
    }

    async fn window(&mut self, items: &Items, from: &mut usize, owned: &[Slots]) -> Result<Window, Error> {
        next_window(&self.writer, &mut self.source, &mut self.markers, (items, from), owned).await
    }
}

/// The next transactions, each of another marker; moves the markers and the place in the items on. `owned`: the slots of
/// each connection's node.
async fn next_window(
    writer: &Writer<'_>,
    source: &mut Option<&mut (dyn Source + '_)>,
    markers: &mut Markers,
    (items, from): (&Items, &mut usize),
    owned: &[Slots],
) -> Result<Window, Error> {
    let (mut picked, mut bytes) = (Vec::new(), 0);
    let mut last = None;
    while picked.len() < WINDOW_BATCHES_MAX && bytes < WINDOW_BYTES_MAX {
        let slot = items.get(*from).map(|(place, _)| markers.slot_of(place));
        if slot == last {
            break;
        }
        let Some(next) = batch::pick(items, from, |place| markers.slot_of(place)) else { break };
        last = slot;
        bytes += next.bytes;
        let marker = markers.get(next.slot).unwrap_or(Marker::new(writer.direction, writer.plan.late_ms));
        picked.push((next, marker));
    }
    let batches = writer.batches(&picked, source).await?;
    let mut window = Vec::with_capacity(batches.len());
    for ((picked, _), batch) in picked.iter().zip(batches) {
        markers.set(picked.slot, Some(batch.marker));
        let node = picked.first_slot().and_then(|slot| owned.iter().position(|slots| slots.contains(slot)));
        window.push((node.unwrap_or(0), batch));
    }
    Ok(window)
}

impl Conns {
    async fn send(&mut self, window: &Window) -> Result<(), Error> {
        if !self.sure_multi {
            return self.send_one_by_one(window).await;
        }
        for (node, open) in self.all.iter_mut().enumerate() {
            let mut out = Vec::new();
            for (_, batch) in window.iter().filter(|(of, _)| *of == node) {
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
    async fn send_one_by_one(&mut self, window: &Window) -> Result<(), Error> {
        for (n, (node, batch)) in window.iter().enumerate() {
            let Some(open) = self.all.get_mut(*node) else { continue };
            ask(&mut open.conn, &[b"MULTI"]).await?;
            open.conn.send(&batch.commands).await?;
            if n + 1 < window.len() {
                read_exec(&mut open.conn, batch.count, b"PEXPIREAT").await?;
            }
        }
        Ok(())
    }

    /// Reads what the transactions of a window are answered with.
    async fn await_replies(&mut self, window: &Window) -> Result<(), Error> {
        // The others were answered before the last was sent.
        let first = if self.sure_multi { 0 } else { window.len().saturating_sub(1) };
        for (node, batch) in window.iter().skip(first) {
            let Some(open) = self.all.get_mut(*node) else { continue };
            let queued = batch.count + usize::from(self.sure_multi);
            read_exec(&mut open.conn, queued, b"PEXPIREAT").await?;
        }
        Ok(())
    }
}
