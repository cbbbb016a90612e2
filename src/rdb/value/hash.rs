//! Hashes: plain (4), zipmap (9), ziplist (13), listpack (16); with fields that expire (22–25); with the names of their
//! fields in a template (29–32).

use std::sync::Arc;

use super::pieces::{Left, Lookup, Packed, once};
use crate::rdb::error::{Fault, Step};
use crate::rdb::length::Reader;
use crate::rdb::opcode::{self, Project};
use crate::rdb::pack::{Entry, Kind, Pack};
use crate::rdb::skip::{NAMES_BYTES_MAX, Template, Templates, check_fields};

/// Times of fields have 48 bits.
const FIELD_EXPIRY_MAX: i64 = (1 << 48) - 1;

/// A field of a hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashField {
    pub field: Vec<u8>,
    pub value: Vec<u8>,
    /// Unix time; may be past.
    pub expires_at_ms: Option<i64>,
}

#[derive(Debug)]
pub(super) struct Hashes {
    form: Form,
    bytes_max: u64,
}

#[derive(Debug)]
enum Form {
    Plain(Left),
    /// Field, value and what says when the field expires.
    Expiring {
        left: Left,
        time: Time,
        base_read: bool,
    },
    /// A container whose entries are fields and values, and times if `timed`.
    Packed {
        kind: Kind,
        timed: bool,
        base_read: bool,
        pack: Option<Packed>,
    },
    Template {
        value_type: u8,
        templates: Found,
        values: Option<Values>,
    },
}

/// How an expiring field's time is written.
#[derive(Debug, Clone, Copy)]
enum Time {
    /// 0 for none, else ms.
    Absolute,
    /// 0 for none, else ms from one less than this on.
    After(i64),
    /// -1 for none, else ms; behind the value.
    Valkey,
}

/// Templates that a value may refer to.
#[derive(Debug)]
enum Found {
    None,
    One(Arc<Template>),
    File(Templates),
}

/// The values of a template hash, in the order of its field names.
#[derive(Debug)]
struct Values {
    names: std::vec::IntoIter<Vec<u8>>,
    /// `None` if they follow as strings.
    pack: Option<Packed>,
}

impl Hashes {
    pub fn new(project: Project, value_type: u8, bytes_max: u64, lookup: Lookup<'_>) -> Self {
        let packed = |kind, timed, base_read| Form::Packed { kind, timed, base_read, pack: None };
        let expiring = |time, base_read| Form::Expiring { left: Left::default(), time, base_read };
        let form = match (value_type, project) {
            (opcode::HASH_ZIPMAP, _) => packed(Kind::Zipmap, false, true),
            (opcode::HASH_ZIPLIST, _) => packed(Kind::Ziplist, false, true),
            (opcode::HASH_LISTPACK, _) => packed(Kind::Listpack, false, true),
            (opcode::HASH_LISTPACK_EX_PRE_GA, _) => packed(Kind::Listpack, true, true),
            (opcode::HASH_LISTPACK_EX, _) => packed(Kind::Listpack, true, false),
            (opcode::HASH_22, Project::Redis) => expiring(Time::Absolute, true),
            (opcode::HASH_22, Project::Valkey) => expiring(Time::Valkey, true),
            (opcode::HASH_METADATA, _) => expiring(Time::After(0), false),
            (opcode::HASH_TMPL_LP..=opcode::HASH_TMPL_ARRAY_REF, _) => {
                let templates = match lookup {
                    Lookup::None => Found::None,
                    Lookup::One(template) => Found::One(Arc::clone(template)),
                    Lookup::File(templates) => Found::File(templates.clone()),
                };
                Form::Template { value_type, templates, values: None }
            }
            _ => Form::Plain(Left::default()),
        };
        Hashes { form, bytes_max }
    }

    pub fn next(&mut self, r: &mut Reader<'_>) -> Step<Option<HashField>> {
        let max = self.bytes_max;
        match &mut self.form {
            Form::Plain(left) => {
                if !left.any(r)? {
                    return Ok(None);
                }
                let (field, value) = two_strings(r, max)?;
                left.took(r);
                Ok(Some(HashField { field, value, expires_at_ms: None }))
            }
            Form::Expiring { left, time, base_read } => {
                if !*base_read {
                    *time = Time::After(r.i64()?);
                    r.commit();
                    *base_read = true;
                }
                if !left.any(r)? {
                    return Ok(None);
                }
                let field = expiring_field(r, *time, max)?;
                left.took(r);
                Ok(Some(field))
            }
            Form::Packed { kind, timed, base_read, pack } => {
                if !*base_read {
                    // The smallest of the times that follow; of no use here.
                    r.i64()?;
                    r.commit();
                    *base_read = true;
                }
                let pack = once(pack, r, |r| Packed::read(r, *kind, max))?;
                Ok(packed_field(pack, *timed)?)
            }
            Form::Template { value_type, templates, values } => {
                let values = once(values, r, |r| template_values(r, *value_type, templates, max))?;
                values.next(r, max)
            }
        }
    }
}

