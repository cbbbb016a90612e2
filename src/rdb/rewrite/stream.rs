//! Streams as commands. The model is redis 7.0 src/aof.c, rewriteStreamObject.
//!
//! An entry that is pending but deleted can't be claimed: it is added under its id, claimed, and deleted again. That needs the
//! pending ids before the entries, so it works for whole streams only.

use super::command::{Command, Out, number};
use super::ids::Ids;
use super::{TargetCaps, Unsupported, lose};
use crate::rdb::value::{Group, Idempotency, IdmpRecord, Pending, Piece, Stream, StreamEntry, StreamId, StreamMeta};

/// Ids in one command, at most.
const IDS_MAX: usize = 1024;

/// The server's own settings, which a stream need not be given.
const IDMP_DURATION_S: u64 = 100;
const IDMP_ENTRIES_MAX: u64 = 100;

/// The least id; "none" can't be set.
const LEAST: StreamId = StreamId { ms: 0, seq: 1 };

/// Whether `target` can be given `stream`.
pub(super) fn check(stream: &Stream, target: &TargetCaps) -> Result<(), Unsupported> {
    if !target.has((5, 0, 0)) {
        return Err(Unsupported::Type("stream"));
    }
    if target.accept_loss {
        return Ok(());
    }
    if !has_nacked(target) && stream.groups.iter().any(|group| !group.nacked.is_empty()) {
        return Err(Unsupported::Nacked);
    }
    if let Some(idempotency) = &stream.idempotency {
        let records = idempotency.producers.iter().any(|p| !p.records.is_empty());
        let settings = (idempotency.duration_s, idempotency.entries_max) != (IDMP_DURATION_S, IDMP_ENTRIES_MAX);
        if (records && !has_idmp_record(target)) || (settings && !has_idempotency(target)) {
            return Err(Unsupported::Idempotency);
        }
    }
    match placeholders(stream, target).last() {
        Some(id) if *id > stream.meta.last_id => Err(Unsupported::DeletedPending),
        _ => Ok(()),
    }
}

fn has_nacked(target: &TargetCaps) -> bool {
    target.has((8, 8, 0))
}

fn has_idempotency(target: &TargetCaps) -> bool {
    target.has((8, 6, 0))
}

fn has_idmp_record(target: &TargetCaps) -> bool {
    target.has((8, 6, 2))
}

/// Ids that must be there for a while though their entries are deleted, ascending.
fn placeholders(stream: &Stream, target: &TargetCaps) -> Vec<StreamId> {
    let mut ids: Vec<StreamId> = Vec::new();
    for group in &stream.groups {
        ids.extend(group.consumers.iter().flat_map(|c| &c.pending).map(|p| p.id));
        if has_nacked(target) {
            ids.extend(group.nacked.iter().map(|p| p.id));
        }
    }
    if has_idmp_record(target) {
        let producers = stream.idempotency.iter().flat_map(|i| &i.producers);
        ids.extend(producers.flat_map(|p| &p.records).map(|record| record.id));
    }
    ids.retain(|id| stream.entries.binary_search_by_key(id, |entry| entry.id).is_err());
    ids.sort_unstable();
    ids.dedup();
    // No entry can be added as 0-0.
    ids.retain(|id| *id != StreamId::ZERO);
    ids
}

/// Writes one stream.
#[derive(Debug)]
pub(super) struct StreamWriter {
    key: Vec<u8>,
    target: TargetCaps,
    /// The ids written so far, where they can't be looked up.
    ids: Ids,
    group: Vec<u8>,
    consumer: Vec<u8>,
    producer: Vec<u8>,
    lost: Option<Unsupported>,
}

impl StreamWriter {
    pub fn new(key: &[u8], target: TargetCaps) -> Self {
        StreamWriter {
            key: key.to_vec(),
            target,
            ids: Ids::default(),
            group: Vec::new(),
            consumer: Vec::new(),
            producer: Vec::new(),
            lost: None,
        }
    }

    /// The first thing that was left out so far, where that is accepted.
    pub fn lost(&self) -> Option<Unsupported> {
        self.lost
    }

    fn lose(&mut self, problem: Unsupported) -> Result<(), Unsupported> {
        lose(&self.target, &mut self.lost, problem)
    }

