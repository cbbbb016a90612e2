//! Values as commands, for targets that can't take them by RESTORE.
//!
//! What can't be had back this way: LRU and LFU, encodings, consumers' times, counters of idempotent producers, modules'
//! metadata, the sign of a zero score (servers since 7.0 drop it in small sorted sets), a stream's greatest deleted id of none
//! if placeholders were needed, and on targets that don't know them a stream's counters.

mod command;
mod ids;
mod stream;

use std::collections::BTreeMap;

use self::command::{Command, Out, number};
use self::stream::StreamWriter;
use super::dump::late_field;
use super::module::ModuleType;
use super::opcode::{Project, Version};
use super::value::{HashField, Piece, Value, ZsetMember};

/// Elements in one command, at most.
const COMMAND_ELEMENTS_MAX: usize = 1024;
/// A command is ended by the element that brings it to so many bytes.
const COMMAND_BYTES_MAX: usize = 1 << 20;
/// A string of up to this size is one SET.
const SET_BYTES_MAX: usize = 16 << 20;
/// HPEXPIREAT takes times below this.
const FIELD_EXPIRY_END: i64 = 1 << 46;

/// What a target's commands can express.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetCaps {
    pub project: Project,
    pub version: Version,
    /// Leave out what can't be expressed rather than fail: field expiry, ownerless pending entries, idempotence records.
    /// A type that is missing altogether is an error all the same.
    pub accept_loss: bool,
    /// How much later than in the value fields of hashes are to expire.
    pub fields_late_ms: i64,
}

impl TargetCaps {
    pub fn new(project: Project, version: Version) -> Self {
        TargetCaps { project, version, accept_loss: false, fields_late_ms: 0 }
    }

    /// Whether it has what this version of Redis brought; Valkey parted from Redis at 7.2.4.
    fn has(&self, redis: Version) -> bool {
        match self.project {
            Project::Redis => self.version >= redis,
            Project::Valkey => redis <= (7, 2, 4),
        }
    }

    fn expires_fields(&self) -> bool {
        match self.project {
            Project::Redis => self.version >= (7, 4, 0),
            Project::Valkey => self.version >= (9, 0, 0),
        }
    }
}

/// A value, or a part of one, that no command of the target can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    #[error("the target has no type {0}")]
    Type(&'static str),
    #[error("the target has no module that knows type {0}")]
    Module(ModuleType),
    #[error("a {0} value can be restored only, not rebuilt with commands")]
    Opaque(&'static str),
    #[error("the target's hashes have no fields that expire")]
    FieldExpiry,
    #[error("a hash field expires at {0} ms, later than HPEXPIREAT takes")]
    FieldExpiryTooLate(i64),
    #[error("the target's streams have no pending entries without a consumer")]
    Nacked,
    #[error("the target's streams have no idempotent producers, or no command to set them")]
    Idempotency,
    #[error("a pending entry was deleted from the stream and can't be put back behind later ones")]
    DeletedPending,
    #[error("an idempotence record's entry was deleted from the stream and can't be put back behind later ones")]
    DeletedRecord,
    #[error("the target keeps no modules' metadata of keys")]
    Metadata,
}

impl Unsupported {
    /// True where the target can hold the rest of the value.
    pub fn is_partial(&self) -> bool {
        !matches!(self, Unsupported::Type(_) | Unsupported::Module(_) | Unsupported::Opaque(_))
    }

    /// What the target gets it without, in words for a count.
    pub fn what(&self) -> &'static str {
        match self {
            Unsupported::Type(_) | Unsupported::Module(_) | Unsupported::Opaque(_) => "the value",
            Unsupported::FieldExpiry => "expiry of hash fields",
            Unsupported::FieldExpiryTooLate(_) => "exact expiry of hash fields",
            Unsupported::Nacked => "pending entries of no consumer",
            Unsupported::Idempotency | Unsupported::DeletedRecord => "idempotent producers",
            Unsupported::DeletedPending => "pending entries that were deleted",
            Unsupported::Metadata => "modules' metadata",
        }
    }
}

