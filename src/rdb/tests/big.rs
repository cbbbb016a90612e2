//! Values over the limit: skipped, streamed, buffered after all.

use super::make::*;
use super::*;

const SMALL: Limits = Limits {
    value_bytes_max: 100,
    item_bytes_max: 1 << 20,
    element_bytes_max: 1 << 30,
    pending_max: 1000,
    templates_max: 10,
    template_bytes_max: 1000,
};

/// What the decoder holds while it is fed.
fn peak(decoder: &Decoder) -> usize {
    decoder.remaining().len()
}

/// Streams the only key of `rdb`, fed in chunks; returns the value and the largest piece's elements or bytes.
fn streamed(rdb: &[u8], chunk: usize, mut value: Value) -> (Value, usize) {
    let mut decoder = Decoder::new(SMALL);
    let (mut ended, mut largest) = (false, 0);
    for chunk in rdb.chunks(chunk) {
        decoder.feed(chunk);
        while let Some(event) = decoder.next().unwrap() {
            match event {
                Event::BigKey(head) => {
                    assert_eq!(head.name, b"k");
                    decoder.stream_value().unwrap();
                }
                Event::BigPiece(piece) => {
                    largest = largest.max(match &piece {
                        Piece::StringBytes { bytes, .. } => bytes.len(),
                        Piece::ListItems(items) => items.len(),
                        Piece::HashFields(fields) => fields.len(),
                        _ => 0,
                    });
                    piece.add_to(&mut value);
                }
                Event::BigEnd => ended = true,
                Event::Key(_) => panic!("not big"),
                _ => {}
            }
        }
    }
    assert!(ended);
    (value, largest)
}

#[test]
fn value_at_the_limit_is_a_key_and_one_byte_past_it_is_big() {
    for (n, big) in [(98, false), (99, true)] {
        // The length takes two bytes.
        let rdb = rdb_of(0, &string(&vec![b'x'; n]));
        for ends in [0..0, 0..rdb.len()] {
            let (events, _) = events(&rdb, ends, SMALL).unwrap();
            assert_eq!(events[2].starts_with("BigKey"), big, "{n}");
        }
    }
}

#[test]
fn big_string_is_told_before_its_bytes_come() {
    let mut decoder = Decoder::new(Limits::default());
    decoder.feed(b"REDIS0009\x00\x01k\x80\x40\x00\x00\x00");
    assert!(matches!(decoder.next(), Ok(Some(Event::Header { .. }))));
    let Ok(Some(Event::BigKey(head))) = decoder.next() else { panic!("no big key") };
    assert_eq!((head.name, head.value_type, head.type_name), (&b"k"[..], 0, "STRING"));
    assert_eq!(decoder.next().unwrap_err().fault, Fault::Undecided);
}

#[test]
fn big_string_that_streams_is_never_held() {
    let plain: Vec<u8> = (0..20_000_000u32).map(|i| (i / 7 % 256) as u8).collect();
    for value in [string(&plain), packed_string(&plain)] {
        let (mut decoder, mut most) = (Decoder::new(SMALL), 0);
        for chunk in rdb_of(0, &value).chunks(64 << 10) {
            decoder.feed(chunk);
            while let Some(event) = decoder.next().unwrap() {
                if matches!(event, Event::BigKey(_)) {
                    decoder.stream_value().unwrap();
                }
            }
            most = most.max(peak(&decoder));
        }
        assert!(most <= (1 << 20) + (64 << 10), "held {most}");
    }
}

#[test]
fn big_strings_stream_in_pieces_of_a_mebibyte() {
    let plain: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7 % 256) as u8).collect();
    for value in [string(&plain), packed_string(&plain)] {
        for chunk in [9973, 1 << 22] {
            let (value, largest) = streamed(&rdb_of(0, &value), chunk, Value::String(vec![]));
            assert_eq!(value, Value::String(plain.clone()));
            assert!((1 << 20..(1 << 20) + 264).contains(&largest), "{largest}");
        }
    }
}

#[test]
fn big_collections_stream_in_pieces_of_1024() {
    let items: Vec<Vec<u8>> = (0..5000).map(|i: u32| format!("element {i}").into_bytes()).collect();
    let body: Vec<u8> = items.iter().flat_map(|item| string(item)).collect();
    let list = Value::List(items.clone());
    let nodes: Vec<u8> = items.chunks(333).flat_map(|c| [len(2), packed_string(&listpack(c))].concat()).collect();
    for (value_type, value) in
        [(1, [len(5000), body].concat()), (18, [len(16), nodes].concat()), (10, string(&ziplist(&items)))]
    {
        for chunk in [100, 4096, 1 << 22] {
            let (value, largest) = streamed(&rdb_of(value_type, &value), chunk, Value::List(vec![]));
            assert_eq!(value, list);
            assert!(largest <= 1024 && (chunk < 4096 || largest > 100), "{largest}");
        }
    }
}

