//! RDB files and DUMP payloads of every Redis and Valkey: read, decoded, carried over, rewritten as commands.
//!
//! ```text
//! bytes ──feed──► Decoder ──next──► Event::Key { value: RawValue }   a value's bytes, not decoded
//!                    │                  ├── Restorer ──► payload for RESTORE          dump.rs
//!                    │                  └── decode ──► Value ──► commands             value.rs, rewrite.rs
//!                    └── BigKey … BigPiece … BigEnd ──► Rewriter ──► commands         values too big for memory
//! ```
//!
//! Nothing here reads, writes, waits or logs. Bytes come from outside: whatever they say, this never panics, never allocates
//! by a claimed size, and takes time linear in their number.
//!
//! The format: `opcode.rs` has every type's grammar, `skip.rs` walks it, `value/` decodes it.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod crc;
mod decoder;
mod dump;
mod error;
mod length;
mod lzf;
mod module;
pub mod opcode;
mod pack;
mod plain;
mod rewrite;
mod skip;
#[cfg(test)]
mod tests;
mod value;

pub use crc::crc64;
pub use decoder::{Decoder, Event, Key, KeyHead, Limits, RawValue, Skipped};
pub use dump::{Payload, Restorer, Verified, verify};
pub use error::{Error, Fault};
pub use lzf::decompress as lzf_decompress;
pub use module::ModuleType;
pub use opcode::{Project, Version, type_name};
pub use plain::plain_string;
pub use rewrite::{Rewriter, TargetCaps, Unsupported, check, commands};
pub use skip::Template;
pub use value::{
    Array, Consumer, Group, HashField, Idempotency, IdmpRecord, Pending, Piece, Producer, Stream, StreamEntry,
    StreamId, StreamMeta, Value, ZsetMember, decode, validate,
};
