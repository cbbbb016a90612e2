//! DUMP payloads: checked, made for a target's RESTORE, and given another footer.
//!
//! `payload := [KEY_META] type value footer`, `footer := version u16le, crc64 u64le`.

mod field_expiry;
mod stream_patch;
mod template;

use std::borrow::Cow;

pub(in crate::rdb) use field_expiry::late as late_field;

use super::crc::crc64;
use super::decoder::{Limits, RawValue};
use super::error::{Error, Fault, Stop};
use super::length::Reader;
use super::opcode::{self, Project, Version, type_row};
use super::skip::{Skipper, Templates};
use super::value::validate;

pub(super) const FOOTER_BYTES: usize = 10;
/// The types up to this number mean the same to everyone.
const COMMON_TYPE_MAX: u8 = 21;
/// The first footer version that is Valkey's.
const VALKEY_FOOTER_MIN: u16 = 80;
const VALKEY_COMMON_FOOTER: u16 = 11;
/// Redis 2.6 to 3.0 accept no other.
const OLD_FOOTER: u16 = 6;

/// What a DUMP payload holds, its checksum verified.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verified<'a> {
    /// Modules' metadata, raw, from its opcode on.
    pub meta: Option<&'a [u8]>,
    /// Its project follows from the footer's version.
    pub value: RawValue<'a>,
    pub footer_version: u16,
}

/// Checks a payload's footer and takes it apart; the value itself is not looked at.
///
/// `allow_zero_crc`: take a payload without checksum, as Redis 8.6 and later stream them.
///
/// # Errors
/// `BadCrc`, `NoCrc`, `Truncated`, and faults of the metadata.
pub fn verify(payload: &[u8], allow_zero_crc: bool) -> Result<Verified<'_>, Error> {
    let (body, footer_version) = check_footer(payload, allow_zero_crc)?;
    let mut r = Reader::new(body);
    take_apart(&mut r, footer_version).map_err(|stop| Error::new(r.pos() as u64, stop.at_end()))
}

fn take_apart<'a>(r: &mut Reader<'a>, footer_version: u16) -> Result<Verified<'a>, Stop> {
    let project = match footer_version {
        VALKEY_FOOTER_MIN.. => Project::Valkey,
        _ => Project::Redis,
    };
    let mut value_type = r.u8()?;
    let mut meta = None;
    if value_type == opcode::KEY_META && (13..VALKEY_FOOTER_MIN).contains(&footer_version) {
        Skipper::new(opcode::KEY_META_GRAMMAR).run(r, &Templates::new())?;
        meta = Some(r.since(0));
        value_type = r.u8()?;
    }
    let value = RawValue { value_type, bytes: r.rest(), project, template: None };
    Ok(Verified { meta, value, footer_version })
}

/// Returns what is before the footer, and the footer's version.
fn check_footer(payload: &[u8], allow_zero_crc: bool) -> Result<(&[u8], u16), Error> {
    let truncated = || Error::new(payload.len() as u64, Fault::Truncated);
    let (summed, crc) = payload.split_last_chunk::<8>().ok_or_else(truncated)?;
    let (body, version) = summed.split_last_chunk::<2>().ok_or_else(truncated)?;
    let stored = u64::from_le_bytes(*crc);
    if stored != 0 || !allow_zero_crc {
        let computed = crc64(0, summed);
        if stored != computed {
            let fault = if stored == 0 { Fault::NoCrc } else { Fault::BadCrc { stored, computed } };
            return Err(Error::new(summed.len() as u64, fault));
        }
    }
    Ok((body, u16::from_le_bytes(*version)))
}

/// Appends the footer for what `out` holds from `from` on.
fn append_footer(out: &mut Vec<u8>, from: usize, version: u16) {
    out.extend_from_slice(&version.to_le_bytes());
    let crc = crc64(0, out.get(from..).unwrap_or_default());
    out.extend_from_slice(&crc.to_le_bytes());
}

/// A payload ready to be written: its length is known, its bytes are not yet put together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload<'a> {
    meta: &'a [u8],
    value_type: u8,
    /// What the value gets in front.
    head: &'a [u8],
    body: Cow<'a, [u8]>,
    footer_version: u16,
}

impl Payload<'_> {
    /// Bytes that [`Payload::append_to`] appends.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.meta.len() + 1 + self.head.len() + self.body.len() + FOOTER_BYTES
    }

    /// Appends the payload, its checksum included.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let from = out.len();
        out.reserve(self.len());
        out.extend_from_slice(self.meta);
        out.push(self.value_type);
        out.extend_from_slice(self.head);
        out.extend_from_slice(&self.body);
        append_footer(out, from, self.footer_version);
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_to(&mut out);
        out
    }
}

