//! Lists: plain (1), one ziplist (10), ziplist nodes (14), listpack or plain nodes (18).

use super::pieces::{Left, Packed};
use crate::rdb::error::{Fault, Step};
use crate::rdb::length::Reader;
use crate::rdb::opcode;
use crate::rdb::pack::Kind;

const PLAIN_NODE: u64 = 1;
const PACKED_NODE: u64 = 2;

#[derive(Debug)]
pub(super) struct Lists {
    form: Form,
    /// Elements or nodes.
    left: Left,
    node: Option<Packed>,
    bytes_max: u64,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Plain,
    Ziplists,
    /// Each node says what it is.
    Nodes,
}

impl Lists {
    pub fn new(value_type: u8, bytes_max: u64) -> Self {
        let (form, left) = match value_type {
            opcode::LIST => (Form::Plain, Left::default()),
            opcode::LIST_ZIPLIST => (Form::Ziplists, Left::known(1)),
            opcode::LIST_QUICKLIST => (Form::Ziplists, Left::default()),
            _ => (Form::Nodes, Left::default()),
        };
        Lists { form, left, node: None, bytes_max }
    }

    pub fn next(&mut self, r: &mut Reader<'_>) -> Step<Option<Vec<u8>>> {
        loop {
            if let Some(node) = &mut self.node {
                if let Some(entry) = node.next()? {
                    return Ok(Some(entry.to_vec()));
                }
                self.node = None;
            }
            if !self.left.any(r)? {
                return Ok(None);
            }
            let kind = match self.form {
                Form::Plain => None,
                Form::Ziplists => Some(Kind::Ziplist),
                Form::Nodes => match r.len()? {
                    PLAIN_NODE => None,
                    PACKED_NODE => Some(Kind::Listpack),
                    _ => {
                        return Err(Fault::Corrupt("a list node is neither plain nor packed").into());
                    }
                },
            };
            let Some(kind) = kind else {
                let element = r.string(self.bytes_max)?.into_owned();
                self.left.took(r);
                return Ok(Some(element));
            };
            self.node = Some(Packed::read(r, kind, self.bytes_max)?);
            self.left.took(r);
        }
    }
}
