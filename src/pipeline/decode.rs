//! The decode thread: snapshot, then stream; what passes the scope goes to the lanes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::copy_keys::{CopyError, CopyKeys};
use super::feed::Feed;
use super::learn::{AskError, Learner};
use super::modules::{self, Modules};
use super::motion::Motions;
use super::past::PastLanes;
use super::prepare::SourcesOf;
use super::shard::{Leader, OwnedSlots, slots_now};
use super::value::{self, Gathered, ValueWriter};
use crate::clock::now_ms;
use crate::commands::{self, LearntError, TargetCaps};
use crate::delivery::guard::Standing;
use crate::delivery::record::is_own_key;
use crate::delivery::unit::{Batch, Task};
use crate::filter::{Scope, TypeName};
use crate::journal::{self, Journal, Read};
use crate::offset::ReplOffset;
use crate::rdb::{
    self, Decoder, Event, Key, KeyHead, Limits, ModuleType, RawValue, Rewriter, Skipped, Unsupported, opcode,
};
use crate::repl::resync::Framing;
use crate::resp::{self, encode};
use crate::route::{Router, UnitBuilder};
use crate::slot::{Slot, Slots};
use crate::source::Ack;
use crate::status::{Shard, Status, Tally};
use crate::target::escape_key;

/// Bytes handed over at a time: a crossing between threads costs as much as some hundred bytes of work.
pub(super) const BATCH_BYTES: usize = 128 * 1024;

/// Bytes taken from a journal at a time.
pub(super) const READ_BYTES: usize = 256 * 1024;

/// How long a read waits before the thread looks around.
pub(super) const READ_WAIT: Duration = Duration::from_millis(200);

