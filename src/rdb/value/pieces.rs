//! A value in pieces: what they are, and the decoder of each type behind one face.

use std::sync::Arc;

use super::array::ArrayItems;
use super::hash::{HashField, Hashes};
use super::list::Lists;
use super::set::Sets;
use super::stream::{IdmpRecord, Pending, StreamEntry, StreamId, StreamMeta, StreamParts};
use super::string::Strings;
use super::zset::{ZsetMember, Zsets};
use super::{Array, Stream, Value};
use crate::rdb::decoder::Limits;
use crate::rdb::error::{Fault, Step, Stop};
use crate::rdb::length::Reader;
use crate::rdb::opcode::{self, Project, type_row};
use crate::rdb::pack::{Entry, Kind, Pack};
use crate::rdb::skip::{Template, Templates};

/// Elements in one piece, at most.
pub(super) const PIECE_ELEMENTS_MAX: usize = 1024;
/// A piece is ended by the element that brings it to so many bytes.
pub(super) const PIECE_BYTES_MAX: usize = 1 << 20;

/// A part of a value, in the value's order.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Bytes of a string from `offset` on; an empty string is one empty piece.
    StringBytes {
        offset: u64,
        bytes: Vec<u8>,
    },
    ListItems(Vec<Vec<u8>>),
    SetMembers(Vec<Vec<u8>>),
    ZsetMembers(Vec<ZsetMember>),
    HashFields(Vec<HashField>),
    ArrayItems(Vec<(u64, Vec<u8>)>),
    /// After the last item: the index of the last ARINSERT.
    ArrayCursor(u64),
    StreamEntries(Vec<StreamEntry>),
    /// After the last entry; always there, and once.
    StreamMeta(StreamMeta),
    /// Begins a consumer group; what follows up to the next one is of this group.
    StreamGroup {
        name: Vec<u8>,
        last_id: StreamId,
        entries_read: Option<u64>,
    },
    /// Begins a consumer of the group begun last.
    StreamConsumer {
        name: Vec<u8>,
        seen_ms: i64,
        active_ms: Option<i64>,
    },
    /// Pending entries of the consumer begun last.
    StreamPending(Vec<Pending>),
    /// Pending entries of the group begun last that no consumer owns, in the order of their redelivery.
    StreamNacked(Vec<Pending>),
    /// How the stream remembers idempotent producers.
    StreamIdempotency {
        duration_s: u64,
        entries_max: u64,
    },
    /// Begins an idempotent producer.
    StreamProducer {
        name: Vec<u8>,
    },
    /// Records of the producer begun last.
    StreamIdmpRecords(Vec<IdmpRecord>),
    /// After the last producer.
    StreamIdmpCounters {
        added: u64,
        duplicates: u64,
    },
}

impl Piece {
    /// Adds a piece to the value it is of; one of another type is a fault of this module.
    pub(in crate::rdb) fn add_to(self, value: &mut Value) {
        match (value, self) {
            (Value::String(to), Piece::StringBytes { bytes, .. }) => append(to, bytes),
            (Value::List(to), Piece::ListItems(items)) => append(to, items),
            (Value::Set(to), Piece::SetMembers(members)) => append(to, members),
            (Value::Zset(to), Piece::ZsetMembers(members)) => append(to, members),
            (Value::Hash(to), Piece::HashFields(fields)) => append(to, fields),
            (Value::Array(to), Piece::ArrayItems(items)) => append(&mut to.items, items),
            (Value::Array(to), Piece::ArrayCursor(cursor)) => to.cursor = Some(cursor),
            (Value::Stream(to), piece) => to.add(piece),
            _ => unreachable!("a value has pieces of its own type only"),
        }
    }
}

fn append<T>(to: &mut Vec<T>, mut from: Vec<T>) {
    match to.is_empty() {
        true => *to = from,
        false => to.append(&mut from),
    }
}

/// How much one piece may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub elements: usize,
    pub bytes: usize,
}

