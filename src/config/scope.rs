//! Which databases, keys, types and commands a job copies, as the user said it.

use std::collections::BTreeMap;

/// What is in scope; empty or `None` means all. Globs are the server's own (KEYS), regexes apply to the raw bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScopeSpec {
    /// Source databases, ascending, each once.
    pub databases: Option<Vec<u32>>,
    /// Source database to target database; others keep their number.
    pub database_map: BTreeMap<u32, u32>,
    /// Globs: a key passes if any of these or of `key_regexes` matches, or if there are none.
    pub keys: Vec<Vec<u8>>,
    /// Globs that beat `keys`.
    pub not_keys: Vec<Vec<u8>>,
    pub key_regexes: Vec<String>,
    pub not_key_regexes: Vec<String>,
    /// Value types as TYPE names them, for the copy.
    pub types: Option<Vec<String>>,
    /// Commands, lower case, and subcommands as `xgroup|create`, that are left out of the stream.
    pub not_commands: Vec<String>,
}