/// Why the source's data can't be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the source's snapshot is damaged: {0}")]
    Snapshot(#[from] rdb::Error),
    #[error("the source's snapshot breaks off after {bytes} bytes")]
    SnapshotCut { bytes: u64 },
    #[error("the mark that ends the source's snapshot is not where the snapshot ends")]
    SnapshotMark,
    #[error("key {key:?} of database {db} can't be written to the target: {error}")]
    Value { db: u32, key: String, error: value::Error },
    #[error("the source's stream is damaged at offset {offset}: {error}")]
    Stream { offset: ReplOffset, error: resp::command::Error },
    #[error("{error} (database {db}, offset {offset})")]
    Command { db: u32, offset: ReplOffset, error: commands::Error },
    #[error(
        "the source streams {command}, which neither keyferry nor the target knows (database {db}, offset {offset})"
    )]
    UnknownCommand { command: String, db: u32, offset: ReplOffset },
    #[error("the source streams {command}, which keyferry can't route (database {db}, offset {offset}): {error}")]
    Learnt { command: String, db: u32, offset: ReplOffset, error: LearntError },
    #[error(
        "the target has no module that knows {command}, which the source streams (key {key:?}, database {db}, offset {offset})"
    )]
    NoModule { command: String, db: u32, key: String, offset: ReplOffset },
    #[error(
        "{command} may change keys that it doesn't name, so what of it is in scope can't be told (database {db}, offset {offset})"
    )]
    OutOfScope { command: String, db: u32, offset: ReplOffset },
    #[error("the source writes to database {db}, but the target has no database {target_db} (offset {offset})")]
    NoDatabase { db: u32, target_db: u32, offset: ReplOffset },
    #[error("function library {library:?} can't be written to the target: it has no functions (Redis has since 7.0)")]
    NoFunctions { library: String },
    #[error("the target has nothing like {command} (database {db}, offset {offset})")]
    CannotSend { command: String, db: u32, offset: ReplOffset },
    #[error(
        "{command} may change keys that it doesn't name, so a cluster can't be given it (database {db}, offset {offset})"
    )]
    OverSlots { command: String, db: u32, offset: ReplOffset },
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error("copying a key from the source: {0}")]
    Copy(#[from] CopyError),
    #[error("asking the target: {0}")]
    Target(#[from] AskError),
    /// The other side of the pipeline has ended; its own error says why.
    #[error("the target's side has ended")]
    Ended,
}

impl Error {
    /// True when a new full sync can help.
    pub fn is_passing(&self) -> bool {
        match self {
            // A snapshot is damaged on the way or at its source; another one may not be.
            Error::SnapshotCut { .. } => true,
            Error::Copy(error) => error.is_passing(),
            Error::Target(AskError::Target(error)) => error.is_passing(),
            Error::Target(AskError::Ended) => true,
            Error::Journal(_)
            | Error::Snapshot(_)
            | Error::SnapshotMark
            | Error::Value { .. }
            | Error::Stream { .. }
            | Error::Command { .. }
            | Error::UnknownCommand { .. }
            | Error::NoModule { .. }
            | Error::Learnt { .. }
            | Error::OutOfScope { .. }
            | Error::CannotSend { .. }
            | Error::NoFunctions { .. }
            | Error::OverSlots { .. }
            | Error::NoDatabase { .. }
            | Error::Ended => false,
        }
    }

    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::UnknownCommand { command, .. }
            | Error::CannotSend { command, .. }
            | Error::OverSlots { command, .. } => {
                format!("leave it out with --not-command {}", command.to_ascii_lowercase().replace(' ', "|"))
            }
            Error::NoModule { command, .. } => format!(
                "load the module there and go on with the same command, or leave the command out with --not-command {}, \
                 such keys with --not-key, or what can't be applied with --on-error skip",
                command.to_ascii_lowercase()
            ),
            Error::NoDatabase { .. } => {
                "raise `databases` in the target's configuration, leave the database out with --db, or map it with \
                 --db-map; then go on with the same command"
                    .into()
            }
            Error::OutOfScope { command, .. } => {
                format!("copy whole databases, or leave it out with --not-command {}", command.to_ascii_lowercase())
            }
            Error::Value { error: value::Error::Unsupported(lost), .. } if lost.is_partial() => {
                format!("--lossy writes it without {}; or leave it out with --not-key, or --on-error skip", lost.what())
            }
            Error::Value { .. } => "leave it out with --not-key, or --on-error skip".into(),
            Error::NoFunctions { .. } => "leave them out with --not-command function, or --on-error skip".into(),
            Error::Copy(CopyError::Net(error)) => return error.hint(),
            Error::Target(AskError::Target(error)) => return error.hint(),
            Error::Snapshot(_) => "check the source's memory and the network, then copy again".into(),
            _ => return None,
        })
    }
}

/// What becomes of keys in scope that the snapshot doesn't have: an earlier copy left them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// There are none, or they stay.
    None,
    /// Gather the hashes of the copied keys, and remove what else is in scope behind the copy.
    RemoveAfter,
    /// The lanes empty the scope before the copy.
    EmptyFirst,
}

/// What the thread needs.
pub struct Parts {
    pub feed: Arc<Feed>,
    pub scope: Arc<Scope>,
    pub writer: ValueWriter,
    pub caps: TargetCaps,
    pub copy_keys: CopyKeys,
    pub router: Router,
    pub batches: mpsc::Sender<Batch>,
    pub status: Arc<Status>,
    pub shard: Arc<Shard>,
    pub ack: Arc<Ack>,
    /// Leave out, and count, what the target can't hold.
    pub skip_faults: bool,
    /// Keys that were on the target before and stay as they are (`--existing keep`), by [`key_hash`].
    pub kept: Option<Arc<HashSet<u64>>>,
    pub leftovers: Leftovers,
    /// What stands for the job in the keys of the shard's records.
    pub records: String,
    /// The job's name, in the keys of what a cluster's slots hold.
    pub job: String,
    /// The slots that are the shard's, where the source is a cluster.
    pub slots: Option<OwnedSlots>,
    /// Slots that move between shards, where that matters.
    pub motions: Option<Arc<Motions>>,
    pub sources_of: SourcesOf,
    /// The shard's number.
    pub number: u32,
    /// Whether functions and scripts are taken from this shard, which has that number.
    pub leads: (Leader, u32),
    /// What the target holds when an earlier process was there before.
    pub standing: Standing,
    pub learner: Learner,
    pub modules: Modules,
    /// What is written to slots in motion where the target is a cluster.
    pub past: Option<PastLanes>,
}