impl Budget {
    pub const PIECE: Budget = Budget { elements: PIECE_ELEMENTS_MAX, bytes: PIECE_BYTES_MAX };
    pub const UNLIMITED: Budget = Budget { elements: usize::MAX, bytes: usize::MAX };

    /// Collects elements until the budget is spent, the bytes at hand are, or there are no more. None collected: no more.
    pub fn gather<T>(
        self,
        r: &mut Reader<'_>,
        weigh: impl Fn(&T) -> usize,
        mut next: impl FnMut(&mut Reader<'_>) -> Step<Option<T>>,
    ) -> Step<Vec<T>> {
        let (mut gathered, mut bytes) = (Vec::new(), 0usize);
        while gathered.len() < self.elements && bytes < self.bytes {
            match next(r) {
                Ok(Some(element)) => {
                    r.commit();
                    bytes += weigh(&element);
                    gathered.push(element);
                }
                Ok(None) => break,
                Err(Stop::More) => {
                    r.rewind();
                    if gathered.is_empty() {
                        return Err(Stop::More);
                    }
                    break;
                }
                Err(fail) => return Err(fail),
            }
        }
        Ok(gathered)
    }
}

/// Elements still to come; their count is read when first asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Left(Option<u64>);

impl Left {
    pub fn known(n: u64) -> Self {
        Left(Some(n))
    }

    /// Whether there is one more.
    pub fn any(&mut self, r: &mut Reader<'_>) -> Step<bool> {
        let left = match self.0 {
            Some(left) => left,
            None => {
                let left = r.len()?;
                r.commit();
                self.0 = Some(left);
                left
            }
        };
        Ok(left > 0)
    }

    /// One of them has been read, for good.
    pub fn took(&mut self, r: &mut Reader<'_>) {
        r.commit();
        self.0 = self.0.map(|left| left.saturating_sub(1));
    }
}

/// What is in `slot`; if there is nothing yet, what `read` reads into it, for good.
pub(super) fn once<'s, T>(
    slot: &'s mut Option<T>,
    r: &mut Reader<'_>,
    read: impl FnOnce(&mut Reader<'_>) -> Step<T>,
) -> Step<&'s mut T> {
    match slot {
        Some(value) => Ok(value),
        None => {
            let value = read(r)?;
            r.commit();
            Ok(slot.insert(value))
        }
    }
}

/// A container that is being walked, with its bytes.
#[derive(Debug)]
pub(super) struct Packed {
    blob: Vec<u8>,
    pack: Pack,
}

impl Packed {
    pub fn read(r: &mut Reader<'_>, kind: Kind, max: u64) -> Step<Self> {
        Ok(Packed::new(r.string(max)?.into_owned(), kind)?)
    }

    pub fn new(blob: Vec<u8>, kind: Kind) -> Result<Self, Fault> {
        let pack = Pack::new(kind, &blob)?;
        Ok(Packed { blob, pack })
    }

    pub fn next(&mut self) -> Result<Option<Entry<'_>>, Fault> {
        self.pack.next(&self.blob)
    }

    /// An entry that must be there.
    pub fn need(&mut self, fault: &'static str) -> Result<Entry<'_>, Fault> {
        self.next()?.ok_or(Fault::Corrupt(fault))
    }

    pub fn need_int(&mut self, fault: &'static str) -> Result<i64, Fault> {
        self.need(fault)?.to_int().ok_or(Fault::Corrupt(fault))
    }
}

