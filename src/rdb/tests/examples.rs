//! The worked examples, decoded: what each one means.

use super::*;

fn strings(items: &[&str]) -> Vec<Vec<u8>> {
    items.iter().map(|item| bytes(item)).collect()
}

fn members(members: &[(&str, f64)]) -> Value {
    let member = |(member, score): &(&str, f64)| ZsetMember { member: bytes(member), score: *score };
    Value::Zset(members.iter().map(member).collect())
}

fn fields(fields: &[(&str, &str, Option<i64>)]) -> Value {
    let field = |(field, value, expires_at_ms): &(&str, &str, Option<i64>)| HashField {
        field: bytes(field),
        value: bytes(value),
        expires_at_ms: *expires_at_ms,
    };
    Value::Hash(fields.iter().map(field).collect())
}

fn id(ms: u64, seq: u64) -> StreamId {
    StreamId { ms, seq }
}

fn entry(ms: u64, seq: u64, fields: &[(&str, &str)]) -> StreamEntry {
    let fields = fields.iter().map(|(field, value)| (bytes(field), bytes(value))).collect();
    StreamEntry { id: id(ms, seq), fields }
}

/// 2999-01-01T12:37:00Z or so: the expiry that the examples use.
const THEN: i64 = 0x1e2c_a64c_69e0;

