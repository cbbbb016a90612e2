//! Streams that would hurt a target or be refused by it.
//!
//! Redis 8.2 and 8.6 load a pending entry that no consumer owns, and XPENDING ends them then. Redis 8.10 refuses a group
//! whose entries_read exceeds the stream's entries_added, which 7.0 to 8.0 and Valkey allow.

use std::borrow::Cow;

use super::fault_in;
use crate::rdb::decoder::RawValue;
use crate::rdb::error::{Error, Fault, Step};
use crate::rdb::length::{Reader, write_len};
use crate::rdb::opcode;

/// What "unknown" is written as.
const UNKNOWN: u64 = u64::MAX;

/// Bytes of an id.
const ID: u64 = 16;

/// The same stream, looked through; with `clamps` every entries_read is at most entries_added. Borrowed if nothing was to
/// be done.
///
/// # Errors
/// When a pending entry has no owner, or the bytes are not what the type says.
pub(super) fn made_safe<'a>(raw: &RawValue<'a>, clamps: bool) -> Result<Cow<'a, [u8]>, Error> {
    let mut patch = Patch { r: Reader::new(raw.bytes), raw, clamps, patched: None, done: 0 };
    patch.stream().map_err(|stop| fault_in(raw, patch.r.pos(), stop))?;
    Ok(match patch.patched {
        None => Cow::Borrowed(raw.bytes),
        Some(mut bytes) => {
            bytes.extend_from_slice(raw.bytes.get(patch.done..).unwrap_or_default());
            Cow::Owned(bytes)
        }
    })
}

struct Patch<'r, 'a> {
    r: Reader<'a>,
    raw: &'r RawValue<'a>,
    clamps: bool,
    patched: Option<Vec<u8>>,
    /// The value's bytes up to here are in `patched`.
    done: usize,
}

impl Patch<'_, '_> {
    fn stream(&mut self) -> Step<()> {
        for _ in 0..self.r.len()? {
            self.r.pass_string()?;
            self.r.pass_string()?;
        }
        let counted = self.raw.value_type != opcode::STREAM;
        // Length and last id; then first and greatest deleted id.
        for _ in 0..if counted { 7 } else { 3 } {
            self.r.len()?;
        }
        let entries_added = if counted { Some(self.r.len()?) } else { None };
        for _ in 0..self.r.len()? {
            self.r.pass_string()?;
            self.r.len()?;
            self.r.len()?;
            if let Some(entries_added) = entries_added {
                self.entries_read(entries_added)?;
            }
            self.pending_and_consumers()?;
        }
        Ok(())
    }

    fn entries_read(&mut self, entries_added: u64) -> Step<()> {
        let from = self.r.pos();
        let entries_read = self.r.len()?;
        if self.clamps && entries_read != UNKNOWN && entries_read > entries_added {
            let bytes = self.patched.get_or_insert_default();
            bytes.extend_from_slice(self.raw.bytes.get(self.done..from).unwrap_or_default());
            write_len(bytes, entries_added);
            self.done = self.r.pos();
        }
        Ok(())
    }

    fn pending_and_consumers(&mut self) -> Step<()> {
        let pending = self.r.len()?;
        for _ in 0..pending {
            self.r.take(ID + 8)?;
            self.r.len()?;
        }
        let times = if matches!(self.raw.value_type, opcode::STREAM | opcode::STREAM_2) { 8 } else { 16 };
        let mut owned = 0;
        for _ in 0..self.r.len()? {
            self.r.pass_string()?;
            self.r.take(times)?;
            owned += self.ids()?;
        }
        if self.raw.value_type == opcode::STREAM_5 {
            owned += self.ids()?;
        }
        if owned != pending {
            return Err(Fault::Corrupt("a pending entry of a group belongs to no consumer").into());
        }
        Ok(())
    }

    /// Passes over ids; returns how many.
    fn ids(&mut self) -> Step<u64> {
        let ids = self.r.len()?;
        for _ in 0..ids {
            self.r.take(ID)?;
        }
        Ok(ids)
    }
}