impl Parts {
    /// The slots that are the shard's now; `None` for all.
    pub fn slots_now(&self) -> Option<Arc<Slots>> {
        slots_now(self.motions.as_deref(), self.number, self.slots.as_ref())
    }

    /// Whether the target has values of this type; one of a module may refuse them all the same.
    ///
    /// # Errors
    /// What it lacks.
    pub fn holds(&self, value: &RawValue<'_>) -> Result<(), value::Error> {
        let name = type_of(value);
        if !self.caps.holds(name) {
            return Err(Unsupported::Type(name.as_str()).into());
        }
        match ModuleType::of_value(value.value_type, value.bytes) {
            Some(of) if name == TypeName::Module => Ok(self.modules.hold(of)?),
            _ => Ok(()),
        }
    }

    /// Counts what `--lossy` left out of a value, and tells of the first of its kind.
    pub fn lost(&self, lost: Option<Unsupported>, (db, key): (u32, &[u8])) {
        let Some(lost) = lost else { return };
        if self.status.lost(lost.what()) {
            let key = escape_key(key);
            tracing::warn!(db, key, without = lost.what(), reason = %lost, "written without what the target can't hold");
        }
    }

    /// Whether functions and scripts are taken from here: all primaries of a cluster have the same.
    pub fn leads(&self) -> bool {
        self.leads.0.is(self.leads.1)
    }
}

/// What a key of a target database is remembered by.
pub fn key_hash(db: u32, key: &[u8]) -> u64 {
    use std::hash::Hasher;
    // SipHash with fixed keys: the same in the whole process.
    #[allow(deprecated)]
    let mut hasher = std::hash::SipHasher::new();
    hasher.write_u32(db);
    hasher.write(key);
    hasher.finish()
}

/// Reads the snapshot and routes its keys.
pub struct Snapshot<'a> {
    parts: &'a mut Parts,
    journal: Arc<Journal>,
    framing: Framing,
    buf: Vec<u8>,
    /// How much of the journal was read.
    read: u64,
    db: u32,
    stream_db: u32,
    copied: HashSet<u64>,
    counts: Counts,
    big: Option<Big>,
    /// A large value of a module is read whole.
    is_buffered: bool,
    gathered: Gathered,
}

/// How a large value is read.
enum Taken {
    Not,
    InPieces,
    Whole,
}

/// The largest argument of a command (`proto-max-bulk-len`) with room for what RESTORE needs beside the value.
const RESTORED_BYTES_MAX: u64 = (512 << 20) - 1024;

/// A large value that comes in pieces.
struct Big {
    rewriter: Rewriter,
    lane: usize,
    db: u32,
    key: Vec<u8>,
}

/// Counts that are handed to the status now and then.
#[derive(Default)]
struct Counts {
    keys: Tally,
    filtered: u64,
    expired: u64,
}

impl<'a> Snapshot<'a> {
    /// `None` if the feed has no snapshot.
    pub fn new(parts: &'a mut Parts) -> Option<Self> {
        let snapshot = parts.feed.snapshot.as_ref()?;
        let (journal, framing) = (Arc::clone(&snapshot.journal), snapshot.framing);
        Some(Snapshot {
            parts,
            journal,
            framing,
            buf: Vec::with_capacity(READ_BYTES),
            read: 0,
            db: 0,
            stream_db: 0,
            copied: HashSet::new(),
            counts: Counts::default(),
            big: None,
            is_buffered: false,
            gathered: Gathered::default(),
        })
    }

