//! What an earlier run of a job has left in the target: its records and guards.

use std::collections::BTreeMap;

use super::connect::Identity;
use super::{Error, settle};
use crate::delivery::guard::{self, Guards, Standing};
use crate::delivery::motion::kept;
use crate::delivery::record::{self, JobState, Phase, Record};
use crate::delivery::slots::Position;
use crate::delivery::unit::LANES_MAX;
use crate::net::conn::Conn;
use crate::offset::{ReplId, ReplOffset};
use crate::resp::encode;
use crate::resp::reply::Reply;
use crate::slot::{SLOTS, Slot};

/// The most shards that a job is looked for: no cluster has more primaries.
pub const SHARDS_MAX: u32 = 1000;

/// How far a job has got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checkpoint {
    /// It never ran.
    None,
    /// It was stopped in this full sync's copy.
    Copying { job: JobState },
    /// It was following.
    Following(Following),
}

/// Where a job stands that was following.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Following {
    pub at: Places,
    pub guards: Guards,
}

/// Where each lane of a standalone target stands, or each slot of a cluster that the shard feeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Places {
    Lanes(Vec<Record>),
    /// The replid is that of the highest.
    Slots {
        job: JobState,
        positions: Vec<(Slot, Position)>,
        /// When a node's floors were written last, Unix ms; of the one where that is longest ago.
        time_ms: i64,
    },
}

impl Following {
    /// What the records have in common; the replid is that of the highest.
    pub fn job(&self) -> JobState {
        let none = JobState { shard: 0, replid: None, generation: 0, lanes: 0, late_ms: 0, scope: 0 };
        match &self.at {
            Places::Lanes(records) => records.iter().max_by_key(|r| r.offset).map_or(none, |r| r.job.clone()),
            Places::Slots { job, .. } => job.clone(),
        }
    }

    /// How many lanes there were; a cluster's records know of none.
    pub fn lanes(&self) -> Option<usize> {
        match &self.at {
            Places::Lanes(records) => Some(records.len()),
            Places::Slots { .. } => None,
        }
    }

    fn positions(&self) -> Vec<(ReplOffset, u32)> {
        match &self.at {
            Places::Lanes(records) => records.iter().map(|r| (r.offset, r.stream_db)).collect(),
            Places::Slots { positions, .. } => positions.iter().map(|(_, p)| (p.offset, p.stream_db)).collect(),
        }
    }

    /// Where the source must go on: its history, and the offset that all lanes have.
    pub fn resume_point(&self) -> Option<(ReplId, ReplOffset)> {
        Some((self.job().replid?, self.positions().into_iter().map(|(offset, _)| offset).min()?))
    }

    /// The highest offset that a lane has.
    pub fn highest(&self) -> ReplOffset {
        self.positions().into_iter().map(|(offset, _)| offset).max().unwrap_or_default()
    }

    /// The database selected in the stream at the lowest offset.
    pub fn stream_db(&self) -> u32 {
        self.positions().into_iter().min().map_or(0, |(_, db)| db)
    }

    /// True when the target was left alone for longer than expiries are written late: a key that the source has renewed
    /// meanwhile may have expired there. Where they're written exactly (`late_ms` 0) that is so at every moment.
    pub fn is_too_old(&self, now_ms: i64) -> bool {
        let late_ms = i64::try_from(self.job().late_ms).unwrap_or(i64::MAX);
        let oldest_ms = match &self.at {
            Places::Lanes(records) => records.iter().map(|r| r.time_ms).min().unwrap_or(now_ms),
            Places::Slots { time_ms, .. } => *time_ms,
        };
        holds!("old-copied-again") && late_ms > 0 && now_ms.saturating_sub(oldest_ms) > late_ms
    }

    /// What the stream is gone on with from the lowest offset.
    pub fn standing(self) -> Standing {
        let stream_db = self.stream_db();
        let lanes = match &self.at {
            Places::Lanes(records) => records.iter().map(|r| r.offset).collect(),
            Places::Slots { positions, .. } => {
                let mut all = vec![ReplOffset(0); usize::from(SLOTS)];
                for (slot, position) in positions {
                    if let Some(place) = all.get_mut(slot.index()) {
                        *place = position.offset;
                    }
                }
                all
            }
        };
        Standing { stream_db, guards: self.guards, lanes }
    }
}

impl Checkpoint {
    pub fn job(&self) -> Option<JobState> {
        match self {
            Checkpoint::None => None,
            Checkpoint::Copying { job } => Some(job.clone()),
            Checkpoint::Following(following) => Some(following.job()),
        }
    }
}

