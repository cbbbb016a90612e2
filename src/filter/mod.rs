//! Which databases, keys, types and commands a job copies.

mod glob;
mod rule;
mod type_name;

pub use glob::{Glob, GlobError, PATTERN_BYTES_MAX, STARS_MAX};
#[cfg(test)]
pub(crate) use rule::tests::scope_of;
pub use rule::{PATTERNS_MAX, Scope, ScopeSpec};
pub use type_name::TypeName;

/// A rule that can't be followed, with the word it is about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("key pattern {pattern:?} {why}")]
    BadGlob { pattern: String, why: GlobError },
    #[error("regular expression {pattern:?}: {why}")]
    BadRegex { pattern: String, why: String },
    #[error("{0} key patterns and expressions; at most {PATTERNS_MAX} are taken")]
    TooManyPatterns(usize),
    #[error("no replication stream has a command {word:?}; did you mean {nearest:?}?")]
    UnknownCommand { word: String, nearest: String },
    #[error("no databases are chosen: name one, or leave the option out for all")]
    NoDatabases,
    #[error("no types are chosen: name one, or leave the option out for all")]
    NoTypes,
    #[error("database {0} is mapped, but it is not among the databases to copy")]
    MappedOutside(u32),
}
