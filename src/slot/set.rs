//! Sets of slots, as the few ranges that they nearly always are.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::{SLOTS, Slot};

/// A set of slots. Written as `0-5460,7000`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Slots {
    /// First and last of each range, ascending; between two ranges at least one slot is missing.
    ranges: Vec<(u16, u16)>,
}

impl Slots {
    pub fn all() -> Slots {
        Slots { ranges: vec![(0, SLOTS - 1)] }
    }

    /// Adds every slot from `first` to `last`.
    pub fn add(&mut self, range: RangeInclusive<Slot>) {
        let (mut first, mut last) = (range.start().0, range.end().0);
        if first > last {
            return;
        }
        // Those that it touches become one with it.
        let from = self.ranges.partition_point(|(_, end)| end.saturating_add(1) < first);
        let until = self.ranges.partition_point(|(start, _)| *start <= last.saturating_add(1));
        if let Some((start, _)) = self.ranges.get(from).filter(|_| from < until) {
            first = first.min(*start);
        }
        if let Some((_, end)) = until.checked_sub(1).filter(|at| *at >= from).and_then(|at| self.ranges.get(at)) {
            last = last.max(*end);
        }
        self.ranges.splice(from..until, [(first, last)]);
    }

    pub fn insert(&mut self, slot: Slot) {
        self.add(slot..=slot);
    }

    pub fn remove(&mut self, slot: Slot) {
        let at = self.ranges.partition_point(|(_, end)| *end < slot.0);
        let Some((first, last)) = self.ranges.get(at).copied().filter(|(first, _)| *first <= slot.0) else { return };
        let before = (first < slot.0).then(|| (first, slot.0 - 1));
        let behind = (slot.0 < last).then(|| (slot.0 + 1, last));
        self.ranges.splice(at..=at, before.into_iter().chain(behind));
    }

    pub fn contains(&self, slot: Slot) -> bool {
        let at = self.ranges.partition_point(|(_, end)| *end < slot.0);
        self.ranges.get(at).is_some_and(|(start, _)| *start <= slot.0)
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(|(start, end)| usize::from(end - start) + 1).sum()
    }

    pub fn lowest(&self) -> Option<Slot> {
        self.ranges.first().map(|(start, _)| Slot(*start))
    }

    /// Every slot, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Slot> {
        self.ranges.iter().flat_map(|(start, end)| (*start..=*end).map(Slot))
    }

    /// The ranges, ascending; none touches the next.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = RangeInclusive<Slot>> {
        self.ranges.iter().map(|(start, end)| Slot(*start)..=Slot(*end))
    }

    pub fn is_disjoint(&self, other: &Slots) -> bool {
        self.iter().all(|slot| !other.contains(slot))
    }
}

impl Extend<Slot> for Slots {
    fn extend<I: IntoIterator<Item = Slot>>(&mut self, slots: I) {
        slots.into_iter().for_each(|slot| self.insert(slot));
    }
}

impl FromIterator<Slot> for Slots {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut set = Slots::default();
        set.extend(slots);
        set
    }
}

impl fmt::Display for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (start, end)) in self.ranges.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match start == end {
                true => write!(f, "{comma}{start}")?,
                false => write!(f, "{comma}{start}-{end}")?,
            }
        }
        Ok(())
    }
}

/// A text is no set of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no set of slots such as 0-5460,7000")]
pub struct NoSlots;

impl FromStr for Slots {
    type Err = NoSlots;

    fn from_str(text: &str) -> Result<Slots, NoSlots> {
        let mut set = Slots::default();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let slot = |text: &str| text.parse().ok().and_then(Slot::new).ok_or(NoSlots);
            let (first, last) = (slot(first)?, slot(last)?);
            if first > last {
                return Err(NoSlots);
            }
            set.add(first..=last);
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn slot(n: u16) -> Slot {
        Slot::new(n).unwrap()
    }

    #[test]
    fn ranges_that_touch_become_one() {
        for (parts, shown) in [
            (&[(0, 5), (6, 9)][..], "0-9"),
            (&[(6, 9), (0, 5)], "0-9"),
            (&[(0, 5), (7, 9), (6, 6)], "0-9"),
            (&[(0, 0), (2, 2), (4, 4)], "0,2,4"),
            (&[(0, 0), (4, 4), (2, 2), (1, 3)], "0-4"),
            (&[(16383, 16383), (0, 16382)], "0-16383"),
            (&[(5, 3)], ""),
        ] {
            let mut set = Slots::default();
            parts.iter().for_each(|(a, b)| set.add(slot(*a)..=slot(*b)));
            assert_eq!(set.to_string(), shown);
            assert_eq!(shown.parse(), Ok(set));
        }
        assert_eq!(Slots::all().len(), 16384);
        for bad in ["0-", "a", "16384", "5-3", "1,,2", "-1", "1-2-3", ","] {
            assert_eq!(bad.parse::<Slots>(), Err(NoSlots), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn set_is_as_a_set_of_numbers(parts in prop::collection::vec((0u16..400, 0u16..30), 0..30)) {
            let (mut set, mut model) = (Slots::default(), BTreeSet::new());
            for (first, more) in parts {
                set.add(slot(first)..=slot(first + more));
                model.extend(first..=first + more);
            }
            prop_assert_eq!(set.iter().map(Slot::number).collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.len(), model.len());
            prop_assert_eq!(set.lowest().map(Slot::number), model.first().copied());
            prop_assert!((0..450).all(|n| set.contains(slot(n)) == model.contains(&n)));
            prop_assert_eq!(set.to_string().parse::<Slots>(), Ok(set.clone()));
            let apart = set.ranges().zip(set.ranges().skip(1)).all(|(a, b)| a.end().0 + 1 < b.start().0);
            prop_assert!(apart);
        }
    }
}
