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
    #[error("unknown type {word:?}; did you mean {nearest:?}?")]
    UnknownType { word: String, nearest: &'static str },
    #[error("no replication stream has a command {word:?}; did you mean {nearest:?}?")]
    UnknownCommand { word: String, nearest: String },
    #[error("no databases are chosen: name one, or leave the option out for all")]
    NoDatabases,
    #[error("no types are chosen: name one, or leave the option out for all")]
    NoTypes,
    #[error("database {0} is mapped, but it is not among the databases to copy")]
    MappedOutside(u32),
}

/// The one of `names` that takes the fewest changes to become `word`; the first of several.
fn nearest(word: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let word = word.to_ascii_lowercase();
    names.min_by_key(|name| distance(&word, &name.to_ascii_lowercase()))
}

/// How many letters must be put in, taken out or changed to make `b` of `a`.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut before = i + 1;
        for (cell, right) in row.iter_mut().skip(1).zip(b.bytes()) {
            let change = diagonal + usize::from(left != right);
            diagonal = *cell;
            before = change.min(before + 1).min(diagonal + 1);
            *cell = before;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}
