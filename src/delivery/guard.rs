//! Key guards: records that say "this key stands at that offset", for keys that were copied from the source.
//!
//! They sit in a hash per lane in the target, written in the transaction that writes the key's value, so that units
//! on the key up to there are left out also by a process that starts later.

use std::collections::HashMap;

use super::unit::LaneId;
use crate::offset::ReplOffset;

/// What stands elsewhere than the stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guards {
    /// Keys by source database, and where each stands. At offset 0 stands a key that can't be trusted, and must be
    /// copied.
    pub keys: HashMap<(u32, Vec<u8>), ReplOffset>,
    /// Source databases whose other keys can't be told up to an offset: units on them are answered by copies.
    pub databases: HashMap<u32, ReplOffset>,
}

impl Guards {
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.databases.is_empty()
    }

    /// No guard reaches past this.
    pub fn until(&self) -> ReplOffset {
        self.keys.values().chain(self.databases.values()).copied().max().unwrap_or_default()
    }

    /// Adds others to these.
    pub fn extend(&mut self, others: Guards) {
        self.keys.extend(others.keys);
        self.databases.extend(others.databases);
    }

    /// Adds what a field of a lane's hash says; one that says nothing is left out.
    pub fn read(&mut self, field: &[u8], value: &[u8]) {
        match parse(field, value) {
            // One that can't be trusted is noted beside what an earlier copy may have left.
            Some((db, Some(key), offset)) => {
                let at = self.keys.entry((db, key)).or_insert(offset);
                let distrusted = (offset.0 == 0 || at.0 == 0) && holds!("distrust-over-guards");
                *at = if distrusted { ReplOffset(0) } else { offset };
            }
            Some((db, None, offset)) => _ = self.databases.insert(db, offset),
            None => {}
        }
    }
}

/// What the target holds where the stream is gone on with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// The database selected in the stream at the lowest record.
    pub stream_db: u32,
    pub guards: Guards,
    /// Where each lane's record stands: it has every unit up to there.
    pub lanes: Vec<ReplOffset>,
}

/// The hash of a lane's guards.
pub fn hash_key(job: &str, lane: LaneId) -> Vec<u8> {
    format!("keyferry:{job}:guards:{lane}").into_bytes()
}

/// The field of a guard: the source database, a colon, the key.
pub fn field(db: u32, key: &[u8]) -> Vec<u8> {
    let mut field = format!("{db}:").into_bytes();
    field.extend_from_slice(key);
    field
}

/// The field of a database's guard; it's in the hash of lane 0.
pub fn database_field(db: u32) -> Vec<u8> {
    db.to_string().into_bytes()
}

/// Reads a field and its value: the database, the key unless it's the database's own guard, and the offset.
fn parse(field: &[u8], value: &[u8]) -> Option<(u32, Option<Vec<u8>>, ReplOffset)> {
    let (db, key) = match memchr::memchr(b':', field) {
        Some(colon) => (field.get(..colon)?, Some(field.get(colon + 1..)?.to_vec())),
        None => (field, None),
    };
    let db = std::str::from_utf8(db).ok()?.parse().ok()?;
    let offset = std::str::from_utf8(value).ok()?.parse().ok()?;
    Some((db, key, ReplOffset(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_round_trips_with_any_key() {
        for key in [&b"a"[..], b"", b"1:2:\xff\r\n"] {
            assert_eq!(parse(&field(12, key), b"345"), Some((12, Some(key.to_vec()), ReplOffset(345))));
        }
        assert_eq!(parse(&database_field(12), b"345"), Some((12, None, ReplOffset(345))));
        assert_eq!(parse(b"nonumber", b"1"), None);
        for order in [[&b"0"[..], b"345"], [b"345", b"0"]] {
            let mut guards = Guards::default();
            order.iter().for_each(|value| guards.read(&field(1, b"k"), value));
            assert_eq!(guards.keys.get(&(1, b"k".to_vec())), Some(&ReplOffset(0)));
        }
        assert_eq!(parse(b"1:k", b"x"), None);
    }
}
