//! What expires in a target, in an order that every process makes the same, within a limit of memory.

use std::ops::RangeInclusive;

use crate::slot::Slot;

/// Which way expiries are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From late to true, in ascending order of places.
    Settle,
    /// From true to late again, in descending order.
    Unsettle,
}

/// Where in the order a key or a field of a hash stands: a hash of database, key and field.
///
/// Stable for ever, as a marker in the target names a place: FNV-1a, mixed as MurmurHash3 ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(pub u64);

impl Place {
    pub const FIRST: Place = Place(0);
    pub const LAST: Place = Place(u64::MAX);

    /// The place by the hash alone.
    pub fn of(db: u32, key: &[u8], field: Option<&[u8]>) -> Place {
        // The key's length parts it from the field.
        let head = db.to_le_bytes().into_iter().chain((key.len() as u64).to_le_bytes());
        let tail = field.map(|field| [1].into_iter().chain(field.iter().copied()));
        let bytes = head.chain(key.iter().copied()).chain(tail.into_iter().flatten());
        let hash =
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        Place(hash ^ (hash >> 33))
    }

    /// The place in an order in which each slot's items stand together: first the slot, then the hash.
    pub fn by_slot(db: u32, key: &[u8], field: Option<&[u8]>) -> Place {
        let slot = u64::from(Slot::of(key).number());
        Place(slot << HASH_BITS | Place::of(db, key, field).0 >> SLOT_BITS)
    }

    /// The slot that a place [`Place::by_slot`] belongs to.
    pub fn slot(self) -> Option<Slot> {
        u16::try_from(self.0 >> HASH_BITS).ok().and_then(Slot::new)
    }
}

/// Bits of a place by slot: the slot's, and those that are left for the hash.
const SLOT_BITS: u32 = 14;
const HASH_BITS: u32 = u64::BITS - SLOT_BITS;

/// In which order things stand, and up to where they were settled before.
#[derive(Debug, Clone)]
pub enum Upto {
    /// All by their hashes, with one marker; a pass begins behind it.
    Whole,
    /// Slot by slot, with a marker for each: the last place of that slot whose expiries are true.
    BySlot(Vec<Option<Place>>),
}

impl Upto {
    pub fn place(&self, db: u32, key: &[u8], field: Option<&[u8]>) -> Place {
        match self {
            Upto::Whole => Place::of(db, key, field),
            Upto::BySlot(_) => Place::by_slot(db, key, field),
        }
    }

    /// Whether what stands at `place` is still to be moved, as far as its slot's marker says.
    fn is_open(&self, place: Place, direction: Direction) -> bool {
        let Upto::BySlot(slots) = self else { return true };
        let upto = place.slot().and_then(|slot| *slots.get(slot.index())?);
        match direction {
            Direction::Settle => upto.is_none_or(|upto| place > upto),
            Direction::Unsettle => upto.is_some_and(|upto| place <= upto),
        }
    }
}

/// A key, or a field of a hash, and the time when it expires on the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item<'a> {
    pub db: u32,
    pub key: &'a [u8],
    pub field: Option<&'a [u8]>,
    pub at_ms: i64,
}

/// What was found in a range of places.
///
/// When it outgrows its memory it forgets what would come last and makes the range end before that: what is left for a
/// later pass. Within the range it is complete.
#[derive(Debug)]
pub struct Items {
    direction: Direction,
    upto: Upto,
    range: RangeInclusive<Place>,
    bytes_max: usize,
    /// Place, and where in `bytes` the item begins.
    index: Vec<(Place, usize)>,
    bytes: Vec<u8>,
}

/// Stands for the length of a field where there is none.
const NO_FIELD: u32 = u32::MAX;
/// Database, time, length of key, length of field.
const HEAD_BYTES: usize = 4 + 8 + 4 + 4;
const INDEX_BYTES: usize = size_of::<(Place, usize)>();

impl Items {
    pub fn new(direction: Direction, upto: Upto, range: RangeInclusive<Place>, bytes_max: usize) -> Self {
        Items { direction, upto, range, bytes_max, index: Vec::new(), bytes: Vec::new() }
    }

    pub fn range(&self) -> &RangeInclusive<Place> {
        &self.range
    }