/// Writes the commands that put `value` in place of whatever is at `key`.
///
/// They begin with UNLINK or DEL, end with PEXPIREAT if the key expires, and stay below about 1 MiB and 1024 elements each
/// (a string up to 16 MiB is one SET). A collection without elements is only deleted: no server keeps one.
///
/// # Errors
/// Nothing was written then.
pub fn commands(
    key: &[u8],
    value: &Value,
    expires_at_ms: Option<i64>,
    target: &TargetCaps,
    out: &mut Out<'_>,
) -> Result<(), Unsupported> {
    check(value, target)?;
    let mut rewriter = Rewriter::new(key, expires_at_ms, *target);
    rewriter.begin(out);
    if value.is_empty_collection() {
        return Ok(());
    }
    match value {
        Value::String(bytes) => rewriter.string(bytes, out),
        Value::List(items) => rewriter.plain(b"RPUSH", items, out),
        Value::Set(members) => rewriter.plain(b"SADD", members, out),
        Value::Zset(members) => rewriter.zset(members, out),
        Value::Hash(fields) => rewriter.hash(fields, out)?,
        Value::Array(array) => {
            rewriter.array(&array.items, out);
            if let Some(cursor) = array.cursor {
                rewriter.cursor(cursor, out);
            }
        }
        Value::Stream(stream) => rewriter.stream.whole(stream, out)?,
        Value::Module { .. } | Value::Gcra { .. } => {}
    }
    rewriter.finish(out);
    Ok(())
}

/// Whether `target` can be given `value`; with `accept_loss` unset, whole.
///
/// # Errors
/// The first thing that it can't be given.
pub fn check(value: &Value, target: &TargetCaps) -> Result<(), Unsupported> {
    match value {
        Value::String(_) | Value::List(_) | Value::Set(_) | Value::Zset(_) => Ok(()),
        Value::Hash(_) if target.accept_loss => Ok(()),
        Value::Hash(fields) => fields.iter().try_for_each(|field| match field_expiry(field, target) {
            (_, Some(problem)) => Err(problem),
            _ => Ok(()),
        }),
        Value::Stream(stream) => stream::check(stream, target),
        Value::Array(_) if target.has((8, 8, 0)) => Ok(()),
        Value::Array(_) => Err(Unsupported::Type("array")),
        Value::Module { .. } | Value::Gcra { .. } => Err(Unsupported::Opaque(value.type_word())),
    }
}

/// When the target is told that the field expires, or as near to it as can be, and what of it is lost.
fn field_expiry(field: &HashField, target: &TargetCaps) -> (Option<i64>, Option<Unsupported>) {
    match field.expires_at_ms {
        None => (None, None),
        Some(_) if !target.expires_fields() => (None, Some(Unsupported::FieldExpiry)),
        Some(ms) if ms >= FIELD_EXPIRY_END => (Some(FIELD_EXPIRY_END - 1), Some(Unsupported::FieldExpiryTooLate(ms))),
        Some(ms) => (Some(late_field(ms, target.fields_late_ms, target.project)), None),
    }
}

/// Goes on without what can't be said, if that is accepted, and keeps the first such thing.
fn lose(target: &TargetCaps, lost: &mut Option<Unsupported>, problem: Unsupported) -> Result<(), Unsupported> {
    if !target.accept_loss {
        return Err(problem);
    }
    lost.get_or_insert(problem);
    Ok(())
}

/// Writes one key piece by piece, for a value that is never in memory whole.
///
/// ```text
/// Rewriter::new, piece for each piece in order, finish
/// ```
/// Each call writes whole commands.
#[derive(Debug)]
pub struct Rewriter {
    key: Vec<u8>,
    expires_at_ms: Option<i64>,
    target: TargetCaps,
    begun: bool,
    lost: Option<Unsupported>,
    stream: StreamWriter,
}

impl Rewriter {
    pub fn new(key: &[u8], expires_at_ms: Option<i64>, target: TargetCaps) -> Self {
        let stream = StreamWriter::new(key, target);
        Rewriter { key: key.to_vec(), expires_at_ms, target, begun: false, lost: None, stream }
    }

    /// The first thing that was left out so far, where that is accepted.
    pub fn lost(&self) -> Option<Unsupported> {
        self.lost.or(self.stream.lost())
    }

    /// Writes the commands for the next piece; before the first one, the command that deletes the key.
    ///
    /// # Errors
    /// What the target can't be given. The key may be there in part by then, and should be deleted.
    pub fn piece(&mut self, piece: &Piece, out: &mut Out<'_>) -> Result<(), Unsupported> {
        self.begin(out);
        match piece {
            Piece::StringBytes { offset, bytes } => {
                let command: &[u8] = if *offset == 0 { b"SET" } else { b"APPEND" };
                Command::new(command).arg(&self.key).arg(bytes).emit(out);
            }
            Piece::ListItems(items) => self.plain(b"RPUSH", items, out),
            Piece::SetMembers(members) => self.plain(b"SADD", members, out),
            Piece::ZsetMembers(members) => self.zset(members, out),
            Piece::HashFields(fields) => self.hash(fields, out)?,
            Piece::ArrayItems(_) | Piece::ArrayCursor(_) if !self.target.has((8, 8, 0)) => {
                return Err(Unsupported::Type("array"));
            }
            Piece::ArrayItems(items) => self.array(items, out),
            Piece::ArrayCursor(cursor) => self.cursor(*cursor, out),
            _ => self.stream.piece(piece, out)?,
        }
        Ok(())
    }

