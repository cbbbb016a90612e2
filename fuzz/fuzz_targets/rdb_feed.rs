//! RDB files: any bytes at any split give the same events, values decode or fail, big ones in pieces; nothing panics.
#![no_main]

use keyferry::rdb::{Decoder, Event, Limits, Piece, decode, validate};
use keyferry_fuzz::{pieces, steer};
use libfuzzer_sys::fuzz_target;

/// Adds a piece of a big value. How much a piece holds depends on how the bytes came, so pieces of one kind are joined.
fn add_piece(seen: &mut Vec<String>, piece: Piece) {
    if let Piece::StringBytes { bytes, .. } = piece {
        seen.extend(bytes.iter().map(|b| format!("byte {b}")));
        return;
    }
    let words = format!("{piece:?}");
    let list = words.split_once("([").and_then(|(kind, rest)| Some((kind, rest.strip_suffix("])")?)));
    let Some((kind, items)) = list else {
        seen.push(words);
        return;
    };
    if items.is_empty() {
        return;
    }
    let same = format!("{kind}: ");
    match seen.last_mut() {
        Some(last) if last.starts_with(&same) => *last += &format!(", {items}"),
        _ => seen.push(format!("{same}{items}")),
    }
}

/// What to do with a value over the limit.
#[derive(Clone, Copy)]
enum Big {
    Skip,
    Stream,
    Buffer,
}

fn events<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limits: &Limits, big: Big) -> Vec<String> {
    let mut decoder = Decoder::new(limits.clone());
    let mut seen = Vec::new();
    // Events up to the last item that is complete.
    let mut whole = 0;
    let mut buffered = false;
    for piece in pieces {
        decoder.feed(piece);
        loop {
            let is_big = match decoder.next() {
                Ok(None) => break,
                Ok(Some(Event::BigKey(head))) => {
                    seen.push(format!("{head:?}"));
                    true
                }
                Ok(Some(Event::Key(key))) => {
                    seen.push(format!("{key:?}"));
                    let decoded = decode(&key.value, limits);
                    let valid = validate(&key.value, limits);
                    assert_eq!(decoded.is_ok(), valid.is_ok(), "{decoded:?} but {valid:?}");
                    whole = seen.len();
                    false
                }
                Ok(Some(Event::End { crc_checked })) => {
                    seen.push(format!("end {crc_checked}"));
                    return seen;
                }
                Ok(Some(Event::BigPiece(piece))) => {
                    add_piece(&mut seen, piece);
                    false
                }
                Ok(Some(event)) => {
                    seen.push(format!("{event:?}"));
                    false
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    // In a damaged value, how far it is told before the fault, and which fault is found first, depends on
                    // how the bytes came. What stands before the value doesn't.
                    seen.truncate(whole);
                    seen.push("fault".to_owned());
                    return seen;
                }
            };
            match big {
                _ if !is_big => buffered = false,
                Big::Skip => decoder.skip_value(),
                Big::Stream => {
                    if decoder.stream_value().is_err() {
                        decoder.skip_value();
                    }
                }
                // One that is over this, too, comes again as big.
                Big::Buffer if !buffered => {
                    decoder.buffer_value(1 << 20);
                    buffered = true;
                    continue;
                }
                Big::Buffer => {
                    decoder.skip_value();
                    buffered = false;
                }
            }
        }
    }
    seen
}

fuzz_target!(|data: &[u8]| {
    let Some((head, file)) = steer::<4>(data) else { return };
    let [way, cuts @ ..] = head;
    let small = Limits {
        value_bytes_max: if way & 4 == 0 { 16 } else { 1 << 16 },
        item_bytes_max: 1 << 16,
        element_bytes_max: 1 << 16,
        pending_max: 1000,
        templates_max: 100,
        template_bytes_max: 1 << 16,
    };
    let big = match way & 3 {
        0 => Big::Skip,
        1 => Big::Buffer,
        _ => Big::Stream,
    };
    assert_eq!(events([file], &small, big), events(pieces(&cuts, file), &small, big));
});
