//! Values put together by the encoders in `make.rs` decode to what they were made of.

use std::collections::{BTreeMap, BTreeSet};

use super::make::*;
use super::*;
use proptest::prelude::*;

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..12),
        any::<i64>().prop_map(|n| n.to_string().into_bytes()),
        (-5000i64..5000).prop_map(|n| n.to_string().into_bytes()),
        (any::<u8>(), 0usize..300).prop_map(|(byte, n)| vec![byte; n]),
    ]
}

fn decoded(value_type: u8, value: &[u8]) -> Value {
    let value = decode(&raw(Project::Redis, value_type, value), &Limits::default());
    value.unwrap_or_else(|error| panic!("{error}"))
}

fn hash(fields: &[(Vec<u8>, Vec<u8>, Option<i64>)]) -> Value {
    let fields = fields.iter().cloned();
    Value::Hash(fields.map(|(field, value, expires_at_ms)| HashField { field, value, expires_at_ms }).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn list_in_every_encoding(items in proptest::collection::vec(text(), 0..40)) {
        let list = Value::List(items.clone());
        let plain: Vec<u8> = items.iter().flat_map(|item| packed_string(item)).collect();
        prop_assert_eq!(&decoded(1, &[len(items.len()), plain].concat()), &list);
        prop_assert_eq!(&decoded(10, &packed_string(&ziplist(&items))), &list);
        let (a, b) = items.split_at(items.len() / 2);
        prop_assert_eq!(&decoded(14, &[len(2), string(&ziplist(a)), packed_string(&ziplist(b))].concat()), &list);
        let nodes = [len(3), len(2), packed_string(&listpack(a)), len(2), string(&listpack(b)), len(1), string(b"end")].concat();
        let mut longer = items.clone();
        longer.push(b"end".to_vec());
        prop_assert_eq!(decoded(18, &nodes), Value::List(longer));
    }

    #[test]
    fn set_in_every_encoding(items in proptest::collection::btree_set(text(), 0..40), numbers in proptest::collection::btree_set(any::<i64>(), 0..9), small in proptest::collection::btree_set(any::<i16>(), 0..9)) {
        let members: Vec<Vec<u8>> = items.into_iter().collect();
        let plain: Vec<u8> = members.iter().flat_map(|item| string(item)).collect();
        prop_assert_eq!(decoded(2, &[len(members.len()), plain].concat()), Value::Set(members.clone()));
        prop_assert_eq!(decoded(20, &string(&listpack(&members))), Value::Set(members));
        let small: BTreeSet<i64> = small.into_iter().map(i64::from).collect();
        for numbers in [numbers, small] {
            let numbers: Vec<i64> = numbers.into_iter().collect();
            let texts = numbers.iter().map(|n| n.to_string().into_bytes()).collect();
            prop_assert_eq!(decoded(11, &string(&intset(&numbers))), Value::Set(texts));
        }
    }

    #[test]
    fn zset_in_every_encoding_keeps_the_bits(members in proptest::collection::btree_map(text(), any::<f64>().prop_filter("NaN", |f| !f.is_nan()), 0..30)) {
        let zset = members.iter().map(|(member, score)| ZsetMember { member: member.clone(), score: *score });
        let zset: Vec<ZsetMember> = zset.collect();
        let bits = |value: Value| match value {
            Value::Zset(members) => members.iter().map(|m| (m.member.clone(), m.score.to_bits())).collect::<Vec<_>>(),
            _ => Vec::new(),
        };
        let expected = bits(Value::Zset(zset.clone()));
        let binary: Vec<u8> = zset.iter().flat_map(|m| [string(&m.member), m.score.to_le_bytes().to_vec()].concat()).collect();
        prop_assert_eq!(&bits(decoded(5, &[len(zset.len()), binary].concat())), &expected);
        let old: Vec<u8> = zset.iter().flat_map(|m| {
            let score = match m.score {
                f64::INFINITY => vec![254],
                f64::NEG_INFINITY => vec![255],
                score => { let text = format!("{score:e}"); [vec![text.len() as u8], text.into_bytes()].concat() }
            };
            [packed_string(&m.member), score].concat()
        }).collect();
        prop_assert_eq!(&bits(decoded(3, &[len(zset.len()), old].concat())), &expected);
        let flat: Vec<Vec<u8>> = zset.iter().flat_map(|m| [m.member.clone(), format!("{:?}", m.score).into_bytes()]).collect();
        prop_assert_eq!(&bits(decoded(12, &string(&ziplist(&flat)))), &expected);
        prop_assert_eq!(&bits(decoded(17, &string(&listpack(&flat)))), &expected);
    }

    #[test]
    fn hash_in_every_encoding(fields in proptest::collection::btree_map(text(), (text(), proptest::option::of(1i64..1 << 48)), 1..30), free in 0u8..4, base in 0i64..1000) {
        let timed: Vec<(Vec<u8>, Vec<u8>, Option<i64>)> = fields.into_iter().map(|(f, (v, t))| (f, v, t)).collect();
        let plain: Vec<(Vec<u8>, Vec<u8>, Option<i64>)> = timed.iter().map(|(f, v, _)| (f.clone(), v.clone(), None)).collect();
        let n = len(timed.len());
        let pairs: Vec<(Vec<u8>, Vec<u8>)> = plain.iter().map(|(f, v, _)| (f.clone(), v.clone())).collect();
        let flat: Vec<Vec<u8>> = pairs.iter().flat_map(|(f, v)| [f.clone(), v.clone()]).collect();
        let body: Vec<u8> = flat.iter().flat_map(|s| string(s)).collect();
        prop_assert_eq!(decoded(4, &[n.clone(), body].concat()), hash(&plain));
        prop_assert_eq!(decoded(9, &packed_string(&zipmap(&pairs, free))), hash(&plain));
        prop_assert_eq!(decoded(13, &string(&ziplist(&flat))), hash(&plain));
        prop_assert_eq!(decoded(16, &string(&listpack(&flat))), hash(&plain));

        let triples: Vec<Vec<u8>> = timed.iter().flat_map(|(f, v, t)| [f.clone(), v.clone(), t.unwrap_or(0).to_string().into_bytes()]).collect();
        prop_assert_eq!(decoded(23, &string(&listpack(&triples))), hash(&timed));
        prop_assert_eq!(decoded(25, &[vec![0; 8], string(&listpack(&triples))].concat()), hash(&timed));
        let absolute: Vec<u8> = timed.iter().flat_map(|(f, v, t)| [len(t.unwrap_or(0) as usize), string(f), string(v)].concat()).collect();
        prop_assert_eq!(decoded(22, &[n.clone(), absolute].concat()), hash(&timed));
        let later: Vec<_> = timed.iter().map(|(f, v, t)| (f.clone(), v.clone(), t.map(|t| (t % (1 << 47)) + base))).collect();
        let relative: Vec<u8> = later.iter().flat_map(|(f, v, t)| [len(t.map_or(0, |t| t - base + 1) as usize), string(f), string(v)].concat()).collect();
        prop_assert_eq!(decoded(24, &[base.to_le_bytes().to_vec(), n.clone(), relative].concat()), hash(&later));
        let valkey: Vec<u8> = timed.iter().flat_map(|(f, v, t)| [string(f), string(v), t.unwrap_or(-1).to_le_bytes().to_vec()].concat()).collect();
        let valkey = [n, valkey].concat();
        prop_assert_eq!(decode(&raw(Project::Valkey, 22, &valkey), &Limits::default()).unwrap(), hash(&timed));
    }

    #[test]
    fn stream_of_any_shape(
        entries in proptest::collection::btree_map((0u64..9, 0u64..9), proptest::collection::vec((text(), text()), 1..3), 0..30),
        per_node in 1usize..12,
        owners in proptest::collection::vec(0usize..3, 30),
        entries_read in proptest::option::of(0u64..99),
    ) {
        let entries: Vec<StreamEntry> = entries.into_iter().map(|((ms, seq), fields)| StreamEntry { id: StreamId { ms, seq }, fields }).collect();
        let last_id = entries.last().map_or(StreamId::ZERO, |e| e.id);
        let meta = StreamMeta { length: entries.len() as u64, last_id, first_id: last_id, max_deleted_id: StreamId { ms: 0, seq: 3 }, entries_added: 77 };
        let mut consumers: Vec<Consumer> = (0..3).map(|n| Consumer { name: vec![n], seen_ms: 5, active_ms: Some(-1), pending: vec![] }).collect();
        for (entry, owner) in entries.iter().zip(owners) {
            consumers[owner].pending.push(Pending { id: entry.id, delivered_ms: 9, deliveries: owner as u64 });
        }
        let group = Group { name: b"g".to_vec(), last_id, entries_read, consumers, nacked: vec![] };
        let made = Stream { entries, meta, groups: vec![group], idempotency: None };
        prop_assert_eq!(decoded(21, &stream(&made, per_node)), Value::Stream(Box::new(made)));
    }
}

#[test]
fn listpack_entries_at_every_size_edge_decode() {
    // A string's entry is 1, 2 or 5 bytes longer than the string; the sizes where one more byte holds the size are known.
    for size in [126, 127, 128, 16_381, 16_382, 16_383, 16_384, 2_097_149, 2_097_150, 2_097_151, 2_097_152] {
        for head in [1, 2, 5] {
            let items = vec![vec![b'x'; size - head], b"after".to_vec()];
            let node = [len(1), len(2), string(&listpack(&items))].concat();
            assert_eq!(decoded(18, &node), Value::List(items), "entry of {size}");
        }
    }
}

/// From 65,535 entries on a header does not say how many there are.
#[test]
fn packs_of_more_entries_than_their_count_holds_decode() {
    for n in [65_533, 65_534, 65_535, 65_536, 70_000] {
        let items: Vec<Vec<u8>> = (0..n).map(|i: u32| i.to_string().into_bytes()).collect();
        let list = Value::List(items.clone());
        assert_eq!(decoded(10, &string(&ziplist(&items))), list, "{n}");
        assert_eq!(decoded(18, &[len(1), len(2), packed_string(&listpack(&items))].concat()), list, "{n}");
    }
}

#[test]
fn duplicates_are_refused() {
    let twice = [string(b"a"), string(b"a")].concat();
    let pairs = [string(b"a"), string(b"1"), string(b"a"), string(b"2")].concat();
    let fail = |value_type, value: Vec<u8>| {
        decode(&raw(Project::Redis, value_type, &value), &Limits::default()).unwrap_err().fault
    };
    assert_eq!(fail(2, [len(2), twice].concat()), Fault::Duplicate("set member"));
    assert_eq!(fail(4, [len(2), pairs].concat()), Fault::Duplicate("hash field"));
    let packed: BTreeMap<&str, u8> = [("sorted set member", 17), ("hash field", 16)].into();
    for (what, value_type) in packed {
        let items: Vec<Vec<u8>> = [&b"a"[..], b"1", b"a", b"2"].iter().map(|s| s.to_vec()).collect();
        assert_eq!(fail(value_type, string(&listpack(&items))), Fault::Duplicate(what));
    }
    let array = [len(2), len(0), len(7), len(0), string(b"a"), len(7), len(0), string(b"b")].concat();
    assert_eq!(fail(28, array), Fault::Duplicate("array index"));
}
