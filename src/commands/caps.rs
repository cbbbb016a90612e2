//! What a target of some version understands.

use super::rows::ROWS;
use super::table::{Shape, Spec};
use crate::filter::TypeName;

/// The versions from which on a word is known; `None` where it never came.
///
/// Valkey started as Redis 7.2, so everything up to that is known to every Valkey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since {
    redis: Option<(u16, u16, u16)>,
    valkey: Option<(u16, u16, u16)>,
}

impl Since {
    /// Known to every server that can be a target.
    pub const ALWAYS: Since = Since::redis(0, 0);

    /// Known since a Redis version up to 7.2, hence to every Valkey.
    pub const fn redis(major: u16, minor: u16) -> Self {
        Since { redis: Some((major, minor, 0)), valkey: Some((0, 0, 0)) }
    }

    /// Known to Redis since one version and to Valkey since another.
    pub const fn both(redis: (u16, u16), valkey: (u16, u16)) -> Self {
        Since { redis: Some((redis.0, redis.1, 0)), valkey: Some((valkey.0, valkey.1, 0)) }
    }

    /// Known to Redis only.
    pub const fn redis_only(major: u16, minor: u16, patch: u16) -> Self {
        Since { redis: Some((major, minor, patch)), valkey: None }
    }

    /// Known to Valkey only.
    pub const fn valkey_only(major: u16, minor: u16) -> Self {
        Since { redis: None, valkey: Some((major, minor, 0)) }
    }
}

/// What the target is and how expiries are to be written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetCaps {
    pub valkey: bool,
    /// Of Valkey its own version (`valkey_version`), not the Redis version it claims.
    pub version: (u16, u16, u16),
    /// Milliseconds added to every expiry that is written; 0 writes them exactly.
    pub expiry_late_ms: i64,
    /// Every source searches places as the target does. Redis has changed which ones it finds.
    pub finds_places_alike: bool,
    /// What its version has and it hasn't: renamed commands, and those of servers that claim more than they are.
    pub lacking: Lacking,
}

/// Rows of the table whose commands a server said it doesn't know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lacking([u64; LACKING_WORDS]);

const LACKING_WORDS: usize = 4;
const _: () = assert!(ROWS.len() <= LACKING_WORDS * 64);

impl Lacking {
    /// The commands that a server is to be asked for, in the order of the answer that [`Lacking::told`] takes.
    pub fn asked() -> impl Iterator<Item = &'static str> {
        ROWS.iter().filter(|spec| spec.shape != Shape::Infrastructure).map(|spec| &*spec.name)
    }

    /// Which of those it knows.
    pub fn told(known: impl Iterator<Item = bool>) -> Self {
        let mut lacking = Lacking::default();
        let asked = ROWS.iter().enumerate().filter(|(_, spec)| spec.shape != Shape::Infrastructure);
        for ((row, _), known) in asked.zip(known) {
            if let Some(word) = lacking.0.get_mut(row / 64).filter(|_| !known) {
                *word |= 1 << (row % 64);
            }
        }
        lacking
    }

    /// What either lacks.
    pub fn with(self, other: Lacking) -> Lacking {
        let mut both = self;
        both.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
        both
    }

    pub fn is_empty(self) -> bool {
        self == Lacking::default()
    }

    pub fn lacks(self, spec: &Spec) -> bool {
        if self.is_empty() {
            return false;
        }
        let row = ROWS.iter().position(|row| row.name == spec.name);
        row.is_some_and(|row| self.0.get(row / 64).is_some_and(|word| word >> (row % 64) & 1 == 1))
    }
}

/// The largest expiry of a hash field that Redis takes, in ms. Source: redis 7.4 src/t_hash.c, HFE_MAX_ABS_TIME_MSEC.
const REDIS_FIELD_EXPIRY_MS_MAX: i64 = 0x0000_FFFF_FFFF_FFFE >> 2;

impl TargetCaps {
    pub fn knows(&self, since: Since) -> bool {
        let first = if self.valkey { since.valkey } else { since.redis };
        first.is_some_and(|first| self.version >= first)
    }

    /// Whether it knows a command of the table.
    pub fn knows_command(&self, spec: &Spec) -> bool {
        self.knows(spec.since) && !self.lacking.lacks(spec)
    }

    /// Whether it has values of a type.
    pub fn holds(&self, name: TypeName) -> bool {
        match name {
            TypeName::Stream => self.knows(Since::redis(5, 0)),
            TypeName::VectorSet => self.knows(Since::redis_only(8, 0, 0)),
            TypeName::Array => self.knows(Since::redis_only(8, 8, 0)),
            TypeName::String | TypeName::List | TypeName::Set | TypeName::Zset | TypeName::Hash | TypeName::Module => {
                true
            }
        }
    }

    /// Whether fields of hashes can expire there.
    pub fn expires_fields(&self) -> bool {
        self.knows(Since::both((7, 4), (9, 0)))
    }

    pub fn has_functions(&self) -> bool {
        self.knows(Since::redis(7, 0))
    }

    /// The time to write for a key that expires at `at_ms` on the source.
    pub fn key_expiry_ms(&self, at_ms: i64) -> i64 {
        at_ms.saturating_add(self.expiry_late_ms)
    }

    /// The time to write for a hash field that expires at `at_ms` on the source, within what the target takes.
    pub fn field_expiry_ms(&self, at_ms: i64) -> i64 {
        let late = self.key_expiry_ms(at_ms);
        if self.valkey { late } else { late.min(REDIS_FIELD_EXPIRY_MS_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_compares_with_the_line_of_the_target() {
        let redis = TargetCaps {
            valkey: false,
            version: (8, 6, 1),
            expiry_late_ms: 0,
            finds_places_alike: true,
            lacking: Lacking::default(),
        };
        let valkey = TargetCaps { valkey: true, version: (9, 0, 0), ..redis };
        let record = Since::redis_only(8, 6, 2);
        assert!(!redis.knows(record) && !valkey.knows(record));
        assert!(TargetCaps { version: (8, 6, 2), ..redis }.knows(record));
        assert!(redis.knows(Since::redis(6, 2)) && valkey.knows(Since::redis(7, 2)));
        assert!(!redis.knows(Since::valkey_only(9, 0)) && valkey.knows(Since::valkey_only(9, 0)));
    }

    #[test]
    fn lateness_saturates_at_what_the_target_takes() {
        let caps = TargetCaps {
            valkey: false,
            version: (8, 0, 0),
            expiry_late_ms: 3_600_000,
            finds_places_alike: true,
            lacking: Lacking::default(),
        };
        assert_eq!(caps.key_expiry_ms(i64::MAX - 1), i64::MAX);
        assert_eq!(caps.key_expiry_ms(5), 3_600_005);
        assert_eq!(caps.field_expiry_ms(i64::MAX), REDIS_FIELD_EXPIRY_MS_MAX);
        let valkey = TargetCaps { valkey: true, ..caps };
        assert_eq!(valkey.field_expiry_ms(i64::MAX - 1), i64::MAX);
    }
}