    /// Returns the database that the stream begins in.
    ///
    /// # Errors
    /// When the snapshot is cut or damaged, or holds what the target can't.
    pub fn run(mut self) -> Result<u32, Error> {
        let mut decoder = Decoder::new(Limits::default());
        loop {
            match decoder.next()? {
                None => self.more(&mut decoder)?,
                Some(Event::End { .. }) => break,
                Some(Event::Key(key)) => self.key(&key)?,
                Some(Event::BigKey(head)) => match self.big_key(&head)? {
                    Taken::InPieces => decoder.stream_value()?,
                    Taken::Whole => decoder.buffer_value(RESTORED_BYTES_MAX),
                    Taken::Not => decoder.skip_value(),
                },
                Some(event) => self.other(event)?,
            }
            if self.gathered.is_full() {
                self.gathered.give(&mut self.parts.router);
            }
            if self.parts.router.bytes() >= BATCH_BYTES {
                self.hand_over()?;
            }
        }
        self.check_mark(&decoder)?;
        self.gathered.give(&mut self.parts.router);
        self.hand_over()?;
        // Before the record that says the copy is complete: a process that finds it doesn't look for leftovers.
        if self.parts.leftovers == Leftovers::RemoveAfter {
            let copied = Arc::new(std::mem::take(&mut self.copied));
            let mut unit = UnitBuilder::default();
            let slots = self.parts.slots_now();
            unit.task(Task::RemoveLeftovers { copied, slots }, self.parts.router.everywhere());
            self.parts.router.unit(&mut unit, self.stream_db, ReplOffset(0));
        }
        self.parts.router.copy_end(self.parts.feed.offset, self.stream_db);
        send(&self.parts.batches, self.parts.router.take(self.parts.feed.offset, self.stream_db))?;
        Ok(self.stream_db)
    }

    /// Reads on.
    fn more(&mut self, decoder: &mut Decoder) -> Result<(), Error> {
        if self.journal.written() <= self.read {
            // Nothing to do but to wait: what was gathered needn't.
            self.gathered.give(&mut self.parts.router);
            self.hand_over()?;
        }
        self.buf.clear();
        match read_waiting(&self.journal, self.read, &mut self.buf, &self.parts.batches)? {
            Read::End => Err(Error::SnapshotCut { bytes: self.read }),
            _ => {
                self.read += self.buf.len() as u64;
                self.journal.release(self.read);
                decoder.feed(&self.buf);
                Ok(())
            }
        }
    }

    /// Behind the snapshot's own end there must be the mark of its transfer and nothing else.
    fn check_mark(&mut self, decoder: &Decoder) -> Result<(), Error> {
        let mut rest = decoder.remaining().to_vec();
        loop {
            match read_waiting(&self.journal, self.read, &mut rest, &self.parts.batches)? {
                Read::End => break,
                Read::Bytes(n) => self.read += n as u64,
                Read::Nothing => {}
            }
            self.journal.release(self.read);
        }
        let whole = match self.framing {
            Framing::Length(_) => rest.is_empty(),
            Framing::Mark(mark) => rest == mark,
        };
        if whole { Ok(()) } else { Err(Error::SnapshotMark) }
    }

    /// Takes a key whose value is here whole.
    fn key(&mut self, key: &Key<'_>) -> Result<(), Error> {
        let name = type_of(&key.value);
        self.is_buffered = false;
        if !self.in_scope(key.name, Some(name)) {
            self.counts.filtered += 1;
            return Ok(());
        }
        let db = self.parts.scope.target_database(self.db);
        if self.is_kept(db, key.name) {
            return Ok(());
        }
        let lane = self.parts.router.lane_of(key.name);
        if let Err(error) = self.parts.holds(&key.value) {
            return self.cannot_take(key.name, error);
        }
        let writer = self.parts.writer;
        match writer.copy(&mut self.parts.router, &mut self.gathered, (lane, db), key) {
            Ok(lost) => self.parts.lost(lost, (self.db, key.name)),
            Err(error) => return self.cannot_take(key.name, error),
        }
        // The lanes count values; of what is gathered they see transactions.
        self.parts.shard.copied.keys_done.add(self.gathered.take_values());
        self.count(db, key.name, name, key.expires_at_ms);
        Ok(())
    }

