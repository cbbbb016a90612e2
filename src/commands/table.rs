//! The words of the command table, and finding a command's row by name.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use super::caps::Since;
use super::rewrite::{Call, Rewrite};
use super::rows::{ROWS, SUBCOMMAND_ROWS};
use super::{Error, Role};
use crate::args::Args;
use crate::filter::TypeName;

/// Where a command's keys stand; argument 0 is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRule {
    /// It names no key.
    None,
    /// One key.
    One { at: u8, role: Role },
    /// Two neighbouring keys with a role each, the first at argument 1.
    Two(Role, Role),
    /// Keys from `first` to `last` (negative: from the end, -1 the last argument), every `step`.
    Range { first: u32, last: i32, step: u32, role: Role },
    /// A written key at `dst`, then keys that are read, to the end. `own`: the old value of `dst` counts too.
    Store { dst: u8, own: bool },
    /// A written key at 1, how many are read at 2, then those.
    StoreCounted,
    /// How many keys at `count`, then the keys, every `step`.
    Counted { count: u8, step: u8, role: Role },
    /// SORT: 1 is read; the last STORE names what is written; BY and GET read more.
    Sort,
    /// GEORADIUS*: 1 is read; the last STORE or STOREDIST from `options` on names what is written.
    GeoStore { options: u8 },
    /// COPY: 1 is read, 2 written, perhaps in another database.
    Copy,
    /// MOVE: 1 goes to the database at 2.
    Move,
    /// XREADGROUP: the first half behind STREAMS.
    Streams,
    /// MIGRATE: 3, or all behind KEYS.
    Migrate,
}

/// Whether a command may run again together with those behind it (`delivery.md`, cluster target).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    Replayable,
    OnceOnly,
    /// Decided by its options, see [`super::replayable`].
    ByOptions,
}

/// The type of value a command works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Of(TypeName),
    /// Whatever the key holds.
    Any,
    /// It works on no key.
    None,
}

/// What a command does, as far as a filter must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Changes its keys out of its own arguments; what it does to one key does not depend on another.
    Own,
    /// As `Own`, and the key holds afterwards just what the command says.
    Replaces,
    /// RENAME, RENAMENX.
    Rename,
    Copy,
    Move,
    Smove,
    /// LMOVE, RPOPLPUSH and their kin.
    ListMove,
    /// A destination computed from other keys.
    Store,
    /// As `Store`, the destination's own value included.
    Merge,
    /// A script: touches what it declares, perhaps more.
    Script,
    /// Its outcome can't be had again from its arguments (random, blocking); servers stream its effects instead.
    Effects,
    FlushAll,
    FlushDb,
    SwapDb,
    /// Belongs to the server, not to a database: functions, scripts, messages.
    Global,
    /// CLUSTER FLUSHSLOT.
    FlushSlot,
    /// Between servers only; never forwarded.
    Infrastructure,
    /// A module's: only its keys are known.
    Module,
}

