//! Streams as a target takes them: of a type that it knows, and without what would hurt it or be refused.
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

/// The settings of idempotent producers that a stream has without being given any.
const IDMP_USUAL: (u64, u64) = (100, 100);

/// The types of streams, each of which says more than the one before: 19 counts entries, 21 knows when consumers were active,
/// 26 has idempotent producers, 27 pending entries of no consumer.
const TYPES: [u8; 5] = [opcode::STREAM, opcode::STREAM_2, opcode::STREAM_3, opcode::STREAM_4, opcode::STREAM_5];

/// Whether a value is a stream.
pub(super) fn is_stream(value_type: u8) -> bool {
    TYPES.contains(&value_type)
}

/// The same stream as type `to`, looked through; with `clamps` every entries_read is at most entries_added. Borrowed if
/// nothing was to be done, `None` if it holds what the type can't. Counters of entries and consumers' times that the type
/// lacks are left out.
///
/// # Errors
/// When a pending entry has no owner, or the bytes are not what the type says.
pub(super) fn as_type<'a>(raw: &RawValue<'a>, to: u8, clamps: bool) -> Result<Option<Cow<'a, [u8]>>, Error> {
    let mut patch = Patch {
        r: Reader::new(raw.bytes),
        raw,
        to: to.min(raw.value_type),
        clamps,
        patched: None,
        done: 0,
        fits: true,
    };
    patch.stream().map_err(|stop| fault_in(raw, patch.r.pos(), stop))?;
    Ok(match patch.patched {
        _ if !patch.fits => None,
        None => Some(Cow::Borrowed(raw.bytes)),
        Some(mut bytes) => {
            bytes.extend_from_slice(raw.bytes.get(patch.done..).unwrap_or_default());
            Some(Cow::Owned(bytes))
        }
    })
}

struct Patch<'r, 'a> {
    r: Reader<'a>,
    raw: &'r RawValue<'a>,
    /// Not above the value's own type.
    to: u8,
    clamps: bool,
    patched: Option<Vec<u8>>,
    /// The value's bytes up to here are in `patched`, or cut.
    done: usize,
    /// Nothing was found that the type can't hold.
    fits: bool,
}

impl Patch<'_, '_> {
    fn stream(&mut self) -> Step<()> {
        for _ in 0..self.r.len()? {
            self.r.pass_string()?;
            self.r.pass_string()?;
        }
        // Length and last id; then first and greatest deleted id.
        self.lens(3)?;
        let from = self.r.pos();
        let entries_added = if self.has(opcode::STREAM_2) {
            self.lens(4)?;
            Some(self.r.len()?)
        } else {
            None
        };
        self.cut_from(from, opcode::STREAM_2);
        for _ in 0..self.r.len()? {
            self.r.pass_string()?;
            self.lens(2)?;
            if let Some(entries_added) = entries_added {
                self.entries_read(entries_added)?;
            }
            self.pending_and_consumers()?;
        }
        if self.has(opcode::STREAM_4) {
            self.idempotency()?;
        }
        Ok(())
    }

    /// Whether the value has what came with a type.
    fn has(&self, value_type: u8) -> bool {
        self.raw.value_type >= value_type
    }

    /// Leaves out what was read since `from`, if the wanted type lacks what came with `value_type`.
    fn cut_from(&mut self, from: usize, value_type: u8) {
        if self.to < value_type && from < self.r.pos() {
            self.keep_to(from);
        }
    }

    /// Takes the bytes before `from`, and goes on behind what was read.
    fn keep_to(&mut self, from: usize) -> &mut Vec<u8> {
        let bytes = self.patched.get_or_insert_default();
        bytes.extend_from_slice(self.raw.bytes.get(self.done..from).unwrap_or_default());
        self.done = self.r.pos();
        bytes
    }

    fn lens(&mut self, count: usize) -> Step<()> {
        for _ in 0..count {
            self.r.len()?;
        }
        Ok(())
    }

    fn entries_read(&mut self, entries_added: u64) -> Step<()> {
        let from = self.r.pos();
        let entries_read = self.r.len()?;
        if self.to < opcode::STREAM_2 {
            self.keep_to(from);
        } else if self.clamps && entries_read != UNKNOWN && entries_read > entries_added {
            write_len(self.keep_to(from), entries_added);
        }
        Ok(())
    }

    fn pending_and_consumers(&mut self) -> Step<()> {
        let pending = self.r.len()?;
        for _ in 0..pending {
            self.r.take(ID + 8)?;
            self.r.len()?;
        }
        let mut owned = 0;
        for _ in 0..self.r.len()? {
            self.r.pass_string()?;
            self.r.take(8)?;
            let from = self.r.pos();
            if self.has(opcode::STREAM_3) {
                self.r.take(8)?;
            }
            self.cut_from(from, opcode::STREAM_3);
            owned += self.ids()?;
        }
        if self.has(opcode::STREAM_5) {
            let from = self.r.pos();
            let nacked = self.ids()?;
            owned += nacked;
            self.fits &= nacked == 0 || self.to >= opcode::STREAM_5;
            self.cut_from(from, opcode::STREAM_5);
        }
        if owned != pending {
            return Err(Fault::Corrupt("a pending entry of a group belongs to no consumer").into());
        }
        Ok(())
    }

    fn idempotency(&mut self) -> Step<()> {
        let from = self.r.pos();
        let settings = (self.r.len()?, self.r.len()?);
        let mut records = 0;
        for _ in 0..self.r.len()? {
            self.r.pass_string()?;
            for _ in 0..self.r.len()? {
                self.r.pass_string()?;
                self.lens(2)?;
                records += 1;
            }
        }
        self.lens(2)?;
        self.fits &= self.to >= opcode::STREAM_4 || records == 0 && settings == IDMP_USUAL;
        self.cut_from(from, opcode::STREAM_4);
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
