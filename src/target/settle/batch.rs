//! What is moved in one transaction: which items, to which times, and the marker that goes with them.

use super::items::{Direction, Item, Items, Place};
use super::marker::Marker;
use super::{Plan, Source};
use crate::clock;
use crate::delivery::guard;
use crate::delivery::settling::{self, Told};
use crate::net::conn;
use crate::resp::encode;

/// Keys and fields that are moved in one transaction.
const BATCH_ITEMS_MAX: usize = 1000;
/// And the bytes of their commands, about.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// The largest expiry of a field that Redis' commands take. Source: redis 7.4 src/t_hash.c, HFE_MAX_ABS_TIME_MSEC.
const REDIS_FIELD_MS_MAX: i64 = (1 << 46) - 1;

/// What is due within this time is noted: so long a broken-off settling may lie back without doubt about the others.
const SOON_MS: i64 = 120_000;

/// Items that follow each other, by database and key.
pub struct Picked<'a> {
    items: Vec<Item<'a>>,
    last: Place,
}

/// A transaction, made before the one ahead of it is answered.
pub struct Batch {
    /// What follows MULTI.
    pub commands: Vec<u8>,
    pub count: usize,
    pub marker: Marker,
}

/// Makes transactions.
pub struct Writer<'a> {
    pub plan: &'a Plan<'a>,
    /// The marker's key.
    pub key: Vec<u8>,
    /// Whether fields take any time; on Redis they have a largest one.
    pub valkey: bool,
}

/// Takes items from the `from`th on; moves that on. `None` when there are none.
pub fn pick<'a>(items: &'a Items, from: &mut usize) -> Option<Picked<'a>> {
    let mut picked: Vec<Item<'_>> = Vec::new();
    let (mut bytes, mut last) = (0, None);
    while let Some((place, item)) = items.get(*from) {
        // What has one place moves together: a marker can't part it.
        if (picked.len() >= BATCH_ITEMS_MAX || bytes >= BATCH_BYTES_MAX) && last != Some(place) {
            break;
        }
        bytes += item.key.len() + item.field.map_or(0, <[u8]>::len);
        picked.push(item);
        last = Some(place);
        *from += 1;
    }
    picked.sort_unstable();
    Some(Picked { items: picked, last: last? })
}

impl Writer<'_> {
    /// The transaction that moves `picked` behind what `marker` says, with what the source says of it.
    ///
    /// # Errors
    /// When the source can't be asked.
    pub async fn batch(
        &self,
        picked: Option<Picked<'_>>,
        marker: Marker,
        source: &mut Option<&mut (dyn Source + '_)>,
    ) -> Result<Option<Batch>, conn::Error> {
        let Some(picked) = picked else { return Ok(None) };
        let told = match source {
            Some(source) => self.ask(&picked.items, &mut **source).await?,
            None => Vec::new(),
        };
        Ok(Some(self.commands(&picked, &told, marker)))
    }

    /// What the source says of each item, in their order.
    async fn ask(&self, items: &[Item<'_>], source: &mut (dyn Source + '_)) -> Result<Vec<Vec<Told>>, conn::Error> {
        let mut told = vec![Vec::new(); items.len()];
        let mut rest = &mut told[..];
        for run in items.chunk_by(|a, b| a.db == b.db) {
            let (of_run, behind) = rest.split_at_mut(run.len());
            rest = behind;
            // Fields don't expire in a source that must be asked.
            let keys: Vec<&[u8]> = run.iter().filter(|item| item.field.is_none()).map(|item| item.key).collect();
            let databases = run.first().map_or(Vec::new(), |item| (self.plan.sources_of)(item.db));
            for db in databases {
                let answers = source.times(db, &keys).await?;
                let asked = of_run.iter_mut().zip(run).filter(|(_, item)| item.field.is_none());
                asked.zip(answers).for_each(|((told, _), answer)| told.push(answer));
            }
        }
        Ok(told)
    }

    /// The commands for items of one transaction and the marker, which goes when everything is unsettled.
    fn commands(&self, picked: &Picked<'_>, told: &[Vec<Told>], mut marker: Marker) -> Batch {
        let unsettled = marker.direction == Direction::Unsettle && picked.last == Place::FIRST;
        marker.upto = match marker.direction {
            Direction::Settle => picked.last,
            Direction::Unsettle => Place(picked.last.0.saturating_sub(1)),
        };
        let (mut out, mut count, mut db) = (Vec::with_capacity(picked.items.len() * 80), 0, None);
        let now_ms = clock::now_ms();
        let mut noted = Vec::new();
        for (i, item) in picked.items.iter().enumerate() {
            let told = told.get(i).map_or(&[][..], Vec::as_slice);
            let Some(at_ms) = self.moved(item, marker, told, now_ms) else {
                marker.settled.left += 1;
                continue;
            };
            match marker.direction {
                // Where nothing is late the target expires as it likes, settled or not.
                Direction::Settle if marker.late_ms == 0 => {}
                Direction::Settle if at_ms <= now_ms.saturating_add(SOON_MS) => {
                    let sources = (self.plan.sources_of)(item.db).into_iter().filter(|_| holds!("soon-noted"));
                    noted.extend(sources.map(|db| guard::field(db, item.key)));
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
        Batch { commands: out, count: count + 1, marker }
    }

    /// The time that an item is to have; `None` if that can't be told.
    fn moved(&self, item: &Item<'_>, marker: Marker, told: &[Told], now_ms: i64) -> Option<i64> {
        let largest = if item.field.is_some() && !self.valkey { REDIS_FIELD_MS_MAX } else { i64::MAX };
        if item.at_ms >= largest {
            return None;
        }
        let moved = match marker.direction {
            Direction::Settle => {
                settling::true_ms(item.at_ms.saturating_sub(marker.late_ms), told, marker.late_ms, now_ms)
            }
            Direction::Unsettle => item.at_ms.saturating_add(marker.late_ms).min(largest),
        };
        Some(moved.max(1))
    }
}

fn set_expiry(out: &mut Vec<u8>, item: &Item<'_>, at_ms: i64) {
    encode::array_header(out, if item.field.is_some() { 6 } else { 3 });
    encode::bulk(out, if item.field.is_some() { b"HPEXPIREAT" } else { b"PEXPIREAT" });
    encode::bulk(out, item.key);
    encode::bulk_number(out, at_ms);
    if let Some(field) = item.field {
        [&b"FIELDS"[..], b"1", field].iter().for_each(|word| encode::bulk(out, word));
    }
}
