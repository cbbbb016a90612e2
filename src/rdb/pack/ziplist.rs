//! Ziplist. Source: redis 6.2 src/ziplist.c.
//!
//! `u32le total bytes, u32le tail offset, u16le count, entries, ff`; an entry is the size of the one before it, its encoding
//! and its data.

use super::{Entry, Kind, Pack, int_at, known_count, u16_at, u32_at};
use crate::rdb::error::Fault;

const HEADER_BYTES: usize = 10;

fn bad(reason: &'static str) -> Fault {
    Kind::Ziplist.bad(reason)
}

pub(super) fn open(blob: &[u8]) -> Result<Pack, Fault> {
    let (Some(total), Some(tail), Some(count)) = (u32_at(blob, 0), u32_at(blob, 4), u16_at(blob, 8)) else {
        return Err(bad("no room for a header"));
    };
    Kind::Ziplist.check_frame(blob, HEADER_BYTES, total)?;
    let count = known_count(count);
    let mut pack = Pack::start(Kind::Ziplist, HEADER_BYTES, count);
    pack.tail = tail as usize;
    Ok(pack)
}

pub(super) fn next<'a>(pack: &mut Pack, blob: &'a [u8]) -> Result<Option<Entry<'a>>, Fault> {
    let at = pack.pos;
    let outside = || bad("an entry beyond its end");
    let first = *blob.get(at).ok_or_else(outside)?;
    if first == 0xff {
        if at + 1 != blob.len() {
            return Err(bad("an end mark before its end"));
        }
        return match at - pack.size == pack.tail {
            true => Ok(None),
            false => Err(bad("a tail offset that is not its last entry's")),
        };
    }
    let (previous, head) = match first {
        0xfe => (u32_at(blob, at + 1).ok_or_else(outside)? as usize, 5),
        _ => (usize::from(first), 1),
    };
    if previous != pack.size {
        return Err(bad("an entry that has the size before it wrong"));
    }
    let (entry, size) = entry(blob, at + head).ok_or_else(outside)?.ok_or_else(|| bad("an unknown encoding"))?;
    pack.size = head + size;
    pack.pos = at + pack.size;
    // The end mark is no part of an entry.
    if pack.pos >= blob.len() {
        return Err(outside());
    }
    Ok(Some(entry))
}

/// The entry whose encoding is at `at`, and its size with it. Outer `None`: it is cut off. Inner: no such encoding.
fn entry(blob: &[u8], at: usize) -> Option<Option<(Entry<'_>, usize)>> {
    let first = *blob.get(at)?;
    let string = |head: usize, n: usize| {
        let from = at + head;
        blob.get(from..from.checked_add(n)?).map(|bytes| Some((Entry::Str(bytes), head + n)))
    };
    let int = |width: usize| int_at(blob, at + 1, width).map(|n| Some((Entry::Int(n), 1 + width)));
    match first {
        0x00..=0x3f => string(1, usize::from(first)),
        0x40..=0x7f => string(2, usize::from(first & 0x3f) << 8 | usize::from(*blob.get(at + 1)?)),
        0x80 => string(5, u32_at(blob, at + 1)?.swap_bytes() as usize),
        0xc0 => int(2),
        0xd0 => int(4),
        0xe0 => int(8),
        0xf0 => int(3),
        0xfe => int(1),
        0xf1..=0xfd => Some(Some((Entry::Int(i64::from(first & 0x0f) - 1), 1))),
        _ => Some(None),
    }
}