    /// Writes what comes after the last piece.
    pub fn finish(&mut self, out: &mut Out<'_>) {
        self.begin(out);
        if let Some(ms) = self.expires_at_ms {
            Command::new(b"PEXPIREAT").arg(&self.key).owned(number(ms)).emit(out);
        }
    }

    fn begin(&mut self, out: &mut Out<'_>) {
        if !std::mem::replace(&mut self.begun, true) {
            let command: &[u8] = if self.target.has((4, 0, 0)) { b"UNLINK" } else { b"DEL" };
            Command::new(command).arg(&self.key).emit(out);
        }
    }

    fn string(&self, bytes: &[u8], out: &mut Out<'_>) {
        if bytes.len() <= SET_BYTES_MAX {
            Command::new(b"SET").arg(&self.key).arg(bytes).emit(out);
            return;
        }
        let mut command: &[u8] = b"SET";
        for chunk in bytes.chunks(COMMAND_BYTES_MAX) {
            Command::new(command).arg(&self.key).arg(chunk).emit(out);
            command = b"APPEND";
        }
    }

    /// A command whose elements are one argument each.
    fn plain(&self, command: &'static [u8], elements: &[Vec<u8>], out: &mut Out<'_>) {
        for chunk in chunks(elements, Vec::len) {
            let mut command = Command::new(command).arg(&self.key);
            for element in chunk {
                command = command.arg(element);
            }
            command.emit(out);
        }
    }

    fn zset(&self, members: &[ZsetMember], out: &mut Out<'_>) {
        for chunk in chunks(members, |m| m.member.len()) {
            let mut command = Command::new(b"ZADD").arg(&self.key);
            for ZsetMember { member, score } in chunk {
                command = command.owned(score_text(*score)).arg(member);
            }
            command.emit(out);
        }
    }

    fn hash(&mut self, fields: &[HashField], out: &mut Out<'_>) -> Result<(), Unsupported> {
        let name: &[u8] = if self.target.has((4, 0, 0)) { b"HSET" } else { b"HMSET" };
        for chunk in chunks(fields, |f| f.field.len() + f.value.len()) {
            let mut command = Command::new(name).arg(&self.key);
            let mut expiring: BTreeMap<i64, Vec<&[u8]>> = BTreeMap::new();
            for field in chunk {
                command = command.arg(&field.field).arg(&field.value);
                let (at_ms, problem) = field_expiry(field, &self.target);
                if let Some(problem) = problem {
                    lose(&self.target, &mut self.lost, problem)?;
                }
                if let Some(ms) = at_ms {
                    expiring.entry(ms).or_default().push(&field.field);
                }
            }
            command.emit(out);
            for (ms, names) in expiring {
                let command = Command::new(b"HPEXPIREAT").arg(&self.key).owned(number(ms));
                command.arg(b"FIELDS").owned(number(names.len())).args(&names).emit(out);
            }
        }
        Ok(())
    }

    fn array(&self, items: &[(u64, Vec<u8>)], out: &mut Out<'_>) {
        for chunk in chunks(items, |(_, bytes)| bytes.len()) {
            let mut command = Command::new(b"ARMSET").arg(&self.key);
            for (index, bytes) in chunk {
                command = command.owned(number(*index)).arg(bytes);
            }
            command.emit(out);
        }
    }

    /// ARSEEK takes the index that is written next.
    fn cursor(&self, cursor: u64, out: &mut Out<'_>) {
        let next = cursor.saturating_add(1);
        Command::new(b"ARSEEK").arg(&self.key).owned(number(next)).emit(out);
    }
}

/// Splits elements into runs that fit one command each.
fn chunks<T>(elements: &[T], weigh: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut rest = elements;
    std::iter::from_fn(move || {
        let (mut n, mut bytes) = (0, 0usize);
        for element in rest.iter().take(COMMAND_ELEMENTS_MAX) {
            n += 1;
            bytes += weigh(element);
            if bytes >= COMMAND_BYTES_MAX {
                break;
            }
        }
        let (chunk, after) = rest.split_at_checked(n)?;
        rest = after;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// A score as text that reads back to the same bits.
fn score_text(score: f64) -> Vec<u8> {
    match score {
        f64::INFINITY => b"+inf".to_vec(),
        f64::NEG_INFINITY => b"-inf".to_vec(),
        // The shortest text that does, with an exponent where that is short.
        score => format!("{score:?}").into_bytes(),
    }
}
