//! A job's counters at one moment, with the names that `GET /status` will use.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Phase;
use crate::offset::{ReplId, ReplOffset};

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub job: String,
    /// `Waiting` while anything waits, else `stage`.
    pub phase: Phase,
    /// How far the job is, whether it waits or not.
    pub stage: Phase,
    pub elapsed: Duration,
    pub waits: Vec<Wait>,
    pub keys: Keys,
    pub lag: Lag,
    pub rdb_bytes_read: u64,
    /// 0 = unknown.
    pub rdb_bytes_total: u64,
    pub units_applied: u64,
    pub commands_applied: u64,
    pub bytes_to_target: u64,
    pub replies_unseen: u64,
    pub spool_bytes: u64,
    pub lanes: u64,
    pub errors: BTreeMap<String, u64>,
    pub shards: Vec<ShardSnapshot>,
}

/// Keys of the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keys {
    pub done: u64,
    /// 0 = unknown.
    pub total: u64,
    pub filtered: u64,
    pub expired: u64,
    pub kept: u64,
}

/// How far the target is behind what was received, over all shards: bytes added up, the worst of the seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Lag {
    pub bytes: u64,
    pub seconds: f64,
}

/// One source primary.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardSnapshot {
    pub number: u32,
    /// The address of the server that is read.
    pub source: String,
    /// It is a replica, and read in its primary's place.
    pub replica: bool,
    pub replid: Option<ReplId>,
    pub received: ReplOffset,
    pub applied: ReplOffset,
    pub lag_bytes: u64,
    /// The age of the oldest byte that isn't applied.
    pub lag_seconds: f64,
}

/// Something that is being waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub place: String,
    pub reason: String,
    pub elapsed: Duration,
}

impl Snapshot {
    /// All reasons in words, with how long each has lasted once that is a second or more; `None` if nothing waits.
    pub fn waiting_for(&self) -> Option<String> {
        let words: Vec<String> = self
            .waits
            .iter()
            .map(|wait| match wait.elapsed.as_secs() {
                0 => wait.reason.clone(),
                seconds => format!("{} ({seconds} s)", wait.reason),
            })
            .collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// Keys of the copy that are dealt with, in whatever way.
    pub fn keys_seen(&self) -> u64 {
        let keys = self.keys;
        keys.done + keys.filtered + keys.expired + keys.kept
    }
}
