//! How fast the RDB decoder is: one thread, everything in memory.

use std::hint::black_box;

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, Divan};
use keyferry::rdb::{Decoder, Event, Limits, Project, Restorer, crc64, decode};

const KEYS: u32 = 200_000;
const FEED_BYTES: usize = 64 << 10;

fn main() {
    Divan::from_args().main();
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        n @ 0..=63 => out.push(n as u8),
        n => out.extend((0x4000 | n as u16).to_be_bytes()),
    }
    out.extend_from_slice(bytes);
}

/// Strings, intsets, listpack hashes, quicklists and plain hashes in turn, about 120 bytes a key.
fn mixed() -> Vec<u8> {
    let mut out = b"REDIS0011\xfe\x00".to_vec();
    for i in 0..KEYS {
        if i % 4 == 0 {
            out.extend(b"\xfc\xe0\x69\x4c\xa6\x2c\x1e\x00\x00");
        }
        let value_type = [0, 11, 16, 18, 4][i as usize % 5];
        out.push(value_type);
        string(&mut out, format!("user:{{{i}}}:object").as_bytes());
        match value_type {
            0 => string(&mut out, &[b'v'; 100]),
            11 => string(&mut out, b"\x02\0\0\0\x03\0\0\0\x01\0\x02\0\x03\0"),
            16 => string(&mut out, &listpack()),
            18 => {
                out.extend(b"\x01\x02");
                string(&mut out, &listpack());
            }
            _ => {
                out.push(8);
                for field in 0..8 {
                    string(&mut out, format!("field{field}").as_bytes());
                    string(&mut out, b"some value");
                }
            }
        }
    }
    out.push(0xff);
    let crc = crc64(0, &out);
    out.extend(crc.to_le_bytes());
    out
}

fn listpack() -> Vec<u8> {
    let mut out = vec![0, 0, 0, 0, 16, 0];
    for _ in 0..16 {
        out.extend(b"\x85value\x06");
    }
    out.push(0xff);
    let size = out.len() as u32;
    out[..4].copy_from_slice(&size.to_le_bytes());
    out
}

fn each_key(rdb: &[u8], mut f: impl FnMut(&keyferry::rdb::Key<'_>)) {
    let mut decoder = Decoder::new(Limits::default());
    for chunk in rdb.chunks(FEED_BYTES) {
        decoder.feed(chunk);
        while let Some(event) = decoder.next().expect("the file is right") {
            if let Event::Key(key) = event {
                f(&key);
            }
        }
    }
}

#[divan::bench]
fn mixed_keys_borrowed(bencher: Bencher) {
    let rdb = mixed();
    let bencher = bencher.counter(ItemsCount::new(KEYS)).counter(BytesCount::of_slice(&rdb));
    bencher.bench_local(|| each_key(&rdb, |key| _ = black_box(key.value.bytes.len())));
}

#[divan::bench]
fn mixed_keys_to_payloads(bencher: Bencher) {
    let rdb = mixed();
    let restorer = Restorer::new(Project::Redis, (7, 2, 0), 11);
    let mut out = Vec::new();
    let bencher = bencher.counter(ItemsCount::new(KEYS)).counter(BytesCount::of_slice(&rdb));
    bencher.bench_local(|| {
        each_key(&rdb, |key| {
            out.clear();
            if let Ok(Some(payload)) = restorer.payload(&key.value, key.meta) {
                payload.append_to(&mut out);
            }
        });
    });
}

#[divan::bench]
fn mixed_keys_decoded(bencher: Bencher) {
    let rdb = mixed();
    let bencher = bencher.counter(ItemsCount::new(KEYS)).counter(BytesCount::of_slice(&rdb));
    bencher.bench_local(|| each_key(&rdb, |key| drop(black_box(decode(&key.value, &Limits::default())))));
}
