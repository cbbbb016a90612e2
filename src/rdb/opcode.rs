//! The opcodes and value types of every RDB version, and what their bytes look like.
//!
//! Sources: redis 2.6–8.10 and valkey 7.2–9.1 src/rdb.h and src/rdb.c.

/// Whose numbering a value type belongs to; the numbers up to 21 mean the same to both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Project {
    Redis,
    Valkey,
}

/// A version of a server: major, minor, patch.
pub type Version = (u16, u16, u16);

pub const EOF: u8 = 255;
pub const SELECTDB: u8 = 254;
pub const EXPIRETIME: u8 = 253;
pub const EXPIRETIME_MS: u8 = 252;
pub const RESIZEDB: u8 = 251;
pub const AUX: u8 = 250;
pub const FREQ: u8 = 249;
pub const IDLE: u8 = 248;
pub const MODULE_AUX: u8 = 247;
pub const FUNCTION_PRE_GA: u8 = 246;
pub const FUNCTION2: u8 = 245;
pub const SLOT_INFO: u8 = 244;
/// Redis from RDB version 13 on: metadata of the key that follows.
pub const KEY_META: u8 = 243;
/// Valkey from RDB version 80 on: a slot import under way.
pub const SLOT_IMPORT: u8 = 243;
pub const HASH_TEMPLATE: u8 = 242;

pub const STRING: u8 = 0;
pub const LIST: u8 = 1;
pub const SET: u8 = 2;
pub const ZSET: u8 = 3;
pub const HASH: u8 = 4;
pub const ZSET_2: u8 = 5;
pub const MODULE_2: u8 = 7;
pub const HASH_ZIPMAP: u8 = 9;
pub const LIST_ZIPLIST: u8 = 10;
pub const SET_INTSET: u8 = 11;
pub const ZSET_ZIPLIST: u8 = 12;
pub const HASH_ZIPLIST: u8 = 13;
pub const LIST_QUICKLIST: u8 = 14;
pub const STREAM: u8 = 15;
pub const HASH_LISTPACK: u8 = 16;
pub const ZSET_LISTPACK: u8 = 17;
pub const LIST_QUICKLIST_2: u8 = 18;
pub const STREAM_2: u8 = 19;
pub const SET_LISTPACK: u8 = 20;
pub const STREAM_3: u8 = 21;
/// Redis 7.4 RC: HASH_METADATA_PRE_GA. Valkey 9: HASH_2.
pub const HASH_22: u8 = 22;
pub const HASH_LISTPACK_EX_PRE_GA: u8 = 23;
pub const HASH_METADATA: u8 = 24;
pub const HASH_LISTPACK_EX: u8 = 25;
pub const STREAM_4: u8 = 26;
pub const STREAM_5: u8 = 27;
pub const ARRAY: u8 = 28;
pub const HASH_TMPL_LP: u8 = 29;
pub const HASH_TMPL_LP_REF: u8 = 30;
pub const HASH_TMPL_ARRAY: u8 = 31;
pub const HASH_TMPL_ARRAY_REF: u8 = 32;
pub const GCRA: u8 = 33;

/// One step of a value's grammar: what comes next in its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    /// A string.
    Str,
    /// A length.
    Len,
    /// So many bytes.
    Fixed(u8),
    /// A score of type 3: a byte count or a special value, then so many characters.
    OldDouble,
    /// A length n, then n times these.
    Repeat(&'static [Op]),
    /// Opcodes with their data, up to opcode 0.
    Module,
    /// A length n, a flag and, if it is 1, a length; then n array elements.
    Array,
    /// An array element: index, tag and what the tag asks for.
    ArrayItem,
    /// A template hash's field names, as in types 29 and 31.
    Names,
    /// The same, then as many strings.
    NamesAndValues,
    /// A template's id, then as many strings as that template has fields.
    ReferredValues,
}

use Op::{Array, Fixed, Len, Module, Names, NamesAndValues, OldDouble, ReferredValues, Repeat, Str};

/// A value type: its name in rdb.h and its bytes.
#[derive(Debug)]
pub(super) struct TypeRow {
    pub name: &'static str,
    pub grammar: &'static [Op],
}

const NODES: Op = Repeat(&[Str, Str]);
const PENDING: Op = Repeat(&[Fixed(16), Fixed(8), Len]);
const CONSUMERS: Op = Repeat(&[Str, Fixed(8), Repeat(&[Fixed(16)])]);
const CONSUMERS_3: Op = Repeat(&[Str, Fixed(16), Repeat(&[Fixed(16)])]);
const GROUPS: Op = Repeat(&[Str, Len, Len, PENDING, CONSUMERS]);
const GROUPS_2: Op = Repeat(&[Str, Len, Len, Len, PENDING, CONSUMERS]);
const GROUPS_3: Op = Repeat(&[Str, Len, Len, Len, PENDING, CONSUMERS_3]);
const GROUPS_5: Op = Repeat(&[Str, Len, Len, Len, PENDING, CONSUMERS_3, Repeat(&[Fixed(16)])]);
const PRODUCERS: Op = Repeat(&[Str, Repeat(&[Str, Len, Len])]);