    /// `type_name`: `None` while it isn't known.
    fn in_scope(&self, name: &[u8], type_name: Option<TypeName>) -> bool {
        let scope = &self.parts.scope;
        // Keys of a slot that moves are copied when it has come to rest, from wherever that is.
        let feeds = |motions: &Arc<Motions>| motions.feeds(self.parts.number, Slot::of(name));
        if !self.parts.motions.as_ref().is_none_or(feeds) {
            return false;
        }
        scope.is_whole() && !is_own_key(name)
            || scope.key_in(self.db, name) && type_name.is_none_or(|name| scope.type_in(name)) && !is_own_key(name)
    }

    fn is_kept(&self, db: u32, name: &[u8]) -> bool {
        let kept = self.parts.kept.as_ref().is_some_and(|kept| kept.contains(&key_hash(db, name)));
        if kept {
            self.parts.shard.copied.keys_kept.add(1);
        }
        kept
    }

    fn skip(&mut self, name: &[u8], error: &value::Error) -> Result<(), Error> {
        self.parts.status.error("value");
        self.parts.status.commands_skipped.add(1);
        tracing::warn!(db = self.db, key = escape_key(name), error = %error, "left out: the target can't hold it");
        Ok(())
    }

    fn count(&mut self, db: u32, name: &[u8], type_name: TypeName, expires_at_ms: Option<i64>) {
        self.counts.keys.add(self.db, type_name.as_str());
        if self.parts.leftovers == Leftovers::RemoveAfter {
            self.copied.insert(key_hash(db, name));
        }
        if expires_at_ms.is_some_and(|ms| ms <= now_ms()) {
            self.counts.expired += 1;
        }
    }

    /// Takes a key whose value is too large to be held, if it is wanted.
    fn big_key(&mut self, head: &KeyHead<'_>) -> Result<Taken, Error> {
        let type_name = type_by_number(head.value_type);
        if head.value_type == opcode::MODULE_2 {
            return self.big_module_key(head.name);
        }
        let db = self.parts.scope.target_database(self.db);
        if !self.in_scope(head.name, Some(type_name)) {
            self.counts.filtered += 1;
            return Ok(Taken::Not);
        }
        if self.is_kept(db, head.name) {
            return Ok(Taken::Not);
        }
        let held = match self.parts.caps.holds(type_name) {
            true => self.parts.writer.meta_lost(head.meta),
            false => Err(Unsupported::Type(type_name.as_str())),
        };
        match held {
            Ok(lost) => self.parts.lost(lost, (self.db, head.name)),
            Err(problem) => return self.cannot_take(head.name, problem.into()).map(|()| Taken::Not),
        }
        self.count(db, head.name, type_name, head.expires_at_ms);
        self.big = Some(Big {
            rewriter: self.parts.writer.rewriter(head.name, head.expires_at_ms),
            lane: self.parts.router.lane_of(head.name),
            db,
            key: head.name.to_vec(),
        });
        Ok(Taken::InPieces)
    }

    /// Takes a value that only its module understands: it has no pieces, and its type is known when it's here.
    fn big_module_key(&mut self, name: &[u8]) -> Result<Taken, Error> {
        if !self.in_scope(name, None) {
            self.counts.filtered += 1;
            return Ok(Taken::Not);
        }
        if std::mem::replace(&mut self.is_buffered, true) {
            self.is_buffered = false;
            return self.cannot_take(name, Unsupported::Opaque("large module").into()).map(|()| Taken::Not);
        }
        Ok(Taken::Whole)
    }

    /// Says that the target can't hold a value; only with `--on-error skip` or `recopy` it is left out.
    fn cannot_take(&mut self, name: &[u8], error: value::Error) -> Result<(), Error> {
        if self.parts.skip_faults {
            return self.skip(name, &error);
        }
        Err(Error::Value { db: self.db, key: escape_key(name), error })
    }

