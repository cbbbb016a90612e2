//! Intset. Source: redis 7.0 src/intset.c.
//!
//! `u32le width, u32le count, integers`, strictly ascending, little-endian, 2, 4 or 8 bytes each.

use super::{Entry, Kind, Pack, int_at, u32_at};
use crate::rdb::error::Fault;

const HEADER_BYTES: usize = 8;

fn bad(reason: &'static str) -> Fault {
    Kind::Intset.bad(reason)
}

pub(super) fn open(blob: &[u8]) -> Result<Pack, Fault> {
    let (Some(width), Some(count)) = (u32_at(blob, 0), u32_at(blob, 4)) else {
        return Err(bad("no room for a header"));
    };
    if !matches!(width, 2 | 4 | 8) {
        return Err(bad("a width that is not 2, 4 or 8"));
    }
    let size = u64::from(width) * u64::from(count) + HEADER_BYTES as u64;
    if size != blob.len() as u64 {
        return Err(bad("another size than its header says"));
    }
    let mut pack = Pack::start(Kind::Intset, HEADER_BYTES, Some(u64::from(count)));
    pack.size = width as usize;
    Ok(pack)
}

pub(super) fn next<'a>(pack: &mut Pack, blob: &'a [u8]) -> Result<Option<Entry<'a>>, Fault> {
    if pack.pos == blob.len() {
        return Ok(None);
    }
    let n = int_at(blob, pack.pos, pack.size).ok_or_else(|| bad("an integer beyond its end"))?;
    if pack.last.is_some_and(|last| last >= n) {
        return Err(bad("integers that don't ascend"));
    }
    pack.last = Some(n);
    pack.pos += pack.size;
    Ok(Some(Entry::Int(n)))
}
