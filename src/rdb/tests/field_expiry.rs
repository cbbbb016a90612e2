//! Hashes whose fields expire, given to a target late.

use super::*;

const HOUR_MS: i64 = 3_600_000;
/// Redis' largest.
const LAST_MS: i64 = (1 << 46) - 1;

fn restorer(project: Project) -> Restorer {
    match project {
        Project::Redis => Restorer::new(project, (8, 0, 6), 12),
        Project::Valkey => Restorer::new(project, (9, 1, 2), 80),
    }
}

/// The payload that restores the value `late_ms` later, its version and checksum verified.
fn restored(raw: &RawValue<'_>, late_ms: i64) -> Vec<u8> {
    let restorer = restorer(raw.project).with_fields_late(late_ms);
    let payload = restorer.payload(raw, None).unwrap().unwrap();
    let mut bytes = payload.to_vec();
    assert_eq!(bytes.len(), payload.len());
    let verified = verify(&bytes, false).unwrap();
    assert_eq!(verified.value.value_type, raw.value_type);
    bytes.truncate(bytes.len() - 10);
    bytes.remove(0);
    bytes
}

fn fields(value: Value) -> Vec<(Vec<u8>, Vec<u8>, Option<i64>)> {
    let Value::Hash(fields) = value else { panic!("not a hash") };
    let plain = fields.into_iter();
    plain.map(|f| (f.field, f.value, f.expires_at_ms)).collect()
}

/// Checks that only the times change, and those by as much as they should; returns the new bytes.
fn must_shift(raw: &RawValue<'_>, late_ms: i64, later: impl Fn(i64) -> i64) -> Vec<u8> {
    let shifted = restored(raw, late_ms);
    let after = RawValue { bytes: &shifted, ..*raw };
    let mut want = fields(decode(raw, &Limits::default()).unwrap());
    for (_, _, at_ms) in &mut want {
        *at_ms = at_ms.map(&later);
    }
    assert_eq!(fields(decode(&after, &Limits::default()).unwrap()), want);
    shifted
}

#[test]
fn worked_examples_shift_by_an_hour() {
    for name in ["E13", "E14", "E15"] {
        let payload = example(name);
        let raw = verify(&payload, false).unwrap().value;
        let shifted = must_shift(&raw, HOUR_MS, |ms| ms + HOUR_MS);
        // 9-byte integers stay such; what has no time keeps its bytes.
        assert_eq!(shifted.len(), raw.bytes.len(), "{name}");
        assert_eq!(restored(&raw, 0), raw.bytes, "{name}");
    }
    let payload = example("E13");
    let shifted = restored(&verify(&payload, false).unwrap().value, HOUR_MS);
    let least = i64::from_le_bytes(shifted[..8].try_into().unwrap());
    assert_eq!(least, 33_177_117_420_000 + HOUR_MS);
}

#[test]
fn times_in_a_listpack_grow_into_wider_integers_and_compressed_ones_unpack() {
    let times: [i64; 8] = [1, 127, 4095, 32_767, 8_388_607, 1 << 31, LAST_MS - 1, 0];
    let entries: Vec<Vec<u8>> = times
        .iter()
        .enumerate()
        .flat_map(|(i, ms)| [format!("field-{i}"), "v".repeat(40), ms.to_string()])
        .map(|text| text.into_bytes())
        .collect();
    let blob = make::listpack(&entries);
    let plain = make::string(&blob);
    let packed = make::packed_string(&blob);
    assert_eq!(packed[0], 0xc3);
    for least in [0i64, 1] {
        for blob in [&plain, &packed] {
            let value = [&least.to_le_bytes()[..], blob].concat();
            let raw = raw(Project::Redis, opcode::HASH_LISTPACK_EX, &value);
            for late_ms in [1, HOUR_MS, 1 << 40] {
                let shifted = must_shift(&raw, late_ms, |ms| (ms + late_ms).min(LAST_MS));
                let told = i64::from_le_bytes(shifted[..8].try_into().unwrap());
                assert_eq!(told, if least == 0 { 0 } else { least + late_ms });
            }
        }
    }
    let raw = raw(Project::Redis, opcode::HASH_LISTPACK_EX_PRE_GA, &packed);
    must_shift(&raw, HOUR_MS, |ms| (ms + HOUR_MS).min(LAST_MS));
}

#[test]
fn times_of_every_form_saturate_at_what_the_target_takes() {
    let (f, v) = (make::string(b"f"), make::string(b"v"));
    for (at_ms, want) in [
        (1, 1 + HOUR_MS),
        (LAST_MS - HOUR_MS, LAST_MS),
        (LAST_MS - 1, LAST_MS),
        (LAST_MS, LAST_MS),
        (LAST_MS + 7, LAST_MS + 7),
    ] {
        // Type 24: the least time, then a field at it, one `at_ms` and one that doesn't expire.
        let mut value = 1i64.to_le_bytes().to_vec();
        value.push(3);
        for (name, ttl) in [(b"a", 1), (b"b", at_ms), (b"c", 0)] {
            value.extend([make::len(ttl as usize), make::string(name), v.clone()].concat());
        }
        let metadata = raw(Project::Redis, opcode::HASH_METADATA, &value);
        must_shift(&metadata, HOUR_MS, |ms| if ms == 1 { 1 + HOUR_MS } else { want });
        let value = [&[1][..], &make::len(at_ms as usize), &f, &v].concat();
        must_shift(&raw(Project::Redis, opcode::HASH_22, &value), HOUR_MS, |_| want);
        let value = [&[1][..], &f, &v, &at_ms.to_le_bytes()].concat();
        must_shift(&raw(Project::Valkey, opcode::HASH_22, &value), HOUR_MS, |ms| ms + HOUR_MS);
    }
}

#[test]
fn shifting_a_cut_or_damaged_hash_is_an_error() {
    for name in ["E13", "E14", "E15"] {
        let payload = example(name);
        let whole = verify(&payload, false).unwrap().value;
        let restorer = restorer(whole.project).with_fields_late(1);
        for end in 0..whole.bytes.len() {
            let cut = RawValue { bytes: &whole.bytes[..end], ..whole };
            assert!(restorer.payload(&cut, None).is_err(), "{name} cut at {end}");
        }
        for at in 0..whole.bytes.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xc3, 0xff] {
                let mut bytes = whole.bytes.to_vec();
                bytes[at] = byte;
                // Whatever comes of it, nothing panics.
                let _ = restorer.payload(&RawValue { bytes: &bytes, ..whole }, None);
            }
        }
    }
}
