//! The ids of a stream's entries, in two to three bytes each.

use crate::rdb::value::StreamId;

/// Ids between two that are kept whole.
const RUN: usize = 128;

/// An ascending set of ids: every 128th whole, the others as what they are more than the one before.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// A whole id, and where in `deltas` those after it begin.
    heads: Vec<(StreamId, usize)>,
    deltas: Vec<u8>,
    last: StreamId,
    count: usize,
}

impl Ids {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an id that is greater than all before.
    pub fn push(&mut self, id: StreamId) {
        if self.count.is_multiple_of(RUN) {
            self.heads.push((id, self.deltas.len()));
        } else {
            let ms = id.ms.wrapping_sub(self.last.ms);
            push_varint(&mut self.deltas, ms);
            let seq = if ms == 0 { id.seq.wrapping_sub(self.last.seq) } else { id.seq };
            push_varint(&mut self.deltas, seq);
        }
        self.last = id;
        self.count += 1;
    }

    pub fn contains(&self, id: StreamId) -> bool {
        let after = self.heads.partition_point(|(head, _)| *head <= id);
        let Some(&(mut at, from)) = after.checked_sub(1).and_then(|run| self.heads.get(run)) else {
            return false;
        };
        let end = self.heads.get(after).map_or(self.deltas.len(), |&(_, next)| next);
        let mut deltas = self.deltas.get(from..end).unwrap_or_default();
        while at < id {
            let (Some(ms), Some(seq)) = (pop_varint(&mut deltas), pop_varint(&mut deltas)) else {
                return false;
            };
            at.seq = if ms == 0 { at.seq.wrapping_add(seq) } else { seq };
            at.ms = at.ms.wrapping_add(ms);
        }
        at == id
    }
}

fn push_varint(out: &mut Vec<u8>, mut n: u64) {
    while n > 0x7f {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn pop_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (mut n, mut shift) = (0u64, 0);
    loop {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(n);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn contains_of_any_ids_equals_a_set(
            ids in proptest::collection::btree_set((prop_oneof![0u64..50, any::<u64>()], prop_oneof![0u64..9, any::<u64>()]), 0..700),
            others in proptest::collection::vec((0u64..50, 0u64..9), 0..50),
        ) {
            let ids: BTreeSet<StreamId> = ids.into_iter().map(|(ms, seq)| StreamId { ms, seq }).collect();
            let mut packed = Ids::default();
            ids.iter().for_each(|id| packed.push(*id));
            prop_assert!(ids.iter().all(|id| packed.contains(*id)));
            for (ms, seq) in others {
                let id = StreamId { ms, seq };
                prop_assert_eq!(packed.contains(id), ids.contains(&id));
            }
        }
    }
}
