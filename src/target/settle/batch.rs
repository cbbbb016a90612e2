//! What is moved in one transaction: which items, to which times, and the marker that goes with them.

use std::collections::BTreeMap;

use super::items::{Direction, Item, Items, Place};
use super::marker::{self, Marker};
use super::{Plan, Source};
use crate::clock;
use crate::delivery::settling::{self, Told};
use crate::delivery::{guard, record, slots};
use crate::net::conn;
use crate::resp::encode;
use crate::slot::Slot;

/// Keys and fields that are moved in one transaction.
const BATCH_ITEMS_MAX: usize = 1000;
/// And the bytes of their names, about.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// The largest expiry of a field that Redis' commands take. Source: redis 7.4 src/t_hash.c, HFE_MAX_ABS_TIME_MSEC.
const REDIS_FIELD_MS_MAX: i64 = (1 << 46) - 1;

/// What is due within this time is noted: so long a broken-off settling may lie back without doubt about the others.
const SOON_MS: i64 = 120_000;

/// Items that follow each other and have one marker, by database and key.
pub(super) struct Picked<'a> {
    items: Vec<Item<'a>>,
    last: Place,
    /// The slot whose marker it is; any where there is one for all.
    pub slot: Slot,
    pub bytes: usize,
}

/// A transaction, made before the ones ahead of it are answered.
pub(super) struct Batch {
    /// What follows MULTI.
    pub commands: Vec<u8>,
    pub count: usize,
    pub marker: Marker,
}

/// Makes transactions.
pub(super) struct Writer<'a> {
    pub plan: &'a Plan<'a>,
    pub direction: Direction,
    /// Whether fields take any time; on Redis they have a largest one.
    pub valkey: bool,
}

/// Takes items of one marker from the `from`th on; moves that on. `None` when there are none. `slot_of`: whose marker
/// covers a place.
pub(super) fn pick<'a>(items: &'a Items, from: &mut usize, slot_of: impl Fn(Place) -> Slot) -> Option<Picked<'a>> {
    let (place, _) = items.get(*from)?;
    let mut picked = Picked { items: Vec::new(), last: place, slot: slot_of(place), bytes: 0 };
    while let Some((place, item)) = items.get(*from) {
        // What has one place moves together: a marker can't part it.
        let full = picked.items.len() >= BATCH_ITEMS_MAX || picked.bytes >= BATCH_BYTES_MAX;
        if slot_of(place) != picked.slot || full && picked.last != place {
            break;
        }
        picked.bytes += item.key.len() + item.field.map_or(0, <[u8]>::len);
        picked.items.push(item);
        picked.last = place;
        *from += 1;
    }
    picked.items.sort_unstable();
    Some(picked)
}

impl Picked<'_> {
    /// The slot of the keys, of which there is at least one.
    pub fn first_slot(&self) -> Option<Slot> {
        self.items.first().map(|item| Slot::of(item.key))
    }
}

