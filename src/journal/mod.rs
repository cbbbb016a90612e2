//! The raw bytes of a source, addressed by their position: written at the speed of the socket, read at the
//! target's. The snapshot and the replication stream each go through one.
//!
//! ```text
//!    deleted when covered          dropped when room is needed
//! [ segments on disk ............ ][ ring in memory ............ ] end
//!            ^ covered: no reader will ask for what lies before
//! ```

mod large;
mod ring;
mod segments;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use ring::{BLOCK_BYTES, Ring};
use segments::Segments;

pub use large::{Argument, LARGE_BYTES_MIN, Large, STAND_IN_BYTES};
pub use segments::{Spool, SpoolLimit};

/// Blocks written to disk at a time.
const SPILL_BLOCKS: usize = 16;

/// Receive times closer together than this share one entry.
const STAMP_MS: i64 = 10;

/// Why bytes can't be kept. The job stops, and nothing is lost that the source still has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the spool in {dir} has reached its limit of {bytes_max} bytes")]
    Full { dir: String, bytes_max: u64 },
    #[error("the spool in {dir} can't be written: {error}")]
    Write { dir: String, error: String },
    #[error("the spool can't be read: {error}")]
    Read { error: String },
}

/// Bytes between one writer (a task) and one reader (a thread), bounded in memory and on disk.
///
/// The reader may go back to any position that is still [held](Journal::reaches).
#[derive(Debug)]
pub struct Journal {
    state: Mutex<State>,
    /// The reader waits here for bytes.
    readable: Condvar,
    /// The writer waits here for room.
    room: Notify,
    bytes_max: AtomicUsize,
    spool: Option<Spool>,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    disk: Segments,
    /// No reader will ask for what lies before, unless it is held by chance.
    covered: u64,
    /// Blocks are on their way to the disk.
    spilling: bool,
    failed: Option<Error>,
    ended: bool,
    /// Counts [`Journal::interrupt`]s, so that none is missed between two reads.
    interrupts: u64,
    /// Up to here bytes are taken whatever the budget says.
    needed: u64,
    /// (position, ms): what lies from this position on came at this time or up to `STAMP_MS` later.
    stamps: VecDeque<(u64, i64)>,
}

/// How a read ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// So many bytes were appended to the reader's buffer.
    Bytes(usize),
    /// Nothing came within the time.
    Nothing,
    /// The writer has ended, and everything was read.
    End,
}

impl State {
    /// Makes room for `bytes` by giving up what is covered; true if there is room then.
    fn make_room(&mut self, bytes: usize, bytes_max: usize) -> bool {
        while self.ring.len() + bytes > bytes_max {
            // What is on disk, or on its way there, comes before what is in memory.
            if self.spilling || !self.disk.is_empty() || !self.ring.drop_oldest(self.covered) {
                return self.is_free(bytes, bytes_max);
            }
        }
        true
    }

    /// One piece always fits behind what is covered, whatever the budget.
    fn is_free(&self, bytes: usize, bytes_max: usize) -> bool {
        let held = (self.ring.end() - self.covered.clamp(self.ring.base(), self.ring.end())) as usize;
        held == 0 || held + bytes + BLOCK_BYTES <= bytes_max && self.disk.is_empty() || self.ring.end() < self.needed
    }

    /// Deletes what is covered on disk. While blocks are on their way there, their segment must stay, also if all that it
    /// holds so far is covered.
    fn release_disk(&mut self) {
        if !self.spilling {
            self.disk.release(self.covered);
        }
    }

    fn stamp(&mut self, now_ms: i64) {
        if self.stamps.back().is_none_or(|(_, ms)| now_ms - ms >= STAMP_MS) {
            self.stamps.push_back((self.ring.end(), now_ms));
        }
    }
}

