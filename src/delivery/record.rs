//! Records: keys in the target that say how far a job has got.

use std::fmt::Write;

use crate::offset::{ReplId, ReplOffset};

/// The format's version, first word of every record.
const VERSION: &str = "kf1";

/// Where a lane is in the life of a full sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The snapshot is being written; the offset says nothing yet.
    Copying,
    /// Every unit up to the offset was applied.
    Following,
}

/// What all records of a job have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobState {
    /// Which of the job's source primaries it is of; 0 for a standalone source.
    pub shard: u32,
    pub replid: Option<ReplId>,
    /// Which full sync of the job this belongs to, counted from 1.
    pub generation: u64,
    pub lanes: usize,
    /// How much later than on the source expiries are written.
    pub late_ms: u64,
    /// A hash of what changes the meaning of a position: filter and database map.
    pub scope: u64,
}

/// "This lane has applied every unit up to `offset`."
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub job: JobState,
    pub phase: Phase,
    pub offset: ReplOffset,
    /// The database selected in the source's stream at that offset.
    pub stream_db: u32,
    /// In the copy: how many pieces of large values this lane has applied.
    pub pieces: u64,
    /// When it was written, Unix milliseconds.
    pub time_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("a record begins with {0:?}, not with {VERSION:?}: another version of keyferry wrote it")]
    Version(String),
    #[error("a record lacks its {0} or has a bad one")]
    Field(&'static str),
}

/// What stands for the job in the keys of a shard's records and guards: its name, with the shard's number from 1 on.
pub fn of_shard(job: &str, shard: u32) -> String {
    match shard {
        0 => job.to_owned(),
        shard => format!("{job}:{shard}"),
    }
}

/// The key of a lane's record; `job` as [`of_shard`] says it.
pub fn key(job: &str, lane: usize) -> Vec<u8> {
    format!("keyferry:{job}:lane:{lane}").into_bytes()
}

/// What the keys of all lanes' records begin with.
pub fn lane_prefix(job: &str) -> Vec<u8> {
    format!("keyferry:{job}:lane:").into_bytes()
}

/// The key of what stopped a job: a command that the target refused after the rest of its flush was applied.
pub fn stopped_key(job: &str) -> Vec<u8> {
    format!("keyferry:{job}:stopped").into_bytes()
}

/// The pattern all keys of a job match; job names hold no glob characters.
pub fn key_pattern(job: &str) -> Vec<u8> {
    format!("keyferry:{job}:*").into_bytes()
}

/// True for every key that keyferry keeps in a target, whatever the job.
pub fn is_own_key(key: &[u8]) -> bool {
    key.starts_with(b"keyferry:") || key.starts_with(b"{keyferry:")
}

impl Record {
    /// The record's text: words `name=value` behind the version.
    pub fn encode(&self) -> String {
        let phase = match self.phase {
            Phase::Copying => "copying",
            Phase::Following => "following",
        };
        let mut out = String::with_capacity(200);
        let job = &self.job;
        // Writing to a String can't fail.
        let _ = write!(out, "{VERSION} shard={} offset={} db={}", job.shard, self.offset, self.stream_db);
        let _ = write!(out, " phase={phase}");
        let _ = write!(out, " pieces={} gen={} lanes={} late={}", self.pieces, job.generation, job.lanes, job.late_ms);
        let _ = write!(out, " scope={:016x} time={}", job.scope, self.time_ms);
        if let Some(replid) = job.replid {
            let _ = write!(out, " replid={replid}");
        }
        out
    }

    /// # Errors
    /// When `text` is no record of this version.
    pub fn parse(text: &[u8]) -> Result<Record, Error> {
        let text = std::str::from_utf8(text).map_err(|_| Error::Version("binary".into()))?;
        let mut words = text.split(' ');
        let version = words.next().unwrap_or_default();
        if version != VERSION {
            return Err(Error::Version(version.chars().take(20).collect()));
        }
        let fields: Vec<(&str, &str)> = words.filter_map(|w| w.split_once('=')).collect();
        let field =
            |name: &'static str| fields.iter().find(|(n, _)| *n == name).map(|(_, v)| *v).ok_or(Error::Field(name));
        fn number<T: std::str::FromStr>(name: &'static str, text: &str) -> Result<T, Error> {
            text.parse().map_err(|_| Error::Field(name))
        }
        Ok(Record {
            job: JobState {
                shard: number("shard", field("shard")?)?,
                replid: match field("replid") {
                    Ok(id) => Some(ReplId::parse(id.as_bytes()).ok_or(Error::Field("replid"))?),
                    Err(_) => None,
                },
                generation: number("gen", field("gen")?)?,
                lanes: number("lanes", field("lanes")?)?,
                late_ms: number("late", field("late")?)?,
                scope: u64::from_str_radix(field("scope")?, 16).map_err(|_| Error::Field("scope"))?,
            },
            phase: match field("phase")? {
                "copying" => Phase::Copying,
                "following" => Phase::Following,
                _ => return Err(Error::Field("phase")),
            },
            offset: ReplOffset(number("offset", field("offset")?)?),
            stream_db: number("db", field("db")?)?,
            pieces: number("pieces", field("pieces")?)?,
            time_ms: number("time", field("time")?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trips_with_and_without_a_replid() {
        for replid in [None, ReplId::parse(&[b'7'; 40])] {
            let record = Record {
                job: JobState { shard: 2, replid, generation: 3, lanes: 4, late_ms: 3_600_000, scope: 0xfeed },
                phase: Phase::Following,
                offset: ReplOffset(u64::MAX),
                stream_db: 11,
                pieces: 9,
                time_ms: 1_790_000_000_000,
            };
            assert_eq!(Record::parse(record.encode().as_bytes()), Ok(record));
        }
    }

    #[test]
    fn record_of_another_version_or_cut_is_an_error() {
        assert!(matches!(Record::parse(b"kf9 offset=1"), Err(Error::Version(_))));
        assert!(matches!(Record::parse(b"\xff"), Err(Error::Version(_))));
        assert_eq!(Record::parse(b"kf1 offset=1"), Err(Error::Field("shard")));
    }
}
