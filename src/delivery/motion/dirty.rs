//! The keys of a set in motion that must be copied, and where those stand that were.

use std::collections::{BTreeMap, BTreeSet};

use crate::offset::ReplOffset;

/// A key of a source database.
pub type Name = (u32, Vec<u8>);

/// What holding a key costs beside its bytes, about.
const KEY_BYTES: usize = 100;

/// What is known of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was said of it.
    Free,
    /// It must be copied.
    Unknown,
    /// It was copied as it stood at this offset of its new feeder.
    At(ReplOffset),
}

/// Keys to copy, keys being copied, and copied ones.
#[derive(Debug, Default)]
pub struct Dirty {
    waiting: BTreeSet<Name>,
    /// Being read from the source.
    taken: BTreeSet<Name>,
    copied: BTreeMap<Name, ReplOffset>,
    /// No copied key stands behind this offset.
    until: ReplOffset,
    bytes: usize,
}

impl Dirty {
    /// The key's value is unknown from here on, even if it is being read right now.
    pub fn note(&mut self, name: Name) {
        if self.waiting.contains(&name) {
            return;
        }
        let known = self.taken.remove(&name) || self.copied.remove(&name).is_some();
        if !known {
            self.bytes += name.1.len() + KEY_BYTES;
        }
        self.waiting.insert(name);
    }

    pub fn standing(&self, name: &Name) -> Standing {
        match self.copied.get(name) {
            Some(at) => Standing::At(*at),
            None if self.waiting.contains(name) || self.taken.contains(name) => Standing::Unknown,
            None => Standing::Free,
        }
    }

    /// Takes at most `count` keys, to be read.
    pub fn take(&mut self, count: usize) -> Vec<Name> {
        let mut keys = Vec::new();
        while keys.len() < count
            && let Some(name) = self.waiting.pop_first()
        {
            self.taken.insert(name.clone());
            keys.push(name);
        }
        keys
    }

    /// Keys that were taken stand at `at` now, but for those noted meanwhile: whether the copy has that isn't known.
    pub fn copied(&mut self, keys: &[Name], at: ReplOffset) {
        self.until = self.until.max(at);
        for name in keys {
            if let Some(name) = self.taken.take(name) {
                self.copied.insert(name, at);
            }
        }
    }

    /// The copied keys that stand behind an offset.
    pub fn copies_behind(&self, offset: ReplOffset) -> Vec<(Name, ReplOffset)> {
        let behind = self.copied.iter().filter(|(_, at)| **at > offset);
        behind.map(|(name, at)| (name.clone(), *at)).collect()
    }

    /// No copy is to be relied on: all are made again.
    pub fn doubt(&mut self) {
        self.waiting.append(&mut self.taken);
        self.waiting.extend(std::mem::take(&mut self.copied).into_keys());
        self.until = ReplOffset(0);
    }

    /// Reading failed.
    pub fn give_back(&mut self) {
        self.waiting.append(&mut self.taken);
    }

    pub fn clear(&mut self) {
        *self = Dirty::default();
    }

    /// True when every key noted was copied.
    pub fn is_clean(&self) -> bool {
        self.waiting.is_empty() && self.taken.is_empty()
    }

    /// No copied key stands behind this offset.
    pub fn until(&self) -> ReplOffset {
        self.until
    }

    /// About how much memory the keys take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &str) -> Name {
        (0, key.into())
    }

    #[test]
    fn key_noted_while_it_is_read_is_copied_again() {
        let mut dirty = Dirty::default();
        dirty.note(name("a"));
        dirty.note(name("b"));
        let keys = dirty.take(9);
        dirty.note(name("b"));
        dirty.copied(&keys, ReplOffset(7));
        assert_eq!(dirty.standing(&name("a")), Standing::At(ReplOffset(7)));
        assert_eq!(dirty.standing(&name("b")), Standing::Unknown);
        assert_eq!((dirty.take(9), dirty.until()), (vec![name("b")], ReplOffset(7)));
    }

    #[test]
    fn bytes_count_each_key_once_through_all_its_states() {
        let mut dirty = Dirty::default();
        for _ in 0..3 {
            dirty.note(name("a"));
            assert_eq!(dirty.bytes(), 1 + KEY_BYTES);
            let keys = dirty.take(1);
            dirty.copied(&keys, ReplOffset(1));
            assert!(dirty.is_clean());
        }
        dirty.doubt();
        assert_eq!((dirty.take(9).len(), dirty.bytes()), (1, 1 + KEY_BYTES));
    }
}