#[test]
fn big_template_hashes_stream() {
    let long = vec![b'v'; 200];
    let template = b"\xf2\x05\x02\x01a\x02bb";
    let listpack = string(&listpack(&[b"5".to_vec(), long.clone(), b"7".to_vec()]));
    let array = [len(5), string(&long), string(b"7")].concat();
    for (value_type, value) in [(30, listpack), (32, array)] {
        let rdb = [&b"REDIS0015"[..], template, &[value_type, 1, b'k'], &value].concat();
        let (value, _) = streamed(&finish(rdb), 50, Value::Hash(vec![]));
        let Value::Hash(fields) = value else { panic!("no hash") };
        assert_eq!(
            (fields[0].field.as_slice(), &fields[0].value, fields[1].field.as_slice()),
            (&b"a"[..], &long, &b"bb"[..])
        );
    }
}

#[test]
fn skipped_value_is_never_held() {
    let items: Vec<u8> = (0..100_000).flat_map(|i: u32| string(format!("element {i}").as_bytes())).collect();
    let module = [&example("E19")[1..10], &[5], &string(&vec![0; 2_000_000])[..], &[0]].concat();
    for (value_type, value) in [(1, [len(100_000), items].concat()), (0, string(&vec![1; 1_000_000])), (7, module)] {
        let mut rdb = rdb_of(value_type, &value);
        rdb.truncate(rdb.len() - 9);
        rdb.extend(b"\x00\x01l\x01v");
        let (mut decoder, mut most, mut last) = (Decoder::new(SMALL), 0, Vec::new());
        for chunk in finish(rdb).chunks(1000) {
            decoder.feed(chunk);
            while let Some(event) = decoder.next().unwrap() {
                last.push(format!("{event:?}").chars().take(6).collect::<String>());
                if matches!(event, Event::BigKey(_)) {
                    decoder.skip_value();
                }
            }
            most = most.max(peak(&decoder));
        }
        assert_eq!(last, ["Header", "Select", "BigKey", "Key(Ke", "End { "]);
        assert!(most < 1200, "held {most}");
    }
}

#[test]
fn big_value_can_be_buffered_after_all() {
    let module = [&example("E19")[1..10], &[5], &string(&[0; 500])[..], &[0]].concat();
    let rdb = rdb_of(7, &module);
    for bytes_max in [module.len() as u64, module.len() as u64 - 1] {
        let (mut decoder, mut seen) = (Decoder::new(SMALL), Vec::new());
        for chunk in rdb.chunks(10) {
            decoder.feed(chunk);
            while let Some(event) = decoder.next().unwrap() {
                match event {
                    Event::BigKey(_) if seen.is_empty() => {
                        seen.push("big");
                        assert!(matches!(decoder.stream_value().unwrap_err().fault, Fault::NotDecodable(7)));
                        decoder.buffer_value(bytes_max);
                    }
                    Event::BigKey(_) => {
                        seen.push("big");
                        decoder.skip_value();
                    }
                    Event::Key(key) => {
                        seen.push("key");
                        assert_eq!((key.name, key.value.bytes), (&b"k"[..], &module[..]));
                    }
                    _ => {}
                }
            }
        }
        let expected = if bytes_max as usize == module.len() { ["big", "key"] } else { ["big", "big"] };
        assert_eq!(seen, expected);
    }
}

/// Work is counted in bytes copied: if values were rescanned with every feed this would take minutes.
#[test]
fn value_in_many_small_feeds_takes_linear_time() {
    let items: Vec<u8> = (0..400_000u32).flat_map(|i| string(&i.to_le_bytes())).collect();
    let rdb = rdb_of(2, &[len(400_000), items].concat());
    let mut decoder = Decoder::new(Limits::default());
    let mut keys = 0;
    for chunk in rdb.chunks(3) {
        decoder.feed(chunk);
        while let Some(event) = decoder.next().unwrap() {
            keys += usize::from(matches!(event, Event::Key(_)));
        }
    }
    assert_eq!(keys, 1);
}
