//! Large arguments of streamed commands: their bytes stay in the journal, and what goes on in their place is a stand-in of
//! a few bytes, until a connection sends what it stands for.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Error, Journal, Read};

/// An argument of so many bytes or more gets a stand-in where nobody looks into it.
pub const LARGE_BYTES_MIN: usize = 1 << 20;

/// The size of a stand-in: a token that no data can have, then position and length.
pub const STAND_IN_BYTES: usize = TOKEN_BYTES + 16;

const TOKEN_BYTES: usize = 16;

/// What a stand-in stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    pub position: u64,
    pub len: u64,
}

/// The large arguments of one journal. They are held there for as long as their unit isn't recorded in the target, since
/// what isn't recorded is never [released](Journal::release).
#[derive(Debug)]
pub struct Large {
    journal: Arc<Journal>,
    /// Drawn for each journal: what comes from the source can't be taken for a stand-in.
    token: [u8; TOKEN_BYTES],
    used: AtomicBool,
}

impl Large {
    pub fn new(journal: Arc<Journal>) -> Self {
        let mut token = [0; TOKEN_BYTES];
        for part in token.chunks_exact_mut(8) {
            // The standard library seeds each hasher from the system's randomness.
            part.copy_from_slice(&RandomState::new().build_hasher().finish().to_be_bytes());
        }
        Large { journal, token, used: AtomicBool::new(false) }
    }

    pub fn stand_in(&self, argument: Argument) -> [u8; STAND_IN_BYTES] {
        self.used.store(true, Ordering::Release);
        let mut bytes = [0; STAND_IN_BYTES];
        let numbers = argument.position.to_be_bytes().into_iter().chain(argument.len.to_be_bytes());
        bytes.iter_mut().zip(self.token.into_iter().chain(numbers)).for_each(|(byte, of)| *byte = of);
        bytes
    }

    /// The first stand-in in `bytes`: where it begins, and what it stands for.
    pub fn find(&self, bytes: &[u8]) -> Option<(usize, Argument)> {
        if !self.used.load(Ordering::Acquire) {
            return None;
        }
        let at = memchr::memmem::find(bytes, &self.token)?;
        let number = |from: usize| Some(u64::from_be_bytes(bytes.get(at + from..at + from + 8)?.try_into().ok()?));
        Some((at, Argument { position: number(TOKEN_BYTES)?, len: number(TOKEN_BYTES + 8)? }))
    }

    /// The bytes that the stand-ins in `bytes` stand for.
    pub fn bytes_of(&self, mut bytes: &[u8]) -> u64 {
        let mut all = 0;
        while let Some((at, argument)) = self.find(bytes) {
            all += argument.len;
            bytes = bytes.get(at + STAND_IN_BYTES..).unwrap_or_default();
        }
        all
    }

    /// Appends the first bytes of an argument to `out`, at most `bytes_max`.
    ///
    /// They were written before: this doesn't wait, but for a disk that they were spooled to a moment ago.
    /// # Errors
    /// When the spool can't be read.
    pub fn read(&self, argument: Argument, out: &mut Vec<u8>, bytes_max: usize) -> Result<usize, Error> {
        let most = usize::try_from(argument.len).unwrap_or(usize::MAX).min(bytes_max);
        match self.journal.read(argument.position, out, most, Duration::ZERO)? {
            Read::Bytes(n) if n > 0 => Ok(n),
            Read::Bytes(_) | Read::Nothing | Read::End => {
                Err(Error::Read { error: format!("position {} isn't held any more", argument.position) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stand_in_is_found_among_other_bytes_and_by_its_own_journal_only() {
        let journal = Arc::new(Journal::new(0, 1 << 20, None));
        let (large, other) = (Large::new(Arc::clone(&journal)), Large::new(journal));
        let argument = Argument { position: 7, len: 1 << 40 };
        let stand_in = large.stand_in(argument);
        other.stand_in(argument);
        let bytes = [b"$32\r\n", &stand_in[..], b"\r\n", &stand_in[..]].concat();
        assert_eq!(large.find(&bytes), Some((5, argument)));
        assert_eq!(large.bytes_of(&bytes), 2 << 40);
        assert_eq!((large.find(&bytes[6..30]), other.find(&bytes)), (None, None));
        assert_eq!(large.find(&stand_in[..STAND_IN_BYTES - 1]), None);
    }

    #[tokio::test]
    async fn argument_is_read_in_parts_and_never_past_its_end() {
        let journal = Arc::new(Journal::new(0, 1 << 20, None));
        journal.append(b"0123456789", 0).await.unwrap();
        let large = Large::new(journal);
        let (mut out, argument) = (Vec::new(), Argument { position: 2, len: 5 });
        assert_eq!(large.read(argument, &mut out, 3), Ok(3));
        assert_eq!(large.read(Argument { position: 5, len: 2 }, &mut out, 9), Ok(2));
        assert_eq!(out, b"23456");
        assert!(large.read(Argument { position: 10, len: 2 }, &mut out, 9).is_err());
    }
}