impl Writer<'_> {
    /// The transactions that move what was picked behind what their markers say, with what the source says of it. In the
    /// order of `picked`.
    ///
    /// # Errors
    /// When the source can't be asked.
    pub async fn batches(
        &self,
        picked: &[(Picked<'_>, Marker)],
        source: &mut Option<&mut (dyn Source + '_)>,
    ) -> Result<Vec<Batch>, conn::Error> {
        let told = match source {
            Some(source) => self.ask(picked, &mut **source).await?,
            None => vec![Vec::new(); picked.len()],
        };
        Ok(picked.iter().zip(told).map(|((picked, marker), told)| self.commands(picked, &told, *marker)).collect())
    }

    /// What the source says of each item, in their order: one question for each of its databases.
    async fn ask(
        &self,
        picked: &[(Picked<'_>, Marker)],
        source: &mut (dyn Source + '_),
    ) -> Result<Vec<Vec<Vec<Told>>>, conn::Error> {
        let mut told: Vec<Vec<Vec<Told>>> = picked.iter().map(|(p, _)| vec![Vec::new(); p.items.len()]).collect();
        let items = || picked.iter().flat_map(|(picked, _)| &picked.items);
        // Fields don't expire in a source that must be asked.
        let mut databases: Vec<u32> = items().filter(|item| item.field.is_none()).map(|item| item.db).collect();
        databases.sort_unstable();
        databases.dedup();
        for target_db in databases {
            let asked = |item: &Item<'_>| item.field.is_none() && item.db == target_db;
            let keys: Vec<&[u8]> = items().filter(|item| asked(item)).map(|item| item.key).collect();
            for db in (self.plan.sources_of)(target_db) {
                let answers = source.times(db, &keys).await?;
                let places = told.iter_mut().flatten().zip(items()).filter(|(_, item)| asked(item));
                places.zip(answers).for_each(|((told, _), answer)| told.push(answer));
            }
        }
        Ok(told)
    }

    /// The commands for items of one transaction and the marker, which goes when everything is unsettled.
    fn commands(&self, picked: &Picked<'_>, told: &[Vec<Told>], mut marker: Marker) -> Batch {
        let unsettled = self.direction == Direction::Unsettle && picked.last == Place::FIRST;
        marker.upto = match self.direction {
            Direction::Settle => picked.last,
            Direction::Unsettle => Place(picked.last.0.saturating_sub(1)),
        };
        let (mut out, mut count, mut db) = (Vec::with_capacity(picked.items.len() * 80), 0, None);
        let now_ms = clock::now_ms();
        let mut noted: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
        for (i, item) in picked.items.iter().enumerate() {
            let told = told.get(i).map_or(&[][..], Vec::as_slice);
            let Some(at_ms) = self.moved(item, marker.late_ms, told, now_ms) else {
                marker.settled.left += 1;
                continue;
            };
            match self.direction {
                // Where nothing is late the target expires as it likes, settled or not.
                Direction::Settle if marker.late_ms == 0 => {}
                Direction::Settle if at_ms <= now_ms.saturating_add(SOON_MS) => {
                    let sources = (self.plan.sources_of)(item.db).into_iter().filter(|_| holds!("soon-noted"));
                    let fields = sources.map(|db| guard::field(db, item.key));
                    noted.entry(guards_key(self.plan, picked.slot, item.key)).or_default().extend(fields);
                }
                Direction::Settle => marker.due_ms = marker.due_ms.min(at_ms),
                Direction::Unsettle => {}
            }
            if db != Some(item.db) {
                db = Some(item.db);
                encode::command(&mut out, &[b"SELECT", item.db.to_string().as_bytes()]);
                count += 1;
            }
            set_expiry(&mut out, item, at_ms);
            count += 1;
            match item.field {
                None => marker.settled.keys += 1,
                Some(_) => marker.settled.fields += 1,
            }
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
        let key = marker_key(self.plan, picked.slot);
        match unsettled {
            true => encode::command(&mut out, &[&b"DEL"[..], &key]),
            false => encode::command(&mut out, &[&b"SET"[..], &key, marker.encode().as_bytes()]),
        }
        encode::command(&mut out, &[b"EXEC"]);
        Batch { commands: out, count: count + 1, marker }
    }

    /// The time that an item is to have; `None` if that can't be told.
    fn moved(&self, item: &Item<'_>, late_ms: i64, told: &[Told], now_ms: i64) -> Option<i64> {
        let largest = if item.field.is_some() && !self.valkey { REDIS_FIELD_MS_MAX } else { i64::MAX };
        if item.at_ms >= largest {
            return None;
        }
        let moved = match self.direction {
            Direction::Settle => settling::true_ms(item.at_ms.saturating_sub(late_ms), told, late_ms, now_ms),
            Direction::Unsettle => item.at_ms.saturating_add(late_ms).min(largest),
        };
        Some(moved.max(1))
    }
}

/// The key of the marker that covers a slot.
pub(super) fn marker_key(plan: &Plan<'_>, slot: Slot) -> Vec<u8> {
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
fn set_expiry(out: &mut Vec<u8>, item: &Item<'_>, at_ms: i64) {
    encode::array_header(out, if item.field.is_some() { 6 } else { 3 });
    encode::bulk(out, if item.field.is_some() { b"HPEXPIREAT" } else { b"PEXPIREAT" });
    encode::bulk(out, item.key);
    encode::bulk_number(out, at_ms);
    if let Some(field) = item.field {
        [&b"FIELDS"[..], b"1", field].iter().for_each(|word| encode::bulk(out, word));
    }
}
