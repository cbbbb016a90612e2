//! Streams (15, 19, 21, 26, 27): entries, counters, consumer groups, idempotent producers.
//!
//! Source: redis 8.10 src/rdb.c, rdbSaveObject; src/t_stream.c.

mod groups;
mod node;

use std::fmt;

use self::groups::{GroupPart, Groups};
use self::node::Node;
use super::pieces::{Budget, Left, Piece};
use crate::rdb::decoder::Limits;
use crate::rdb::error::{Fault, Step};
use crate::rdb::length::Reader;
use crate::rdb::opcode;

/// The id of a stream's entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    pub ms: u64,
    pub seq: u64,
}

impl StreamId {
    pub const ZERO: StreamId = StreamId { ms: 0, seq: 0 };

    /// Two u64, big-endian.
    pub(super) fn read(r: &mut Reader<'_>) -> Step<Self> {
        Ok(StreamId { ms: r.u64_be()?, seq: r.u64_be()? })
    }

    /// Two lengths.
    fn read_lens(r: &mut Reader<'_>) -> Step<Self> {
        Ok(StreamId { ms: r.len()?, seq: r.len()? })
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// An entry that is not deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    pub id: StreamId,
    /// Fields may repeat.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl StreamEntry {
    pub(super) fn bytes(&self) -> usize {
        self.fields.iter().map(|(field, value)| field.len() + value.len() + 16).sum()
    }
}

/// A stream's counters. Type 15 has only the first two; the others follow from its entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamMeta {
    /// Entries not deleted.
    pub length: u64,
    pub last_id: StreamId,
    pub first_id: StreamId,
    pub max_deleted_id: StreamId,
    pub entries_added: u64,
}

/// An entry that was delivered but not acknowledged; the entry itself may be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    pub id: StreamId,
    pub delivered_ms: i64,
    pub deliveries: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Consumer {
    pub name: Vec<u8>,
    pub seen_ms: i64,
    /// Since type 21; -1 for never.
    pub active_ms: Option<i64>,
    pub pending: Vec<Pending>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    pub name: Vec<u8>,
    pub last_id: StreamId,
    /// `None` if the server doesn't know.
    pub entries_read: Option<u64>,
    pub consumers: Vec<Consumer>,
    /// Pending entries that no consumer owns, in the order of their redelivery (XNACK, Redis 8.8).
    pub nacked: Vec<Pending>,
}

/// One idempotence id of a producer, and the entry that it made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdmpRecord {
    pub iid: Vec<u8>,
    pub id: StreamId,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Producer {
    pub name: Vec<u8>,
    pub records: Vec<IdmpRecord>,
}

/// What a stream remembers of idempotent producers (Redis 8.6).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Idempotency {
    pub duration_s: u64,
    pub entries_max: u64,
    pub producers: Vec<Producer>,
    pub added: u64,
    pub duplicates: u64,
}

/// A stream, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stream {
    /// Ascending by id.
    pub entries: Vec<StreamEntry>,
    pub meta: StreamMeta,
    pub groups: Vec<Group>,
    /// Since type 26.
    pub idempotency: Option<Idempotency>,
}

impl Stream {
    /// Adds the next piece. One that belongs to nothing before it can't come from [`StreamParts`] and is left out.
    pub(super) fn add(&mut self, piece: Piece) {
        match piece {
            Piece::StreamEntries(mut entries) => self.entries.append(&mut entries),
            Piece::StreamMeta(meta) => self.meta = meta,
            Piece::StreamGroup { name, last_id, entries_read } => {
                self.groups.push(Group { name, last_id, entries_read, ..Group::default() });
            }
            Piece::StreamIdempotency { duration_s, entries_max } => {
                self.idempotency = Some(Idempotency { duration_s, entries_max, ..Idempotency::default() });
            }
            piece => match (&mut self.idempotency, self.groups.last_mut()) {
                (Some(idempotency), _) => idempotency.add(piece),
                (None, Some(group)) => group.add(piece),
                (None, None) => {}
            },
        }
    }
}

impl Idempotency {
    /// Adds a piece from after the last group.
    fn add(&mut self, piece: Piece) {
        match piece {
            Piece::StreamProducer { name } => self.producers.push(Producer { name, records: Vec::new() }),
            Piece::StreamIdmpRecords(mut records) => {
                if let Some(producer) = self.producers.last_mut() {
                    producer.records.append(&mut records);
                }
            }
            Piece::StreamIdmpCounters { added, duplicates } => {
                (self.added, self.duplicates) = (added, duplicates);
            }
            _ => {}
        }
    }
}

impl Group {
    fn add(&mut self, piece: Piece) {
        match piece {
            Piece::StreamConsumer { name, seen_ms, active_ms } => {
                self.consumers.push(Consumer { name, seen_ms, active_ms, pending: Vec::new() });
            }
            Piece::StreamPending(mut pending) => {
                if let Some(consumer) = self.consumers.last_mut() {
                    consumer.pending.append(&mut pending);
                }
            }
            Piece::StreamNacked(mut nacked) => self.nacked.append(&mut nacked),
            _ => {}
        }
    }
}

/// What the type's number says of the parts there are.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// The counters after `last_id`, and groups' entries_read.
    counters: bool,
    active_times: bool,
    idempotency: bool,
    nacked: bool,
}

