//! Tests across the modules: the worked examples, built values, hostile input.

mod big;
mod examples;
mod field_expiry;
mod files;
mod hostile;
mod make;
mod rewriting;
mod roundtrip;
mod targets;

use super::*;

/// One line of `tests/data/rdb/examples.txt`.
struct Example {
    name: &'static str,
    kind: &'static str,
    bytes: Vec<u8>,
}

fn examples() -> Vec<Example> {
    let lines = include_str!("../../../tests/data/rdb/examples.txt").lines();
    let examples = lines.filter(|line| !line.starts_with('#'));
    examples
        .map(|line| {
            let (name, rest) = line.split_once(' ').unwrap();
            let (kind, hex) = rest.split_once(' ').unwrap();
            let bytes = hex.split(' ').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
            Example { name, kind, bytes }
        })
        .collect()
}

fn example(name: &str) -> Vec<u8> {
    let found = examples().into_iter().find(|example| example.name == name);
    found.unwrap_or_else(|| panic!("no example {name}")).bytes
}

/// The value of a worked example.
fn example_value(name: &str) -> Value {
    decode(&verify(&example(name), false).unwrap().value, &Limits::default()).unwrap()
}

fn raw(project: Project, value_type: u8, bytes: &[u8]) -> RawValue<'_> {
    RawValue { value_type, bytes, project, template: None }
}

/// Every event of an RDB that comes in chunks ending at these places, as text, and what was left.
fn events(
    bytes: &[u8],
    ends: impl IntoIterator<Item = usize>,
    limits: Limits,
) -> Result<(Vec<String>, Vec<u8>), Error> {
    let mut decoder = Decoder::new(limits);
    let (mut seen, mut from, mut ended) = (Vec::new(), 0, false);
    for end in ends.into_iter().chain([bytes.len()]) {
        decoder.feed(&bytes[from..end]);
        from = end;
        while !ended {
            let event = match decoder.next()? {
                None => break,
                Some(event) => event,
            };
            ended = matches!(event, Event::End { .. });
            let big = matches!(event, Event::BigKey(_));
            seen.push(format!("{event:?}"));
            if big {
                decoder.stream_value().unwrap();
            }
        }
    }
    Ok((seen, decoder.remaining().to_vec()))
}

/// An RDB of Redis with one key of these value bytes.
fn rdb_of(value_type: u8, value: &[u8]) -> Vec<u8> {
    let mut rdb = b"REDIS0015\xfe\x03".to_vec();
    rdb.extend([value_type, 1, b'k']);
    rdb.extend_from_slice(value);
    finish(rdb)
}

fn finish(mut rdb: Vec<u8>) -> Vec<u8> {
    rdb.push(opcode::EOF);
    let crc = crc64(0, &rdb);
    rdb.extend(crc.to_le_bytes());
    rdb
}

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}
