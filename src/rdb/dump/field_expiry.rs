//! Hashes whose fields expire (22–25), with all these times moved: a value may be given to a target late.

use std::borrow::Cow;

use super::{fault_in, limits};
use crate::rdb::decoder::RawValue;
use crate::rdb::error::{Error, Fault, Step};
use crate::rdb::length::{Reader, write_len, write_string};
use crate::rdb::opcode::{self, Project};
use crate::rdb::pack::{Kind, Pack, push_int, set_header};

const BAD_TIME: Fault = Fault::Corrupt("a hash field's expiry is out of range");

/// The largest expiry of a field that Redis' commands take. Source: redis 7.4 src/t_hash.c, HFE_MAX_ABS_TIME_MSEC.
const REDIS_MS_MAX: i64 = (1 << 46) - 1;

/// When a field is to expire on a target that is to keep it `late_ms` longer: no later than the target takes, and never
/// earlier than it was.
pub(in crate::rdb) fn late(at_ms: i64, late_ms: i64, target: Project) -> i64 {
    let max = match target {
        Project::Redis => REDIS_MS_MAX,
        Project::Valkey => i64::MAX,
    };
    at_ms.saturating_add(late_ms).min(max).max(at_ms)
}

/// Whether a value of this type can have fields that expire.
pub(super) fn has_times(value_type: u8) -> bool {
    matches!(value_type, opcode::HASH_22..=opcode::HASH_LISTPACK_EX)
}

/// The same hash, its fields expiring `late_ms` later (see [`late`]); the project is the source's and the target's.
///
/// Types: 22 of Redis and 23 hold Unix ms, 0 for none; 24 ms from the least one on; 25 Unix ms inside a listpack, which
/// comes out uncompressed; 22 of Valkey Unix ms behind the value, -1 for none.
/// # Errors
/// When the bytes are not what the type says.
pub(super) fn shift<'a>(raw: &RawValue<'a>, late_ms: i64) -> Result<Cow<'a, [u8]>, Error> {
    let mut r = Reader::new(raw.bytes);
    let later = |at_ms| late(at_ms, late_ms, raw.project);
    let shifted = match (raw.value_type, raw.project) {
        (opcode::HASH_22, Project::Valkey) => after_values(&mut r, later),
        (opcode::HASH_22, Project::Redis) => before_fields(&mut r, later),
        (opcode::HASH_METADATA, _) => from_least(&mut r, later),
        (value_type, _) => in_listpack(&mut r, value_type == opcode::HASH_LISTPACK_EX, later),
    };
    let mut out = shifted.map_err(|stop| fault_in(raw, r.pos(), stop))?;
    out.extend_from_slice(r.rest());
    Ok(Cow::Owned(out))
}

/// Appends the next `strings` as they are.
fn copy_strings(r: &mut Reader<'_>, strings: usize, out: &mut Vec<u8>) -> Step<()> {
    let from = r.pos();
    for _ in 0..strings {
        r.pass_string()?;
    }
    out.extend_from_slice(r.since(from));
    Ok(())
}

/// `L n, n × (S field, S value, i64le ms or -1)`
fn after_values(r: &mut Reader<'_>, later: impl Fn(i64) -> i64) -> Step<Vec<u8>> {
    let mut out = Vec::with_capacity(r.rest().len());
    let fields = r.len()?;
    write_len(&mut out, fields);
    for _ in 0..fields {
        copy_strings(r, 2, &mut out)?;
        let at_ms = match r.i64()? {
            none @ i64::MIN..0 => none,
            at_ms => later(at_ms),
        };
        out.extend_from_slice(&at_ms.to_le_bytes());
    }
    Ok(out)
}

/// `L n, n × (L ms or 0, S field, S value)`
fn before_fields(r: &mut Reader<'_>, later: impl Fn(i64) -> i64) -> Step<Vec<u8>> {
    let mut out = Vec::with_capacity(r.rest().len());
    let fields = r.len()?;
    write_len(&mut out, fields);
    for _ in 0..fields {
        let at_ms = match r.len()? {
            0 => 0,
            ms => later(i64::try_from(ms).map_err(|_| BAD_TIME)?),
        };
        write_len(&mut out, at_ms.unsigned_abs());
        copy_strings(r, 2, &mut out)?;
    }
    Ok(out)
}

/// `i64le least, L n, n × (L ms - least + 1 or 0, S field, S value)`
///
/// Where no time reaches the largest that the target takes, only the least one changes.
fn from_least(r: &mut Reader<'_>, later: impl Fn(i64) -> i64) -> Step<Vec<u8>> {
    let mut out = Vec::with_capacity(r.rest().len() + 8);
    let least = r.i64()?;
    let late_least = later(least);
    out.extend_from_slice(&late_least.to_le_bytes());
    let fields = r.len()?;
    write_len(&mut out, fields);
    for _ in 0..fields {
        let ttl = match r.len()? {
            0 => 0,
            ttl => {
                let after = i64::try_from(ttl - 1).map_err(|_| BAD_TIME)?;
                let at_ms = later(least.checked_add(after).ok_or(BAD_TIME)?);
                let after = at_ms.checked_sub(late_least).and_then(|ms| u64::try_from(ms).ok());
                after.and_then(|ms| ms.checked_add(1)).ok_or(BAD_TIME)?
            }
        };
        write_len(&mut out, ttl);
        copy_strings(r, 2, &mut out)?;
    }
    Ok(out)
}

/// `[i64le least], S listpack of field, value, ms or 0`: by time, those without one last.
fn in_listpack(r: &mut Reader<'_>, has_least: bool, later: impl Fn(i64) -> i64) -> Step<Vec<u8>> {
    let mut out = Vec::with_capacity(r.rest().len() + 16);
    if has_least {
        // It is only told; 0 where it isn't known.
        let least = r.i64()?;
        let least = if least > 0 { later(least) } else { least };
        out.extend_from_slice(&least.to_le_bytes());
    }
    let blob = r.string(limits().element_bytes_max)?;
    write_string(&mut out, &shift_listpack(&blob, later)?);
    Ok(out)
}

fn shift_listpack(blob: &[u8], later: impl Fn(i64) -> i64) -> Result<Vec<u8>, Fault> {
    let mut pack = Pack::new(Kind::Listpack, blob)?;
    let mut out = Vec::with_capacity(blob.len() + 16);
    out.extend_from_slice(blob.get(..pack.pos()).unwrap_or_default());
    for place in (0..3).cycle() {
        let from = pack.pos();
        let Some(entry) = pack.next(blob)? else { break };
        let at_ms = if place == 2 { Some(entry.to_int().ok_or(BAD_TIME)?) } else { None };
        match at_ms {
            Some(at_ms @ 1..) => push_int(&mut out, later(at_ms)),
            _ => out.extend_from_slice(blob.get(from..pack.pos()).unwrap_or_default()),
        }
    }
    out.push(0xff);
    set_header(&mut out)?;
    Ok(out)
}