/// What one target's RESTORE accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restorer {
    project: Project,
    version: Version,
    footer_version: u16,
    has_modules: bool,
    fields_late_ms: i64,
}

impl Restorer {
    /// `footer_version`: the version in the last 10 bytes of what DUMP answers for any key of the target.
    pub fn new(project: Project, version: Version, footer_version: u16) -> Self {
        Restorer { project, version, footer_version, has_modules: false, fields_late_ms: 0 }
    }

    /// Says that the target has every module whose values it will get: Redis below 6.2 exits on others, so without this
    /// they are not restorable there. Later versions refuse them.
    pub fn with_modules(self) -> Self {
        Restorer { has_modules: true, ..self }
    }

    /// Lets the fields of hashes that expire do so this much later than they do where the value comes from.
    pub fn with_fields_late(self, ms: i64) -> Self {
        Restorer { fields_late_ms: ms, ..self }
    }

    /// Whether RESTORE takes a value of this type, made fit by [`Restorer::payload`] if need be.
    pub fn restorable(&self, value_type: u8, source: Project) -> bool {
        if type_row(source, value_type).is_none() {
            return false;
        }
        match (self.project, value_type) {
            // An older target gets type 4, which all have; GCRA is in no ordinary build.
            (_, opcode::HASH_TMPL_LP..=opcode::HASH_TMPL_ARRAY_REF) => true,
            (_, opcode::GCRA) => false,
            (_, opcode::MODULE_2) if self.exits_on_bad_payload() && !self.has_modules => false,
            (Project::Valkey, opcode::HASH_22) => source == Project::Valkey && self.footer_version >= VALKEY_FOOTER_MIN,
            (Project::Valkey, _) => value_type <= COMMON_TYPE_MAX,
            (Project::Redis, opcode::HASH_22) => source == Project::Redis && self.version >= (7, 4, 0),
            (Project::Redis, _) => self.version >= restorable_since(value_type),
        }
    }

    /// The payload that restores `raw`, or `None` if it is to be rebuilt with commands: the target doesn't know the type, or
    /// the value is a collection without elements.
    ///
    /// `meta` is dropped for targets that don't know it: see [`Restorer::keeps_meta`].
    ///
    /// # Errors
    /// Faults of values that must be looked into: all for Redis below 6.2, which would exit on them; template hashes, on
    /// which 8.10 does; streams' groups; hashes whose fields are to expire later.
    pub fn payload<'a>(&self, raw: &RawValue<'a>, meta: Option<&'a [u8]>) -> Result<Option<Payload<'a>>, Error> {
        let is_stream = stream_patch::is_stream(raw.value_type);
        if !is_stream && !self.restorable(raw.value_type, raw.project) || is_empty(raw) {
            return Ok(None);
        }
        let is_template = (opcode::HASH_TMPL_LP..=opcode::HASH_TMPL_ARRAY_REF).contains(&raw.value_type);
        if self.exits_on_bad_payload() || is_template {
            validate(raw, &limits())?;
        }
        let meta = meta.filter(|_| self.keeps_meta()).unwrap_or_default();
        let keep_templates = self.project == Project::Redis && self.version >= (8, 10, 0);
        let (value_type, head, body) = match raw.value_type {
            opcode::HASH_TMPL_LP..=opcode::HASH_TMPL_ARRAY_REF if keep_templates => template::carry_names(raw)?,
            opcode::HASH_TMPL_LP..=opcode::HASH_TMPL_ARRAY_REF => {
                (opcode::HASH, &[][..], Cow::Owned(template::to_plain(raw)?))
            }
            value_type if is_stream => {
                let Some(best) = self.stream_type() else { return Ok(None) };
                let Some(body) = stream_patch::as_type(raw, best, self.checks_entries_read())? else { return Ok(None) };
                (value_type.min(best), &[][..], body)
            }
            value_type if self.fields_late_ms != 0 && field_expiry::has_times(value_type) => {
                (value_type, &[][..], field_expiry::shift(raw, self.fields_late_ms)?)
            }
            value_type => (value_type, &[][..], Cow::Borrowed(raw.bytes)),
        };
        Ok(Some(Payload { meta, value_type, head, body, footer_version: self.stamp(value_type) }))
    }

