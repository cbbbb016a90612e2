//! What a job keeps in a cluster: a record in every slot that it feeds, and on every primary a floor.

use crate::delivery::flight::EXEC;
use crate::delivery::record::{self, Phase, Record};
use crate::offset::{ReplId, ReplOffset};
use crate::resp::encode;
use crate::slot::{Slot, Slots, TAG_LEN_MAX, tag};

/// The format's version, first word of every slot's record.
const VERSION: &str = "kfs1";

/// So many characters of a replid stand in a slot's record: enough to tell one history from the next.
const HISTORY_LEN: usize = 8;

/// How a replid begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History([u8; HISTORY_LEN]);

impl History {
    pub fn of(replid: &ReplId) -> Option<History> {
        replid.as_str().as_bytes().first_chunk().map(|chunk| History(*chunk))
    }
}

/// "This slot has applied every unit up to `offset`." Short, since nearly every command carries one along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRecord {
    /// Which of the source's shards feeds the slot.
    pub shard: u32,
    /// Which full sync of the job this belongs to.
    pub generation: u64,
    pub phase: Phase,
    pub offset: ReplOffset,
    /// The database selected in the source's stream at that offset.
    pub stream_db: u32,
    /// In the copy: how many pieces of large values the slot has applied.
    pub pieces: u32,
    pub history: Option<History>,
}

/// The key of a slot's record.
pub fn slot_key(job: &str, slot: Slot) -> Vec<u8> {
    format!("keyferry:{job}:{{{}}}:slot", tag(slot)).into_bytes()
}

/// The key of the floor that stands in a slot.
pub fn floor_key(job: &str, shard: u32, slot: Slot) -> Vec<u8> {
    format!("keyferry:{job}:{{{}}}:floor:{shard}", tag(slot)).into_bytes()
}

/// The hash of a slot's guards.
pub fn guards_key(job: &str, slot: Slot) -> Vec<u8> {
    format!("keyferry:{job}:{{{}}}:guards", tag(slot)).into_bytes()
}

/// What is said of a slot that has moved on the source (see `delivery::motion`).
pub fn state_key(job: &str, slot: Slot) -> Vec<u8> {
    format!("keyferry:{job}:{{{}}}:state", tag(slot)).into_bytes()
}

/// It is there when a process that finds the slot in motion is to copy all its keys, whatever the state says.
pub fn whole_key(job: &str, slot: Slot) -> Vec<u8> {
    format!("keyferry:{job}:{{{}}}:whole", tag(slot)).into_bytes()
}

/// Writes records under a job's keys.
#[derive(Debug)]
pub(super) struct Names {
    /// How the SET of a slot's record begins, up to the tag, by the tag's length.
    heads: [Vec<u8>; TAG_LEN_MAX + 1],
    /// The tags of all slots and their lengths, close together: they are wanted in random order.
    tags: Vec<([u8; TAG_LEN_MAX], u8)>,
    job: String,
    shard: u32,
}

/// What follows the tag in the key of a slot's record.
const SLOT_END: &[u8] = b"}:slot";

impl Names {
    pub fn new(job: &str, shard: u32) -> Self {
        let head = |len: usize| {
            let mut head = b"*3\r\n$3\r\nSET\r\n".to_vec();
            let before = format!("keyferry:{job}:{{");
            encode::bulk_header(&mut head, before.len() + len + SLOT_END.len());
            head.extend_from_slice(before.as_bytes());
            head
        };
        let tag = |slot| {
            let tag = tag(slot).as_bytes();
            let mut padded = [0; TAG_LEN_MAX];
            padded.iter_mut().zip(tag).for_each(|(to, from)| *to = *from);
            (padded, tag.len() as u8)
        };
        Names { heads: std::array::from_fn(head), tags: Slot::all().map(tag).collect(), job: job.to_owned(), shard }
    }

    /// Appends the SET of a slot's record, and EXEC behind it. `scratch` is overwritten.
    pub fn set_slot_and_exec(&self, slot: u16, record: &SlotRecord, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        let (tag, len) = self.tags.get(usize::from(slot)).copied().unwrap_or_default();
        let len = usize::from(len);
        scratch.clear();
        record.encode(scratch);
        let text = scratch.len();
        scratch.extend_from_slice(tag.get(..len).unwrap_or_default());
        scratch.extend_from_slice(SLOT_END);
        scratch.extend_from_slice(b"\r\n$");
        encode::number(scratch, text as u64);
        scratch.extend_from_slice(b"\r\n");
        scratch.extend_from_within(..text);
        scratch.extend_from_slice(b"\r\n");
        scratch.extend_from_slice(EXEC);
        out.extend_from_slice(self.heads.get(len).map_or(&[], Vec::as_slice));
        out.extend_from_slice(scratch.get(text..).unwrap_or_default());
    }

    /// Appends the SET of the floor in a slot.
    pub fn set_floor(&self, slot: u16, text: &[u8], out: &mut Vec<u8>) {
        if let Some(slot) = Slot::new(slot) {
            encode::command(out, &[&b"SET"[..], &floor_key(&self.job, self.shard, slot), text]);
        }
    }
}

