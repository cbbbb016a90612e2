//! Payloads: which target is given which type, under which footer, in which form.

use super::*;

fn redis(version: Version, footer: u16) -> Restorer {
    Restorer::new(Project::Redis, version, footer)
}

fn valkey(version: Version, footer: u16) -> Restorer {
    Restorer::new(Project::Valkey, version, footer)
}

/// Restamping a payload for the server that it came from gives it back byte by byte.
#[test]
fn payload_for_its_own_server_is_unchanged() {
    for (name, restorer) in [
        ("E2a", redis((2, 8, 24), 6)),
        ("E2b", redis((8, 6, 3), 13)),
        ("E5", redis((2, 8, 24), 6)),
        ("E6a", redis((5, 0, 14), 9)),
        ("E11a", redis((3, 2, 13), 7)),
        ("E13", redis((7, 4, 1), 12)),
        ("E15", valkey((9, 1, 2), 80)),
        ("E17", redis((7, 2, 6), 11)),
        ("E18", redis((8, 6, 3), 13)),
        ("E19", redis((8, 6, 3), 13)),
        ("E29", redis((8, 10, 2), 15)),
        ("E30", redis((8, 10, 2), 15)),
        ("E31", redis((8, 10, 2), 15)),
        ("E33", redis((8, 10, 2), 15)),
        ("E34", redis((8, 10, 2), 15)),
    ] {
        let payload = example(name);
        assert_eq!(restorer.restamp(&payload, false).unwrap().as_deref(), Some(&payload[..]), "{name}");
    }
}

#[test]
fn footer_is_the_highest_that_the_target_accepts_for_the_type() {
    let stamp = |restorer: Restorer, name| {
        let payload = restorer.restamp(&example(name), false).unwrap().unwrap();
        verify(&payload, false).unwrap().footer_version
    };
    assert_eq!(stamp(redis((2, 6, 17), 6), "E1"), 6);
    assert_eq!(stamp(redis((3, 0, 7), 6), "E1"), 6);
    assert_eq!(stamp(redis((7, 2, 6), 11), "E1"), 11);
    assert_eq!(stamp(valkey((8, 1, 1), 11), "E1"), 11);
    assert_eq!(stamp(valkey((9, 1, 2), 80), "E2b"), 11);
    assert_eq!(stamp(valkey((9, 1, 2), 80), "E15"), 80);
}

#[test]
fn types_restore_from_the_version_on_that_knows_them() {
    let all = [
        (redis((2, 8, 24), 6), &[0, 1, 2, 3, 4, 9, 10, 11, 12, 13, 29, 30, 31, 32][..]),
        (redis((3, 2, 13), 7), &[14]),
        (redis((4, 0, 14), 8), &[5]),
        (redis((5, 0, 14), 9), &[15]),
        (redis((6, 2, 16), 9), &[7]),
        (redis((7, 0, 15), 10), &[16, 17, 18, 19]),
        (redis((7, 2, 6), 11), &[20, 21]),
        (redis((7, 4, 1), 12), &[22, 23, 24, 25]),
        (redis((8, 6, 3), 13), &[26]),
        (redis((8, 8, 0), 14), &[27, 28]),
        (redis((8, 10, 2), 15), &[]),
    ];
    let mut known = Vec::new();
    for (restorer, new) in all {
        known.extend_from_slice(new);
        for value_type in 0..=255 {
            let expected = known.contains(&value_type);
            assert_eq!(restorer.restorable(value_type, Project::Redis), expected, "{value_type} on {restorer:?}");
        }
        assert!(!restorer.restorable(22, Project::Valkey));
    }
    for (restorer, own_22) in [(valkey((8, 1, 1), 11), false), (valkey((9, 1, 2), 80), true)] {
        assert!(restorer.restorable(21, Project::Redis) && restorer.restorable(31, Project::Redis));
        assert_eq!(restorer.restorable(22, Project::Valkey), own_22);
        for value_type in 22..=28 {
            assert!(!restorer.restorable(value_type, Project::Redis));
        }
    }
}