/// Reads two strings, and unpacks none of them before both are here: this is tried again with every feed.
fn two_strings(r: &mut Reader<'_>, max: u64) -> Step<(Vec<u8>, Vec<u8>)> {
    let mut ahead = *r;
    ahead.pass_string()?;
    ahead.pass_string()?;
    Ok((r.string(max)?.into_owned(), r.string(max)?.into_owned()))
}

fn expiring_field(r: &mut Reader<'_>, time: Time, max: u64) -> Step<HashField> {
    let before = match time {
        Time::Valkey => None,
        Time::Absolute | Time::After(_) => Some(r.len()?),
    };
    let (field, value) = two_strings(r, max)?;
    let expires_at_ms = match (time, before) {
        (_, Some(0)) => None,
        (Time::After(base), Some(ttl)) => {
            let ttl = i64::try_from(ttl - 1).ok();
            Some(ttl.and_then(|ttl| base.checked_add(ttl)).ok_or(BAD_TIME)?)
        }
        (_, Some(ms)) => Some(i64::try_from(ms).map_err(|_| BAD_TIME)?),
        (_, None) => Some(r.i64()?).filter(|&ms| ms != -1),
    };
    check_time(expires_at_ms)?;
    Ok(HashField { field, value, expires_at_ms })
}

const BAD_TIME: Fault = Fault::Corrupt("a hash field's expiry is out of range");

fn check_time(expires_at_ms: Option<i64>) -> Result<(), Fault> {
    match expires_at_ms {
        None | Some(0..=FIELD_EXPIRY_MAX) => Ok(()),
        Some(_) => Err(BAD_TIME),
    }
}

fn packed_field(pack: &mut Packed, timed: bool) -> Result<Option<HashField>, Fault> {
    let Some(field) = pack.next()?.map(Entry::to_vec) else {
        return Ok(None);
    };
    let value = pack.need("a hash's last field has no value")?.to_vec();
    let mut expires_at_ms = None;
    if timed {
        let ms = pack.need_int("a hash field's expiry is missing or no integer")?;
        expires_at_ms = (ms != 0).then_some(ms);
    }
    check_time(expires_at_ms)?;
    Ok(Some(HashField { field, value, expires_at_ms }))
}

impl Values {
    fn next(&mut self, r: &mut Reader<'_>, max: u64) -> Step<Option<HashField>> {
        if self.names.len() == 0 {
            if let Some(pack) = &mut self.pack
                && pack.next()?.is_some()
            {
                return Err(Fault::Corrupt("a template hash has more values than fields").into());
            }
            return Ok(None);
        }
        let value = match &mut self.pack {
            Some(pack) => pack.need("a template hash has fewer values than fields")?.to_vec(),
            None => r.string(max)?.into_owned(),
        };
        Ok(self.names.next().map(|field| HashField { field, value, expires_at_ms: None }))
    }
}

/// Reads a template hash up to its values.
fn template_values(r: &mut Reader<'_>, value_type: u8, templates: &Found, max: u64) -> Step<Values> {
    let (names, pack) = match value_type {
        opcode::HASH_TMPL_LP => {
            let names = read_names(r)?;
            let mut pack = Packed::read(r, Kind::Listpack, max)?;
            pack.need_int(NO_ID)?;
            (names, Some(pack))
        }
        opcode::HASH_TMPL_LP_REF => {
            let mut pack = Packed::read(r, Kind::Listpack, max)?;
            let id = pack.need_int(NO_ID)? as u64;
            (templates.fields(id)?, Some(pack))
        }
        opcode::HASH_TMPL_ARRAY => (read_names(r)?, None),
        _ => {
            let id = r.len()?;
            (templates.fields(id)?, None)
        }
    };
    Ok(Values { names: names.into_iter(), pack })
}

const NO_ID: &str = "a template hash does not begin with an integer";

impl Found {
    fn fields(&self, id: u64) -> Result<Vec<Vec<u8>>, Fault> {
        let template = match self {
            Found::None => None,
            Found::One(template) => Some(template),
            Found::File(templates) => templates.get(&id),
        };
        template.map(|template| template.fields.clone()).ok_or(Fault::UnknownTemplate(id))
    }
}

/// The field names that types 29 and 31 carry along.
fn read_names(r: &mut Reader<'_>) -> Step<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    match r.len()? {
        0 => {
            let mut pack = Packed::read(r, Kind::Listpack, NAMES_BYTES_MAX)?;
            while let Some(name) = pack.next()? {
                names.push(name.to_vec());
            }
        }
        1 => {
            for _ in 0..r.len()? {
                names.push(r.string(NAMES_BYTES_MAX)?.into_owned());
            }
        }
        _ => return Err(Fault::Corrupt("a template hash's names have an unknown form").into()),
    }
    check_fields(&names)?;
    Ok(names)
}

/// The template's id that the listpack of a type 30 begins with.
pub(in crate::rdb) fn template_id(blob: &[u8]) -> Result<u64, Fault> {
    let first = Pack::new(Kind::Listpack, blob)?.next(blob)?;
    // Ids above i64's range are written as negative integers.
    first.and_then(Entry::to_int).map(|id| id as u64).ok_or(Fault::Corrupt(NO_ID))
}
