//! Small encoders, written from the format and not from the decoder.

use super::*;

pub fn len(n: usize) -> Vec<u8> {
    let mut out = Vec::new();
    length::write_len(&mut out, n as u64);
    out
}

pub fn string(s: &[u8]) -> Vec<u8> {
    [len(s.len()), s.to_vec()].concat()
}

/// As LZF if that is possible.
pub fn packed_string(s: &[u8]) -> Vec<u8> {
    match ::lzf::compress(s) {
        Ok(packed) => [vec![0xc3], len(packed.len()), len(s.len()), packed].concat(),
        Err(_) => string(s),
    }
}

/// The integer whose canonical text this is.
fn integer(s: &[u8]) -> Option<i64> {
    let n: i64 = std::str::from_utf8(s).ok()?.parse().ok()?;
    (n.to_string().as_bytes() == s).then_some(n)
}

pub fn listpack(items: &[Vec<u8>]) -> Vec<u8> {
    let mut body = Vec::new();
    for item in items {
        let entry = match integer(item) {
            Some(n @ 0..=127) => vec![n as u8],
            Some(n @ -4096..=4095) => ((n as u16 & 0x1fff) | 0xc000).to_be_bytes().to_vec(),
            Some(n @ -32768..=32767) => [&[0xf1], &n.to_le_bytes()[..2]].concat(),
            Some(n @ -8_388_608..=8_388_607) => [&[0xf2], &n.to_le_bytes()[..3]].concat(),
            Some(n) if i32::try_from(n).is_ok() => [&[0xf3], &n.to_le_bytes()[..4]].concat(),
            Some(n) => [&[0xf4], &n.to_le_bytes()[..]].concat(),
            None => match item.len() {
                n @ 0..=63 => [&[0x80 | n as u8], &item[..]].concat(),
                n @ 64..=4095 => [&(0xe000 | n as u16).to_be_bytes()[..], item].concat(),
                n => [&[0xf0], &(n as u32).to_le_bytes()[..], item].concat(),
            },
        };
        let size = entry.len();
        body.extend(entry);
        // Written out as lpEncodeBacklen does it.
        if size <= 127 {
            body.push(size as u8);
        } else if size < 16383 {
            body.extend([(size >> 7) as u8, (size & 127) as u8 | 128]);
        } else if size < 2_097_151 {
            body.extend([(size >> 14) as u8, (size >> 7 & 127) as u8 | 128, (size & 127) as u8 | 128]);
        } else {
            body.extend([(size >> 21) as u8, (size >> 14 & 127) as u8 | 128]);
            body.extend([(size >> 7 & 127) as u8 | 128, (size & 127) as u8 | 128]);
        }
    }
    let total = (body.len() + 7) as u32;
    let count = items.len().min(0xffff) as u16;
    [&total.to_le_bytes()[..], &count.to_le_bytes(), &body, &[0xff]].concat()
}

pub fn ziplist(items: &[Vec<u8>]) -> Vec<u8> {
    let (mut body, mut previous, mut tail) = (Vec::new(), 0usize, 10);
    for item in items {
        tail = 10 + body.len();
        let from = body.len();
        match previous {
            0..=253 => body.push(previous as u8),
            _ => body.extend([&[0xfe], &(previous as u32).to_le_bytes()[..]].concat()),
        }
        match integer(item) {
            Some(n @ 0..=12) => body.push(0xf1 + n as u8),
            Some(n @ -128..=127) => body.extend([0xfe, n as u8]),
            Some(n @ -32768..=32767) => body.extend([&[0xc0], &n.to_le_bytes()[..2]].concat()),
            Some(n @ -8_388_608..=8_388_607) => body.extend([&[0xf0], &n.to_le_bytes()[..3]].concat()),
            Some(n) if i32::try_from(n).is_ok() => body.extend([&[0xd0], &n.to_le_bytes()[..4]].concat()),
            Some(n) => body.extend([&[0xe0], &n.to_le_bytes()[..]].concat()),
            None => {
                match item.len() {
                    n @ 0..=63 => body.push(n as u8),
                    n @ 64..=16383 => body.extend((0x4000 | n as u16).to_be_bytes()),
                    n => body.extend([&[0x80], &(n as u32).to_be_bytes()[..]].concat()),
                }
                body.extend(item);
            }
        }
        previous = body.len() - from;
    }
    let total = (body.len() + 11) as u32;
    let count = items.len().min(0xffff) as u16;
    [&total.to_le_bytes()[..], &(tail as u32).to_le_bytes(), &count.to_le_bytes(), &body, &[0xff]].concat()
}