    /// The newest type of streams that the target knows; types above it are written as this where nothing is lost by it.
    fn stream_type(&self) -> Option<u8> {
        match (self.project, self.version) {
            (Project::Valkey, _) => Some(opcode::STREAM_3),
            (Project::Redis, version) if version < (5, 0, 0) => None,
            (Project::Redis, version) if version < (7, 0, 0) => Some(opcode::STREAM),
            (Project::Redis, version) if version < (7, 2, 0) => Some(opcode::STREAM_2),
            (Project::Redis, version) if version < (8, 6, 0) => Some(opcode::STREAM_3),
            (Project::Redis, version) if version < (8, 8, 0) => Some(opcode::STREAM_4),
            (Project::Redis, _) => Some(opcode::STREAM_5),
        }
    }

    /// Whether the target keeps modules' metadata of keys.
    pub fn keeps_meta(&self) -> bool {
        self.project == Project::Redis && self.version >= (8, 6, 0)
    }

    /// Whether a malformed payload with a right checksum ends the target rather than is refused by it.
    fn exits_on_bad_payload(&self) -> bool {
        self.project == Project::Redis && self.version < (6, 2, 0)
    }

    /// 8.10.2 refuses streams whose groups have read more than was added; other servers make such.
    fn checks_entries_read(&self) -> bool {
        self.project == Project::Redis && self.version >= (8, 8, 0)
    }

    /// The footer's version for a value type.
    fn stamp(&self, value_type: u8) -> u16 {
        match self.project {
            Project::Valkey if value_type <= COMMON_TYPE_MAX => VALKEY_COMMON_FOOTER,
            Project::Valkey => VALKEY_FOOTER_MIN,
            Project::Redis if self.version < (3, 2, 0) => OLD_FOOTER,
            Project::Redis => self.footer_version,
        }
    }

    /// A payload of any server with the footer that the target accepts, or `None` as for [`Restorer::payload`]: then
    /// [`verify`] it and rebuild its value.
    ///
    /// # Errors
    /// As for [`verify`] and [`Restorer::payload`].
    pub fn restamp(&self, payload: &[u8], allow_zero_crc: bool) -> Result<Option<Vec<u8>>, Error> {
        let Verified { meta, value, .. } = verify(payload, allow_zero_crc)?;
        Ok(self.payload(&value, meta)?.map(|payload| payload.to_vec()))
    }

    /// The same for what FUNCTION DUMP answers: libraries, each `f5` and its code. `None` if the target has no functions.
    ///
    /// # Errors
    /// As for [`verify`], and when anything but libraries is in it.
    pub fn restamp_functions(&self, payload: &[u8], allow_zero_crc: bool) -> Result<Option<Vec<u8>>, Error> {
        let (body, _) = check_footer(payload, allow_zero_crc)?;
        let mut r = Reader::new(body);
        while !r.rest().is_empty() {
            library(&mut r).map_err(|stop| Error::new(r.pos() as u64, stop.at_end()))?;
        }
        if self.project == Project::Redis && self.version < (7, 0, 0) {
            return Ok(None);
        }
        let mut out = body.to_vec();
        append_footer(&mut out, 0, self.stamp(opcode::STRING));
        Ok(Some(out))
    }
}

fn library(r: &mut Reader<'_>) -> Result<(), Stop> {
    match r.u8()? {
        opcode::FUNCTION2 => r.pass_string(),
        other => Err(Fault::UnknownType(other).into()),
    }
}

/// The first Redis whose RESTORE takes a type.
fn restorable_since(value_type: u8) -> Version {
    match value_type {
        0..=4 | 9..=13 => (2, 6, 0),
        opcode::ZSET_2 | opcode::MODULE_2 => (4, 0, 0),
        opcode::LIST_QUICKLIST => (3, 2, 0),
        opcode::STREAM => (5, 0, 0),
        16..=19 => (7, 0, 0),
        20..=21 => (7, 2, 0),
        22..=25 => (7, 4, 0),
        opcode::STREAM_4 => (8, 6, 0),
        _ => (8, 8, 0),
    }
}

/// Whether `raw` is a collection of no elements, as far as that shows without unpacking; servers refuse those.
fn is_empty(raw: &RawValue<'_>) -> bool {
    let counted = matches!(
        raw.value_type,
        opcode::LIST
            | opcode::SET
            | opcode::ZSET
            | opcode::HASH
            | opcode::ZSET_2
            | opcode::LIST_QUICKLIST
            | opcode::LIST_QUICKLIST_2
    );
    counted && Reader::new(raw.bytes).len().is_ok_and(|n| n == 0)
}

/// A fault at `offset` of the value's bytes.
fn fault_in(raw: &RawValue<'_>, offset: usize, stop: Stop) -> Error {
    Error::new(offset as u64, stop.at_end()).in_value(raw.value_type, None)
}

fn limits() -> Limits {
    Limits::default()
}
