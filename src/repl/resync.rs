//! The answers to PSYNC, and how a snapshot is framed.

use crate::offset::{ReplId, ReplOffset};

/// The length of the mark that ends a diskless transfer.
pub const EOF_MARK_BYTES: usize = 40;

/// What a source answers to PSYNC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PsyncAnswer {
    /// A snapshot follows; it stands at this offset of this history.
    FullResync { replid: ReplId, offset: ReplOffset },
    /// The stream goes on at the offset asked for; with a new id after a failover.
    Continue { replid: Option<ReplId> },
    /// Not now: it has no data yet, or no link to its own primary.
    Later(String),
    /// It doesn't know PSYNC: too old, or the command was renamed or blocked.
    UnknownCommand(String),
    /// The user or password isn't taken.
    NoAuth(String),
    /// The user may not replicate.
    NoPermission(String),
    /// Anything else, which won't pass.
    Other(String),
}

/// Reads the answer to PSYNC (without CR LF). Source: redis 7.0 src/replication.c, slaveTryPartialResynchronization.
pub fn psync_answer(line: &[u8]) -> PsyncAnswer {
    let text = String::from_utf8_lossy(line).into_owned();
    let mut words = text.split_ascii_whitespace();
    match words.next() {
        Some("+FULLRESYNC") => {
            let replid = words.next().and_then(|w| ReplId::parse(w.as_bytes()));
            let offset = words.next().and_then(count).map(ReplOffset);
            match (replid, offset) {
                (Some(replid), Some(offset)) => PsyncAnswer::FullResync { replid, offset },
                _ => PsyncAnswer::Other(text),
            }
        }
        Some("+CONTINUE") => match words.next() {
            None => PsyncAnswer::Continue { replid: None },
            Some(id) => match ReplId::parse(id.as_bytes()) {
                Some(replid) => PsyncAnswer::Continue { replid: Some(replid) },
                None => PsyncAnswer::Other(text),
            },
        },
        Some("-NOMASTERLINK" | "-LOADING" | "-MASTERDOWN" | "-BUSY" | "-TRYAGAIN") => PsyncAnswer::Later(text),
        Some("-NOAUTH" | "-WRONGPASS") => PsyncAnswer::NoAuth(text),
        Some("-NOPERM") => PsyncAnswer::NoPermission(text),
        _ if text.starts_with("-ERR unknown command") || text.starts_with("-ERR wrong number of arguments") => {
            PsyncAnswer::UnknownCommand(text)
        }
        _ if text.starts_with("-ERR Can't SYNC while not connected")
            || text.starts_with("-ERR BGSAVE failed")
            || text.starts_with("-ERR max number of clients") =>
        {
            PsyncAnswer::Later(text)
        }
        _ => PsyncAnswer::Other(text),
    }
}

/// How a snapshot's end is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes.
    Length(u64),
    /// By a mark behind it, which the source chose for this transfer.
    Mark([u8; EOF_MARK_BYTES]),
}

/// Reads the line before a snapshot (without CR LF): `$<length>` or `$EOF:<mark>`; `None` if it is neither.
pub fn framing(line: &[u8]) -> Option<Framing> {
    let text = line.strip_prefix(b"$")?;
    if let Some(mark) = text.strip_prefix(b"EOF:") {
        return mark.try_into().ok().map(Framing::Mark);
    }
    std::str::from_utf8(text).ok().and_then(count).map(Framing::Length)
}

/// A count as servers have it: of signed 64 bits, so that adding what is received can't overflow.
fn count(text: &str) -> Option<u64> {
    text.parse::<i64>().ok().and_then(|n| u64::try_from(n).ok())
}

/// Finds the end of a snapshot in what is received.
///
/// Behind the mark a source sends nothing until it has an ACK, so the mark is always the last thing received: looking
/// at the end of each piece, as a replica does, can't take a value for it as a search through all bytes could.
#[derive(Debug)]
pub struct SnapshotEnd {
    framing: Framing,
    received: u64,
    tail: Vec<u8>,
}

/// What a piece of a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// All of it, and more will come.
    Middle,
    /// So many bytes of it end the snapshot's framing; the stream follows.
    Last(usize),
}

impl SnapshotEnd {
    pub fn new(framing: Framing) -> Self {
        SnapshotEnd { framing, received: 0, tail: Vec::new() }
    }

