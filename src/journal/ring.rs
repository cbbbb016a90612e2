//! Bytes in memory, addressed by position, in blocks that are used again.

use std::collections::VecDeque;

/// A block's size: large enough that its bookkeeping doesn't show, small enough that an idle job holds little.
const BLOCK_BYTES: usize = 256 * 1024;

/// Empty blocks kept for the next bytes; more go back to the allocator.
const SPARE_BLOCKS_MAX: usize = 8;

/// Receive times closer together than this share one entry.
const STAMP_MS: i64 = 10;

#[derive(Debug)]
pub struct Ring {
    /// Position of the first block's first byte.
    base: u64,
    /// Position before which everything was released; within the first block.
    released: u64,
    end: u64,
    blocks: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// (position, ms): what lies from this position on came at this time or up to `STAMP_MS` later.
    stamps: VecDeque<(u64, i64)>,
}

impl Ring {
    pub fn new(start: u64) -> Self {
        Ring {
            base: start,
            released: start,
            end: start,
            blocks: VecDeque::new(),
            spare: Vec::new(),
            stamps: VecDeque::new(),
        }
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn len(&self) -> usize {
        (self.end - self.released) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.end == self.released
    }

    pub fn append(&mut self, mut bytes: &[u8], now_ms: i64) {
        if self.stamps.back().is_none_or(|(_, ms)| now_ms - ms >= STAMP_MS) {
            self.stamps.push_back((self.end, now_ms));
        }
        self.end += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.blocks.back().is_none_or(|b| b.len() == BLOCK_BYTES) {
                self.blocks.push_back(self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BLOCK_BYTES)));
            }
            let Some(block) = self.blocks.back_mut() else { return };
            let (here, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - block.len()));
            block.extend_from_slice(here);
            bytes = later;
        }
    }

    /// Appends what lies from `position` on to `out`, at most `bytes_max`; returns how many bytes that were.
    ///
    /// `position` must not lie before what was released.
    pub fn read(&self, position: u64, out: &mut Vec<u8>, bytes_max: usize) -> usize {
        assert!(position >= self.released, "read at {position}, but only {} on is held", self.released);
        let mut at = (position - self.base) as usize;
        let mut left = bytes_max;
        while let Some(rest) = self.blocks.get(at / BLOCK_BYTES).and_then(|b| b.get(at % BLOCK_BYTES..)) {
            let here = rest.get(..left.min(rest.len())).unwrap_or_default();
            if here.is_empty() {
                break;
            }
            out.extend_from_slice(here);
            at += here.len();
            left -= here.len();
        }
        bytes_max - left
    }

    /// Gives up everything before `position`; true if that freed any.
    pub fn release(&mut self, position: u64) -> bool {
        let position = position.min(self.end);
        if position <= self.released {
            return false;
        }
        self.released = position;
        while position - self.base >= BLOCK_BYTES as u64 {
            let Some(mut block) = self.blocks.pop_front() else { break };
            self.base += BLOCK_BYTES as u64;
            if self.spare.len() < SPARE_BLOCKS_MAX {
                block.clear();
                self.spare.push(block);
            }
        }
        while self.stamps.get(1).is_some_and(|(at, _)| *at <= position) {
            self.stamps.pop_front();
        }
        true
    }

    /// When the byte before `position` came.
    pub fn received_ms(&self, position: u64) -> i64 {
        let after = self.stamps.partition_point(|(at, _)| *at < position);
        self.stamps.get(after.saturating_sub(1)).map_or(0, |(_, ms)| *ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn read_of_any_range_gives_what_was_written(
            pieces in prop::collection::vec(1usize..200_000, 1..12), cuts in prop::collection::vec(0.0f64..1.0, 1..12),
        ) {
            let (mut ring, mut all, start) = (Ring::new(7), Vec::new(), 7u64);
            for (i, (len, cut)) in pieces.iter().zip(cuts.iter().cycle()).enumerate() {
                let piece: Vec<u8> = (0..*len).map(|b| (b * 31 + i) as u8).collect();
                ring.append(&piece, i as i64 * 100);
                all.extend_from_slice(&piece);
                let from = ((all.len() as f64 * cut) as u64).max(ring.released - start);
                ring.release(start + from);
                let mut out = Vec::new();
                let n = ring.read(start + from, &mut out, 100_000);
                let want = &all[from as usize..(from as usize + 100_000).min(all.len())];
                prop_assert_eq!(n, want.len());
                prop_assert!(out == want);
                prop_assert_eq!(ring.received_ms(ring.end()), i as i64 * 100);
            }
            prop_assert!(ring.blocks.len() * BLOCK_BYTES <= ring.len() + 2 * BLOCK_BYTES);
        }
    }
}