    /// Whether a key, or a field of a hash, is one that is to be moved now.
    pub fn wants(&self, db: u32, key: &[u8], field: Option<&[u8]>) -> bool {
        self.wants_at(self.upto.place(db, key, field))
    }

    fn wants_at(&self, place: Place) -> bool {
        self.range.contains(&place) && self.upto.is_open(place, self.direction)
    }

    /// Takes an item of the range; the same again does no harm.
    pub fn push(&mut self, item: &Item<'_>) {
        let place = self.upto.place(item.db, item.key, item.field);
        // No server takes names of 4 GiB.
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(NO_FIELD - 1);
        if !self.wants_at(place) {
            return;
        }
        self.index.push((place, self.bytes.len()));
        self.bytes.extend_from_slice(&item.db.to_le_bytes());
        self.bytes.extend_from_slice(&item.at_ms.to_le_bytes());
        self.bytes.extend_from_slice(&length(item.key).to_le_bytes());
        self.bytes.extend_from_slice(&item.field.map_or(NO_FIELD, length).to_le_bytes());
        self.bytes.extend_from_slice(item.key);
        self.bytes.extend_from_slice(item.field.unwrap_or_default());
        if self.index.len() * INDEX_BYTES + self.bytes.len() > self.bytes_max {
            self.shrink();
        }
    }

    /// Puts what was taken in order, each item once.
    pub fn sort(&mut self) {
        let (bytes, direction) = (&self.bytes, self.direction);
        self.index.sort_unstable_by(|(a, at_a), (b, at_b)| {
            let places = match direction {
                Direction::Settle => a.cmp(b),
                Direction::Unsettle => b.cmp(a),
            };
            places.then_with(|| read(bytes, *at_a).cmp(&read(bytes, *at_b)))
        });
        // Listed twice by the server: it may say another time then, if only by a rounding.
        let name = |at: usize| read(bytes, at).map(|item| Item { at_ms: 0, ..item });
        self.index.dedup_by(|(a, at_a), (b, at_b)| a == b && name(*at_a) == name(*at_b));
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// The item that is `n`th after [`Items::sort`], and its place.
    pub fn get(&self, n: usize) -> Option<(Place, Item<'_>)> {
        let (place, at) = self.index.get(n)?;
        Some((*place, read(&self.bytes, *at)?))
    }

    /// Forgets the half that comes last, but never a part of what has one place.
    fn shrink(&mut self) {
        self.sort();
        let Some(&(cut, _)) = self.index.get(self.index.len() / 2) else { return };
        let stays = |place: Place| match self.direction {
            Direction::Settle => place < cut,
            Direction::Unsettle => place > cut,
        };
        let kept = self.index.partition_point(|(place, _)| stays(*place));
        if kept == 0 {
            // All of one place, which can't be parted: so be it.
            self.bytes_max = self.bytes_max.saturating_mul(2);
            return;
        }
        self.range = match self.direction {
            Direction::Settle => *self.range.start()..=Place(cut.0 - 1),
            Direction::Unsettle => Place(cut.0 + 1)..=*self.range.end(),
        };
        self.index.truncate(kept);
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for (_, at) in &mut self.index {
            let end = read(&self.bytes, *at).map_or(*at, |item| *at + item.len());
            let from = bytes.len();
            bytes.extend_from_slice(self.bytes.get(*at..end).unwrap_or_default());
            *at = from;
        }
        self.bytes = bytes;
    }
}

impl Item<'_> {
    /// Bytes in [`Items`].
    fn len(&self) -> usize {
        HEAD_BYTES + self.key.len() + self.field.map_or(0, <[u8]>::len)
    }
}