/// Where a value that refers to a hash template finds it.
#[derive(Debug, Clone, Copy)]
pub enum Lookup<'a> {
    None,
    One(&'a Arc<Template>),
    File(&'a Templates),
}

/// Takes one value apart, piece by piece, as its bytes come.
#[derive(Debug)]
pub struct Unpacker {
    budget: Budget,
    parts: Parts,
}

#[derive(Debug)]
enum Parts {
    String(Strings),
    List(Lists),
    Set(Sets),
    Zset(Zsets),
    Hash(Hashes),
    Array(ArrayItems),
    Stream(Box<StreamParts>),
}

impl Unpacker {
    /// # Errors
    /// `UnknownType`; `NotDecodable` for a module's value and GCRA.
    pub fn new(project: Project, value_type: u8, limits: &Limits, lookup: Lookup<'_>) -> Result<Self, Fault> {
        if type_row(project, value_type).is_none() {
            return Err(Fault::UnknownType(value_type));
        }
        let max = limits.element_bytes_max;
        let parts = match value_type {
            opcode::STRING => Parts::String(Strings::new(max)),
            opcode::LIST | opcode::LIST_ZIPLIST | opcode::LIST_QUICKLIST | opcode::LIST_QUICKLIST_2 => {
                Parts::List(Lists::new(value_type, max))
            }
            opcode::SET | opcode::SET_INTSET | opcode::SET_LISTPACK => Parts::Set(Sets::new(value_type, max)),
            opcode::ZSET | opcode::ZSET_2 | opcode::ZSET_ZIPLIST | opcode::ZSET_LISTPACK => {
                Parts::Zset(Zsets::new(value_type, max))
            }
            opcode::STREAM | opcode::STREAM_2 | opcode::STREAM_3 | opcode::STREAM_4 | opcode::STREAM_5 => {
                Parts::Stream(Box::new(StreamParts::new(value_type, limits)))
            }
            opcode::ARRAY => Parts::Array(ArrayItems::new(max)),
            opcode::MODULE_2 | opcode::GCRA => return Err(Fault::NotDecodable(value_type)),
            _ => Parts::Hash(Hashes::new(project, value_type, max, lookup)),
        };
        Ok(Unpacker { budget: Budget::PIECE, parts })
    }

    pub(super) fn with_budget(self, budget: Budget) -> Self {
        Unpacker { budget, ..self }
    }

    /// The value before any piece.
    pub(in crate::rdb) fn empty_value(&self) -> Value {
        match self.parts {
            Parts::String(_) => Value::String(Vec::new()),
            Parts::List(_) => Value::List(Vec::new()),
            Parts::Set(_) => Value::Set(Vec::new()),
            Parts::Zset(_) => Value::Zset(Vec::new()),
            Parts::Hash(_) => Value::Hash(Vec::new()),
            Parts::Array(_) => Value::Array(Array::default()),
            Parts::Stream(_) => Value::Stream(Box::<Stream>::default()),
        }
    }

    /// The next piece, or `None` after the last. On `More` the reader is where the next attempt is to begin.
    pub(crate) fn piece(&mut self, r: &mut Reader<'_>) -> Step<Option<Piece>> {
        let result = self.next_piece(r);
        match result {
            Err(_) => r.rewind(),
            Ok(_) => r.commit(),
        }
        result
    }

    fn next_piece(&mut self, r: &mut Reader<'_>) -> Step<Option<Piece>> {
        let budget = self.budget;
        match &mut self.parts {
            Parts::String(strings) => strings.piece(r, budget),
            Parts::List(lists) => budget.gather(r, Vec::len, |r| lists.next(r)).map(|v| some(v, Piece::ListItems)),
            Parts::Set(sets) => budget.gather(r, Vec::len, |r| sets.next(r)).map(|v| some(v, Piece::SetMembers)),
            Parts::Zset(zsets) => budget
                .gather(r, |m: &ZsetMember| m.member.len(), |r| zsets.next(r))
                .map(|v| some(v, Piece::ZsetMembers)),
            Parts::Hash(hashes) => budget
                .gather(r, |f: &HashField| f.field.len() + f.value.len(), |r| hashes.next(r))
                .map(|v| some(v, Piece::HashFields)),
            Parts::Array(items) => {
                let gathered = budget.gather(r, |(_, bytes): &(u64, Vec<u8>)| bytes.len(), |r| items.next(r))?;
                Ok(some(gathered, Piece::ArrayItems).or_else(|| items.take_cursor().map(Piece::ArrayCursor)))
            }
            Parts::Stream(stream) => stream.piece(r, budget),
        }
    }
}

fn some<T>(elements: Vec<T>, piece: impl FnOnce(Vec<T>) -> Piece) -> Option<Piece> {
    (!elements.is_empty()).then(|| piece(elements))
}