impl SlotRecord {
    /// Appends the record's text.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(VERSION.as_bytes());
        let phase = match self.phase {
            Phase::Copying => b" c ",
            Phase::Following => b" f ",
        };
        out.push(b' ');
        encode::number(out, u64::from(self.shard));
        out.push(b' ');
        encode::number(out, self.generation);
        out.extend_from_slice(phase);
        encode::number(out, self.offset.0);
        out.push(b' ');
        encode::number(out, u64::from(self.stream_db));
        out.push(b' ');
        encode::number(out, u64::from(self.pieces));
        out.push(b' ');
        out.extend_from_slice(self.history.as_ref().map_or(b"-", |history| &history.0));
    }

    /// # Errors
    /// When `text` is no record of this version.
    pub fn parse(text: &[u8]) -> Result<SlotRecord, record::Error> {
        let text = std::str::from_utf8(text).map_err(|_| record::Error::Version("binary".into()))?;
        let mut words = text.split(' ');
        let version = words.next().unwrap_or_default();
        if version != VERSION {
            return Err(record::Error::Version(version.chars().take(20).collect()));
        }
        let mut word = |name: &'static str| words.next().ok_or(record::Error::Field(name));
        fn number<T: std::str::FromStr>(name: &'static str, text: &str) -> Result<T, record::Error> {
            text.parse().map_err(|_| record::Error::Field(name))
        }
        Ok(SlotRecord {
            shard: number("shard", word("shard")?)?,
            generation: number("generation", word("generation")?)?,
            phase: match word("phase")? {
                "c" => Phase::Copying,
                "f" => Phase::Following,
                _ => return Err(record::Error::Field("phase")),
            },
            offset: ReplOffset(number("offset", word("offset")?)?),
            stream_db: number("db", word("db")?)?,
            pieces: number("pieces", word("pieces")?)?,
            history: match word("history")? {
                "-" => None,
                text => Some(History(text.as_bytes().try_into().map_err(|_| record::Error::Field("history"))?)),
            },
        })
    }
}

/// "These slots have applied every unit up to the record's offset", as long as they are where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floor {
    pub record: Record,
    pub slots: Slots,
    /// The server that it was written to (see `Cluster::attach`): it may go elsewhere with its slot.
    pub home: String,
}

impl Floor {
    pub fn encode(&self) -> String {
        format!("{} home={} slots={}", self.record.encode(), self.home, self.slots)
    }

    /// # Errors
    /// When `text` is no floor of this version.
    pub fn parse(text: &[u8]) -> Result<Floor, record::Error> {
        let record = Record::parse(text)?;
        let text = std::str::from_utf8(text).map_err(|_| record::Error::Version("binary".into()))?;
        let field = |name: &'static str| {
            let words = text.split(' ').filter_map(|word| word.split_once('='));
            words.filter(|(n, _)| *n == name).map(|(_, value)| value).next().ok_or(record::Error::Field(name))
        };
        let slots = field("slots")?.parse().map_err(|_| record::Error::Field("slots"))?;
        Ok(Floor { slots, home: field("home")?.to_owned(), record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::record::JobState;

    #[test]
    fn slot_record_round_trips_with_and_without_a_history() {
        for replid in [None, ReplId::parse(&[b'7'; 40])] {
            let record = SlotRecord {
                shard: 3,
                generation: u64::MAX,
                phase: Phase::Following,
                offset: ReplOffset(u64::MAX),
                stream_db: 11,
                pieces: 9,
                history: replid.as_ref().and_then(History::of),
            };
            let mut text = Vec::new();
            record.encode(&mut text);
            assert_eq!(SlotRecord::parse(&text), Ok(record));
        }
        assert!(matches!(SlotRecord::parse(b"kfs9 1"), Err(record::Error::Version(_))));
        assert_eq!(SlotRecord::parse(b"kfs1 0 1 f 5"), Err(record::Error::Field("db")));
    }

    #[test]
    fn floor_round_trips() {
        let job =
            JobState { shard: 2, replid: ReplId::parse(&[b'a'; 40]), generation: 2, lanes: 0, late_ms: 1, scope: 7 };
        let (phase, offset) = (Phase::Following, ReplOffset(99));
        let record = Record { job, phase, offset, stream_db: 1, pieces: 0, time_ms: 5 };
        let slots: Slots = "0-5,9".parse().unwrap_or_default();
        let floor = Floor { record, slots, home: "a/b".into() };
        assert_eq!(Floor::parse(floor.encode().as_bytes()), Ok(floor));
    }

    #[test]
    fn records_are_written_under_their_keys() {
        let names = Names::new("a-b", 3);
        let record = SlotRecord {
            shard: 3,
            generation: 1,
            phase: Phase::Copying,
            offset: ReplOffset(12),
            stream_db: 0,
            pieces: 7,
            history: None,
        };
        let mut text = Vec::new();
        record.encode(&mut text);
        for slot in Slot::all().step_by(7) {
            let (mut made, mut told) = (Vec::new(), Vec::new());
            names.set_slot_and_exec(slot.number(), &record, &mut b"old".to_vec(), &mut made);
            names.set_floor(slot.number(), b"floor", &mut made);
            encode::command(&mut told, &[&b"SET"[..], &slot_key("a-b", slot), &text]);
            encode::command(&mut told, &[b"EXEC"]);
            encode::command(&mut told, &[&b"SET"[..], &floor_key("a-b", 3, slot), b"floor"]);
            assert_eq!(made, told);
        }
    }

    #[test]
    fn keys_of_a_slot_fall_in_it() {
        for slot in [0, 1, 5460, 16383].into_iter().filter_map(Slot::new) {
            for key in [slot_key("a-b", slot), floor_key("a-b", 1, slot), guards_key("a-b", slot)] {
                assert_eq!(Slot::of(&key), slot);
                assert!(record::is_own_key(&key));
            }
        }
    }
}
