//! Key guards: records that say "this key stands at that offset", for keys that were copied from the source.
//!
//! They sit in a hash per lane in the target, written in the transaction that writes the key's value, so that units
//! on the key up to there are left out also by a process that starts later.

use std::collections::HashMap;

use super::unit::LaneId;
use crate::offset::ReplOffset;

/// Keys by source database, and where each stands. At offset 0 stands a key that can't be trusted, and must be copied.
pub type Guards = HashMap<(u32, Vec<u8>), ReplOffset>;

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

/// Reads a field and its value; `None` if they are no guard.
pub fn parse(field: &[u8], value: &[u8]) -> Option<((u32, Vec<u8>), ReplOffset)> {
    let colon = memchr::memchr(b':', field)?;
    let db = std::str::from_utf8(field.get(..colon)?).ok()?.parse().ok()?;
    let offset = std::str::from_utf8(value).ok()?.parse().ok()?;
    Some(((db, field.get(colon + 1..)?.to_vec()), ReplOffset(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_round_trips_with_any_key() {
        for key in [&b"a"[..], b"", b"1:2:\xff\r\n"] {
            assert_eq!(parse(&field(12, key), b"345"), Some(((12, key.to_vec()), ReplOffset(345))));
        }
        assert_eq!(parse(b"nocolon", b"1"), None);
        assert_eq!(parse(b"1:k", b"x"), None);
    }
}
