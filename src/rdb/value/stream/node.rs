//! A node of a stream: a listpack of entries that share an id to count from and field names to leave out.
//!
//! ```text
//! master := count, deleted, number of fields, fields …, 0
//! entry  := flags, ms delta, seq delta, [number of fields, (field, value) … | value …], number of entries before this
//! ```

use super::{StreamEntry, StreamId};
use crate::rdb::error::{Fault, Step};
use crate::rdb::length::Reader;
use crate::rdb::pack::Kind;
use crate::rdb::value::pieces::Packed;

/// Fields and their values.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

const DELETED: i64 = 1;
const SAME_FIELDS: i64 = 2;

#[derive(Debug)]
pub(super) struct Node {
    pack: Packed,
    first: StreamId,
    fields: Vec<Vec<u8>>,
    live_left: u64,
    deleted_left: u64,
}

fn corrupt(reason: &'static str) -> Fault {
    Fault::Corrupt(reason)
}

const SHORT: &str = "a stream node ends in an entry, or a number in it is none";
const COUNTS: &str = "a stream node has other numbers of entries than it says";

impl Node {
    pub fn read(r: &mut Reader<'_>, bytes_max: u64) -> Step<Self> {
        let key = r.string(bytes_max)?;
        let mut key = Reader::new(&key);
        let first = StreamId::read(&mut key).map_err(|_| corrupt("a stream node's id is not 16 bytes"))?;
        if !key.rest().is_empty() {
            return Err(corrupt("a stream node's id is not 16 bytes").into());
        }
        Ok(Node::open(first, Packed::read(r, Kind::Listpack, bytes_max)?)?)
    }

    fn open(first: StreamId, mut pack: Packed) -> Result<Self, Fault> {
        let live_left = count(&mut pack)?;
        let deleted_left = count(&mut pack)?;
        let mut fields = Vec::new();
        for _ in 0..count(&mut pack)? {
            fields.push(pack.need(SHORT)?.to_vec());
        }
        if pack.need_int(SHORT)? != 0 {
            return Err(corrupt("a stream node's field names don't end in 0"));
        }
        Ok(Node { pack, first, fields, live_left, deleted_left })
    }

    /// The next entry that is not deleted.
    pub fn next(&mut self) -> Result<Option<StreamEntry>, Fault> {
        while let Some(flags) = self.pack.next()? {
            let flags = flags.to_int().ok_or(corrupt(SHORT))?;
            let id = self.id()?;
            let fields = self.fields(flags & SAME_FIELDS != 0)?;
            let left = match flags & DELETED != 0 {
                true => &mut self.deleted_left,
                false => &mut self.live_left,
            };
            *left = left.checked_sub(1).ok_or(corrupt(COUNTS))?;
            if flags & DELETED == 0 {
                return Ok(Some(StreamEntry { id, fields }));
            }
        }
        match (self.live_left, self.deleted_left) {
            (0, 0) => Ok(None),
            _ => Err(corrupt(COUNTS)),
        }
    }

    fn id(&mut self) -> Result<StreamId, Fault> {
        let ms = self.first.ms.checked_add_signed(self.pack.need_int(SHORT)?);
        let seq = self.pack.need_int(SHORT)?;
        // With another ms the seq has nothing to do with the node's: the server lets the sum wrap.
        let seq = match ms == Some(self.first.ms) {
            true => self.first.seq.checked_add_signed(seq),
            false => Some(self.first.seq.wrapping_add_signed(seq)),
        };
        match (ms, seq) {
            (Some(ms), Some(seq)) => Ok(StreamId { ms, seq }),
            _ => Err(corrupt("a stream entry's id is out of range")),
        }
    }

    fn fields(&mut self, same: bool) -> Result<Pairs, Fault> {
        let mut fields = Vec::new();
        let written = if same {
            for field in &self.fields {
                fields.push((field.clone(), self.pack.need(SHORT)?.to_vec()));
            }
            3 + fields.len() as u64
        } else {
            for _ in 0..count(&mut self.pack)? {
                let field = self.pack.need(SHORT)?.to_vec();
                fields.push((field, self.pack.need(SHORT)?.to_vec()));
            }
            4 + 2 * fields.len() as u64
        };
        match count(&mut self.pack)? == written {
            true => Ok(fields),
            false => Err(corrupt("a stream entry's back count is wrong")),
        }
    }
}

fn count(pack: &mut Packed) -> Result<u64, Fault> {
    u64::try_from(pack.need_int(SHORT)?).map_err(|_| corrupt(SHORT))
}
