//! Streams that Redis 8.10 refuses: 7.0 to 8.0 and Valkey let a group's entries_read exceed the stream's entries_added.

use std::borrow::Cow;

use super::fault_in;
use crate::rdb::decoder::RawValue;
use crate::rdb::error::{Error, Step};
use crate::rdb::length::{Reader, write_len};
use crate::rdb::opcode;

/// What "unknown" is written as.
const UNKNOWN: u64 = u64::MAX;

/// Bytes of an id.
const ID: u64 = 16;

/// The same stream, with every entries_read at most entries_added; borrowed if nothing was to be done.
pub(super) fn clamp_entries_read<'a>(raw: &RawValue<'a>) -> Result<Cow<'a, [u8]>, Error> {
    let mut r = Reader::new(raw.bytes);
    let mut patched = None;
    let mut done = 0;
    clamp(&mut r, raw, &mut patched, &mut done).map_err(|stop| fault_in(raw, r.pos(), stop))?;
    Ok(match patched {
        None => Cow::Borrowed(raw.bytes),
        Some(mut bytes) => {
            bytes.extend_from_slice(raw.bytes.get(done..).unwrap_or_default());
            Cow::Owned(bytes)
        }
    })
}

fn clamp(r: &mut Reader<'_>, raw: &RawValue<'_>, patched: &mut Option<Vec<u8>>, done: &mut usize) -> Step<()> {
    for _ in 0..r.len()? {
        r.pass_string()?;
        r.pass_string()?;
    }
    // length, last, first and max-deleted id
    for _ in 0..7 {
        r.len()?;
    }
    let entries_added = r.len()?;
    for _ in 0..r.len()? {
        r.pass_string()?;
        r.len()?;
        r.len()?;
        let from = r.pos();
        let entries_read = r.len()?;
        if entries_read != UNKNOWN && entries_read > entries_added {
            let bytes = patched.get_or_insert_default();
            bytes.extend_from_slice(raw.bytes.get(*done..from).unwrap_or_default());
            write_len(bytes, entries_added);
            *done = r.pos();
        }
        pass_pending_and_consumers(r, raw.value_type)?;
    }
    Ok(())
}

fn pass_pending_and_consumers(r: &mut Reader<'_>, value_type: u8) -> Step<()> {
    for _ in 0..r.len()? {
        r.take(ID + 8)?;
        r.len()?;
    }
    let times = if value_type == opcode::STREAM_2 { 8 } else { 16 };
    for _ in 0..r.len()? {
        r.pass_string()?;
        r.take(times)?;
        pass_ids(r)?;
    }
    if value_type == opcode::STREAM_5 {
        pass_ids(r)?;
    }
    Ok(())
}

fn pass_ids(r: &mut Reader<'_>) -> Step<()> {
    for _ in 0..r.len()? {
        r.take(ID)?;
    }
    Ok(())
}
