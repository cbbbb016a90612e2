//! Hashes whose field names are in a template, for targets that have the template not, or no templates at all.

use std::borrow::Cow;

use super::{fault_in, limits};
use crate::rdb::decoder::RawValue;
use crate::rdb::error::{Error, Fault, Stop};
use crate::rdb::length::{Reader, write_len, write_string};
use crate::rdb::opcode;
use crate::rdb::value::{Value, decode};

/// Type, head and body of the payload that carries its field names along.
type Carried<'a> = (u8, &'a [u8], Cow<'a, [u8]>);

/// 30 becomes 29 and 32 becomes 31: the names in front, the values as they are. 29 and 31 stay.
pub(super) fn carry_names<'a>(raw: &RawValue<'a>) -> Result<Carried<'a>, Error> {
    if matches!(raw.value_type, opcode::HASH_TMPL_LP | opcode::HASH_TMPL_ARRAY) {
        return Ok((raw.value_type, &[], Cow::Borrowed(raw.bytes)));
    }
    let Some(template) = raw.template else {
        return Err(fault_in(raw, 0, Fault::Corrupt("the hash's template is not known").into()));
    };
    if raw.value_type == opcode::HASH_TMPL_LP_REF {
        return Ok((opcode::HASH_TMPL_LP, &template.names, Cow::Borrowed(raw.bytes)));
    }
    let mut r = Reader::new(raw.bytes);
    r.len().map_err(|stop| fault_in(raw, 0, stop))?;
    Ok((opcode::HASH_TMPL_ARRAY, &template.names, Cow::Borrowed(r.rest())))
}

/// The body of a type 4 with the same fields and values.
pub(super) fn to_plain(raw: &RawValue<'_>) -> Result<Vec<u8>, Error> {
    let Value::Hash(fields) = decode(raw, &limits())? else {
        return Err(fault_in(raw, 0, Stop::Fail(Fault::NotDecodable(raw.value_type))));
    };
    let mut body = Vec::with_capacity(raw.bytes.len());
    write_len(&mut body, fields.len() as u64);
    for field in &fields {
        write_string(&mut body, &field.field);
        write_string(&mut body, &field.value);
    }
    Ok(body)
}