/// Redis below 6.2 exits on modules' values that it doesn't know, and on malformed ones.
#[test]
fn payloads_that_would_end_an_old_target_are_not_made() {
    let module = verify(&example("E19"), false).map(|v| v.value.bytes.to_vec()).unwrap();
    let module = raw(Project::Redis, 7, &module);
    let old = redis((6, 0, 16), 9);
    assert_eq!(old.payload(&module, None).unwrap(), None);
    assert!(old.with_modules().payload(&module, None).unwrap().is_some());
    let short = raw(Project::Redis, 9, b"\x05\x01\x01f\x02\xff");
    assert!(old.payload(&short, None).is_err());
    assert!(redis((6, 2, 16), 9).payload(&short, None).unwrap().is_some());
}

#[test]
fn template_hashes_carry_their_names_or_become_plain() {
    let file = example("E35");
    let mut decoder = Decoder::new(Limits::default());
    decoder.feed(&file);
    let mut found = Vec::new();
    while let Some(event) = decoder.next().unwrap() {
        let Event::Key(key) = event else { continue };
        if key.value.template.is_none() {
            continue;
        }
        for restorer in [redis((8, 10, 2), 15), redis((8, 6, 3), 13), valkey((8, 0, 1), 11)] {
            let payload = restorer.payload(&key.value, None).unwrap().unwrap();
            assert_eq!(payload.len(), payload.to_vec().len());
            let payload = payload.to_vec();
            let verified = verify(&payload, false).unwrap();
            let value = decode(&verified.value, &Limits::default()).unwrap();
            assert_eq!(value, decode(&key.value, &Limits::default()).unwrap());
            found.push((key.value.value_type, verified.value.value_type));
        }
    }
    assert_eq!(found, [(30, 29), (30, 4), (30, 4), (32, 31), (32, 4), (32, 4)]);
}

#[test]
fn metadata_goes_only_to_targets_that_keep_it() {
    let payload = example("E34");
    let kept = redis((8, 6, 3), 13).restamp(&payload, false).unwrap().unwrap();
    assert_eq!(kept[0], 0xf3);
    let dropped = redis((8, 2, 3), 12).restamp(&payload, false).unwrap().unwrap();
    assert_eq!(&dropped[..7], b"\x00\x05hello");
}

/// 8.10 refuses a group that has read more than was added to the stream.
#[test]
fn entries_read_above_entries_added_is_clamped_where_it_is_checked() {
    let Value::Stream(mut stream) = example_value("E17") else { panic!("no stream") };
    stream.meta.entries_added = 3;
    stream.groups.push(Group { name: bytes("h"), entries_read: Some(2), ..Group::default() });
    stream.groups[0].entries_read = Some(99_999);
    stream.groups.push(Group { name: bytes("i"), entries_read: Some(4), ..Group::default() });
    let made = make::stream(&stream, 10);
    let given = raw(Project::Redis, 21, &made);
    for (restorer, expected) in
        [(redis((8, 6, 3), 13), [Some(99_999), Some(2), Some(4)]), (redis((8, 10, 2), 15), [Some(3), Some(2), Some(3)])]
    {
        let payload = restorer.payload(&given, None).unwrap().unwrap().to_vec();
        let value = decode(&verify(&payload, false).unwrap().value, &Limits::default()).unwrap();
        let Value::Stream(stream) = value else { panic!("no stream") };
        let read: Vec<_> = stream.groups.iter().map(|g| g.entries_read).collect();
        assert_eq!(read, expected);
    }
}

/// Redis 8.2 and 8.6 load it, and XPENDING ends them then.
#[test]
fn stream_with_a_pending_entry_of_no_consumer_is_for_no_target() {
    let payload = example("E17");
    let owned = &payload[1..payload.len() - 10];
    // At the end the consumer's ids: how many, and 16 bytes each.
    let mut ownerless = owned[..owned.len() - 17].to_vec();
    ownerless.push(0);
    for restorer in [redis((8, 6, 3), 13), redis((7, 0, 0), 10), redis((6, 0, 0), 9), valkey((9, 1, 2), 80)] {
        assert!(restorer.payload(&raw(Project::Redis, 21, owned), None).unwrap().is_some());
        let error = restorer.payload(&raw(Project::Redis, 21, &ownerless), None).unwrap_err();
        assert!(error.to_string().contains("belongs to no consumer"), "{error}");
    }
}

