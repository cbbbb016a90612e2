//! Positions in a source's replication stream.

use std::fmt;

/// A replication offset of one shard: how many bytes of its stream lie before this point, as PSYNC counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ReplOffset(pub u64);

impl ReplOffset {
    /// The offset `bytes` further on.
    pub fn plus(self, bytes: u64) -> Self {
        ReplOffset(self.0.saturating_add(bytes))
    }

    /// How many bytes this offset lies past `earlier`; 0 when it doesn't.
    pub fn since(self, earlier: ReplOffset) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for ReplOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A replication id: 40 hexadecimal characters that name one history of one data set.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReplId([u8; 40]);

impl ReplId {
    /// `None` unless `text` is 40 hexadecimal characters.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let id: [u8; 40] = text.try_into().ok()?;
        id.iter().all(u8::is_ascii_hexdigit).then_some(ReplId(id))
    }

    pub fn as_str(&self) -> &str {
        // Only `parse` makes one, and it takes ASCII alone.
        std::str::from_utf8(&self.0).unwrap_or("")
    }
}

impl fmt::Display for ReplId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ReplId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replid_parse_wrong_length_or_letter_is_none() {
        let good = [b'a'; 40];
        assert_eq!(ReplId::parse(&good).map(|r| r.to_string()), Some("a".repeat(40)));
        assert!(ReplId::parse(&good[..39]).is_none());
        let mut bad = good;
        bad[7] = b'g';
        assert!(ReplId::parse(&bad).is_none());
    }

    #[test]
    fn offset_since_a_later_one_is_zero() {
        assert_eq!(ReplOffset(5).since(ReplOffset(9)), 0);
        assert_eq!(ReplOffset(9).since(ReplOffset(5)), 4);
    }
}
