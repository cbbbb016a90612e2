//! How far settling has got, as a key in the target says it.

use std::fmt::Write;

use super::Settled;
use super::items::{Direction, Place};

/// The format's version, first word of a marker. A new one is due with any other order of places.
const VERSION: &str = "kf1";

/// Everything up to a place has its true time, nothing behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
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

impl Direction {
    pub fn name(self) -> &'static str {
        match self {
            Direction::Settle => "down",
            Direction::Unsettle => "up",
        }
    }
}

impl Marker {
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

    /// `None` for what another version wrote.
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