    /// Takes an event that is no key.
    fn other(&mut self, event: Event<'_>) -> Result<(), Error> {
        match event {
            Event::SelectDb(db) => self.db = db,
            Event::ResizeDb { keys, .. } if self.parts.scope.database_in(self.db) => {
                self.parts.shard.copied.keys_total.add(keys);
            }
            Event::Aux { name, value } => self.aux(&name, &value),
            Event::Function { code } => self.function(&code)?,
            Event::BigPiece(piece) => self.piece(|rewriter, out| rewriter.piece(&piece, out))?,
            Event::BigEnd => {
                self.piece(|rewriter, out| {
                    rewriter.finish(out);
                    Ok(())
                })?;
                if let Some(big) = self.big.take() {
                    self.parts.lost(big.rewriter.lost(), (self.db, &big.key));
                    self.parts.shard.copied.keys_done.add(1);
                }
            }
            Event::Skipped(Skipped::ModuleAux { module_id, bytes }) => {
                modules::leave_out_data(&self.parts.status, ModuleType(module_id), bytes);
            }
            Event::FunctionPreGa { name, .. } => {
                tracing::warn!(function = escape_key(&name), "a function of a release candidate is left out");
            }
            Event::Header { .. }
            | Event::ResizeDb { .. }
            | Event::Skipped(_)
            | Event::Key(_)
            | Event::BigKey(_)
            | Event::End { .. } => {}
        }
        Ok(())
    }

    fn piece(
        &mut self,
        write: impl FnOnce(&mut Rewriter, &mut dyn FnMut(&[&[u8]])) -> Result<(), rdb::Unsupported>,
    ) -> Result<(), Error> {
        let Some(big) = &mut self.big else { return Ok(()) };
        let (mut bytes, mut commands) = (Vec::new(), 0);
        let written = write(&mut big.rewriter, &mut |args| {
            encode::command(&mut bytes, args);
            commands += 1;
        });
        let (lane, db) = (big.lane, big.db);
        if let Err(error) = written {
            // What is there of it goes again, and the pieces to come are left out.
            let key = std::mem::take(&mut big.key);
            self.big = None;
            self.parts.router.piece(lane, db, 1, |out| encode::command(out, &[b"DEL", &key[..]]));
            return self.cannot_take(&key, error.into());
        }
        if commands > 0 {
            self.parts.router.piece(lane, db, commands, |out| out.extend_from_slice(&bytes));
        }
        Ok(())
    }

    fn aux(&mut self, name: &[u8], value: &[u8]) {
        let number = || std::str::from_utf8(value).ok().and_then(|v| v.parse().ok());
        match name {
            b"repl-stream-db" => self.stream_db = number().unwrap_or(0),
            // Scripts that EVALSHA in the stream of a source up to 4.0 may call; no target forgets them by itself.
            b"lua" if self.parts.leads() && self.passes(&[b"SCRIPT", b"LOAD", value]) => {
                self.keyless(&[b"SCRIPT", b"LOAD", value]);
            }
            _ => {}
        }
    }

    /// Adds what belongs to no key: it goes along with the values of lane 0, or to every primary of a cluster.
    fn keyless(&mut self, args: &[&[u8]]) {
        let router = &mut self.parts.router;
        if !router.is_by_slot() {
            return router.copy(0, 0, |out| encode::command(out, args));
        }
        let (mut unit, mut raw) = (UnitBuilder::default(), Vec::new());
        encode::command(&mut raw, args);
        unit.task(Task::Everywhere { commands: vec![raw] }, router.everywhere());
        router.unit(&mut unit, 0, ReplOffset(0));
    }