fn read(bytes: &[u8], at: usize) -> Option<Item<'_>> {
    let (db, rest) = bytes.get(at..)?.split_first_chunk()?;
    let (at_ms, rest) = rest.split_first_chunk()?;
    let (key_len, rest) = rest.split_first_chunk()?;
    let (field_len, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*key_len) as usize)?;
    let field = match u32::from_le_bytes(*field_len) {
        NO_FIELD => None,
        len => Some(rest.get(..len as usize)?),
    };
    Some(Item { db: u32::from_le_bytes(*db), key, field, at_ms: i64::from_le_bytes(*at_ms) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(items: &Items) -> Vec<(Place, Vec<u8>)> {
        (0..items.len()).map(|n| items.get(n).unwrap()).map(|(place, item)| (place, item.key.to_vec())).collect()
    }

    #[test]
    fn place_tells_database_key_and_field_apart_and_never_changes() {
        let places = [
            Place::of(0, b"", None),
            Place::of(1, b"", None),
            Place::of(0, b"k", None),
            Place::of(0, b"k", Some(b"")),
            Place::of(0, b"k", Some(b"f")),
            Place::of(0, b"k\x01f", None),
            Place::of(0, b"", Some(b"k")),
        ];
        for (i, a) in places.iter().enumerate() {
            assert!(places[..i].iter().all(|b| a != b), "{i}");
        }
        assert_eq!(Place::of(5, b"user:1", Some(b"f")), Place(0xd99d_e227_7f44_4181));
    }

    #[test]
    fn place_by_slot_keeps_slots_together_and_never_changes() {
        for key in ["a", "user:1", "{user:1}:x", ""] {
            let place = Place::by_slot(0, key.as_bytes(), None);
            assert_eq!(place.slot(), Some(Slot::of(key.as_bytes())));
            assert_eq!(place.0 & ((1 << HASH_BITS) - 1), Place::of(0, key.as_bytes(), None).0 >> SLOT_BITS);
        }
        assert!(Place::by_slot(0, b"{user:1}:x", None) != Place::by_slot(0, b"user:1", None));
        assert_eq!((Place::FIRST.slot(), Place::LAST.slot()), (Slot::new(0), Slot::new(16383)));
    }

    #[test]
    fn items_of_a_slot_are_wanted_by_its_own_marker() {
        let (a, b) = (Item { db: 0, key: b"{s}a", field: None, at_ms: 1 }, Item { db: 0, key: b"{s}b", ..ITEM });
        let other = Item { db: 0, key: b"other", ..ITEM };
        let place = |item: &Item<'_>| Place::by_slot(item.db, item.key, item.field);
        let (first, last) = if place(&a) < place(&b) { (a, b) } else { (b, a) };
        let mut upto = vec![None; 16384];
        upto[Slot::of(b"{s}").index()] = Some(place(&first));
        for (direction, wanted) in
            [(Direction::Settle, vec![b"other".as_slice(), last.key]), (Direction::Unsettle, vec![first.key])]
        {
            let mut items = Items::new(direction, Upto::BySlot(upto.clone()), Place::FIRST..=Place::LAST, 1 << 20);
            [first, last, other].iter().for_each(|item| items.push(item));
            items.sort();
            let mut found: Vec<Vec<u8>> = all(&items).into_iter().map(|(_, key)| key).collect();
            found.sort();
            assert_eq!(found, wanted, "{direction:?}");
        }
    }

    const ITEM: Item<'static> = Item { db: 0, key: b"", field: None, at_ms: 1 };

    #[test]
    fn passes_within_any_memory_give_everything_once_in_order() {
        for direction in [Direction::Settle, Direction::Unsettle] {
            for bytes_max in [1, 100, 1000, 10_000, usize::MAX] {
                let keys: Vec<Vec<u8>> = (0..500).map(|n| format!("key:{n}").into_bytes()).collect();
                let (mut range, mut found, mut passes) = (Place::FIRST..=Place::LAST, Vec::new(), 0);
                loop {
                    let mut items = Items::new(direction, Upto::Whole, range.clone(), bytes_max);
                    for key in keys.iter().chain(&keys[..100]) {
                        items.push(&Item { db: 3, key, field: None, at_ms: 7 });
                    }
                    items.sort();
                    found.extend(all(&items));
                    passes += 1;
                    let done = items.range().clone();
                    range = match direction {
                        Direction::Settle if *done.end() == Place::LAST => break,
                        Direction::Settle => Place(done.end().0 + 1)..=Place::LAST,
                        Direction::Unsettle if *done.start() == Place::FIRST => break,
                        Direction::Unsettle => Place::FIRST..=Place(done.start().0 - 1),
                    };
                }
                let mut want: Vec<(Place, Vec<u8>)> =
                    keys.iter().map(|key| (Place::of(3, key, None), key.clone())).collect();
                want.sort();
                if direction == Direction::Unsettle {
                    want.reverse();
                }
                assert_eq!(found, want);
                assert_eq!(passes == 1, bytes_max == usize::MAX, "{passes} passes");
            }
        }
    }
}
