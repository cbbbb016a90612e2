//! What can be wrong with RDB bytes, and where.

use std::fmt;

/// A fault in an RDB or a DUMP payload, with the byte it was found at.
///
/// Never carries a value's content; a key's name is escaped and cut to 64 bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault} at byte {offset}{}", Place(self))]
pub struct Error {
    /// Bytes before the fault: from the magic in an RDB, from the start of the value or the payload elsewhere.
    pub offset: u64,
    /// What is wrong.
    pub fault: Fault,
    /// The value type's number, if the fault is in a value.
    pub value_type: Option<u8>,
    /// The key whose value it is: escaped and cut.
    pub key: Option<Box<str>>,
}

/// The " in a value of type …" part of an error's text.
struct Place<'a>(&'a Error);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(value_type) = self.0.value_type {
            write!(f, " in a value of type {value_type}")?;
        }
        if let Some(key) = &self.0.key {
            write!(f, ", key \"{key}\"")?;
        }
        Ok(())
    }
}

impl Error {
    pub(super) fn new(offset: u64, fault: Fault) -> Self {
        Error { offset, fault, value_type: None, key: None }
    }

    pub(super) fn in_value(mut self, value_type: u8, key: Option<&[u8]>) -> Self {
        self.value_type = Some(value_type);
        self.key = key.map(escape_key);
        self
    }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    #[error("not an RDB: neither REDIS nor VALKEY and a version at its start")]
    BadMagic,
    #[error("RDB version {0} is not one that Redis or Valkey writes")]
    BadVersion(u16),
    #[error("the data ends in the middle")]
    Truncated,
    #[error("{0} bytes too many")]
    TrailingBytes(u64),
    #[error("byte {0:#04x} does not begin a length")]
    BadLength(u8),
    #[error("byte {0:#04x} does not begin a string")]
    BadString(u8),
    #[error("LZF: {compressed} bytes cannot hold the {claimed} claimed")]
    LzfClaim { compressed: u64, claimed: u64 },
    #[error("LZF: corrupt, or not the {claimed} bytes claimed")]
    LzfCorrupt { claimed: u64 },
    #[error("{what} of {size} is over the limit of {max}")]
    TooLarge { what: &'static str, size: u64, max: u64 },
    #[error("unknown opcode or value type {0}")]
    UnknownType(u8),
    #[error("opcode or value type {code} belongs to {product}, which is not supported")]
    Fork { product: &'static str, code: u8 },
    #[error("the file was written by {0}, which is not supported")]
    ForeignFile(&'static str),
    #[error("value type {0} cannot be decoded")]
    NotDecodable(u8),
    #[error("{0} is not a valid module value opcode")]
    BadModuleOpcode(u64),
    #[error("{0}")]
    Corrupt(&'static str),
    #[error("{what}: {reason}")]
    BadPack { what: &'static str, reason: &'static str },
    #[error("hash template {0} is not in the file")]
    UnknownTemplate(u64),
    #[error("hash template {0} is in the file twice")]
    RepeatedTemplate(u64),
    #[error("the same {0} twice")]
    Duplicate(&'static str),
    #[error("CRC-64 is {computed:#018x}, but {stored:#018x} is written")]
    BadCrc { stored: u64, computed: u64 },
    #[error("the CRC-64 is missing (zero)")]
    NoCrc,
    #[error("the big value's fate was not decided: call skip_value, stream_value or buffer_value")]
    Undecided,
}

/// Why a parse step stopped short of a result.
#[derive(Debug)]
pub(super) enum Stop {
    /// The bytes at hand hold only part of it.
    More,
    Fail(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Stop::Fail(fault)
    }
}

pub(super) type Step<T> = Result<T, Stop>;

impl Stop {
    /// The fault it is when no more bytes can come.
    pub(super) fn at_end(self) -> Fault {
        match self {
            Stop::More => Fault::Truncated,
            Stop::Fail(fault) => fault,
        }
    }
}

const KEY_SHOWN_MAX: usize = 64;

/// A key's name as an error shows it: ASCII, escaped, at most 64 bytes of it.
pub(super) fn escape_key(key: &[u8]) -> Box<str> {
    match key.get(..KEY_SHOWN_MAX) {
        Some(head) if head.len() < key.len() => format!("{}…", head.escape_ascii()).into(),
        _ => key.escape_ascii().to_string().into(),
    }
}
