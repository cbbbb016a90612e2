//! Listpack. Source: redis 7.0 src/listpack.c.
//!
//! `u32le total bytes, u16le count, entries, ff`; an entry is its encoding and data, then the size of both, backwards.

use super::{Entry, Kind, Pack, int_at, known_count, u16_at, u32_at};
use crate::rdb::error::Fault;

const HEADER_BYTES: usize = 6;

fn bad(reason: &'static str) -> Fault {
    Kind::Listpack.bad(reason)
}

pub(super) fn open(blob: &[u8]) -> Result<Pack, Fault> {
    let (Some(total), Some(count)) = (u32_at(blob, 0), u16_at(blob, 4)) else {
        return Err(bad("no room for a header"));
    };
    Kind::Listpack.check_frame(blob, HEADER_BYTES, total)?;
    let count = known_count(count);
    Ok(Pack::start(Kind::Listpack, HEADER_BYTES, count))
}

pub(super) fn next<'a>(pack: &mut Pack, blob: &'a [u8]) -> Result<Option<Entry<'a>>, Fault> {
    let at = pack.pos;
    let outside = || bad("an entry beyond its end");
    let first = *blob.get(at).ok_or_else(outside)?;
    if first == 0xff {
        return match at + 1 == blob.len() {
            true => Ok(None),
            false => Err(bad("an end mark before its end")),
        };
    }
    let (entry, size) = entry(blob, at, first).ok_or_else(outside)?.ok_or_else(|| bad("an unknown encoding"))?;
    let back = backlen_bytes(size);
    let written = blob.get(at + size..at + size + back).ok_or_else(outside)?;
    if read_backlen(written) != Some(size) {
        return Err(bad("a wrong back length"));
    }
    pack.pos = at + size + back;
    Ok(Some(entry))
}

/// The entry at `at` and the size of its encoding and data. Outer `None`: it is cut off. Inner: no such encoding.
#[inline]
fn entry(blob: &[u8], at: usize, first: u8) -> Option<Option<(Entry<'_>, usize)>> {
    let string = |head: usize, n: usize| {
        let from = at + head;
        blob.get(from..from.checked_add(n)?).map(|bytes| Some((Entry::Str(bytes), head + n)))
    };
    let int = |width: usize| int_at(blob, at + 1, width).map(|n| Some((Entry::Int(n), 1 + width)));
    match first {
        0x00..=0x7f => Some(Some((Entry::Int(i64::from(first)), 1))),
        0x80..=0xbf => string(1, usize::from(first & 0x3f)),
        0xc0..=0xdf => {
            let n = i64::from(first & 0x1f) << 8 | i64::from(*blob.get(at + 1)?);
            Some(Some((Entry::Int(if n >= 4096 { n - 8192 } else { n }), 2)))
        }
        0xe0..=0xef => {
            let n = usize::from(first & 0x0f) << 8 | usize::from(*blob.get(at + 1)?);
            string(2, n)
        }
        0xf0 => string(5, u32_at(blob, at + 1)? as usize),
        0xf1 => int(2),
        0xf2 => int(3),
        0xf3 => int(4),
        0xf4 => int(8),
        _ => Some(None),
    }
}

/// Appends an integer in its shortest form.
pub(in crate::rdb) fn push_int(out: &mut Vec<u8>, n: i64) {
    let from = out.len();
    let bytes = n.to_le_bytes();
    let mut wide = |first: u8, width: usize| {
        out.push(first);
        out.extend_from_slice(bytes.get(..width).unwrap_or_default());
    };
    match n {
        0..=127 => out.push(n as u8),
        -4096..=4095 => out.extend_from_slice(&(0xc000 | (n as u16 & 0x1fff)).to_be_bytes()),
        -0x8000..=0x7fff => wide(0xf1, 2),
        -0x80_0000..=0x7f_ffff => wide(0xf2, 3),
        -0x8000_0000..=0x7fff_ffff => wide(0xf3, 4),
        _ => wide(0xf4, 8),
    }
    // At most 9 bytes: the back length is one byte.
    out.push((out.len() - from) as u8);
}

/// Writes the size of a listpack that is whole but for that; the number of entries is left.
///
/// # Errors
/// When it is larger than a listpack can say.
pub(in crate::rdb) fn set_header(blob: &mut [u8]) -> Result<(), Fault> {
    let total = u32::try_from(blob.len()).map_err(|_| bad("too large"))?;
    let head = blob.first_chunk_mut::<4>().ok_or_else(|| bad("no room for a header"))?;
    *head = total.to_le_bytes();
    Ok(())
}

/// How many bytes hold the back length of an entry of `size` bytes.
///
/// The edges are the server's: its comparison is strict, so 16,383 already takes three.
pub(super) fn backlen_bytes(size: usize) -> usize {
    match size {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    }
}

/// Seven bits a byte, most significant first; every byte but the first has its high bit set.
fn read_backlen(bytes: &[u8]) -> Option<usize> {
    let (first, rest) = bytes.split_first()?;
    let mut size = usize::from(*first);
    if size > 0x7f {
        return None;
    }
    for byte in rest {
        if byte & 0x80 == 0 {
            return None;
        }
        size = size << 7 | usize::from(byte & 0x7f);
    }
    Some(size)
}
