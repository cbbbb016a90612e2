//! Values taken apart: whole into a [`Value`], or in order into [`Piece`]s by an [`Unpacker`].
//!
//! Both come from the same code: a value is what its pieces add up to.

mod array;
pub(super) mod hash;
mod list;
mod pieces;
mod set;
mod stream;
mod string;
mod zset;

use std::collections::HashSet;
use std::hash::Hash;

pub use array::Array;
pub use hash::HashField;
pub use pieces::Piece;
pub(super) use pieces::{Lookup, Unpacker};
pub use stream::{
    Consumer, Group, Idempotency, IdmpRecord, Pending, Producer, Stream, StreamEntry, StreamId, StreamMeta,
};
pub use zset::ZsetMember;

use self::pieces::Budget;
use super::decoder::{Limits, RawValue};
use super::error::{Error, Fault, Stop};
use super::length::Reader;
use super::opcode::{self, type_row};
use super::skip::{Skipper, Templates};

/// A value, decoded.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    String(Vec<u8>),
    /// First element first.
    List(Vec<Vec<u8>>),
    Set(Vec<Vec<u8>>),
    /// In the order of the file, which is not always that of the scores.
    Zset(Vec<ZsetMember>),
    Hash(Vec<HashField>),
    Stream(Box<Stream>),
    Array(Array),
    /// What only the module with this id understands.
    Module {
        id: u64,
    },
    /// A rate limiter's theoretical arrival time, Unix time in µs.
    Gcra {
        arrives_at_us: u64,
    },
}

impl Value {
    /// Whether it is a collection without elements, which no server keeps. An empty string or stream is none.
    pub fn is_empty_collection(&self) -> bool {
        match self {
            Value::List(items) | Value::Set(items) => items.is_empty(),
            Value::Zset(members) => members.is_empty(),
            Value::Hash(fields) => fields.is_empty(),
            Value::Array(array) => array.items.is_empty(),
            Value::String(_) | Value::Stream(_) | Value::Module { .. } | Value::Gcra { .. } => false,
        }
    }

    /// What the TYPE command calls it.
    pub fn type_word(&self) -> &'static str {
        match self {
            Value::String(_) => "string",
            Value::List(_) => "list",
            Value::Set(_) => "set",
            Value::Zset(_) => "zset",
            Value::Hash(_) => "hash",
            Value::Stream(_) => "stream",
            Value::Array(_) => "array",
            Value::Module { .. } => "module",
            Value::Gcra { .. } => "gcra",
        }
    }
}

/// Decodes a whole value.
///
/// # Errors
/// Every fault of its bytes, with the offset from the value's start; the same element twice among them.
pub fn decode(raw: &RawValue<'_>, limits: &Limits) -> Result<Value, Error> {
    let mut r = Reader::new(raw.bytes);
    let result = decode_from(&mut r, raw, limits).map_err(Stop::at_end).and_then(|value| match r.rest().len() as u64 {
        0 => Ok(value),
        left => Err(Fault::TrailingBytes(left)),
    });
    result.map_err(|fault| Error::new(r.pos() as u64, fault).in_value(raw.value_type, None))
}

/// Checks a whole value as strictly as [`decode`] does.
///
/// Needed before RESTORE on servers below 6.2, which exit on a malformed payload.
///
/// # Errors
/// As [`decode`].
pub fn validate(raw: &RawValue<'_>, limits: &Limits) -> Result<(), Error> {
    decode(raw, limits).map(|_| ())
}

fn decode_from(r: &mut Reader<'_>, raw: &RawValue<'_>, limits: &Limits) -> Result<Value, Stop> {
    match raw.value_type {
        opcode::STRING => {
            return Ok(Value::String(r.string(limits.element_bytes_max)?.into_owned()));
        }
        opcode::MODULE_2 => {
            let id = Reader::new(raw.bytes).len()?;
            let row = type_row(raw.project, raw.value_type).ok_or(Fault::UnknownType(raw.value_type))?;
            Skipper::new(row.grammar).run(r, &Templates::new())?;
            return Ok(Value::Module { id });
        }
        opcode::GCRA if type_row(raw.project, raw.value_type).is_some() => {
            return Ok(Value::Gcra { arrives_at_us: r.len()? });
        }
        _ => {}
    }
    let lookup = raw.template.map_or(Lookup::None, Lookup::One);
    let mut unpacker = Unpacker::new(raw.project, raw.value_type, limits, lookup)?.with_budget(Budget::UNLIMITED);
    let mut value = unpacker.empty_value();
    while let Some(piece) = unpacker.piece(r)? {
        piece.add_to(&mut value);
    }
    refuse_duplicates(&value)?;
    Ok(value)
}

fn refuse_duplicates(value: &Value) -> Result<(), Fault> {
    match value {
        Value::Set(members) => unique("set member", members.iter()),
        Value::Zset(members) => unique("sorted set member", members.iter().map(|m| &m.member)),
        Value::Hash(fields) => unique("hash field", fields.iter().map(|f| &f.field)),
        Value::Array(array) => unique("array index", array.items.iter().map(|(index, _)| index)),
        Value::Stream(stream) => {
            unique("consumer group", stream.groups.iter().map(|g| &g.name))?;
            for group in &stream.groups {
                unique("consumer", group.consumers.iter().map(|c| &c.name))?;
            }
            let producers = stream.idempotency.iter().flat_map(|i| &i.producers);
            unique("idempotent producer", producers.clone().map(|p| &p.name))?;
            for producer in producers {
                unique("idempotence id", producer.records.iter().map(|r| &r.iid))?;
            }
            Ok(())
        }
        Value::String(_) | Value::List(_) | Value::Module { .. } | Value::Gcra { .. } => Ok(()),
    }
}

fn unique<T: Eq + Hash>(what: &'static str, items: impl Iterator<Item = T>) -> Result<(), Fault> {
    let mut seen = HashSet::with_capacity(items.size_hint().0);
    for item in items {
        if !seen.insert(item) {
            return Err(Fault::Duplicate(what));
        }
    }
    Ok(())
}