pub fn zipmap(pairs: &[(Vec<u8>, Vec<u8>)], free: u8) -> Vec<u8> {
    let size = |n: usize| match n {
        0..=253 => vec![n as u8],
        _ => [&[0xfe], &(n as u32).to_le_bytes()[..]].concat(),
    };
    let mut out = vec![pairs.len().min(254) as u8];
    for (field, value) in pairs {
        out.extend([size(field.len()), field.clone(), size(value.len()), vec![free], value.clone()].concat());
        out.extend(vec![0; usize::from(free)]);
    }
    out.push(0xff);
    out
}

pub fn intset(numbers: &[i64]) -> Vec<u8> {
    let width = match () {
        () if numbers.iter().all(|n| i16::try_from(*n).is_ok()) => 2,
        () if numbers.iter().all(|n| i32::try_from(*n).is_ok()) => 4,
        () => 8,
    };
    let mut out = [(width as u32).to_le_bytes(), (numbers.len() as u32).to_le_bytes()].concat();
    numbers.iter().for_each(|n| out.extend(&n.to_le_bytes()[..width]));
    out
}

/// A stream of type 21 whose nodes hold up to `per_node` entries, every third of which is followed by a deleted one.
pub fn stream(stream: &Stream, per_node: usize) -> Vec<u8> {
    let id = |id: StreamId| [id.ms.to_be_bytes(), id.seq.to_be_bytes()].concat();
    let lens = |id: StreamId| [len(id.ms as usize), len(id.seq as usize)].concat();
    let nodes: Vec<&[StreamEntry]> = stream.entries.chunks(per_node).collect();
    let mut out = len(nodes.len());
    for node in nodes {
        out.extend(string(&id(node[0].id)));
        out.extend(packed_string(&listpack(&node_entries(node))));
    }
    let meta = &stream.meta;
    out.extend(len(meta.length as usize));
    out.extend(
        [lens(meta.last_id), lens(meta.first_id), lens(meta.max_deleted_id), len(meta.entries_added as usize)].concat(),
    );
    out.extend(len(stream.groups.len()));
    for group in &stream.groups {
        out.extend(string(&group.name));
        out.extend(lens(group.last_id));
        out.extend(len(group.entries_read.unwrap_or(u64::MAX) as usize));
        let mut pending: Vec<&Pending> = group.consumers.iter().flat_map(|c| &c.pending).collect();
        pending.sort_by_key(|p| p.id);
        out.extend(len(pending.len()));
        for p in pending {
            out.extend([id(p.id), p.delivered_ms.to_le_bytes().to_vec(), len(p.deliveries as usize)].concat());
        }
        out.extend(len(group.consumers.len()));
        for consumer in &group.consumers {
            out.extend(string(&consumer.name));
            out.extend(consumer.seen_ms.to_le_bytes());
            out.extend(consumer.active_ms.unwrap().to_le_bytes());
            out.extend(len(consumer.pending.len()));
            consumer.pending.iter().for_each(|p| out.extend(id(p.id)));
        }
    }
    out
}

fn node_entries(node: &[StreamEntry]) -> Vec<Vec<u8>> {
    let number = |n: i64| n.to_string().into_bytes();
    let shared: Vec<&Vec<u8>> = node[0].fields.iter().map(|(field, _)| field).collect();
    let deleted = node.len() / 3;
    let mut items = vec![number(node.len() as i64), number(deleted as i64), number(shared.len() as i64)];
    items.extend(shared.iter().map(|field| (*field).clone()));
    items.push(number(0));
    for (at, entry) in node.iter().enumerate() {
        let ms = entry.id.ms.wrapping_sub(node[0].id.ms) as i64;
        let seq = entry.id.seq.wrapping_sub(node[0].id.seq) as i64;
        let same = entry.fields.iter().map(|(field, _)| field).eq(shared.iter().copied());
        for flags in if at % 3 == 2 { &[0i64, 1][..] } else { &[0] } {
            items.extend([number(flags | if same { 2 } else { 0 }), number(ms), number(seq)]);
            if !same {
                items.push(number(entry.fields.len() as i64));
            }
            for (field, value) in &entry.fields {
                if !same {
                    items.push(field.clone());
                }
                items.push(value.clone());
            }
            let n = entry.fields.len() as i64;
            items.push(number(if same { 3 + n } else { 4 + 2 * n }));
        }
    }
    items
}
