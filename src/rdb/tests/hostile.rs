//! Input that nobody means well with: an error with its place, no panic, no hang, no memory to speak of.

use super::*;
use proptest::prelude::*;

/// Decodes to the end or to the first error, whatever comes.
fn swallow(bytes: &[u8], limits: Limits) -> Result<(), Error> {
    let mut decoder = Decoder::new(limits);
    decoder.feed(bytes);
    loop {
        match decoder.next()? {
            None => return Ok(()),
            Some(Event::Key(key)) => {
                if let Err(error) = decode(&key.value, &limits) {
                    assert!(error.offset <= key.value.bytes.len() as u64);
                }
            }
            Some(Event::BigKey(_)) => {
                if decoder.stream_value().is_err() {
                    decoder.skip_value();
                }
            }
            Some(_) => {}
        }
    }
}

fn values() -> Vec<(Project, u8, Vec<u8>)> {
    let payloads = examples().into_iter().filter(|e| e.kind == "payload" && e.name != "E22");
    payloads
        .map(|e| {
            let verified = verify(&e.bytes, false).unwrap();
            (verified.value.project, verified.value.value_type, verified.value.bytes.to_vec())
        })
        .collect()
}

#[test]
fn value_cut_anywhere_is_truncated_at_its_end() {
    for (project, value_type, value) in values() {
        for end in 0..value.len() {
            let error = decode(&raw(project, value_type, &value[..end]), &Limits::default()).unwrap_err();
            assert_eq!((error.fault, error.value_type), (Fault::Truncated, Some(value_type)), "cut at {end}");
            assert!(error.offset <= end as u64);
        }
        let longer = [&value[..], &[0]].concat();
        let error = decode(&raw(project, value_type, &longer), &Limits::default()).unwrap_err();
        assert_eq!((error.offset, error.fault), (value.len() as u64, Fault::TrailingBytes(1)));
    }
}

#[test]
fn payload_with_any_bit_flipped_is_refused() {
    for example in examples().iter().filter(|e| e.kind == "payload") {
        for at in 0..example.bytes.len() {
            let mut bad = example.bytes.clone();
            bad[at] ^= 0x10;
            assert!(matches!(verify(&bad, false).unwrap_err().fault, Fault::BadCrc { .. }));
        }
    }
    assert_eq!(verify(b"", false).unwrap_err().fault, Fault::Truncated);
    assert_eq!(verify(&[0; 10], false).unwrap_err().fault, Fault::Truncated);
}

#[test]
fn payload_without_checksum_is_taken_only_when_told() {
    let mut payload = example("E31");
    let at = payload.len() - 8;
    payload[at..].fill(0);
    assert_eq!(verify(&payload, false).unwrap_err().fault, Fault::NoCrc);
    assert_eq!(verify(&payload, true).unwrap().value.value_type, 29);
}

/// The greatest counts and sizes there are, in front of nothing.
#[test]
fn huge_claims_allocate_nothing() {
    let huge = [&[0x81u8], &u64::MAX.to_be_bytes()[..]].concat();
    for value_type in (0..=33).filter(|t| opcode::type_name(Project::Redis, *t).is_some()) {
        for claim in [&huge[..], &[&[1, 0xc3, 2], &huge[..]].concat(), &[&[0; 8], &huge[..]].concat()] {
            let rdb = [&b"REDIS0015\xfe\x00"[..], &[value_type, 1, b'k'], claim, &[1; 64]].concat();
            let _ = swallow(&rdb, Limits::default());
            let _ = decode(&raw(Project::Redis, value_type, claim), &Limits::default());
        }
    }
    let name = [&b"REDIS0015\x00"[..], &huge].concat();
    assert!(matches!(swallow(&name, Limits::default()).unwrap_err().fault, Fault::TooLarge { .. }));
}

#[test]
fn lzf_that_claims_too_much_is_refused_by_its_head() {
    let error = swallow(b"REDIS0009\x00\x01k\xc3\x03\x41\x09", Limits::default()).unwrap_err();
    assert_eq!(error.fault, Fault::LzfClaim { compressed: 3, claimed: 265 });
}

#[test]
fn pending_entries_over_the_limit_are_refused() {
    let limits = Limits { pending_max: 1, ..Limits::default() };
    let payload = example("E29");
    let error = decode(&verify(&payload, false).unwrap().value, &limits).unwrap_err();
    assert!(matches!(error.fault, Fault::TooLarge { size: 2, max: 1, .. }));
    let limits = Limits { pending_max: 2, ..limits };
    assert!(decode(&verify(&payload, false).unwrap().value, &limits).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn value_with_changed_bytes_never_panics(which in any::<proptest::sample::Index>(), changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4)) {
        let values = values();
        let (project, value_type, mut value) = values[which.index(values.len())].clone();
        for (at, byte) in changes {
            let at = at.index(value.len());
            value[at] = byte;
        }
        let raw = raw(project, value_type, &value);
        if let Ok(value) = decode(&raw, &Limits::default()) {
            for version in [(2, 8, 0), (5, 0, 0), (8, 10, 2)] {
                let _ = commands(b"k", &value, Some(1), &TargetCaps::new(Project::Redis, version), &mut |_| {});
            }
        }
        for version in [(6, 2, 0), (8, 10, 2)] {
            let _ = Restorer::new(Project::Redis, version, 9).payload(&raw, None).map(|p| p.map(|p| assert_eq!(p.len(), p.to_vec().len())));
        }
    }

    #[test]
    fn file_with_changed_bytes_never_panics(which in 0usize..5, big in 0u64..40, changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4)) {
        let files: Vec<Example> = examples().into_iter().filter(|e| e.kind == "rdb").collect();
        let mut file = files[which].bytes.clone();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        let _ = swallow(&file, Limits { value_bytes_max: big, ..Limits::default() });
    }

    #[test]
    fn any_bytes_as_any_type_never_panic(value_type in 0u8..34, valkey in any::<bool>(), bytes in proptest::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..80)) {
        let project = if valkey { Project::Valkey } else { Project::Redis };
        let _ = decode(&raw(project, value_type, &bytes), &Limits::default());
        let rdb = [&b"REDIS0015\xf2\x00\x01\x01f"[..], &[value_type, 1, b'k'], &bytes].concat();
        let _ = swallow(&rdb, Limits { value_bytes_max: 20, ..Limits::default() });
    }
}