#[test]
fn streams_are_given_as_types_that_the_target_knows() {
    let given = |name: &str, restorer: Restorer| {
        let payload = example(name);
        let verified = verify(&payload, false).unwrap();
        let body = restorer.payload(&verified.value, None).unwrap()?.to_vec();
        let verified = verify(&body, false).unwrap();
        let Value::Stream(stream) = decode(&verified.value, &Limits::default()).unwrap() else { panic!("no stream") };
        Some((verified.value.value_type, stream))
    };
    let Value::Stream(whole) = example_value("E17") else { panic!("no stream") };
    for (restorer, value_type) in [(redis((7, 2, 0), 11), 21), (redis((7, 0, 0), 10), 19), (redis((6, 0, 0), 9), 15)] {
        let (found, stream) = given("E17", restorer).unwrap();
        assert_eq!(found, value_type);
        assert_eq!((&stream.entries, stream.meta.last_id), (&whole.entries, whole.meta.last_id));
        assert_eq!(stream.groups[0].consumers[0].pending, whole.groups[0].consumers[0].pending);
        let counts = value_type > 15;
        assert_eq!(stream.meta.entries_added == whole.meta.entries_added, counts, "{value_type}");
        assert_eq!(stream.groups[0].consumers[0].active_ms.is_some(), value_type == 21);
    }
    // Idempotence records and pending entries of no consumer have no place in an older type.
    assert_eq!(given("E18", redis((8, 2, 0), 12)), None);
    assert_eq!(given("E29", redis((8, 6, 3), 13)), None);
    assert_eq!(given("E29", redis((8, 10, 2), 15)).map(|(value_type, _)| value_type), Some(27));
    assert_eq!(given("E16", redis((3, 2, 0), 7)), None);
    // A stream of 8.6 without any is one of 8.2.
    let Value::Stream(mut plain) = example_value("E18") else { panic!("no stream") };
    plain.idempotency.as_mut().unwrap().producers.clear();
    let mut body = example("E18");
    body.truncate(body.len() - 10);
    // One producer of one record behind the two settings: its bytes go, and so does its count.
    let tail = body.len() - 2;
    let producer = tail - 18;
    body.splice(producer..tail, [0]);
    let lowered = valkey((9, 1, 2), 80).payload(&raw(Project::Redis, 26, &body[1..]), None).unwrap().unwrap().to_vec();
    let Value::Stream(stream) = decode(&verify(&lowered, false).unwrap().value, &Limits::default()).unwrap() else {
        panic!("no stream")
    };
    assert_eq!((lowered[0], &stream.entries), (21, &plain.entries));
}

/// A damaged one ends 8.10.
#[test]
fn template_hash_with_a_damaged_listpack_is_for_no_target() {
    let payload = example("E31");
    let mut body = payload[1..payload.len() - 10].to_vec();
    assert!(redis((8, 10, 2), 15).payload(&raw(Project::Redis, 29, &body), None).unwrap().is_some());
    // The length that stands behind the last value, in front of the listpack's end.
    let at = body.len() - 2;
    body[at] = 9;
    assert!(redis((8, 10, 2), 15).payload(&raw(Project::Redis, 29, &body), None).is_err());
}

#[test]
fn collections_without_elements_have_no_payload() {
    for value_type in [1, 2, 3, 4, 5, 14, 18] {
        assert_eq!(redis((7, 0, 0), 10).payload(&raw(Project::Redis, value_type, b"\0"), None).unwrap(), None);
    }
    assert!(redis((7, 0, 0), 10).payload(&raw(Project::Redis, 0, b"\0"), None).unwrap().is_some());
}

#[test]
fn libraries_are_restamped_for_targets_that_have_functions() {
    let payload = example("E22");
    assert_eq!(redis((7, 0, 15), 10).restamp_functions(&payload, false).unwrap(), Some(payload.clone()));
    assert_eq!(redis((6, 2, 16), 9).restamp_functions(&payload, false).unwrap(), None);
    let valkey = valkey((9, 1, 2), 80).restamp_functions(&payload, false).unwrap().unwrap();
    assert_eq!(valkey[valkey.len() - 10..][..2], [11, 0]);
    let error = redis((7, 0, 15), 10).restamp_functions(&example("E1"), false).unwrap_err();
    assert_eq!((error.offset, error.fault), (1, Fault::UnknownType(0)));
}
