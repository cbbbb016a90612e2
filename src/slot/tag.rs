//! A short hash tag for every slot, so that a key can be made to fall in any of them.

use std::sync::LazyLock;

use super::{SLOTS, Slot};

/// What tags are made of, in the order in which they are tried.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// With so many digits every slot has one.
pub const TAG_LEN_MAX: usize = 4;

static TAGS: LazyLock<Vec<String>> = LazyLock::new(find);

/// The tag of `slot`: what stands in braces in a key of it, as in `{1a}`.
///
/// Shortest first, then in the order of digits before letters; the same for ever, as keys in targets are named by it.
pub fn tag(slot: Slot) -> &'static str {
    TAGS.get(slot.index()).map_or("", String::as_str)
}

fn find() -> Vec<String> {
    let mut tags = vec![String::new(); usize::from(SLOTS)];
    let mut missing = tags.len();
    let mut text = String::with_capacity(TAG_LEN_MAX);
    for len in 1..=TAG_LEN_MAX {
        let count = DIGITS.len().pow(u32::try_from(len).unwrap_or(0));
        for n in 0..count {
            // Every start of a job waits for this.
            if missing == 0 {
                return tags;
            }
            write(n, len, &mut text);
            if let Some(tag) = tags.get_mut(Slot::of(text.as_bytes()).index())
                && tag.is_empty()
            {
                tag.push_str(&text);
                missing -= 1;
            }
        }
    }
    tags
}

/// Puts `n` in base 36, with zeros in front, in the place of `text`.
fn write(n: usize, len: usize, text: &mut String) {
    text.clear();
    let places = (0..len as u32).rev().map(|place| n / DIGITS.len().pow(place) % DIGITS.len());
    text.extend(places.map(|digit| DIGITS.get(digit).copied().map_or('0', char::from)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn tag_of_every_slot_falls_in_it_and_is_short() {
        let mut seen = HashSet::new();
        for slot in Slot::all() {
            let tag = tag(slot);
            assert!((1..=TAG_LEN_MAX).contains(&tag.len()), "{slot}: {tag:?}");
            let key = format!("keyferry:job:{{{tag}}}:slot");
            assert_eq!(Slot::of(key.as_bytes()), slot, "{key}");
            assert!(seen.insert(tag), "{tag} twice");
        }
    }

    /// A change would lose the records of every job that runs.
    #[test]
    fn tags_never_change() {
        let all = Slot::all().map(tag).collect::<Vec<_>>().join(" ");
        let hash = all
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let some = [0, 1, 5460, 16383].map(|n| Slot::new(n).map(tag).unwrap_or_default());
        assert_eq!((some, hash), (["1bz", "emj", "g1m", "hia"], 0xa9d6_4ed5_0534_5647));
    }
}
