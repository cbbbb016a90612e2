//! The raw bytes of a source, addressed by their position: written at the speed of the socket, read at the
//! target's. The snapshot and the replication stream each go through one.

mod ring;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use ring::Ring;

/// Bytes between one writer (a task) and one reader (a thread), bounded.
///
/// The reader may go back to any position from the last [`Journal::release`] on.
#[derive(Debug)]
pub struct Journal {
    state: Mutex<State>,
    /// The reader waits here for bytes.
    readable: Condvar,
    /// The writer waits here for room.
    room: Notify,
    bytes_max: usize,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    ended: bool,
    /// Counts [`Journal::interrupt`]s, so that none is missed between two reads.
    interrupts: u64,
    /// Up to here bytes are taken whatever the budget says.
    needed: u64,
}

impl State {
    /// One piece always fits into an empty ring, whatever the budget.
    fn has_room(&self, bytes: usize, bytes_max: usize) -> bool {
        self.ring.is_empty() || self.ring.len() + bytes <= bytes_max || self.ring.end() < self.needed
    }
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

impl Journal {
    /// Begins at position `start` and holds at most `bytes_max` bytes.
    pub fn new(start: u64, bytes_max: usize) -> Self {
        Journal {
            state: Mutex::new(State { ring: Ring::new(start), ended: false, interrupts: 0, needed: 0 }),
            readable: Condvar::new(),
            room: Notify::new(),
            bytes_max,
        }
    }

    /// Appends `bytes`, received at `now_ms` (Unix time), waiting for room; true if it had to wait.
    ///
    /// Cancel-safe: either all of `bytes` is there, or nothing of it.
    pub async fn append(&self, bytes: &[u8], now_ms: i64) -> bool {
        let mut waited = false;
        loop {
            let room = self.room.notified();
            {
                let mut state = self.lock();
                if state.has_room(bytes.len(), self.bytes_max) {
                    state.ring.append(bytes, now_ms);
                    self.readable.notify_one();
                    return waited;
                }
            }
            waited = true;
            room.await;
        }
    }

    /// True when less than `bytes` more would fit.
    pub fn is_full(&self, bytes: usize) -> bool {
        !self.lock().has_room(bytes, self.bytes_max)
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
    pub fn read(&self, position: u64, out: &mut Vec<u8>, bytes_max: usize, wait: Duration) -> Read {
        let mut state = self.lock();
        let interrupts = state.interrupts;
        if state.ring.end() <= position && !state.ended {
            let idle = |s: &mut State| s.ring.end() <= position && !s.ended && s.interrupts == interrupts;
            state = self
                .readable
                .wait_timeout_while(state, wait, idle)
                .map_or_else(|e| e.into_inner().0, |(state, _)| state);
        }
        match state.ring.read(position, out, bytes_max) {
            0 if state.ended => Read::End,
            0 => Read::Nothing,
            n => Read::Bytes(n),
        }
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

    /// Gives up the bytes before `position`: they will not be asked for again.
    pub fn release(&self, position: u64) {
        if self.lock().ring.release(position) {
            self.room.notify_one();
        }
    }

    /// The position behind the last byte written.
    pub fn written(&self) -> u64 {
        self.lock().ring.end()
    }

    /// When the byte before `position` came, in Unix milliseconds.
    pub fn received_ms(&self, position: u64) -> i64 {
        self.lock().ring.received_ms(position)
    }

    /// How many bytes are held.
    pub fn held_bytes(&self) -> usize {
        self.lock().ring.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock can't leave the ring half changed in a way that matters: the job ends.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn append_past_the_budget_waits_for_a_release() {
        let journal = Arc::new(Journal::new(100, 10));
        assert!(!journal.append(b"12345678", 1).await);
        assert!(journal.is_full(3));
        let writer = tokio::spawn({
            let journal = Arc::clone(&journal);
            async move { journal.append(b"abc", 50).await }
        });
        tokio::task::yield_now().await;
        let mut out = Vec::new();
        assert_eq!(journal.read(100, &mut out, 100, LONG), Read::Bytes(8));
        journal.release(104);
        assert!(writer.await.unwrap(), "it waited");
        assert_eq!(journal.read(108, &mut out, 100, LONG), Read::Bytes(3));
        assert_eq!(out, b"12345678abc");
        assert_eq!((journal.received_ms(108), journal.received_ms(109)), (1, 50));
        journal.end();
        assert_eq!(journal.read(111, &mut out, 100, LONG), Read::End);
    }

    #[test]
    fn read_of_nothing_ends_by_interrupt_or_time() {
        let journal = Arc::new(Journal::new(0, 10));
        let mut out = Vec::new();
        assert_eq!(journal.read(0, &mut out, 1, Duration::from_millis(1)), Read::Nothing);
        let reader = std::thread::spawn({
            let journal = Arc::clone(&journal);
            move || journal.read(0, &mut Vec::new(), 1, LONG)
        });
        while !reader.is_finished() {
            journal.interrupt();
        }
        assert_eq!(reader.join().unwrap(), Read::Nothing);
    }
}