/// Reads what the target holds of `job`, in database 0.
///
/// # Errors
/// When the target can't be reached, or another version of keyferry wrote it.
pub async fn read(conn: &mut Conn, job: &str) -> Result<Checkpoint, Error> {
    let texts = mget(conn, (0..LANES_MAX).map(|lane| record::key(job, lane))).await?;
    let mut found = Vec::new();
    for text in &texts {
        let bad = |error| Error::Record { address: conn.address().to_owned(), job: job.to_owned(), error };
        found.push(text.bytes().map(Record::parse).transpose().map_err(bad)?);
    }
    let Some(newest) = found.iter().flatten().max_by_key(|r| r.job.generation).map(|r| r.job.clone()) else {
        return Ok(Checkpoint::None);
    };
    let of_lane = |lane: usize| found.get(lane).cloned().flatten();
    let records: Vec<Record> = (0..newest.lanes).filter_map(of_lane).collect();
    let whole = records.len() == newest.lanes
        && records.iter().all(|r| r.phase == Phase::Following && r.job.generation == newest.generation);
    if !whole {
        return Ok(Checkpoint::Copying { job: newest });
    }
    let guards = guards(conn, job, newest.lanes).await?;
    Ok(Checkpoint::Following(Following { at: Places::Lanes(records), guards }))
}

async fn mget(conn: &mut Conn, keys: impl ExactSizeIterator<Item = Vec<u8>>) -> Result<Vec<Reply>, Error> {
    let mut mget = Vec::new();
    encode::array_header(&mut mget, keys.len() + 1);
    encode::bulk(&mut mget, b"MGET");
    keys.for_each(|key| encode::bulk(&mut mget, &key));
    conn.send(&mget).await?;
    match conn.reply().await? {
        Reply::Error(words) => Err(conn.refused(b"MGET", words).into()),
        Reply::Array(values) => Ok(values),
        _ => Ok(Vec::new()),
    }
}

/// Reads what the target holds of every shard of `job`, by their numbers; only of those that there is something of.
///
/// # Errors
/// As for [`read`].
pub async fn read_shards(conn: &mut Conn, job: &str) -> Result<BTreeMap<u32, Checkpoint>, Error> {
    let mut found = BTreeMap::new();
    for shard in shards(conn, job).await? {
        match read(conn, &record::of_shard(job, shard)).await? {
            Checkpoint::None => {}
            checkpoint => _ = found.insert(shard, checkpoint),
        }
    }
    Ok(found)
}

/// The shards of which there is something. The first is always one: what is left of it when its first record is gone says
/// that it ran.
async fn shards(conn: &mut Conn, job: &str) -> Result<Vec<u32>, Error> {
    let firsts = mget(conn, (0..SHARDS_MAX).map(|shard| record::key(&record::of_shard(job, shard), 0))).await?;
    let present = (0..SHARDS_MAX).zip(firsts).filter(|(shard, first)| *shard == 0 || *first != Reply::Null);
    Ok(present.map(|(shard, _)| shard).collect())
}

/// Every key that there may be of a shard.
fn names_of_shard(records: &str) -> impl Iterator<Item = Vec<u8>> {
    let lanes = (0..LANES_MAX).flat_map(|lane| [record::key(records, lane), guard::hash_key(records, lane)]);
    std::iter::once(record::stopped_key(records)).chain(lanes)
}

/// Removes the records and guards of one shard, whose primary is no more, all at once.
///
/// # Errors
/// When the target can't be reached or refuses.
pub async fn remove_shard(conn: &mut Conn, records: &str) -> Result<(), Error> {
    let mut del = vec![b"DEL".to_vec()];
    del.extend(names_of_shard(records));
    conn.ask(&[&b"SELECT"[..], b"0"]).await?;
    conn.ask(&del).await?;
    Ok(())
}

/// Reads the guards of all lanes.
///
/// # Errors
/// When the target can't be reached or refuses.
pub async fn guards(conn: &mut Conn, job: &str, lanes: usize) -> Result<Guards, Error> {
    let mut guards = Guards::default();
    for lane in 0..lanes {
        let fields = fields(conn, &guard::hash_key(job, lane)).await?;
        fields.iter().for_each(|(field, value)| guards.read(field, value));
    }
    Ok(guards)
}

/// Reads a hash.
///
/// # Errors
/// When the target can't be reached.
pub async fn fields(conn: &mut Conn, key: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
    let reply = conn.ask(&[&b"HGETALL"[..], key]).await?;
    let pair = |pair: &[Reply]| match pair {
        [Reply::Bulk(field), Reply::Bulk(value)] => Some((field.clone(), value.clone())),
        _ => None,
    };
    Ok(reply.array().unwrap_or_default().chunks_exact(2).filter_map(pair).collect())
}

