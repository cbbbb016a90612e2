//! Hash slots: which of 16384 a key falls in, as every Redis and Valkey server computes it.

use std::fmt;

mod set;
mod tag;

pub use set::Slots;
pub use tag::{TAG_LEN_MAX, tag};

/// How many hash slots there are.
pub const SLOTS: u16 = 16384;

/// A hash slot, 0..16384.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    pub const FIRST: Slot = Slot(0);

    /// The slot of `key`: CRC16 of its hash tag where it has one, else of the whole key.
    ///
    /// The tag is what stands between the first `{` and the first `}` after it, if that is not empty.
    /// Source: redis 7.0 src/cluster.c, keyHashSlot.
    pub fn of(key: &[u8]) -> Slot {
        Slot(crc16(hash_tag(key)) % SLOTS)
    }

    /// The slot of that number; `None` from 16384 on.
    pub fn new(number: u16) -> Option<Slot> {
        (number < SLOTS).then_some(Slot(number))
    }

    pub fn number(self) -> u16 {
        self.0
    }

    /// The slot's place in a table of all.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Every slot, in order.
    pub fn all() -> impl Iterator<Item = Slot> {
        (0..SLOTS).map(Slot)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr::memchr(b'{', key) else {
        return key;
    };
    let Some(rest) = key.get(open + 1..) else {
        return key;
    };
    match memchr::memchr(b'}', rest) {
        Some(len) if len > 0 => rest.get(..len).unwrap_or(key),
        _ => key,
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, initial value 0, not reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC16: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_of_known_keys_equals_the_servers() {
        // From CLUSTER KEYSLOT of redis 7.0.15.
        for (key, slot) in
            [("123456789", 12739), ("foo", 12182), ("{user1000}.following", 3443), ("user1000", 3443), ("", 0)]
        {
            assert_eq!(Slot::of(key.as_bytes()).number(), slot, "{key}");
        }
    }

    #[test]
    fn slot_of_odd_braces_follows_the_first_open_and_its_close() {
        let whole = |k: &str| crc16(k.as_bytes()) % SLOTS;
        assert_eq!(Slot::of(b"{}x").number(), whole("{}x"));
        assert_eq!(Slot::of(b"foo{}{bar}").number(), whole("foo{}{bar}"));
        assert_eq!(Slot::of(b"foo{{bar}}zap").number(), whole("{bar"));
        assert_eq!(Slot::of(b"foo{bar}{zap}").number(), whole("bar"));
        assert_eq!(Slot::of(b"foo{bar").number(), whole("foo{bar"));
    }
}