    /// Bytes of the snapshot's framing received so far, the mark included.
    pub fn received(&self) -> u64 {
        self.received
    }

    pub fn take(&mut self, piece: &[u8]) -> Piece {
        match self.framing {
            Framing::Length(length) => {
                let left = length - self.received;
                if (piece.len() as u64) < left {
                    self.received += piece.len() as u64;
                    return Piece::Middle;
                }
                self.received = length;
                Piece::Last(left as usize)
            }
            Framing::Mark(mark) => {
                self.received += piece.len() as u64;
                let from = piece.len().saturating_sub(EOF_MARK_BYTES);
                self.tail.extend_from_slice(piece.get(from..).unwrap_or_default());
                let over = self.tail.len().saturating_sub(EOF_MARK_BYTES);
                self.tail.drain(..over);
                if self.tail == mark { Piece::Last(piece.len()) } else { Piece::Middle }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn psync_answer_of_every_kind() {
        let replid = ReplId::parse(ID.as_bytes()).unwrap();
        let full = format!("+FULLRESYNC {ID} 1234");
        assert_eq!(psync_answer(full.as_bytes()), PsyncAnswer::FullResync { replid, offset: ReplOffset(1234) });
        assert_eq!(psync_answer(b"+CONTINUE"), PsyncAnswer::Continue { replid: None });
        assert_eq!(psync_answer(format!("+CONTINUE {ID}").as_bytes()), PsyncAnswer::Continue { replid: Some(replid) });
        for later in [
            "-NOMASTERLINK Can't SYNC while not connected with my master",
            "-ERR Can't SYNC while not connected with my master",
            "-LOADING Redis is loading the dataset in memory",
            "-MASTERDOWN Link with MASTER is down",
            "-ERR BGSAVE failed, replication can't continue",
        ] {
            assert!(matches!(psync_answer(later.as_bytes()), PsyncAnswer::Later(_)), "{later}");
        }
        assert!(matches!(psync_answer(b"-NOAUTH Authentication required."), PsyncAnswer::NoAuth(_)));
        assert!(matches!(psync_answer(b"-NOPERM User x has no"), PsyncAnswer::NoPermission(_)));
        assert!(matches!(psync_answer(b"-ERR unknown command 'PSYNC'"), PsyncAnswer::UnknownCommand(_)));
        assert!(matches!(psync_answer(b"+RDBCHANNELSYNC 5"), PsyncAnswer::Other(_)));
        assert!(matches!(psync_answer(b"+FULLRESYNC short 1"), PsyncAnswer::Other(_)));
        // No server counts so far, and the next byte would be beyond the last offset there is.
        let full = format!("+FULLRESYNC {ID} {}", u64::MAX);
        assert!(matches!(psync_answer(full.as_bytes()), PsyncAnswer::Other(_)));
        assert_eq!(framing(format!("${}", u64::MAX).as_bytes()), None);
    }

    #[test]
    fn snapshot_end_by_length_leaves_the_stream() {
        let mut end = SnapshotEnd::new(framing(b"$10").unwrap());
        assert_eq!(end.take(b"12345"), Piece::Middle);
        assert_eq!(end.take(b"67890*1\r\n"), Piece::Last(5));
        assert_eq!(SnapshotEnd::new(Framing::Length(0)).take(b"*1"), Piece::Last(0));
    }

    #[test]
    fn snapshot_end_by_mark_is_found_at_any_split() {
        let line = format!("$EOF:{ID}");
        let snapshot = [b"REDIS0011 with ", &ID.as_bytes()[..39], b" inside ", ID.as_bytes()].concat();
        for size in 1..snapshot.len() {
            let mut end = SnapshotEnd::new(framing(line.as_bytes()).unwrap());
            let pieces: Vec<Piece> = snapshot.chunks(size).map(|p| end.take(p)).collect();
            let (last, before) = pieces.split_last().unwrap();
            assert!(matches!(last, Piece::Last(_)), "pieces of {size}");
            assert!(before.iter().all(|p| *p == Piece::Middle), "pieces of {size}");
            assert_eq!(end.received(), snapshot.len() as u64);
        }
    }

    #[test]
    fn framing_of_anything_else_is_none() {
        assert_eq!(framing(b"$EOF:short"), None);
        assert_eq!(framing(b"$-1"), None);
        assert_eq!(framing(b"+OK"), None);
    }
}