/// Takes a stream apart.
#[derive(Debug)]
pub(super) struct StreamParts {
    form: Form,
    bytes_max: u64,
    phase: Phase,
    nodes: Left,
    node: Option<Node>,
    /// The first and the last live entry so far.
    first_id: Option<StreamId>,
    last_entry: Option<StreamId>,
    groups: Groups,
    producers: Left,
    records: Option<Left>,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Entries,
    Meta,
    Groups,
    Idempotency,
    Producers,
    Counters,
    End,
}

impl StreamParts {
    pub fn new(value_type: u8, limits: &Limits) -> Self {
        let form = Form {
            counters: value_type >= opcode::STREAM_2,
            active_times: value_type >= opcode::STREAM_3,
            idempotency: value_type >= opcode::STREAM_4,
            nacked: value_type >= opcode::STREAM_5,
        };
        StreamParts {
            form,
            bytes_max: limits.element_bytes_max,
            phase: Phase::Entries,
            nodes: Left::default(),
            node: None,
            first_id: None,
            last_entry: None,
            groups: Groups::new(form, limits),
            producers: Left::default(),
            records: None,
        }
    }

    pub fn piece(&mut self, r: &mut Reader<'_>, budget: Budget) -> Step<Option<Piece>> {
        loop {
            match self.phase {
                Phase::Entries => {
                    let entries = budget.gather(r, StreamEntry::bytes, |r| self.entry(r))?;
                    if !entries.is_empty() {
                        return Ok(Some(Piece::StreamEntries(entries)));
                    }
                    self.phase = Phase::Meta;
                }
                Phase::Meta => {
                    let meta = self.meta(r)?;
                    r.commit();
                    self.phase = Phase::Groups;
                    return Ok(Some(Piece::StreamMeta(meta)));
                }
                Phase::Groups => match self.groups.piece(r, budget)? {
                    Some(part) => return Ok(Some(part.into())),
                    None if self.form.idempotency => self.phase = Phase::Idempotency,
                    None => self.phase = Phase::End,
                },
                Phase::Idempotency => {
                    let (duration_s, entries_max) = (r.len()?, r.len()?);
                    r.commit();
                    self.phase = Phase::Producers;
                    return Ok(Some(Piece::StreamIdempotency { duration_s, entries_max }));
                }
                Phase::Producers => {
                    if let Some(piece) = self.producer(r, budget)? {
                        return Ok(Some(piece));
                    }
                    self.phase = Phase::Counters;
                }
                Phase::Counters => {
                    let (added, duplicates) = (r.len()?, r.len()?);
                    r.commit();
                    self.phase = Phase::End;
                    return Ok(Some(Piece::StreamIdmpCounters { added, duplicates }));
                }
                Phase::End => return Ok(None),
            }
        }
    }

    fn entry(&mut self, r: &mut Reader<'_>) -> Step<Option<StreamEntry>> {
        loop {
            if let Some(node) = &mut self.node {
                if let Some(entry) = node.next()? {
                    if self.last_entry.is_some_and(|last| last >= entry.id) {
                        return Err(Fault::Corrupt("a stream's entries don't ascend").into());
                    }
                    self.first_id = self.first_id.or(Some(entry.id));
                    self.last_entry = Some(entry.id);
                    return Ok(Some(entry));
                }
                self.node = None;
            }
            if !self.nodes.any(r)? {
                return Ok(None);
            }
            self.node = Some(Node::read(r, self.bytes_max)?);
            self.nodes.took(r);
        }
    }

    fn meta(&mut self, r: &mut Reader<'_>) -> Step<StreamMeta> {
        let (length, last_id) = (r.len()?, StreamId::read_lens(r)?);
        let mut meta = StreamMeta {
            length,
            last_id,
            first_id: self.first_id.unwrap_or_default(),
            max_deleted_id: StreamId::ZERO,
            entries_added: length,
        };
        if self.form.counters {
            meta.first_id = StreamId::read_lens(r)?;
            meta.max_deleted_id = StreamId::read_lens(r)?;
            meta.entries_added = r.len()?;
        }
        if self.last_entry.is_some_and(|last| last > last_id) {
            return Err(Fault::Corrupt("a stream's last id is before its last entry").into());
        }
        Ok(meta)
    }

    fn producer(&mut self, r: &mut Reader<'_>, budget: Budget) -> Step<Option<Piece>> {
        if let Some(left) = &mut self.records {
            let max = self.bytes_max;
            let records = budget.gather(
                r,
                |record: &IdmpRecord| record.iid.len() + 16,
                |r| {
                    if !left.any(r)? {
                        return Ok(None);
                    }
                    let record = IdmpRecord { iid: r.string(max)?.into_owned(), id: StreamId::read_lens(r)? };
                    left.took(r);
                    Ok(Some(record))
                },
            )?;
            if !records.is_empty() {
                return Ok(Some(Piece::StreamIdmpRecords(records)));
            }
            self.records = None;
        }
        if !self.producers.any(r)? {
            return Ok(None);
        }
        let name = r.string(self.bytes_max)?.into_owned();
        self.producers.took(r);
        self.records = Some(Left::default());
        Ok(Some(Piece::StreamProducer { name }))
    }
}

impl From<GroupPart> for Piece {
    fn from(part: GroupPart) -> Self {
        match part {
            GroupPart::Group { name, last_id, entries_read } => Piece::StreamGroup { name, last_id, entries_read },
            GroupPart::Consumer { name, seen_ms, active_ms } => Piece::StreamConsumer { name, seen_ms, active_ms },
            GroupPart::Pending(pending) => Piece::StreamPending(pending),
            GroupPart::Nacked(pending) => Piece::StreamNacked(pending),
        }
    }
}
