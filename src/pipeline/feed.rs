//! What flows from the source's link to the decode thread, and what the lanes tell that thread.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::delivery::guard::Standing;
use crate::journal::{Journal, Large, Spool, SpoolLimit};
use crate::offset::{ReplId, ReplOffset};
use crate::repl::resync::Framing;

/// A source's data: a snapshot, unless the target has it already, and the stream behind it.
#[derive(Debug)]
pub struct Feed {
    /// Where the stream begins: behind the snapshot, or behind the target's lowest record.
    pub offset: ReplOffset,
    /// `None` when the stream goes on from where an earlier process was.
    pub snapshot: Option<Snapshot>,
    /// The stream's bytes, by offset.
    pub stream: Arc<Journal>,
    /// The stream's large arguments, which stay where they are.
    pub large: Arc<Large>,
    /// Bare newlines among the stream's bytes, which are no part of its offsets.
    pub newlines: AtomicU64,
    /// The history's name, which changes with a failover of the source; `None` if the source can't tell.
    replid: Mutex<Option<ReplId>>,
    rewind: Mutex<Rewinding>,
    ended: watch::Sender<bool>,
    /// The offset of the unit with which the last of the keys that can't be trusted was copied; `None` before that.
    trusted: watch::Sender<Option<ReplOffset>>,
    /// Every lane's record in the target names this offset or a later one.
    recorded: AtomicU64,
}

/// A snapshot on its way.
#[derive(Debug)]
pub struct Snapshot {
    pub framing: Framing,
    /// Its bytes, from 0, with the mark that ends a diskless transfer.
    pub journal: Arc<Journal>,
}

/// Where the decode thread must start again, since the target has lost what it had acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewind {
    pub offset: ReplOffset,
    pub epoch: u64,
    pub standing: Standing,
}

#[derive(Debug, Default)]
struct Rewinding {
    wanted: Option<Rewind>,
    /// The decode thread has ended: it can't start again.
    closed: bool,
}

/// What may be buffered.
#[derive(Debug, Clone)]
pub struct Budget {
    pub memory_bytes: usize,
    /// Where the rest goes, and how much of it; `None`: the source waits instead.
    pub spool: Option<(PathBuf, SpoolLimit)>,
}

/// How much of the memory budget the snapshot may hold while it waits for the target.
const SNAPSHOT_BYTES_MAX: usize = 16 << 20;

impl Budget {
    fn snapshot_bytes(&self) -> usize {
        snapshot_bytes(self.memory_bytes)
    }

    fn spool(&self, name: &'static str) -> Option<Spool> {
        let (dir, limit) = self.spool.clone()?;
        Some(Spool { dir, limit, name })
    }
}

fn snapshot_bytes(memory_bytes: usize) -> usize {
    SNAPSHOT_BYTES_MAX.min(memory_bytes / 2)
}

impl Feed {
    /// `framing`: how the snapshot comes that stands at `offset`, if one does.
    pub fn new(replid: Option<ReplId>, offset: ReplOffset, framing: Option<Framing>, budget: &Budget) -> Self {
        let stream_bytes = budget.memory_bytes - budget.snapshot_bytes();
        let stream = Arc::new(Journal::new(offset.0, stream_bytes, budget.spool("stream")));
        Feed {
            offset,
            snapshot: framing.map(|framing| Snapshot {
                framing,
                journal: Arc::new(Journal::new(0, budget.snapshot_bytes(), budget.spool("snapshot"))),
            }),
            large: Arc::new(Large::new(Arc::clone(&stream))),
            stream,
            newlines: AtomicU64::new(0),
            replid: Mutex::new(replid),
            rewind: Mutex::default(),
            ended: watch::Sender::new(false),
            trusted: watch::Sender::new(None),
            recorded: AtomicU64::new(0),
        }
    }

    /// Another budget than it began with.
    pub fn set_memory(&self, memory_bytes: usize) {
        let snapshot_bytes = snapshot_bytes(memory_bytes);
        self.stream.set_bytes_max(memory_bytes - snapshot_bytes);
        if let Some(snapshot) = &self.snapshot {
            snapshot.journal.set_bytes_max(snapshot_bytes);
        }
    }

    pub fn replid(&self) -> Option<ReplId> {
        *lock(&self.replid)
    }

    pub fn set_replid(&self, replid: ReplId) {
        *lock(&self.replid) = Some(replid);
    }

    /// Nothing more will come.
    pub fn end(&self) {
        if let Some(snapshot) = &self.snapshot {
            snapshot.journal.end();
        }
        self.stream.end();
        self.ended.send_replace(true);
    }

    /// Says whether keys that can't be trusted are still to be copied, and with which unit the last was.
    pub fn set_trusted(&self, offset: Option<ReplOffset>) {
        self.trusted.send_if_modified(|at| std::mem::replace(at, offset) != offset);
    }

    /// Waits until no key is left to be copied; returns the offset of the unit with which the last was.
    ///
    /// Cancel-safe.
    pub async fn trusted(&self) -> ReplOffset {
        // The sender lives as long as this.
        let trusted = self.trusted.subscribe().wait_for(Option::is_some).await.map_or(None, |at| *at);
        trusted.unwrap_or_default()
    }

    /// Returns when nothing more will come.
    ///
    /// Cancel-safe.
    pub async fn ended(&self) {
        // The sender lives as long as this.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Has the decode thread start again; false if the journal doesn't reach back so far, or the thread has ended.
    pub fn rewind(&self, rewind: Rewind) -> bool {
        let mut rewinding = lock(&self.rewind);
        // With bare newlines among its bytes positions and offsets differ, by an amount that depends on the place.
        let newlines = self.newlines.load(Ordering::Relaxed);
        if rewinding.closed || newlines > 0 || !self.stream.reaches(rewind.offset.0) {
            return false;
        }
        // The guards that the target has now reach past what its records say now, not past what they once said.
        self.set_recorded(rewind.offset);
        rewinding.wanted = Some(rewind);
        self.stream.interrupt();
        true
    }

    /// Where to start again, if so.
    pub fn take_rewind(&self) -> Option<Rewind> {
        lock(&self.rewind).wanted.take()
    }

    /// Says that the decode thread ends; false if it must start again first.
    pub fn close(&self) -> bool {
        let mut rewinding = lock(&self.rewind);
        rewinding.closed = rewinding.wanted.is_none();
        rewinding.closed
    }

    /// Every lane's record names `offset` or a later one.
    pub fn set_recorded(&self, offset: ReplOffset) {
        self.recorded.store(offset.0, Ordering::Relaxed);
    }

    pub fn recorded(&self) -> ReplOffset {
        ReplOffset(self.recorded.load(Ordering::Relaxed))
    }

    /// What lies before `offset` can't be asked for any more.
    pub fn cover(&self, offset: ReplOffset) {
        self.stream.release(offset.0);
    }

    /// Bytes that wait on disk.
    pub fn spool_bytes(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |s| s.journal.spool_bytes()) + self.stream.spool_bytes()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