#[test]
fn strings_of_every_encoding_decode() {
    for (name, text) in [
        ("E1", "hello"),
        ("E2a", "hello"),
        ("E2b", "hello"),
        ("E3a", "-5"),
        ("E3b", "1000"),
        ("E3c", "-100000"),
        ("E3d", "12345678901"),
        ("E4", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
    ] {
        assert_eq!(example_value(name), Value::String(bytes(text)), "{name}");
    }
    let Value::String(hll) = example_value("E21") else { panic!("no string") };
    assert_eq!((&hll[..4], hll.len()), (&b"HYLL"[..], 21));
}

#[test]
fn lists_of_every_encoding_decode() {
    let list = Value::List(strings(&["a", "1", "-300", "hello world"]));
    for name in ["E5", "E6a", "E6b"] {
        assert_eq!(example_value(name), list, "{name}");
    }
    let z70 = "z".repeat(70);
    let widths = ["0", "12", "13", "-1", "300", "70000", "10000000", "12345678901", &z70];
    assert_eq!(example_value("E7"), Value::List(strings(&widths)));
    assert_eq!(example_value("E20"), Value::List(strings(&["a", "b"])));
    let plain_node = &example("E24")[1..];
    let value = decode(&raw(Project::Redis, 18, plain_node), &Limits::default());
    assert_eq!(value.unwrap(), Value::List(strings(&["1", "plain"])));
}

#[test]
fn sets_of_every_encoding_decode() {
    assert_eq!(example_value("E8"), Value::Set(strings(&["1", "2", "70000"])));
    assert_eq!(example_value("E9a"), Value::Set(strings(&["a", "bc"])));
    assert_eq!(example_value("E9b"), Value::Set(strings(&["bc", "a"])));
}

#[test]
fn zsets_of_every_encoding_decode() {
    assert_eq!(example_value("E10a"), members(&[("a", 1.0), ("b", 2.5)]));
    assert_eq!(example_value("E10b"), members(&[("a", 1.0), ("b", 2.5)]));
    let inf = f64::INFINITY;
    assert_eq!(example_value("E11a"), members(&[("b", 2.5), ("a", 1.0), ("c", inf)]));
    assert_eq!(example_value("E11b"), members(&[("c", inf), ("b", 2.5), ("a", 1.0)]));
}

#[test]
fn hashes_of_every_encoding_decode() {
    let plain = fields(&[("f", "v", None), ("n", "12", None)]);
    assert_eq!(example_value("E12a"), plain);
    assert_eq!(example_value("E12b"), plain);
    let zipmap = decode(&raw(Project::Redis, 9, &example("E23")[1..]), &Limits::default());
    assert_eq!(zipmap.unwrap(), fields(&[("f", "v", None), ("gh", "xy", None)]));
}

#[test]
fn hashes_with_expiring_fields_decode() {
    assert_eq!(example_value("E13"), fields(&[("n", "12", Some(33_177_117_420_000)), ("f", "v", None)]));
    let (f, g) = (Some(THEN), Some(THEN + 500));
    assert_eq!(example_value("E14"), fields(&[("x", "y", None), ("g", "w", g), ("f", "v", f)]));
    assert_eq!(example_value("E15"), fields(&[("f", "v", f), ("g", "w", g), ("x", "y", None)]));
}

#[test]
fn template_hashes_decode() {
    assert_eq!(example_value("E31"), fields(&[("n", "bob", None), ("id", "7", None)]));
    assert_eq!(example_value("E32"), fields(&[("k", "7", None), ("name", "bob", None)]));
    assert_eq!(example_value("E33"), fields(&[("n", "elisabeth.", None), ("id", "8", None)]));
}

#[test]
fn stream_with_deleted_entry_decodes() {
    let Value::Stream(stream) = example_value("E16") else { panic!("no stream") };
    assert_eq!(stream.entries, [entry(1, 1, &[("f", "v")]), entry(2, 0, &[("g", "1"), ("h", "x")])]);
    assert_eq!(
        stream.meta,
        StreamMeta { length: 2, last_id: id(2, 0), first_id: id(1, 1), max_deleted_id: id(0, 0), entries_added: 2 }
    );
    assert!(stream.groups.is_empty() && stream.idempotency.is_none());
}

#[test]
fn stream_with_group_decodes() {
    let Value::Stream(stream) = example_value("E17") else { panic!("no stream") };
    assert_eq!(
        stream.meta,
        StreamMeta { length: 2, last_id: id(2, 0), first_id: id(1, 1), max_deleted_id: id(1, 2), entries_added: 3 }
    );
    let then = 0x1a2_2c31_e795;
    let pending = vec![Pending { id: id(1, 1), delivered_ms: then, deliveries: 1 }];
    let consumer = Consumer { name: bytes("con"), seen_ms: then, active_ms: Some(then), pending };
    let group =
        Group { name: bytes("grp"), last_id: id(1, 1), entries_read: None, consumers: vec![consumer], nacked: vec![] };
    assert_eq!(stream.groups, [group]);
}

#[test]
fn stream_with_idempotent_producer_decodes() {
    let Value::Stream(stream) = example_value("E18") else { panic!("no stream") };
    let only = id(0x1a2_2c3c_77a8, 0);
    let records = vec![IdmpRecord { iid: bytes("i1"), id: only }];
    assert_eq!(
        stream.idempotency,
        Some(Idempotency {
            duration_s: 100,
            entries_max: 100,
            producers: vec![Producer { name: bytes("p1"), records }],
            added: 1,
            duplicates: 0
        })
    );
    assert_eq!(stream.entries, [entry(only.ms, 0, &[("a", "1")])]);
}

#[test]
fn stream_with_nacked_entry_decodes() {
    let Value::Stream(stream) = example_value("E29") else { panic!("no stream") };
    let group = &stream.groups[0];
    assert_eq!((group.name.as_slice(), group.entries_read), (&b"g"[..], Some(2)));
    assert_eq!(group.nacked, [Pending { id: id(2, 1), delivered_ms: 0, deliveries: 5 }]);
    assert_eq!(group.consumers[0].pending.len(), 1);
    assert_eq!(group.consumers[0].pending[0].id, id(1, 1));
}

#[test]
fn array_decodes() {
    let items = [(0, "z"), (3, "x"), (4, "5"), (5, "2.5"), (6, "longer string"), (100_000, "y")];
    let items = items.iter().map(|(index, text)| (*index, bytes(text))).collect();
    assert_eq!(example_value("E30"), Value::Array(Array { items, cursor: Some(0) }));
}

#[test]
fn values_of_modules_and_gcra_are_opaque() {
    assert_eq!(example_value("E19"), Value::Module { id: 0xbde7_2da2_bb1e_b400 });
    let gcra = decode(&raw(Project::Redis, 33, &example("E37")[1..]), &Limits::default());
    assert_eq!(gcra.unwrap(), Value::Gcra { arrives_at_us: 1_796_040_000_000_000 });
}

#[test]
fn metadata_before_a_value_is_told_apart() {
    let payload = example("E34");
    let verified = verify(&payload, false).unwrap();
    assert_eq!(verified.meta.map(<[u8]>::len), Some(39));
    assert_eq!(verified.value.value_type, 0);
    assert_eq!(example_value("E34"), Value::String(bytes("hello")));

    // Hand-assembled, without a footer: a class that may not be ignored.
    let body = example("E25");
    let (meta_and_type, value) = body.split_at(body.len() - 6);
    let rdb = [&b"REDIS0013"[..], meta_and_type, b"\x01k", value].concat();
    let (events, _) = events(&finish(rdb), [], Limits::default()).unwrap();
    assert!(events[1].contains("meta: Some([243, 1, 8, 245"), "{}", events[1]);
}

/// A value's pieces, its bytes coming one by one, add up to the value decoded whole.
#[test]
fn every_value_streamed_byte_by_byte_equals_the_whole() {
    for example in examples().iter().filter(|e| e.kind == "payload" && e.name != "E22") {
        let verified = verify(&example.bytes, false).unwrap();
        let (project, value_type) = (verified.value.project, verified.value.value_type);
        let whole = decode(&verified.value, &Limits::default()).unwrap();
        let unpacker = value::Unpacker::new(project, value_type, &Limits::default(), value::Lookup::None);
        let Ok(mut unpacker) = unpacker else {
            assert!(matches!(whole, Value::Module { .. }), "{}", example.name);
            continue;
        };
        let mut value = unpacker.empty_value();
        let (mut at, mut have) = (0, 0);
        loop {
            let mut r = length::Reader::at(&verified.value.bytes[..have], at);
            match unpacker.piece(&mut r) {
                Ok(Some(piece)) => piece.add_to(&mut value),
                Ok(None) => {
                    at = r.pos();
                    break;
                }
                Err(error::Stop::More) => have += 1,
                Err(error::Stop::Fail(fault)) => panic!("{}: {fault}", example.name),
            }
            at = r.pos();
        }
        assert_eq!((at, value), (verified.value.bytes.len(), whole), "{}", example.name);
    }
}
