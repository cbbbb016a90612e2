//! What a job has done, told once at its end.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::offset::ReplOffset;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// `--once`: everything is there.
    Complete,
    /// Stopped by a signal while it was following.
    Stopped,
    /// Stopped by a signal before the copy was whole.
    StoppedInCopy,
    /// `finish`: true expiries, no records.
    Finished,
    /// `finish --source-gone`: no records, but expiries stay so late.
    Forgotten { late: Duration },
}

/// What a job has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub ending: Ending,
    pub job: String,
    /// Copied keys by source database and type.
    pub keys: BTreeMap<(u32, &'static str), u64>,
    pub keys_filtered: u64,
    pub keys_expired: u64,
    pub keys_kept: u64,
    pub commands_applied: u64,
    pub commands_filtered: u64,
    pub commands_skipped: u64,
    pub transactions_split: u64,
    pub bytes_to_target: u64,
    pub replies_unseen: u64,
    /// Keys, and fields of hashes, whose expiry was late and is true now.
    pub keys_settled: u64,
    pub fields_settled: u64,
    pub errors: BTreeMap<String, u64>,
    /// Values that were written without something, by what that was.
    pub losses: BTreeMap<&'static str, u64>,
    pub elapsed: Duration,
    /// Of each source primary, by its address: the offset up to which the target has everything.
    pub offsets: Vec<(String, ReplOffset)>,
}
