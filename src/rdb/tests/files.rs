//! Whole files: at every split, their trailer, opcodes in any order, what is refused.

use super::*;
use proptest::prelude::*;

fn files() -> Vec<(&'static str, Vec<u8>)> {
    let examples = examples().into_iter().filter(|example| example.kind == "rdb");
    examples.map(|example| (example.name, example.bytes)).collect()
}

fn whole(bytes: &[u8]) -> Result<Vec<String>, Error> {
    events(bytes, [], Limits::default()).map(|(events, _)| events)
}

#[test]
fn file_of_each_server_gives_its_events() {
    for (name, bytes) in files() {
        insta::assert_snapshot!(format!("file_{name}"), whole(&bytes).unwrap().join("\n"));
    }
}

#[test]
fn file_fed_byte_by_byte_gives_the_same_events() {
    for (name, bytes) in files() {
        assert_eq!(events(&bytes, 0..bytes.len(), Limits::default()), events(&bytes, [], Limits::default()), "{name}");
    }
}

proptest! {
    #[test]
    fn file_at_random_splits_gives_the_same_events(mut cuts in proptest::collection::vec(0.0..1.0f64, 0..9), big in 0u64..30) {
        cuts.sort_by(f64::total_cmp);
        let limits = Limits { value_bytes_max: big, ..Limits::default() };
        for (_, bytes) in files() {
            let ends: Vec<usize> = cuts.iter().map(|at| (at * bytes.len() as f64) as usize).collect();
            let (split, _) = events(&bytes, ends, limits).unwrap();
            let (whole, _) = events(&bytes, [], limits).unwrap();
            let heads = |events: Vec<String>| -> Vec<String> { events.into_iter().filter(|e| !e.starts_with("BigPiece")).collect() };
            prop_assert_eq!(heads(split), heads(whole));
        }
    }
}

#[test]
fn bytes_after_the_end_remain() {
    for (name, mut bytes) in files() {
        bytes.extend(b"*1\r\n$4\r\nPING\r\n");
        let (_, rest) = events(&bytes, 0..bytes.len(), Limits::default()).unwrap();
        assert_eq!(rest, b"*1\r\n$4\r\nPING\r\n", "{name}");
    }
}

#[test]
fn position_after_the_end_is_the_files_size() {
    for (_, bytes) in files() {
        let mut decoder = Decoder::new(Limits::default());
        decoder.feed(&bytes);
        decoder.feed(b"after");
        while decoder.next().unwrap().is_some() {}
        assert_eq!(decoder.position(), bytes.len() as u64);
        decoder.feed(b"wards");
        assert_eq!((decoder.position(), decoder.remaining()), (bytes.len() as u64, &b"afterwards"[..]));
    }
}

