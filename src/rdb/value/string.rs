//! Strings (type 0), of any size.

use super::pieces::{Budget, Piece};
use crate::rdb::error::{Step, Stop};
use crate::rdb::length::{Head, Reader};
use crate::rdb::lzf::LzfStream;

/// A string that is taken in pieces of 1 MiB; what it was packed to needn't be in memory whole.
#[derive(Debug)]
pub(super) struct Strings {
    bytes_max: u64,
    offset: u64,
    rest: Rest,
    /// Unpacked bytes of the next piece.
    waiting: Vec<u8>,
}

#[derive(Debug)]
enum Rest {
    /// Not begun.
    Head,
    Plain(u64),
    Lzf(LzfStream),
    End,
}

impl Strings {
    pub fn new(bytes_max: u64) -> Self {
        Strings { bytes_max, offset: 0, rest: Rest::Head, waiting: Vec::new() }
    }

    pub fn piece(&mut self, r: &mut Reader<'_>, budget: Budget) -> Step<Option<Piece>> {
        if let Rest::Head = self.rest {
            self.rest = match r.head()? {
                Head::Plain(n) => Rest::Plain(n),
                Head::Lzf { compressed, plain } if plain > 0 => Rest::Lzf(LzfStream::new(compressed, plain)),
                head => {
                    let bytes = r.string_after(head, self.bytes_max)?.into_owned();
                    self.rest = Rest::End;
                    return Ok(self.next(bytes));
                }
            };
            r.commit();
        }
        match &mut self.rest {
            Rest::Plain(left) => {
                let n = (*left).min(budget.bytes as u64);
                let bytes = r.take(n)?.to_vec();
                *left -= n;
                if *left == 0 {
                    self.rest = Rest::End;
                }
                Ok(self.next(bytes))
            }
            Rest::Lzf(lzf) => {
                let want = budget.bytes.saturating_sub(self.waiting.len());
                lzf.fill(r, &mut self.waiting, want)?;
                if lzf.is_done() {
                    self.rest = Rest::End;
                } else if self.waiting.len() < budget.bytes {
                    return Err(Stop::More);
                }
                let bytes = std::mem::take(&mut self.waiting);
                Ok(self.next(bytes))
            }
            Rest::Head | Rest::End => Ok(None),
        }
    }

    fn next(&mut self, bytes: Vec<u8>) -> Option<Piece> {
        let offset = self.offset;
        self.offset += bytes.len() as u64;
        Some(Piece::StringBytes { offset, bytes })
    }
}
