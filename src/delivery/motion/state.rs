//! What the target is told of a set of keys: who feeds it, or from where its units must be looked at again.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::offset::ReplOffset;

/// The number of a source primary within its job.
pub type Shard = u32;

/// An offset of each shard.
pub type Offsets = BTreeMap<Shard, ReplOffset>;

/// The state of a set, as it is kept in the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The shard's stream feeds the set, from this offset of it on.
    Fed { shard: Shard, from: ReplOffset },
    /// Nobody feeds it.
    Moving {
        /// Tells this motion from others of the set: larger than those of all before.
        number: u64,
        /// Per shard, the offset behind which its units weren't applied.
        starts: Offsets,
        /// The streams don't name all keys that may differ.
        whole: bool,
    },
}

impl State {
    /// Words: `fed 2 1200`, `moving 7 0:1200 1:330`, `moving 7 whole 0:1200`.
    pub fn encode(&self) -> String {
        let mut out = String::new();
        // Writing to a String can't fail.
        match self {
            State::Fed { shard, from } => _ = write!(out, "fed {shard} {from}"),
            State::Moving { number, starts, whole } => {
                _ = write!(out, "moving {number}");
                if *whole {
                    out.push_str(" whole");
                }
                for (shard, offset) in starts {
                    _ = write!(out, " {shard}:{offset}");
                }
            }
        }
        out
    }

    /// `None` when `text` is no state.
    pub fn parse(text: &[u8]) -> Option<State> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ').peekable();
        match words.next()? {
            "fed" => {
                let shard = words.next()?.parse().ok()?;
                let from = ReplOffset(words.next()?.parse().ok()?);
                words.next().is_none().then_some(State::Fed { shard, from })
            }
            "moving" => {
                let number = words.next()?.parse().ok()?;
                let whole = words.next_if(|word| *word == "whole").is_some();
                let start = |word: &str| {
                    let (shard, offset) = word.split_once(':')?;
                    Some((shard.parse().ok()?, ReplOffset(offset.parse().ok()?)))
                };
                let starts: Option<Offsets> = words.map(start).collect();
                Some(State::Moving { number, starts: starts?, whole })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_round_trips_in_all_forms() {
        let starts = Offsets::from([(0, ReplOffset(12)), (7, ReplOffset(u64::MAX))]);
        for state in [
            State::Fed { shard: 3, from: ReplOffset(9) },
            State::Moving { number: 1, starts: starts.clone(), whole: false },
            State::Moving { number: 1, starts, whole: true },
            State::Moving { number: 1, starts: Offsets::new(), whole: false },
        ] {
            assert_eq!(State::parse(state.encode().as_bytes()), Some(state));
        }
    }

    #[test]
    fn state_that_is_none_is_not_parsed() {
        for text in ["", "fed", "fed 1", "fed 1 2 3", "moving", "moving 1 0", "moving 1 0:x", "moved 1", "\u{e9}"] {
            assert_eq!(State::parse(text.as_bytes()), None, "{text}");
        }
    }
}
