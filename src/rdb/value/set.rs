//! Sets: plain (2), intset (11), listpack (20).

use super::pieces::{Left, Packed, once};
use crate::rdb::error::Step;
use crate::rdb::length::Reader;
use crate::rdb::opcode;
use crate::rdb::pack::Kind;

#[derive(Debug)]
pub(super) struct Sets {
    /// What the members are packed in, if they are.
    kind: Option<Kind>,
    left: Left,
    pack: Option<Packed>,
    bytes_max: u64,
}

impl Sets {
    pub fn new(value_type: u8, bytes_max: u64) -> Self {
        let kind = match value_type {
            opcode::SET_INTSET => Some(Kind::Intset),
            opcode::SET_LISTPACK => Some(Kind::Listpack),
            _ => None,
        };
        Sets { kind, left: Left::default(), pack: None, bytes_max }
    }

    pub fn next(&mut self, r: &mut Reader<'_>) -> Step<Option<Vec<u8>>> {
        let Some(kind) = self.kind else {
            if !self.left.any(r)? {
                return Ok(None);
            }
            let member = r.string(self.bytes_max)?.into_owned();
            self.left.took(r);
            return Ok(Some(member));
        };
        let max = self.bytes_max;
        let pack = once(&mut self.pack, r, |r| Packed::read(r, kind, max))?;
        Ok(pack.next()?.map(|entry| entry.to_vec()))
    }
}
