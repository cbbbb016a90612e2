//! What a target may have no place for, and what a source holds without it.

use crate::client::Reply;
use crate::compare::{Content, Entry, Snapshot};

/// Something that a pair loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    Streams,
    /// entries-added, max-deleted-entry-id, entries-read: Redis 7.0.
    StreamCounters,
    FieldExpiry,
    Functions,
    VectorSets,
    Arrays,
    /// Pending entries of no consumer: Redis 8.8.
    Nacked,
    /// Idempotent producers: Redis 8.6.
    Idempotency,
}

impl Loss {
    pub fn words(self) -> &'static str {
        match self {
            Loss::Streams => "streams",
            Loss::StreamCounters => "counters of streams",
            Loss::FieldExpiry => "expiry of hash fields",
            Loss::Functions => "functions",
            Loss::VectorSets => "vector sets",
            Loss::Arrays => "arrays",
            Loss::Nacked => "pending entries of no consumer",
            Loss::Idempotency => "idempotent producers",
        }
    }

    /// What keyferry must have said of it.
    pub fn told(self) -> Option<&'static str> {
        match self {
            Loss::Streams => Some("the target has no type stream"),
            // No value needs them; nothing is said.
            Loss::StreamCounters => None,
            Loss::FieldExpiry => Some("without expiry of hash fields"),
            Loss::Functions => Some("left out: the target has no functions"),
            Loss::VectorSets => Some("vectorset"),
            Loss::Arrays => Some("the target has no type array"),
            Loss::Nacked => Some("pending entries of no consumer"),
            Loss::Idempotency => Some("without idempotent producers"),
        }
    }
}

/// What a target is to hold of a source's data.
pub fn expected(source: Snapshot, losses: &[Loss]) -> Snapshot {
    let kept = source.into_iter().filter(|(_, entry)| {
        let lost = match entry.kind.as_str() {
            "stream" => Loss::Streams,
            "vectorset" => Loss::VectorSets,
            "array" => Loss::Arrays,
            _ => return true,
        };
        !losses.contains(&lost)
    });
    let mut all = normal(kept.collect());
    for entry in all.values_mut() {
        match &mut entry.value {
            Content::Hash(fields) if losses.contains(&Loss::FieldExpiry) => {
                fields.iter_mut().for_each(|field| field.2 = -1);
            }
            Content::Stream(parts) => {
                if losses.contains(&Loss::StreamCounters) {
                    parts.retain(|part, _| {
                        !part.ends_with("entries-added")
                            && !part.ends_with("entries-read")
                            && !part.ends_with("max-deleted-entry-id")
                    });
                }
                if losses.contains(&Loss::Nacked) {
                    let pending = parts.iter_mut().filter(|(part, _)| part.ends_with(" pending"));
                    pending.for_each(|(_, list)| *list = owned(list));
                }
            }
            _ => {}
        }
    }
    all
}

/// The pending entries that a consumer has.
fn owned(pending: &Reply) -> Reply {
    let has_consumer = |entry: &&Reply| entry.list().get(1) != Some(&Reply::Bytes(Vec::new()));
    Reply::List(pending.list().iter().filter(has_consumer).cloned().collect())
}

/// The same without what versions write in other ways: a HyperLogLog's form, the sign of a zero score.
pub fn normal(mut all: Snapshot) -> Snapshot {
    all.values_mut().for_each(normal_entry);
    all
}

fn normal_entry(entry: &mut Entry) {
    let Content::Plain(value) = &mut entry.value else { return };
    match (entry.kind.as_str(), value) {
        ("string", Reply::Bytes(bytes)) if bytes.starts_with(b"HYLL") && bytes.len() >= 16 => {
            *bytes = registers(bytes);
        }
        ("zset", Reply::List(list)) => {
            let zero = Reply::Bytes(b"-0.0".to_vec());
            list.iter_mut().skip(1).step_by(2).filter(|score| **score == zero).for_each(|score| {
                *score = Reply::Bytes(b"0.0".to_vec());
            });
        }
        // Compared by its elements, see `Extras`.
        ("vectorset" | "array", value) => *value = Reply::Nil,
        _ => {}
    }
}

/// The 16384 registers of a HyperLogLog, sparse or dense. Source: redis 7.0 src/hyperloglog.c.
fn registers(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16_384);
    let body = &bytes[16..];
    if bytes[4] == 0 {
        for part in body.chunks_exact(3).take(4096) {
            let word = u32::from_le_bytes([part[0], part[1], part[2], 0]);
            out.extend((0..4).map(|nth| (word >> (6 * nth) & 63) as u8));
        }
        return out;
    }
    let mut codes = body.iter();
    while let Some(&code) = codes.next() {
        let (value, times) = match code {
            0..=0x3f => (0, usize::from(code) + 1),
            0x40..=0x7f => {
                let low = codes.next().copied().unwrap_or_default();
                (0, (usize::from(code & 63) << 8 | usize::from(low)) + 1)
            }
            _ => ((code >> 2 & 31) + 1, usize::from(code & 3) + 1),
        };
        out.extend(std::iter::repeat_n(value, times));
    }
    out
}
