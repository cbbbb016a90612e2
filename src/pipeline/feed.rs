//! What flows from the source's link to the decode thread.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use crate::journal::Journal;
use crate::offset::{ReplId, ReplOffset};
use crate::repl::resync::Framing;

/// A full sync: its snapshot and the stream behind it.
#[derive(Debug)]
pub struct Feed {
    /// Where the snapshot stands in the stream.
    pub offset: ReplOffset,
    pub framing: Framing,
    /// The snapshot's bytes, from 0, with the mark that ends a diskless transfer.
    pub snapshot: Journal,
    /// The stream's bytes, by offset.
    pub stream: Journal,
    /// Bare newlines among the stream's bytes, which are no part of its offsets.
    pub newlines: AtomicU64,
    /// The history's name, which changes with a failover of the source; `None` if the source can't tell.
    replid: Mutex<Option<ReplId>>,
}

/// How much of the memory budget the snapshot may hold while it waits for the target.
const SNAPSHOT_BYTES_MAX: usize = 16 << 20;

impl Feed {
    /// `memory_bytes`: the job's budget, which the stream may use but for the snapshot's share.
    pub fn new(replid: Option<ReplId>, offset: ReplOffset, framing: Framing, memory_bytes: usize) -> Self {
        let snapshot_bytes = SNAPSHOT_BYTES_MAX.min(memory_bytes / 2);
        Feed {
            offset,
            framing,
            snapshot: Journal::new(0, snapshot_bytes),
            stream: Journal::new(offset.0, memory_bytes - snapshot_bytes),
            newlines: AtomicU64::new(0),
            replid: Mutex::new(replid),
        }
    }

    pub fn replid(&self) -> Option<ReplId> {
        *self.replid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_replid(&self, replid: ReplId) {
        *self.replid.lock().unwrap_or_else(PoisonError::into_inner) = Some(replid);
    }
}
