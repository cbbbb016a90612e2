//! When something expires, in the five ways a command can say it.

use crate::commands::parse::is;

/// An expiry as it stands in a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expiry {
    /// Seconds from now.
    Seconds(i64),
    /// Milliseconds from now.
    Ms(i64),
    /// A Unix time in seconds.
    AtSeconds(i64),
    /// A Unix time in milliseconds.
    AtMs(i64),
}

impl Expiry {
    /// Reads an option such as EX and the number behind it; `None` when `word` is none of the four.
    pub(super) fn option(word: &[u8], value: i64) -> Option<Expiry> {
        match () {
            () if is(word, "EX") => Some(Expiry::Seconds(value)),
            () if is(word, "PX") => Some(Expiry::Ms(value)),
            () if is(word, "EXAT") => Some(Expiry::AtSeconds(value)),
            () if is(word, "PXAT") => Some(Expiry::AtMs(value)),
            () => None,
        }
    }

    /// Whether `word` is EX, PX, EXAT or PXAT.
    pub(super) fn is_option(word: &[u8]) -> bool {
        Expiry::option(word, 0).is_some()
    }

    /// The Unix time in ms, relative ones counted from `now_ms`; what doesn't fit becomes the largest that does.
    pub(super) fn at_ms(self, now_ms: i64) -> i64 {
        match self {
            Expiry::Seconds(value) => now_ms.saturating_add(value.saturating_mul(1000)),
            Expiry::Ms(value) => now_ms.saturating_add(value),
            Expiry::AtSeconds(value) => value.saturating_mul(1000),
            Expiry::AtMs(value) => value,
        }
    }
}