    /// Writes a whole stream, which [`check`] was content with.
    pub fn whole(&mut self, stream: &Stream, out: &mut Out<'_>) -> Result<(), Unsupported> {
        let mut placeholders = placeholders(stream, &self.target);
        placeholders.retain(|id| *id <= stream.meta.last_id);
        let mut coming = placeholders.iter().peekable();
        for entry in &stream.entries {
            while let Some(id) = coming.next_if(|id| **id < entry.id) {
                self.placeholder(*id, out);
            }
            self.entry(entry, out);
        }
        coming.for_each(|id| self.placeholder(*id, out));
        let mut meta = stream.meta;
        let there = (stream.entries.len() + placeholders.len()) as u64;
        meta.entries_added = meta.entries_added.max(there);
        self.meta(&meta, there == 0, out);
        for group in &stream.groups {
            self.group_with_consumers(group, out)?;
        }
        if let Some(idempotency) = &stream.idempotency {
            self.idempotency_with_records(idempotency, out)?;
        }
        self.remove_placeholders(&placeholders, &stream.meta, out);
        Ok(())
    }

    fn placeholder(&mut self, id: StreamId, out: &mut Out<'_>) {
        self.ids.push(id);
        Command::new(b"XADD").arg(&self.key).owned(number(id)).arg(b"x").arg(b"y").emit(out);
    }

    fn remove_placeholders(&self, placeholders: &[StreamId], meta: &StreamMeta, out: &mut Out<'_>) {
        if placeholders.is_empty() {
            return;
        }
        for ids in placeholders.chunks(IDS_MAX) {
            let mut command = Command::new(b"XDEL").arg(&self.key);
            for id in ids {
                command = command.owned(number(id));
            }
            command.emit(out);
        }
        // XDEL raised the greatest deleted id, and 0-0 would leave it there.
        let mut meta = *meta;
        meta.max_deleted_id = meta.max_deleted_id.max(LEAST.min(meta.last_id));
        self.set_id(&meta, out);
    }

    fn group_with_consumers(&mut self, group: &Group, out: &mut Out<'_>) -> Result<(), Unsupported> {
        self.group(&group.name, group.last_id, group.entries_read, out);
        for consumer in &group.consumers {
            self.consumer(&consumer.name, out);
            self.pending(&consumer.pending, out)?;
        }
        self.nacked(&group.nacked, out)
    }

    fn idempotency_with_records(&mut self, idempotency: &Idempotency, out: &mut Out<'_>) -> Result<(), Unsupported> {
        self.idempotency(idempotency.duration_s, idempotency.entries_max, out)?;
        for producer in &idempotency.producers {
            self.producer.clone_from(&producer.name);
            self.records(&producer.records, out)?;
        }
        Ok(())
    }

    /// Writes the next piece of a stream.
    pub fn piece(&mut self, piece: &Piece, out: &mut Out<'_>) -> Result<(), Unsupported> {
        if !self.target.has((5, 0, 0)) {
            return Err(Unsupported::Type("stream"));
        }
        match piece {
            Piece::StreamEntries(entries) => entries.iter().for_each(|entry| self.entry(entry, out)),
            Piece::StreamMeta(meta) => {
                let is_empty = self.ids.is_empty();
                self.meta(meta, is_empty, out);
            }
            Piece::StreamGroup { name, last_id, entries_read } => self.group(name, *last_id, *entries_read, out),
            Piece::StreamConsumer { name, .. } => self.consumer(name, out),
            Piece::StreamPending(pending) => self.pending(pending, out)?,
            Piece::StreamNacked(pending) => self.nacked(pending, out)?,
            Piece::StreamIdempotency { duration_s, entries_max } => self.idempotency(*duration_s, *entries_max, out)?,
            Piece::StreamProducer { name } => self.producer.clone_from(name),
            Piece::StreamIdmpRecords(records) => self.records(records, out)?,
            // StreamIdmpCounters can't be set; the others are no stream's.
            _ => {}
        }
        Ok(())
    }

    fn entry(&mut self, entry: &StreamEntry, out: &mut Out<'_>) {
        self.ids.push(entry.id);
        let mut command = Command::new(b"XADD").arg(&self.key).owned(number(entry.id));
        for (field, value) in &entry.fields {
            command = command.arg(field).arg(value);
        }
        command.emit(out);
    }

    fn meta(&self, meta: &StreamMeta, is_empty: bool, out: &mut Out<'_>) {
        if is_empty {
            let command = Command::new(b"XADD").arg(&self.key).arg(b"MAXLEN").arg(b"0");
            command.owned(number(LEAST)).arg(b"x").arg(b"y").emit(out);
        }
        self.set_id(meta, out);
    }

    fn set_id(&self, meta: &StreamMeta, out: &mut Out<'_>) {
        let mut command = Command::new(b"XSETID").arg(&self.key).owned(number(meta.last_id));
        if self.target.has((7, 0, 0)) {
            command = command.arg(b"ENTRIESADDED").owned(number(meta.entries_added));
            command = command.arg(b"MAXDELETEDID").owned(number(meta.max_deleted_id));
        }
        command.emit(out);
    }