pub(super) type Rewriter = fn(&Call<'_>) -> Result<Rewrite, Error>;

/// One command: where its keys are, what it does, from which version on it is known.
#[derive(Clone)]
pub struct Spec {
    /// Upper case; a subcommand's is `XGROUP CREATE`.
    pub name: Cow<'static, str>,
    pub keys: KeyRule,
    pub replay: Replay,
    pub group: Group,
    pub shape: Shape,
    /// It can only take away: keys, elements, fields.
    pub removes_only: bool,
    pub since: Since,
    pub(super) rewrite: Option<Rewriter>,
}

impl Spec {
    pub(super) const fn new(name: &'static str, keys: KeyRule, replay: Replay, group: Group, shape: Shape) -> Self {
        Spec {
            name: Cow::Borrowed(name),
            keys,
            replay,
            group,
            shape,
            removes_only: false,
            since: Since::ALWAYS,
            rewrite: None,
        }
    }

    pub(super) const fn since(mut self, since: Since) -> Self {
        self.since = since;
        self
    }

    pub(super) const fn removes(mut self) -> Self {
        self.removes_only = true;
        self
    }

    pub(super) const fn rewrite(mut self, rewrite: Rewriter) -> Self {
        self.rewrite = Some(rewrite);
        self
    }

    /// The key is argument 1, the only one, and a target that knows the command gets it as it came.
    pub fn plain(&self) -> bool {
        self.rewrite.is_none() && matches!(self.keys, KeyRule::One { at: 1, .. })
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("name", &self.name)
            .field("keys", &self.keys)
            .field("replay", &self.replay)
            .field("group", &self.group)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

/// The row of the command that `args` is, by its name and, where it has them, its subcommand.
pub fn lookup(args: Args<'_>) -> Option<&'static Spec> {
    match INDEX.find(args.get(0)?)? {
        Entry::Command(spec) => Some(spec),
        Entry::Container(rows) => {
            let sub = args.get(1)?;
            rows.iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(sub)).map(|(_, spec)| spec)
        }
    }
}

/// Whether the table has `name`; a subcommand is written `XGROUP|CREATE`, a container's name alone counts too.
pub fn is_known_name(name: &str) -> bool {
    known_names().any(|known| known.eq_ignore_ascii_case(name))
}

/// Every name in the table, subcommands as `XGROUP|CREATE`, containers as `XGROUP`.
pub fn known_names() -> impl Iterator<Item = String> {
    let commands = ROWS.iter().map(|spec| spec.name.to_string());
    let subcommands = SUBCOMMAND_ROWS.iter().flat_map(|(container, rows)| {
        let alone = std::iter::once((*container).to_owned());
        alone.chain(rows.iter().map(move |(sub, _)| format!("{container}|{sub}")))
    });
    commands.chain(subcommands)
}

/// The longest name in the table; a longer one is unknown without a look.
const NAME_BYTES_MAX: usize = 24;
const BUCKETS: usize = 1024;

#[derive(Clone, Copy)]
enum Entry {
    Command(&'static Spec),
    Container(&'static [(&'static str, Spec)]),
}

/// Open addressing over a quarter-full table: nearly every name is found in its first bucket.
struct Index {
    buckets: Vec<Option<(&'static str, Entry)>>,
}

static INDEX: LazyLock<Index> = LazyLock::new(Index::new);

impl Index {
    fn new() -> Self {
        let mut index = Index { buckets: vec![None; BUCKETS] };
        for spec in ROWS {
            index.insert(&spec.name, Entry::Command(spec));
        }
        for (name, rows) in SUBCOMMAND_ROWS {
            index.insert(name, Entry::Container(rows));
        }
        index
    }

    fn insert(&mut self, name: &'static str, entry: Entry) {
        assert!(name.len() <= NAME_BYTES_MAX, "{name} is too long for the table");
        let start = bucket(name.as_bytes());
        let free = (start..BUCKETS).chain(0..start).find(|&at| matches!(self.buckets.get(at), Some(None)));
        assert!(free.is_some(), "the table of commands is full");
        if let Some(slot) = free.and_then(|at| self.buckets.get_mut(at)) {
            *slot = Some((name, entry));
        }
    }

    fn find(&self, name: &[u8]) -> Option<Entry> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let mut at = bucket(name);
        while let Some(Some((known, entry))) = self.buckets.get(at) {
            if known.as_bytes().eq_ignore_ascii_case(name) {
                return Some(*entry);
            }
            at = (at + 1) % BUCKETS;
        }
        None
    }
}

/// Hashes a name by its length, its first and its last eight bytes, each without the bit that tells cases apart.
fn bucket(name: &[u8]) -> usize {
    const NO_CASE: u64 = 0xDFDF_DFDF_DFDF_DFDF;
    let (head, tail) = match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
        (Some(head), Some(tail)) => (u64::from_le_bytes(*head), u64::from_le_bytes(*tail)),
        _ => {
            let short = name.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
            (short, 0)
        }
    };
    let mixed =
        ((head & NO_CASE) ^ (tail & NO_CASE).rotate_left(29) ^ name.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 54) as usize
}
