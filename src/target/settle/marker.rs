//! How far settling has got: markers in the target.

use std::fmt::Write;

use super::items::{Direction, Place, Upto};
use crate::slot::{Slot, tag};

/// What was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settled {
    pub keys: u64,
    pub fields: u64,
    /// Keys and fields at the largest time there is: how late they were written can't be told any more.
    pub left: u64,
}

/// How far settling has got, as it stands in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marker {
    /// Only for people: what a marker says is the same in either direction.
    pub direction: Direction,
    /// How late what lies behind it is.
    pub late_ms: i64,
    /// The last place whose expiries are true.
    pub upto: Place,
    /// What was settled up to there.
    pub settled: Settled,
    /// When the first of what was settled, and not noted, is due.
    pub due_ms: i64,
}

/// The format's version, first word of a marker. A new one is due with any other order of places.
const VERSION: &str = "kf1";

/// The key of a job's marker.
pub fn key(job: &str) -> Vec<u8> {
    format!("keyferry:{job}:settling").into_bytes()
}

/// The key of a slot's marker, which is in that slot.
pub fn slot_key(job: &str, slot: Slot) -> Vec<u8> {
    format!("keyferry:{job}:{{{}}}:settling", tag(slot)).into_bytes()
}

impl Direction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Direction::Settle => "down",
            Direction::Unsettle => "up",
        }
    }
}

impl Settled {
    pub(super) fn plus(self, more: Settled) -> Settled {
        let Settled { keys, fields, left } = more;
        Settled { keys: self.keys + keys, fields: self.fields + fields, left: self.left + left }
    }
}

impl Marker {
    /// One of a target in which nothing is settled yet.
    pub fn new(direction: Direction, late_ms: i64) -> Marker {
        Marker { direction, late_ms, upto: Place::FIRST, settled: Settled::default(), due_ms: i64::MAX }
    }

    pub fn encode(&self) -> String {
        let mut out = String::with_capacity(80);
        let Settled { keys, fields, left } = self.settled;
        let (direction, late_ms, Place(upto)) = (self.direction.name(), self.late_ms, self.upto);
        // Writing to a String can't fail.
        let _ = write!(
            out,
            "{VERSION} {direction} {late_ms} {upto:016x} keys={keys} fields={fields} left={left} due={}",
            self.due_ms
        );
        out
    }

    pub fn parse(text: &[u8]) -> Option<Marker> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        if words.next()? != VERSION {
            return None;
        }
        let direction = [Direction::Settle, Direction::Unsettle];
        let name = words.next()?;
        let direction = direction.into_iter().find(|direction| direction.name() == name)?;
        let late_ms = words.next()?.parse().ok().filter(|ms| *ms >= 0)?;
        let upto = Place(u64::from_str_radix(words.next()?, 16).ok()?);
        let mut number = |name: &str| words.next()?.strip_prefix(name)?.parse::<u64>().ok();
        let settled = Settled { keys: number("keys=")?, fields: number("fields=")?, left: number("left=")? };
        Some(Marker { direction, late_ms, upto, settled, due_ms: number("due=")?.try_into().ok()? })
    }
}

/// The markers of a target: one for all, or one for each slot in which something was settled.
pub(super) enum Markers {
    Whole(Option<Marker>),
    BySlot(Vec<Option<Marker>>),
}

impl Markers {
    /// The slot whose marker covers a place; any where there is one for all.
    pub fn slot_of(&self, place: Place) -> Slot {
        let slot = match self {
            Markers::Whole(_) => None,
            Markers::BySlot(_) => place.slot(),
        };
        slot.unwrap_or(FIRST_SLOT)
    }

    pub fn get(&self, slot: Slot) -> Option<Marker> {
        match self {
            Markers::Whole(marker) => *marker,
            Markers::BySlot(markers) => markers.get(slot.index()).copied().flatten(),
        }
    }

    pub fn set(&mut self, slot: Slot, marker: Option<Marker>) {
        match self {
            Markers::Whole(known) => *known = marker,
            Markers::BySlot(markers) => {
                if let Some(known) = markers.get_mut(slot.index()) {
                    *known = marker;
                }
            }
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Marker> {
        let (whole, by_slot) = match self {
            Markers::Whole(marker) => (marker.as_ref(), &[][..]),
            Markers::BySlot(markers) => (None, &markers[..]),
        };
        whole.into_iter().chain(by_slot.iter().flatten())
    }

    pub fn upto(&self) -> Upto {
        match self {
            Markers::Whole(_) => Upto::Whole,
            Markers::BySlot(markers) => {
                Upto::BySlot(markers.iter().map(|marker| marker.map(|marker| marker.upto)).collect())
            }
        }
    }
}

/// Stands for all slots of a standalone target.
const FIRST_SLOT: Slot = Slot::FIRST;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_round_trips_and_one_of_another_version_is_none() {
        for (direction, late_ms) in [(Direction::Settle, 3_600_000), (Direction::Unsettle, 1), (Direction::Settle, 0)] {
            let settled = Settled { keys: 7, fields: 8, left: 9 };
            let marker = Marker { direction, late_ms, upto: Place(0xfeed), settled, due_ms: i64::MAX };
            let text = marker.encode();
            assert_eq!(Marker::parse(text.as_bytes()), Some(marker));
            assert_eq!(Marker::parse(text.replace("kf1", "kf2").as_bytes()), None);
            assert_eq!(Marker::parse(text.get(..text.len() / 2).unwrap_or_default().as_bytes()), None);
        }
    }
}