const STREAM_GRAMMAR: &[Op] = &[NODES, Len, Len, Len, GROUPS];
const STREAM_2_GRAMMAR: &[Op] = &[NODES, Len, Len, Len, Len, Len, Len, Len, Len, GROUPS_2];
const STREAM_3_GRAMMAR: &[Op] = &[NODES, Len, Len, Len, Len, Len, Len, Len, Len, GROUPS_3];
const STREAM_4_GRAMMAR: &[Op] =
    &[NODES, Len, Len, Len, Len, Len, Len, Len, Len, GROUPS_3, Len, Len, PRODUCERS, Len, Len];
const STREAM_5_GRAMMAR: &[Op] =
    &[NODES, Len, Len, Len, Len, Len, Len, Len, Len, GROUPS_5, Len, Len, PRODUCERS, Len, Len];

pub(super) const KEY_META_GRAMMAR: &[Op] = &[Repeat(&[Fixed(4), Module])];
pub(super) const MODULE_AUX_GRAMMAR: &[Op] = &[Len, Len, Len, Module];
pub(super) const SLOT_INFO_GRAMMAR: &[Op] = &[Len, Len, Len];
pub(super) const SLOT_IMPORT_GRAMMAR: &[Op] = &[Str, Repeat(&[Len, Len])];
pub(super) const HASH_TEMPLATE_GRAMMAR: &[Op] = &[Len, Repeat(&[Str])];

const fn row(name: &'static str, grammar: &'static [Op]) -> Option<TypeRow> {
    Some(TypeRow { name, grammar })
}

static TYPES: [Option<TypeRow>; 34] = [
    row("STRING", &[Str]),
    row("LIST", &[Repeat(&[Str])]),
    row("SET", &[Repeat(&[Str])]),
    row("ZSET", &[Repeat(&[Str, OldDouble])]),
    row("HASH", &[Repeat(&[Str, Str])]),
    row("ZSET_2", &[Repeat(&[Str, Fixed(8)])]),
    None,
    row("MODULE_2", &[Len, Module]),
    None,
    row("HASH_ZIPMAP", &[Str]),
    row("LIST_ZIPLIST", &[Str]),
    row("SET_INTSET", &[Str]),
    row("ZSET_ZIPLIST", &[Str]),
    row("HASH_ZIPLIST", &[Str]),
    row("LIST_QUICKLIST", &[Repeat(&[Str])]),
    row("STREAM_LISTPACKS", STREAM_GRAMMAR),
    row("HASH_LISTPACK", &[Str]),
    row("ZSET_LISTPACK", &[Str]),
    row("LIST_QUICKLIST_2", &[Repeat(&[Len, Str])]),
    row("STREAM_LISTPACKS_2", STREAM_2_GRAMMAR),
    row("SET_LISTPACK", &[Str]),
    row("STREAM_LISTPACKS_3", STREAM_3_GRAMMAR),
    row("HASH_METADATA_PRE_GA", &[Repeat(&[Len, Str, Str])]),
    row("HASH_LISTPACK_EX_PRE_GA", &[Str]),
    row("HASH_METADATA", &[Fixed(8), Repeat(&[Len, Str, Str])]),
    row("HASH_LISTPACK_EX", &[Fixed(8), Str]),
    row("STREAM_LISTPACKS_4", STREAM_4_GRAMMAR),
    row("STREAM_LISTPACKS_5", STREAM_5_GRAMMAR),
    row("ARRAY", &[Array]),
    row("HASH_TMPL_LP", &[Names, Str]),
    row("HASH_TMPL_LP_REF", &[Str]),
    row("HASH_TMPL_ARRAY", &[NamesAndValues]),
    row("HASH_TMPL_ARRAY_REF", &[ReferredValues]),
    row("GCRA", &[Len]),
];

static VALKEY_HASH_2: TypeRow = TypeRow { name: "HASH_2", grammar: &[Repeat(&[Str, Str, Fixed(8)])] };

/// The row of a value type, or `None` if `project` has no such type or one that can't be skipped (6).
pub(super) fn type_row(project: Project, value_type: u8) -> Option<&'static TypeRow> {
    match (project, value_type) {
        (Project::Valkey, HASH_22) => Some(&VALKEY_HASH_2),
        (Project::Valkey, 23..) => None,
        _ => TYPES.get(usize::from(value_type))?.as_ref(),
    }
}

/// The name rdb.h gives to a value type, without its `RDB_TYPE_`.
pub fn type_name(project: Project, value_type: u8) -> Option<&'static str> {
    type_row(project, value_type).map(|row| row.name)
}

/// The product that uses `code` as an opcode or a value type, if it is neither Redis nor Valkey.
pub(super) fn fork(code: u8) -> Option<&'static str> {
    match code {
        64 => Some("KeyDB"),
        100 | 101 | 102 | 107 | 121 => Some("Redis Enterprise"),
        200..=203 | 210 | 211 | 220 | 222..=224 => Some("Dragonfly"),
        192..=241 => Some("Redis-On-Rocks"),
        _ => None,
    }
}
