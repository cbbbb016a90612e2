//! Containers that hold a small collection in one run of bytes: listpack, ziplist, intset, zipmap.
//!
//! [`Pack`] walks one from front to back and checks it on the way as strictly as a server that sanitizes: the sizes in its
//! header, every entry inside, back references, counts, the end mark.

mod intset;
mod listpack;
mod ziplist;
mod zipmap;

use super::error::Fault;
pub(super) use listpack::{push_int, set_header};

/// What a container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Listpack,
    Ziplist,
    Intset,
    /// Gives field, value, field, value.
    Zipmap,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Listpack => "listpack",
            Kind::Ziplist => "ziplist",
            Kind::Intset => "intset",
            Kind::Zipmap => "zipmap",
        }
    }

    fn bad(self, reason: &'static str) -> Fault {
        Fault::BadPack { what: self.name(), reason }
    }

    /// What listpacks and ziplists have alike: their size in bytes in front, an end mark behind.
    fn check_frame(self, blob: &[u8], header_bytes: usize, total: u32) -> Result<(), Fault> {
        if total as usize != blob.len() {
            return Err(self.bad("another size than its header says"));
        }
        if blob.len() <= header_bytes || blob.last() != Some(&0xff) {
            return Err(self.bad("no end mark"));
        }
        Ok(())
    }
}

/// A header's count; the largest says that there are too many to tell.
fn known_count(count: u16) -> Option<u64> {
    (count != u16::MAX).then_some(u64::from(count))
}

/// One entry; integers stand for their decimal text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    Str(&'a [u8]),
    Int(i64),
}

impl Entry<'_> {
    pub fn to_vec(self) -> Vec<u8> {
        match self {
            Entry::Str(bytes) => bytes.to_vec(),
            Entry::Int(n) => n.to_string().into_bytes(),
        }
    }

    /// The entry as an integer: an integer entry, or one whose text is a canonical decimal.
    pub fn to_int(self) -> Option<i64> {
        match self {
            Entry::Int(n) => Some(n),
            Entry::Str(text) => {
                let n: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
                (n.to_string().as_bytes() == text).then_some(n)
            }
        }
    }
}

/// A walk through one container. It doesn't hold the bytes: give the same ones to every call.
#[derive(Debug)]
pub(super) struct Pack {
    kind: Kind,
    pos: usize,
    /// Entries given so far.
    seen: u64,
    /// The number of entries that the header claims, if it knows.
    count: Option<u64>,
    /// Size of the entry before this one (ziplist), or the integers' width (intset).
    size: usize,
    /// Offset of the last entry as the header has it (ziplist).
    tail: usize,
    /// The integer before this one (intset).
    last: Option<i64>,
    done: bool,
}

impl Pack {
    /// Checks the header.
    pub fn new(kind: Kind, blob: &[u8]) -> Result<Self, Fault> {
        match kind {
            Kind::Listpack => listpack::open(blob),
            Kind::Ziplist => ziplist::open(blob),
            Kind::Intset => intset::open(blob),
            Kind::Zipmap => zipmap::open(blob),
        }
    }

    /// Where the next entry begins.
    pub fn pos(&self) -> usize {
        self.pos
    }

    fn start(kind: Kind, pos: usize, count: Option<u64>) -> Self {
        Pack { kind, pos, seen: 0, count, size: 0, tail: 0, last: None, done: false }
    }

    /// The next entry, or `None` once at the end, when the whole of `blob` has been checked.
    pub fn next<'a>(&mut self, blob: &'a [u8]) -> Result<Option<Entry<'a>>, Fault> {
        if self.done {
            return Ok(None);
        }
        let entry = match self.kind {
            Kind::Listpack => listpack::next(self, blob),
            Kind::Ziplist => ziplist::next(self, blob),
            Kind::Intset => intset::next(self, blob),
            Kind::Zipmap => zipmap::next(self, blob),
        }?;
        match entry {
            Some(_) => self.seen += 1,
            None if self.count.is_some_and(|count| count != self.seen) => {
                return Err(self.kind.bad("another number of entries than its header says"));
            }
            None => self.done = true,
        }
        Ok(entry)
    }
}

/// Little-endian numbers at a place in a blob.
fn u16_at(blob: &[u8], at: usize) -> Option<u16> {
    blob.get(at..)?.first_chunk().map(|b| u16::from_le_bytes(*b))
}

fn u32_at(blob: &[u8], at: usize) -> Option<u32> {
    blob.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

/// A signed little-endian integer of 1, 2, 3, 4 or 8 bytes.
fn int_at(blob: &[u8], at: usize, width: usize) -> Option<i64> {
    let bytes = blob.get(at..at.checked_add(width)?)?;
    let negative = bytes.last()? & 0x80 != 0;
    let mut wide = if negative { [0xff; 8] } else { [0; 8] };
    wide.get_mut(..width)?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(wide))
}