#[test]
fn file_with_any_bit_flipped_is_refused() {
    for (name, bytes) in files() {
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            if &bad[..9] == b"REDIS0003" {
                continue; // that version has no checksum
            }
            let mut decoder = Decoder::new(Limits::default());
            decoder.feed(&bad);
            let mut ended = false;
            let error = loop {
                match decoder.next() {
                    Ok(Some(Event::End { .. })) => ended = true,
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            // A flip in a length may ask for more bytes than there are, never for none.
            assert!(error.is_some() || !ended, "{name}: flip of byte {at} went unseen");
            if let Some(error) = error {
                assert!(error.offset <= bad.len() as u64);
                assert_eq!(decoder.next().unwrap_err(), error, "the error stays");
            }
        }
    }
}

#[test]
fn trailer_of_zeros_is_not_checked() {
    let mut bytes = example("E26");
    let at = bytes.len() - 8;
    bytes[at..].fill(0);
    assert_eq!(whole(&bytes).unwrap().last().unwrap(), "End { crc_checked: false }");
    bytes[at] = 1;
    assert!(matches!(whole(&bytes).unwrap_err().fault, Fault::BadCrc { stored: 1, .. }));
}

#[test]
fn version_below_5_has_no_trailer() {
    let (events, rest) = events(b"REDIS0004\x00\x01k\x01v\xff12345678", [], Limits::default()).unwrap();
    assert_eq!(events.last().unwrap(), "End { crc_checked: false }");
    assert_eq!(rest, b"12345678");
}

#[test]
fn magic_and_versions_that_nobody_writes_are_refused() {
    for (bytes, fault) in [
        (&b"RADIS0009"[..], Fault::BadMagic),
        (b"RA", Fault::BadMagic),
        (b"REDIS00x9", Fault::BadMagic),
        (b"REDIS0000", Fault::BadVersion(0)),
        (b"REDIS0080", Fault::BadVersion(80)),
        (b"VALKEY079", Fault::BadVersion(79)),
    ] {
        assert_eq!(whole(bytes).unwrap_err().fault, fault);
    }
    assert!(whole(b"VALKEY08").is_ok());
    assert!(whole(b"").is_ok());
}

/// KeyDB writes AUX between a key's expiry and the key, 8.10 a template, Valkey slot-info.
#[test]
fn attributes_before_other_items_stay_with_the_next_key_only() {
    let mut rdb = b"REDIS0015".to_vec();
    rdb.extend(b"\xfc\x01\0\0\0\0\0\0\0"); // EXPIRETIME_MS 1
    rdb.extend(b"\xfa\x01a\x01b"); // AUX
    rdb.extend(b"\xf8\x40\x64"); // IDLE 100
    rdb.extend(b"\xf4\x01\x02\x03"); // SLOT_INFO
    rdb.extend(b"\xf2\x05\x01\x01f"); // HASH_TEMPLATE 5
    rdb.extend(b"\xf3\x01\x08\xf5\xc4\x28\x02\x2a\x00"); // KEY_META
    rdb.extend(b"\x00\x01k\x01v\x00\x01l\x01v");
    let (events, _) = events(&finish(rdb), [], Limits::default()).unwrap();
    let keys: Vec<&String> = events.iter().filter(|e| e.starts_with("Key")).collect();
    assert!(
        keys[0].contains("expires_at_ms: Some(1), idle_s: Some(100), freq: None, meta: Some([243, 1, 8"),
        "{}",
        keys[0]
    );
    assert!(keys[1].contains("expires_at_ms: None, idle_s: None, freq: None, meta: None"), "{}", keys[1]);
}

#[test]
fn old_expiry_is_in_seconds() {
    let rdb = b"REDIS0002\xfd\xff\xff\xff\x7f\x00\x01k\x01v\xff";
    assert!(whole(rdb).unwrap()[1].contains("expires_at_ms: Some(2147483647000)"));
}

#[test]
fn unknown_types_are_refused_with_offset_type_and_key() {
    for value_type in [6, 8, 34, 99, 191, 240] {
        let mut rdb = b"REDIS0015\xfe\x00".to_vec();
        rdb.extend([value_type, 3, b'k', 0xff, b'"', 1, 1, 1]);
        let error = whole(&rdb).unwrap_err();
        assert_eq!((error.offset, error.value_type, error.key.as_deref()), (11, Some(value_type), Some(r#"k\xff\""#)));
    }
    let error = whole(b"REDIS0012\xf3\x00").unwrap_err();
    assert_eq!(error.fault, Fault::UnknownType(243));
    assert_eq!(whole(b"VALKEY080\x17\x01k\x01").unwrap_err().fault, Fault::UnknownType(23));
}

#[test]
fn files_of_forks_are_refused_by_name() {
    for (code, product) in [(64, "KeyDB"), (107, "Redis Enterprise"), (201, "Dragonfly"), (199, "Redis-On-Rocks")] {
        let error = whole(&[&b"REDIS0009"[..], &[code, 1, b'k', 0, 0]].concat()).unwrap_err();
        assert!(error.to_string().contains(product), "{error}");
    }
    let error = whole(b"REDIS0009\xfa\x06df-ver\x011").unwrap_err();
    assert_eq!(error.fault, Fault::ForeignFile("Dragonfly"));
}

#[test]
fn module_values_and_gcra_are_ordinary_keys() {
    let module = &verify(&example("E19"), false).unwrap().value.bytes.to_vec();
    let gcra = example("E37")[1..].to_vec();
    for (value_type, value) in [(7, module), (33, &gcra)] {
        let events = whole(&rdb_of(value_type, value)).unwrap();
        assert!(events[2].starts_with("Key("), "{events:?}");
    }
}

#[test]
fn function_libraries_and_other_items_are_events() {
    let mut rdb = b"REDIS0011".to_vec();
    rdb.extend(b"\xf5\x04code");
    rdb.extend(b"\xf6\x01n\x03LUA\x01\x04desc\x03fun\xf6\x01m\x03LUA\x00\x03fun");
    rdb.extend(
        b"\xf7\x81\xbd\xe7\x2d\xa2\xbb\x1e\xb4\x00\x02\x01\x05\x01a\x02\x05\x03\0\0\0\0\x04\0\0\0\0\0\0\0\0\x00",
    );
    let events = whole(&finish(rdb)).unwrap();
    assert_eq!(events[1], "Function { code: [99, 111, 100, 101] }");
    assert!(events[2].starts_with("FunctionPreGa { name: [110]"));
    assert!(events[3].starts_with("FunctionPreGa { name: [109]"));
    assert_eq!(events[4], format!("Skipped(ModuleAux {{ module_id: {}, bytes: 32 }})", 0xbde7_2da2_bb1e_b400u64));
    assert_eq!(events[5], "End { crc_checked: true }");
}

#[test]
fn templates_over_their_limits_or_repeated_are_refused() {
    let template = |id: u8, name: &str| [&[0xf2, id, 1, name.len() as u8], name.as_bytes()].concat();
    let rdb = [b"REDIS0015".to_vec(), template(1, "abc"), template(2, "de")].concat();
    let limits = Limits { templates_max: 2, ..Limits::default() };
    assert!(events(&rdb, [], limits).is_ok());
    for limits in [Limits { templates_max: 1, ..limits }, Limits { template_bytes_max: 12, ..limits }] {
        assert!(matches!(events(&rdb, [], limits).unwrap_err().fault, Fault::TooLarge { .. }));
    }
    assert!(events(&rdb, [], Limits { template_bytes_max: 13, ..limits }).is_ok());
    let twice = [b"REDIS0015".to_vec(), template(1, "abc"), template(1, "de")].concat();
    assert_eq!(whole(&twice).unwrap_err().fault, Fault::RepeatedTemplate(1));
    let unknown = [b"REDIS0015".to_vec(), vec![32, 1, b'k', 9, 0]].concat();
    let error = whole(&unknown).unwrap_err();
    assert_eq!((error.fault, error.key.as_deref()), (Fault::UnknownTemplate(9), Some("k")));
}