    fn function(&mut self, code: &[u8]) -> Result<(), Error> {
        let load: [&[u8]; 4] = [b"FUNCTION", b"LOAD", b"REPLACE", code];
        if !self.parts.leads() || !self.passes(&load) {
            return Ok(());
        }
        if !self.parts.caps.has_functions() {
            let library = library_name(code);
            if !self.parts.skip_faults {
                return Err(Error::NoFunctions { library });
            }
            tracing::warn!(library, "left out: the target has no functions");
            self.parts.status.error("function");
            self.parts.status.commands_skipped.add(1);
            return Ok(());
        }
        self.keyless(&load);
        Ok(())
    }

    fn passes(&self, args: &[&[u8]]) -> bool {
        self.parts.scope.command_in(crate::args::OwnedArgs::new(args).args())
    }

    fn hand_over(&mut self) -> Result<(), Error> {
        let copied = &self.parts.shard.copied;
        copied.merge(&mut self.counts.keys);
        copied.keys_filtered.add(std::mem::take(&mut self.counts.filtered));
        copied.keys_expired.add(std::mem::take(&mut self.counts.expired));
        send(&self.parts.batches, self.parts.router.take(ReplOffset(0), 0))
    }
}

/// The name that a library's first line gives it: `#!lua name=mylib`.
fn library_name(code: &[u8]) -> String {
    let first = code.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = first.split(|byte| byte.is_ascii_whitespace());
    escape_key(words.find_map(|word| word.strip_prefix(b"name=")).unwrap_or_default())
}

/// Hands a batch to the lanes, waiting until they have room.
pub(super) fn send(batches: &mpsc::Sender<Batch>, batch: Batch) -> Result<(), Error> {
    batches.blocking_send(batch).map_err(|_| Error::Ended)
}

/// Reads on in a journal; never `Nothing`, but an error when the other side of the pipeline has ended.
fn read_waiting(
    journal: &Journal,
    position: u64,
    out: &mut Vec<u8>,
    batches: &mpsc::Sender<Batch>,
) -> Result<Read, Error> {
    loop {
        match journal.read(position, out, READ_BYTES, READ_WAIT)? {
            Read::Nothing if batches.is_closed() => return Err(Error::Ended),
            Read::Nothing => {}
            read => return Ok(read),
        }
    }
}

/// The type of a value, as TYPE would answer it.
pub(super) fn type_of(value: &RawValue<'_>) -> TypeName {
    match value.value_type {
        opcode::MODULE_2 if value.bytes.starts_with(&VECTOR_SET) => TypeName::VectorSet,
        number => type_by_number(number),
    }
}

/// The same of the first bytes of a value's RDB form; `None` if it isn't a key's.
pub(super) fn type_of_head(head: &[u8]) -> Option<TypeName> {
    match head.split_first()? {
        (&opcode::MODULE_2, id) if id.starts_with(&VECTOR_SET) => Some(TypeName::VectorSet),
        (number, _) => Some(type_by_number(*number)),
    }
}

/// How a vector set's value begins: the id of its module, version 0. Source: redis 8.0 modules/vector-sets/vset.c.
const VECTOR_SET: [u8; 9] = [0x81, 0xbd, 0xe7, 0x2d, 0xa2, 0xbb, 0x1e, 0xb4, 0x00];

fn type_by_number(value_type: u8) -> TypeName {
    match value_type {
        opcode::STRING => TypeName::String,
        opcode::LIST | opcode::LIST_ZIPLIST | opcode::LIST_QUICKLIST | opcode::LIST_QUICKLIST_2 => TypeName::List,
        opcode::SET | opcode::SET_INTSET | opcode::SET_LISTPACK => TypeName::Set,
        opcode::ZSET | opcode::ZSET_2 | opcode::ZSET_ZIPLIST | opcode::ZSET_LISTPACK => TypeName::Zset,
        opcode::STREAM | opcode::STREAM_2 | opcode::STREAM_3 | opcode::STREAM_4 | opcode::STREAM_5 => TypeName::Stream,
        opcode::ARRAY => TypeName::Array,
        opcode::MODULE_2 | opcode::GCRA => TypeName::Module,
        _ => TypeName::Hash,
    }
}
