//! What a target keeps of all slots: one hash, with who fed them first and a state for each slot that changed.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::state::{Shard, State};
use crate::offset::ReplOffset;
use crate::slot::Slot;

/// The field of the first map.
pub const FIRST: &[u8] = b"first";

/// The field that says: whatever is in motion is to be copied whole.
pub const WHOLE: &[u8] = b"whole";

/// What is kept of all slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    first: Vec<(RangeInclusive<Slot>, Shard)>,
    states: BTreeMap<Slot, State>,
    /// A process that finds slots in motion is to copy all their keys, and to begin at the records.
    pub whole: bool,
}

/// The hash's key.
pub fn hash_key(job: &str) -> Vec<u8> {
    format!("keyferry:{job}:slots").into_bytes()
}

/// The field of a slot.
pub fn field(slot: Slot) -> Vec<u8> {
    slot.number().to_string().into_bytes()
}

/// The value of the first map: words `first-last:shard`.
pub fn encode_first(ranges: impl Iterator<Item = (RangeInclusive<Slot>, Shard)>) -> String {
    let words = ranges.map(|(range, shard)| format!("{}-{}:{shard}", range.start(), range.end()));
    words.collect::<Vec<_>>().join(" ")
}

impl Kept {
    /// The states of all slots that are known.
    pub fn of(states: BTreeMap<Slot, State>) -> Kept {
        Kept { states, ..Kept::default() }
    }

    /// Reads the hash's fields; those that say nothing are left out.
    pub fn read<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Kept {
        let mut kept = Kept::default();
        for (field, value) in fields {
            match field {
                FIRST => kept.first = parse_first(value),
                WHOLE => kept.whole = true,
                field => {
                    if let (Some(slot), Some(state)) = (parse_slot(field), State::parse(value)) {
                        kept.states.insert(slot, state);
                    }
                }
            }
        }
        kept
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.states.is_empty()
    }

    /// `None` for a slot that nobody owned at first, and that nothing was heard of since.
    pub fn state(&self, slot: Slot) -> Option<State> {
        let fed = |(_, shard): &(_, Shard)| State::Fed { shard: *shard, from: ReplOffset(0) };
        let first = || self.first.iter().find(|(range, _)| range.contains(&slot)).map(fed);
        self.states.get(&slot).cloned().or_else(first)
    }

    /// The states of the slots that changed since the first map.
    pub fn changed(&self) -> impl Iterator<Item = &State> {
        self.states.values()
    }
}

fn parse_slot(text: &[u8]) -> Option<Slot> {
    Slot::new(std::str::from_utf8(text).ok()?.parse().ok()?)
}

fn parse_first(text: &[u8]) -> Vec<(RangeInclusive<Slot>, Shard)> {
    let range = |word: &[u8]| {
        let (range, shard) = std::str::from_utf8(word).ok()?.split_once(':')?;
        let (first, last) = range.split_once('-')?;
        let (first, last) = (parse_slot(first.as_bytes())?, parse_slot(last.as_bytes())?);
        Some((first..=last, shard.parse().ok()?))
    };
    text.split(|byte| *byte == b' ').filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    #[test]
    fn kept_slots_are_those_of_the_first_map_but_for_changed_ones() {
        let first = encode_first([(slot(0)..=slot(9), 0), (slot(10)..=slot(16383), 4)].into_iter());
        let changed = State::Moving { number: 3, starts: BTreeMap::from([(4, ReplOffset(7))]), whole: false };
        let text = changed.encode();
        let fields: [(&[u8], &[u8]); 4] =
            [(FIRST, first.as_bytes()), (b"12", text.as_bytes()), (b"13", b"odd"), (b"x", b"fed 1 2")];
        let kept = Kept::read(fields.into_iter());
        assert_eq!(kept.state(slot(9)), Some(State::Fed { shard: 0, from: ReplOffset(0) }));
        assert_eq!(kept.state(slot(10)), Some(State::Fed { shard: 4, from: ReplOffset(0) }));
        assert_eq!(kept.state(slot(12)), Some(changed.clone()));
        assert_eq!(kept.state(slot(13)), Some(State::Fed { shard: 4, from: ReplOffset(0) }));
        assert_eq!(kept.changed().collect::<Vec<_>>(), [&changed]);
        assert!(!kept.whole && Kept::read([(WHOLE, &b"1"[..])].into_iter()).whole);
        assert_eq!(Kept::default().state(slot(1)), None);
    }
}
