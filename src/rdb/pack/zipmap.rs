//! Zipmap. Source: redis 2.6 src/zipmap.c.
//!
//! `u8 count or mark, (length, field, length, u8 free, value, free bytes) …, ff`; a length is a byte up to 253, or `fe` and
//! a u32le.

use super::{Entry, Kind, Pack, u32_at};
use crate::rdb::error::Fault;

fn bad(reason: &'static str) -> Fault {
    Kind::Zipmap.bad(reason)
}

pub(super) fn open(blob: &[u8]) -> Result<Pack, Fault> {
    if blob.len() < 2 || blob.last() != Some(&0xff) {
        return Err(bad("no end mark"));
    }
    // The first byte counts pairs, or doesn't: servers ignore it, and so does this.
    Ok(Pack::start(Kind::Zipmap, 1, None))
}

pub(super) fn next<'a>(pack: &mut Pack, blob: &'a [u8]) -> Result<Option<Entry<'a>>, Fault> {
    let outside = || bad("an entry beyond its end");
    let at = pack.pos;
    let is_value = pack.seen % 2 == 1;
    let first = *blob.get(at).ok_or_else(outside)?;
    if first == 0xff && !is_value {
        return match at + 1 == blob.len() {
            true => Ok(None),
            false => Err(bad("an end mark before its end")),
        };
    }
    let (len, head) = match first {
        0xff => return Err(bad("a field without a value")),
        0xfe => (u32_at(blob, at + 1).ok_or_else(outside)? as usize, 5),
        _ => (usize::from(first), 1),
    };
    let mut from = at + head;
    let mut free = 0;
    if is_value {
        free = usize::from(*blob.get(from).ok_or_else(outside)?);
        from += 1;
    }
    let end = from.checked_add(len).ok_or_else(outside)?;
    let bytes = blob.get(from..end).ok_or_else(outside)?;
    pack.pos = end + free;
    if pack.pos >= blob.len() {
        return Err(outside());
    }
    Ok(Some(Entry::Str(bytes)))
}