impl Journal {
    /// Begins at position `start`, holds at most about `bytes_max` bytes in memory and the rest in `spool`; without one
    /// the writer waits.
    pub fn new(start: u64, bytes_max: usize, spool: Option<Spool>) -> Self {
        Journal {
            state: Mutex::new(State {
                ring: Ring::new(start),
                disk: Segments::default(),
                covered: start,
                spilling: false,
                failed: None,
                ended: false,
                interrupts: 0,
                needed: 0,
                stamps: VecDeque::new(),
            }),
            readable: Condvar::new(),
            room: Notify::new(),
            bytes_max: AtomicUsize::new(bytes_max),
            spool,
        }
    }

    /// Holds at most about so many bytes in memory from now on; what is there already leaves in time.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.room.notify_one();
    }

    /// Appends `bytes`, received at `now_ms` (Unix time). Where memory has no room the oldest bytes go to disk; without
    /// a spool it waits.
    ///
    /// Cancel-safe: either all of `bytes` is there, or nothing of it.
    /// # Errors
    /// When the spool is full or can't be written.
    pub async fn append(self: &Arc<Self>, bytes: &[u8], now_ms: i64) -> Result<(), Error> {
        loop {
            let room = self.room.notified();
            let spill = {
                let mut state = self.lock();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                if state.make_room(bytes.len(), self.bytes_max.load(Ordering::Relaxed)) {
                    state.stamp(now_ms);
                    state.ring.append(bytes);
                    self.readable.notify_one();
                    return Ok(());
                }
                self.begin_spill(&mut state)?
            };
            match spill {
                Some(spill) => {
                    let journal = Arc::clone(self);
                    // It goes on even if this future is dropped, and wakes the next one.
                    let done = tokio::task::spawn_blocking(move || journal.spill(spill)).await;
                    debug_assert!(done.is_ok(), "writing to disk doesn't panic");
                }
                None => room.await,
            }
        }
    }

    /// True when the writer must wait or write to disk before it can take `bytes` more.
    pub fn is_full(&self, bytes: usize) -> bool {
        !self.lock().make_room(bytes, self.bytes_max.load(Ordering::Relaxed))
    }

    /// The blocks to be written to disk, if that is to begin now.
    fn begin_spill(&self, state: &mut State) -> Result<Option<Vec<Arc<Vec<u8>>>>, Error> {
        let Some(spool) = &self.spool else { return Ok(None) };
        if state.spilling {
            return Ok(None);
        }
        let blocks = state.ring.oldest(SPILL_BLOCKS);
        let bytes = (blocks.len() * BLOCK_BYTES) as u64;
        if spool.limit.used() + bytes > spool.limit.bytes_max() {
            return Err(Error::Full { dir: spool.dir.display().to_string(), bytes_max: spool.limit.bytes_max() });
        }
        state.spilling = !blocks.is_empty();
        Ok((!blocks.is_empty()).then_some(blocks))
    }

    /// Writes the oldest blocks to disk and gives them up in memory. Blocks its thread.
    fn spill(&self, blocks: Vec<Arc<Vec<u8>>>) {
        let Some(spool) = &self.spool else { return };
        let file = {
            let mut state = self.lock();
            let position = state.ring.base();
            state.disk.file_for(spool, position)
        };
        let written = file.and_then(|file| segments::write(&file, &blocks));
        let count = blocks.len();
        drop(blocks);
        let mut state = self.lock();
        match written {
            Ok(()) => {
                state.disk.written((count * BLOCK_BYTES) as u64);
                for _ in 0..count {
                    state.ring.drop_oldest(u64::MAX);
                }
            }
            Err(error) => {
                let dir = spool.dir.display().to_string();
                state.failed = Some(Error::Write { dir, error: error.to_string() });
            }
        }
        state.spilling = false;
        state.release_disk();
        self.room.notify_one();
    }

    /// Says that nothing more will be appended.
    pub fn end(&self) {
        self.lock().ended = true;
        self.readable.notify_one();
    }

    /// Makes a waiting [`Journal::read`] return at once.
    pub fn interrupt(&self) {
        self.lock().interrupts += 1;
        self.readable.notify_one();
    }

    /// Appends up to `bytes_max` bytes from `position` on to `out`, waiting at most `wait` for the first of them.
    ///
    /// # Errors
    /// When the spool can't be read.
    pub fn read(&self, position: u64, out: &mut Vec<u8>, bytes_max: usize, wait: Duration) -> Result<Read, Error> {
        let mut state = self.lock();
        let interrupts = state.interrupts;
        if state.ring.end() <= position && !state.ended {
            let idle = |s: &mut State| s.ring.end() <= position && !s.ended && s.interrupts == interrupts;
            state = self
                .readable
                .wait_timeout_while(state, wait, idle)
                .map_or_else(|e| e.into_inner().0, |(state, _)| state);
        }
        if position < state.ring.base() {
            let place = state.disk.place(position, bytes_max);
            // The file is read without the lock: the writer goes on meanwhile.
            drop(state);
            let place = place.ok_or_else(|| Error::Read { error: format!("position {position} isn't held") })?;
            return place.read(out).map(Read::Bytes).map_err(|error| Error::Read { error: error.to_string() });
        }
        Ok(match state.ring.read(position, out, bytes_max) {
            0 if state.ended => Read::End,
            0 => Read::Nothing,
            n => Read::Bytes(n),
        })
    }

    /// Waits until everything before `position` was written, at most for `wait`; true if so.
    ///
    /// The reader itself waits here, so nothing is released meanwhile: what is needed goes beyond the budget.
    pub fn wait_written(&self, position: u64, wait: Duration) -> bool {
        let mut state = self.lock();
        state.needed = position;
        self.room.notify_one();
        let missing = |s: &mut State| s.ring.end() < position && !s.ended;
        let state = self
            .readable
            .wait_timeout_while(state, wait, missing)
            .map_or_else(|e| e.into_inner().0, |(state, _)| state);
        state.ring.end() >= position
    }

    /// Says that what lies before `position` is covered: on disk it is deleted, in memory it goes when room is needed.
    pub fn release(&self, position: u64) {
        let mut state = self.lock();
        if position <= state.covered {
            return;
        }
        state.covered = position;
        state.release_disk();
        while state.stamps.get(1).is_some_and(|(at, _)| *at <= position) {
            state.stamps.pop_front();
        }
        self.room.notify_one();
    }

    /// True while the bytes from `position` on are held.
    pub fn reaches(&self, position: u64) -> bool {
        let state = self.lock();
        state.disk.start().unwrap_or(state.ring.base()) <= position && position <= state.ring.end()
    }

    /// The position behind the last byte written.
    pub fn written(&self) -> u64 {
        self.lock().ring.end()
    }

    /// When the byte before `position` came, in Unix milliseconds.
    pub fn received_ms(&self, position: u64) -> i64 {
        let state = self.lock();
        let after = state.stamps.partition_point(|(at, _)| *at < position);
        state.stamps.get(after.saturating_sub(1)).map_or(0, |(_, ms)| *ms)
    }

    /// Bytes on disk.
    pub fn spool_bytes(&self) -> u64 {
        self.lock().disk.bytes()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock can't leave the state half changed in a way that matters: the job ends.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const BLOCK: usize = BLOCK_BYTES;

    fn block(byte: u8) -> Vec<u8> {
        vec![byte; BLOCK]
    }

    #[tokio::test]
    async fn append_past_the_budget_waits_for_a_release() {
        let journal = Arc::new(Journal::new(100, 4 * BLOCK, None));
        for byte in 0..3 {
            journal.append(&block(byte), i64::from(byte) * 100).await.unwrap();
        }
        assert!(journal.is_full(2 * BLOCK));
        let writer = tokio::spawn({
            let journal = Arc::clone(&journal);
            async move { journal.append(&[9; 2 * BLOCK], 300).await }
        });
        tokio::task::yield_now().await;
        assert!(!writer.is_finished());
        journal.release(100 + 2 * BLOCK as u64);
        writer.await.unwrap().unwrap();
        assert_eq!(journal.written(), 100 + 5 * BLOCK as u64);
        assert_eq!(journal.received_ms(journal.written()), 300);
        journal.end();
        assert_eq!(journal.read(journal.written(), &mut Vec::new(), 1, LONG), Ok(Read::End));
    }

    #[tokio::test]
    async fn budget_that_grows_lets_a_waiting_writer_on() {
        let journal = Arc::new(Journal::new(0, 2 * BLOCK, None));
        journal.append(&block(1), 0).await.unwrap();
        assert!(journal.is_full(2 * BLOCK));
        let writer = tokio::spawn({
            let journal = Arc::clone(&journal);
            async move { journal.append(&[2; 2 * BLOCK], 0).await }
        });
        tokio::task::yield_now().await;
        assert!(!writer.is_finished());
        journal.set_bytes_max(5 * BLOCK);
        writer.await.unwrap().unwrap();
        journal.set_bytes_max(2 * BLOCK);
        assert!(journal.is_full(1));
    }

    #[tokio::test]
    async fn covered_bytes_stay_until_their_room_is_needed() {
        let journal = Arc::new(Journal::new(0, 4 * BLOCK, None));
        journal.append(&block(1), 1).await.unwrap();
        journal.append(&block(2), 1).await.unwrap();
        journal.release(2 * BLOCK as u64);
        assert!(journal.reaches(0));
        for byte in 3..7 {
            journal.append(&block(byte), 1).await.unwrap();
            journal.release(u64::from(byte) * BLOCK as u64);
        }
        assert!(!journal.reaches(0));
        let mut out = Vec::new();
        assert_eq!(journal.read(5 * BLOCK as u64, &mut out, 10, LONG), Ok(Read::Bytes(10)));
        assert_eq!(out, [6; 10]);
    }

    #[tokio::test]
    async fn what_memory_cannot_hold_goes_through_the_disk_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let limit = SpoolLimit::new(1 << 30);
        let spool = Spool { dir: dir.path().join("job"), limit: limit.clone(), name: "stream" };
        let journal = Arc::new(Journal::new(7, 4 * BLOCK, Some(spool)));
        let all: Vec<u8> = (0..700 * BLOCK / 2).map(|i| (i * 31 + i / 999) as u8).collect();
        for piece in all.chunks(100_001) {
            journal.append(piece, 1).await.unwrap();
        }
        assert!(journal.spool_bytes() > 300 * BLOCK as u64);
        let (mut out, mut position) = (Vec::new(), 7);
        while position < journal.written() {
            let Ok(Read::Bytes(n)) = journal.read(position, &mut out, 200_000, LONG) else { panic!("at {position}") };
            position += n as u64;
            journal.release(position);
        }
        assert!(out == all);
        assert_eq!(std::fs::read_dir(dir.path().join("job")).unwrap().count(), 0, "covered segments are deleted");
        assert_eq!(limit.used(), 0);
    }

    /// An append that was given up leaves its spill under way, and the next one looks for room meanwhile.
    #[tokio::test]
    async fn what_is_on_its_way_to_the_disk_stays_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool { dir: dir.path().join("job"), limit: SpoolLimit::new(1 << 30), name: "stream" };
        let journal = Arc::new(Journal::new(0, 8 * BLOCK, Some(spool)));
        let all: Vec<u8> = (0..6 * BLOCK).map(|i| (i * 31 + i / 999) as u8).collect();
        journal.append(&all, 1).await.unwrap();
        let blocks = journal.begin_spill(&mut journal.lock()).unwrap().unwrap();
        journal.release(2 * BLOCK as u64);
        assert!(journal.is_full(7 * BLOCK));
        journal.spill(blocks);
        let (mut out, mut position) = (Vec::new(), 2 * BLOCK as u64);
        while position < journal.written() {
            let Ok(Read::Bytes(n)) = journal.read(position, &mut out, 200_000, LONG) else { panic!("at {position}") };
            position += n as u64;
        }
        assert!(out == all[2 * BLOCK..]);
    }

    #[tokio::test]
    async fn spool_at_its_limit_or_unwritable_is_an_error_that_says_where() {
        let dir = tempfile::tempdir().unwrap();
        let limit = SpoolLimit::new(8 * BLOCK as u64);
        let spool = Spool { dir: dir.path().join("job"), limit: limit.clone(), name: "stream" };
        let other = Journal::new(0, 4 * BLOCK, Some(spool.clone()));
        let journal = Arc::new(Journal::new(0, 4 * BLOCK, Some(spool)));
        let mut result = Ok(());
        for _ in 0..40 {
            result = result.and(journal.append(&block(1), 1).await);
        }
        assert!(matches!(result, Err(Error::Full { .. })));
        // The limit is one for all journals that share it, and what is gone doesn't count.
        let other = Arc::new(other);
        let mut result = Ok(());
        for _ in 0..8 {
            result = result.and(other.append(&block(1), 1).await);
        }
        assert!(matches!(result, Err(Error::Full { .. })) && limit.used() > 0);
        drop((journal, other));
        assert_eq!(limit.used(), 0);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let journal =
            Arc::new(Journal::new(0, 2 * BLOCK, Some(Spool { dir: file, limit: SpoolLimit::new(1 << 30), name: "s" })));
        let mut result = Ok(());
        for _ in 0..4 {
            result = result.and(journal.append(&block(1), 1).await);
        }
        assert!(matches!(result, Err(Error::Write { .. })));
    }

    /// A journal with a spool, `count` blocks that are told by their bytes, and those that are to be spilled now.
    async fn spilling(dir: &tempfile::TempDir, count: u8) -> (Arc<Journal>, Vec<Arc<Vec<u8>>>) {
        let spool = Spool { dir: dir.path().join("job"), limit: SpoolLimit::new(1 << 30), name: "stream" };
        let journal = Arc::new(Journal::new(0, 4 * BLOCK, Some(spool)));
        for byte in 0..count {
            journal.append(&block(byte), 1).await.unwrap();
        }
        let blocks = journal.begin_spill(&mut journal.lock()).unwrap().unwrap();
        (journal, blocks)
    }

    fn byte_at(journal: &Journal, block: u64) -> Result<u8, Error> {
        let mut out = Vec::new();
        journal.read(block * BLOCK as u64, &mut out, 1, LONG).map(|_| out[0])
    }

    #[tokio::test]
    async fn segment_that_is_covered_while_more_is_written_to_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, blocks) = spilling(&dir, 6).await;
        let on_disk = journal.spool_bytes() / BLOCK as u64;
        assert!(on_disk > 0 && on_disk < 6);
        journal.release(on_disk * BLOCK as u64);
        journal.spill(blocks);
        assert_eq!(byte_at(&journal, on_disk), Ok(on_disk as u8));
        journal.release(6 * BLOCK as u64);
        assert_eq!(journal.spool_bytes(), 0);
    }

    #[tokio::test]
    async fn blocks_on_their_way_to_disk_are_not_given_up_before() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, blocks) = spilling(&dir, 3).await;
        journal.release(BLOCK as u64);
        assert!(journal.is_full(4 * BLOCK));
        journal.spill(blocks);
        assert_eq!((byte_at(&journal, 1), byte_at(&journal, 2)), (Ok(1), Ok(2)));
    }

    #[test]
    fn read_of_nothing_ends_by_interrupt_or_time() {
        let journal = Arc::new(Journal::new(0, 10, None));
        assert_eq!(journal.read(0, &mut Vec::new(), 1, Duration::from_millis(1)), Ok(Read::Nothing));
        let reader = std::thread::spawn({
            let journal = Arc::clone(&journal);
            move || journal.read(0, &mut Vec::new(), 1, LONG)
        });
        while !reader.is_finished() {
            journal.interrupt();
        }
        assert_eq!(reader.join().unwrap(), Ok(Read::Nothing));
    }
}