/// Goes over to `lanes` lanes, when all stand at one offset: writes their records and the guards that still matter,
/// and deletes the old ones, in one transaction.
///
/// `lane_of`: the lane of a key among the new ones.
/// # Errors
/// When the target can't be reached or refuses.
pub async fn change_lanes(
    conn: &mut Conn,
    job: &str,
    from: &Following,
    lanes: usize,
    lane_of: impl Fn(&[u8]) -> usize,
) -> Result<(), Error> {
    let Places::Lanes(records) = &from.at else { return Ok(()) };
    let Some(record) = records.iter().min_by_key(|r| r.offset) else { return Ok(()) };
    let mut record = record.clone();
    record.job = JobState { lanes, ..from.job() };
    let mut commands: Vec<Vec<Vec<u8>>> = vec![vec![b"MULTI".to_vec()]];
    for lane in 0..records.len() {
        commands.push(vec![b"DEL".to_vec(), record::key(job, lane), guard::hash_key(job, lane)]);
    }
    for lane in 0..lanes {
        commands.push(vec![b"SET".to_vec(), record::key(job, lane), record.encode().into_bytes()]);
    }
    let matters = |at: &ReplOffset| match at.0 {
        0 => holds!("suspects-move"),
        _ => *at > record.offset && holds!("guards-move"),
    };
    let keys = from.guards.keys.iter().filter(|(_, at)| matters(at));
    let keys = keys.map(|((db, key), at)| (lane_of(key), guard::field(*db, key), at));
    let databases = from.guards.databases.iter().filter(|(_, at)| matters(at));
    let databases = databases.map(|(db, at)| (0, guard::database_field(*db), at));
    for (lane, field, offset) in keys.chain(databases) {
        commands.push(vec![b"HSET".to_vec(), guard::hash_key(job, lane), field, offset.to_string().into_bytes()]);
    }
    commands.push(vec![b"EXEC".to_vec()]);
    let mut out = Vec::new();
    commands.iter().for_each(|command| encode::command(&mut out, command));
    failpoint!("lanes-to-change");
    conn.send(&out).await?;
    failpoint!("lanes-sent");
    for _ in 0..commands.len() {
        if let Reply::Error(words) = conn.reply().await? {
            return Err(conn.refused(b"EXEC", words).into());
        }
    }
    failpoint!("lanes-changed");
    Ok(())
}

/// Removes every key of the job but its lease, which is the owner's to give back; all at once: a part of them would tell
/// something else. Returns how many there were.
///
/// They are named rather than looked for: a SCAN for them costs a large target as much as half of the settling before it.
/// # Errors
/// When the target can't be reached or refuses.
pub async fn remove(conn: &mut Conn, id: &Identity) -> Result<u64, Error> {
    conn.ask(&[b"SELECT".as_slice(), b"0"]).await?;
    let mut del = vec![b"DEL".to_vec(), settle::key(&id.job), kept::hash_key(&id.job)];
    for shard in shards(conn, &id.job).await? {
        del.extend(names_of_shard(&record::of_shard(&id.job, shard)));
    }
    failpoint!("records-to-remove");
    let removed = conn.ask(&del).await?.integer().and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    failpoint!("records-removed");
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_left_for_longer_than_the_lateness_is_too_old() {
        let record = |late_ms, time_ms| Record {
            job: JobState { shard: 0, replid: None, generation: 1, lanes: 2, late_ms, scope: 0 },
            phase: Phase::Following,
            offset: ReplOffset(7),
            stream_db: 0,
            pieces: 0,
            time_ms,
        };
        let following = |late_ms, times: [i64; 2]| Following {
            at: Places::Lanes(times.map(|time_ms| record(late_ms, time_ms)).to_vec()),
            guards: Guards::default(),
        };
        let slots = |late_ms, time_ms| Following {
            at: Places::Slots { job: record(late_ms, 0).job, positions: Vec::new(), time_ms },
            guards: Guards::default(),
        };
        assert!(!slots(1000, 5000).is_too_old(6000) && slots(1000, 5000).is_too_old(6001));
        assert!(!following(1000, [5000, 5500]).is_too_old(6000));
        assert!(following(1000, [5000, 5500]).is_too_old(6001));
        assert!(!following(0, [5000, 5500]).is_too_old(i64::MAX));
        assert!(!following(u64::MAX, [5000, 5500]).is_too_old(i64::MAX));
    }
}
