//! Large arguments stay in the journal: what of a command goes on has a stand-in of a few bytes in their place.

use super::Stream;
use crate::commands;
use crate::journal::{Argument, LARGE_BYTES_MIN, STAND_IN_BYTES};
use crate::resp::encode;

impl Stream<'_> {
    /// Where the window breaks off in a large argument that nobody looks into, puts a stand-in in its place. Returns from
    /// where the journal is to be read on, `read` if nothing changes.
    pub(super) fn leave_large(&mut self, read: u64) -> u64 {
        let rest = self.window.get(self.at..).unwrap_or_default();
        let Some(pending) = self.parser.pending(rest).filter(|pending| pending.len >= LARGE_BYTES_MIN) else {
            return read;
        };
        let here = rest.len() - pending.start;
        if here >= pending.len || !commands::is_opaque(self.parser.args(rest), pending.index) {
            return read;
        }
        let (position, len) = (read - here as u64, pending.len as u64);
        self.window.truncate(self.at + pending.at);
        let before = self.window.len();
        encode::bulk_header(&mut self.window, STAND_IN_BYTES);
        self.window.extend_from_slice(&self.parts.feed.large.stand_in(Argument { position, len }));
        let stands_in = self.window.len() - before;
        self.left_out += pending.start - pending.at + pending.len - stands_in;
        position + len
    }
}
