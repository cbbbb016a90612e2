//! What comes out of a decoder.

use std::borrow::Cow;
use std::sync::Arc;

use crate::rdb::opcode::Project;
use crate::rdb::skip::Template;
use crate::rdb::value::Piece;

/// How much a decoder may take, whatever the input claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A value of more bytes is told as [`Event::BigKey`] rather than buffered.
    pub value_bytes_max: u64,
    /// The longest key name, AUX field, library code or metadata.
    pub item_bytes_max: u64,
    /// The longest single element or packed container of a value that is streamed, and the longest string of one that is
    /// decoded, both packed and not.
    pub element_bytes_max: u64,
    /// Pending entries of one consumer group that may be held while a stream is decoded.
    pub pending_max: u64,
    /// Hash templates of one file.
    pub templates_max: u64,
    /// Bytes of all of a file's hash templates.
    pub template_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            value_bytes_max: 16 << 20,
            item_bytes_max: 512 << 20,
            element_bytes_max: 1 << 30,
            pending_max: 4 << 20,
            templates_max: 1 << 20,
            template_bytes_max: 64 << 20,
        }
    }
}

/// One thing found in an RDB.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    /// The magic. `project` is `Valkey` only for `VALKEY` magic: a file of Valkey 8 has Redis's.
    Header { project: Project, version: u16 },
    /// A named fact about the file; unknown names are to be ignored.
    Aux { name: Cow<'a, [u8]>, value: Cow<'a, [u8]> },
    /// The keys that follow are in this database; until the first one of these, in 0.
    SelectDb(u32),
    /// A hint at how much follows in this database; not always right.
    ResizeDb { keys: u64, expires: u64 },
    /// A library of functions.
    Function { code: Cow<'a, [u8]> },
    /// A function as 7.0-rc1 and rc2 had them, not the form that FUNCTION LOAD takes.
    FunctionPreGa { name: Cow<'a, [u8]>, engine: Cow<'a, [u8]>, code: Cow<'a, [u8]> },
    /// Something that has no meaning outside its server.
    Skipped(Skipped),
    /// A key with its value.
    Key(Key<'a>),
    /// A key whose value is over [`Limits::value_bytes_max`]: call `skip_value`, `stream_value` or `buffer_value`.
    BigKey(KeyHead<'a>),
    /// The next part of a value that is streamed.
    BigPiece(Piece),
    /// The end of a value that is streamed.
    BigEnd,
    /// The end of the file; `crc_checked` is false if the file has no checksum.
    End { crc_checked: bool },
}

/// An item that was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skipped {
    /// Data that the module of this id keeps outside of keys, of so many bytes with its head.
    ModuleAux { module_id: u64, bytes: u64 },
    /// Sizes of a hash slot.
    SlotInfo,
    /// A slot import that was under way.
    SlotImport,
    /// Field names that hashes refer to; the decoder remembers them.
    HashTemplate,
}

/// A key with its value as it stands in the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key<'a> {
    pub name: &'a [u8],
    /// Unix time; may be past or negative.
    pub expires_at_ms: Option<i64>,
    /// Seconds since it was last used.
    pub idle_s: Option<u64>,
    /// Logarithmic frequency of use.
    pub freq: Option<u8>,
    /// Modules' metadata, raw, from its opcode on (Redis 8.6).
    pub meta: Option<&'a [u8]>,
    pub value: RawValue<'a>,
}

/// A key whose value is too big to buffer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyHead<'a> {
    pub name: &'a [u8],
    pub value_type: u8,
    /// As in rdb.h, without `RDB_TYPE_`.
    pub type_name: &'static str,
    /// Whose numbering `value_type` is of.
    pub project: Project,
    pub expires_at_ms: Option<i64>,
    pub idle_s: Option<u64>,
    pub freq: Option<u8>,
    pub meta: Option<&'a [u8]>,
}

/// A value as it stands in a file or a payload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawValue<'a> {
    pub value_type: u8,
    /// What follows the key's name; without the type.
    pub bytes: &'a [u8],
    /// Whose numbering `value_type` is of: it tells the two types 22 apart.
    pub project: Project,
    /// What the value refers to, if its type is 30 or 32.
    pub template: Option<&'a Arc<Template>>,
}
