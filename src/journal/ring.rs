//! Bytes in memory, addressed by position, in blocks that are used again.

use std::collections::VecDeque;
use std::sync::Arc;

/// A block's size: large enough that its bookkeeping doesn't show, small enough that an idle job holds little.
pub const BLOCK_BYTES: usize = 256 * 1024;

/// Empty blocks kept for the next bytes; more go back to the allocator.
const SPARE_BLOCKS_MAX: usize = 8;

#[derive(Debug)]
pub struct Ring {
    /// Position of the first block's first byte.
    base: u64,
    end: u64,
    /// All but the last are full, and may be shared with whoever writes them to disk.
    blocks: VecDeque<Arc<Vec<u8>>>,
    spare: Vec<Vec<u8>>,
}

impl Ring {
    pub fn new(start: u64) -> Self {
        Ring { base: start, end: start, blocks: VecDeque::new(), spare: Vec::new() }
    }

    /// The position of the first byte that is held.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The position behind the last.
    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn len(&self) -> usize {
        (self.end - self.base) as usize
    }

    pub fn append(&mut self, mut bytes: &[u8]) {
        self.end += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.blocks.back().is_none_or(|b| b.len() == BLOCK_BYTES) {
                let block = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BLOCK_BYTES));
                self.blocks.push_back(Arc::new(block));
            }
            // The last block is shared only when it is full.
            let Some(block) = self.blocks.back_mut().and_then(Arc::get_mut) else { return };
            let (here, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - block.len()));
            block.extend_from_slice(here);
            bytes = later;
        }
    }

    /// Appends what lies from `position` on to `out`, at most `bytes_max`; returns how many bytes that were.
    ///
    /// `position` must not lie before the ring's base.
    pub fn read(&self, position: u64, out: &mut Vec<u8>, bytes_max: usize) -> usize {
        assert!(position >= self.base, "read at {position}, but only {} on is held", self.base);
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

    /// The oldest full blocks, at most `count`.
    pub fn oldest(&self, count: usize) -> Vec<Arc<Vec<u8>>> {
        self.blocks.iter().take(count).filter(|b| b.len() == BLOCK_BYTES).cloned().collect()
    }

    /// Gives up the oldest block if it lies before `position`; true if it did.
    pub fn drop_oldest(&mut self, position: u64) -> bool {
        let full = self.blocks.front().is_some_and(|b| b.len() == BLOCK_BYTES);
        if !full || self.base + BLOCK_BYTES as u64 > position {
            return false;
        }
        self.base += BLOCK_BYTES as u64;
        if let Some(mut block) = self.blocks.pop_front().and_then(Arc::into_inner)
            && self.spare.len() < SPARE_BLOCKS_MAX
        {
            block.clear();
            self.spare.push(block);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn read_of_any_range_gives_what_was_written(
            pieces in prop::collection::vec(1usize..400_000, 1..12), cuts in prop::collection::vec(0.0f64..1.0, 1..12),
        ) {
            let (mut ring, mut all, start) = (Ring::new(7), Vec::<u8>::new(), 7u64);
            for (i, (len, cut)) in pieces.iter().zip(cuts.iter().cycle()).enumerate() {
                let piece: Vec<u8> = (0..*len).map(|b| (b * 31 + i) as u8).collect();
                ring.append(&piece);
                all.extend_from_slice(&piece);
                let from = ((all.len() as f64 * cut) as u64).max(ring.base() - start);
                while ring.drop_oldest(start + from) {}
                let mut out = Vec::new();
                let n = ring.read(start + from, &mut out, 100_000);
                let want = &all[from as usize..(from as usize + 100_000).min(all.len())];
                prop_assert_eq!(n, want.len());
                prop_assert!(out == want);
                prop_assert!(start + from - ring.base() < BLOCK_BYTES as u64);
            }
        }
    }
}
