//! What the copy of one shard has come to.

use super::{Counter, Mutex, Tally, lock};

/// The counters of one shard's copy; they start again with it.
#[derive(Debug, Default)]
pub struct Copied {
    /// Of the snapshot that is being received; 0 = unknown, as with a diskless transfer.
    pub rdb_bytes_total: Counter,
    pub rdb_bytes_read: Counter,
    /// In scope or not, as DBSIZE or the RDB's RESIZEDB says; 0 = unknown.
    pub keys_total: Counter,
    /// Copied keys that the target has acknowledged.
    pub keys_done: Counter,
    /// Keys that the filter left out.
    pub keys_filtered: Counter,
    /// Keys that were already expired.
    pub keys_expired: Counter,
    /// Keys that `--existing keep` left as they were.
    pub keys_kept: Counter,
    tally: Mutex<Tally>,
}

impl Copied {
    /// Adds what a thread has counted, and empties its tally.
    pub fn merge(&self, tally: &mut Tally) {
        lock(&self.tally).take(tally);
    }

    /// Takes back one key of what [`Copied::merge`] has added; false if there is none such.
    pub fn uncount(&self, database: u32, kind: &'static str) -> bool {
        lock(&self.tally).remove(database, kind)
    }

    /// Forgets what was copied so far: the copy starts again.
    pub fn restart(&self) {
        *lock(&self.tally) = Tally::default();
        for counter in [
            &self.rdb_bytes_total,
            &self.rdb_bytes_read,
            &self.keys_total,
            &self.keys_done,
            &self.keys_filtered,
            &self.keys_expired,
            &self.keys_kept,
        ] {
            counter.set(0);
        }
    }

    pub(super) fn tally(&self) -> Tally {
        lock(&self.tally).clone()
    }
}