    fn group(&mut self, name: &[u8], last_id: StreamId, entries_read: Option<u64>, out: &mut Out<'_>) {
        self.group = name.to_vec();
        let mut command = Command::new(b"XGROUP").arg(b"CREATE").arg(&self.key).arg(name).owned(number(last_id));
        if self.target.has((7, 0, 0)) {
            let entries_read = entries_read.map_or(b"-1".to_vec(), number);
            command = command.arg(b"ENTRIESREAD").owned(entries_read);
        }
        command.emit(out);
    }

    fn consumer(&mut self, name: &[u8], out: &mut Out<'_>) {
        self.consumer = name.to_vec();
        if self.target.has((6, 2, 0)) {
            Command::new(b"XGROUP").arg(b"CREATECONSUMER").arg(&self.key).arg(&self.group).arg(name).emit(out);
        } else {
            // Reading what is pending delivers nothing, but makes the consumer.
            let command = Command::new(b"XREADGROUP").arg(b"GROUP").arg(&self.group).arg(name);
            command.arg(b"COUNT").arg(b"1").arg(b"STREAMS").arg(&self.key).arg(b"0").emit(out);
        }
    }

    fn pending(&mut self, pending: &[Pending], out: &mut Out<'_>) -> Result<(), Unsupported> {
        let pending = self.present(pending)?;
        let alike = |a: &Pending, b: &Pending| (a.delivered_ms, a.deliveries) == (b.delivered_ms, b.deliveries);
        for run in runs(&pending, alike) {
            let Some(first) = run.first() else { continue };
            let mut command = Command::new(b"XCLAIM").arg(&self.key).arg(&self.group).arg(&self.consumer).arg(b"0");
            for pending in run {
                command = command.owned(number(pending.id));
            }
            command = command.arg(b"TIME").owned(number(first.delivered_ms));
            command = command.arg(b"RETRYCOUNT").owned(number(first.deliveries));
            command.arg(b"FORCE").arg(b"JUSTID").emit(out);
        }
        Ok(())
    }

    fn nacked(&mut self, pending: &[Pending], out: &mut Out<'_>) -> Result<(), Unsupported> {
        if !has_nacked(&self.target) && !pending.is_empty() {
            return self.lose(Unsupported::Nacked);
        }
        let pending = self.present(pending)?;
        for run in runs(&pending, |a, b| a.deliveries == b.deliveries) {
            let Some(first) = run.first() else { continue };
            let mut command = Command::new(b"XNACK").arg(&self.key).arg(&self.group);
            command = command.arg(b"FAIL").arg(b"IDS").owned(number(run.len()));
            for pending in run {
                command = command.owned(number(pending.id));
            }
            command.arg(b"RETRYCOUNT").owned(number(first.deliveries)).arg(b"FORCE").emit(out);
        }
        Ok(())
    }

    /// Those pending entries that the stream has.
    fn present(&mut self, pending: &[Pending]) -> Result<Vec<Pending>, Unsupported> {
        let present: Vec<Pending> = pending.iter().copied().filter(|p| self.ids.contains(p.id)).collect();
        if present.len() < pending.len() {
            self.lose(Unsupported::DeletedPending)?;
        }
        Ok(present)
    }

    fn idempotency(&mut self, duration_s: u64, entries_max: u64, out: &mut Out<'_>) -> Result<(), Unsupported> {
        if (duration_s, entries_max) == (IDMP_DURATION_S, IDMP_ENTRIES_MAX) {
            return Ok(());
        }
        if !has_idempotency(&self.target) {
            return self.lose(Unsupported::Idempotency);
        }
        let command = Command::new(b"XCFGSET").arg(&self.key).arg(b"IDMP-DURATION").owned(number(duration_s));
        command.arg(b"IDMP-MAXSIZE").owned(number(entries_max)).emit(out);
        Ok(())
    }

    fn records(&mut self, records: &[IdmpRecord], out: &mut Out<'_>) -> Result<(), Unsupported> {
        if !records.is_empty() && !has_idmp_record(&self.target) {
            return self.lose(Unsupported::Idempotency);
        }
        for record in records {
            if !self.ids.contains(record.id) {
                self.lose(Unsupported::DeletedRecord)?;
                continue;
            }
            let command = Command::new(b"XIDMPRECORD").arg(&self.key).arg(&self.producer);
            command.arg(&record.iid).owned(number(record.id)).emit(out);
        }
        Ok(())
    }
}

/// Runs of pending entries that one command can set.
fn runs<'a>(
    pending: &'a [Pending],
    alike: impl Fn(&Pending, &Pending) -> bool + 'a,
) -> impl Iterator<Item = &'a [Pending]> {
    pending.chunk_by(alike).flat_map(|run| run.chunks(IDS_MAX))
}
