//! Values as commands: what is sent to which server, in which size, and what no server can be sent.

use super::*;

const REDIS_2_8: TargetCaps =
    TargetCaps { project: Project::Redis, version: (2, 8, 24), accept_loss: false, fields_late_ms: 0 };
const REDIS_5: TargetCaps = TargetCaps { version: (5, 0, 14), ..REDIS_2_8 };
const REDIS_7: TargetCaps = TargetCaps { version: (7, 0, 15), ..REDIS_2_8 };
const REDIS_8_10: TargetCaps = TargetCaps { version: (8, 10, 2), ..REDIS_2_8 };
const VALKEY_9: TargetCaps =
    TargetCaps { project: Project::Valkey, version: (9, 1, 2), accept_loss: false, fields_late_ms: 0 };

fn rewritten(value: &Value, expires: Option<i64>, target: &TargetCaps) -> Result<Vec<Vec<Vec<u8>>>, Unsupported> {
    let mut seen = Vec::new();
    commands(b"k", value, expires, target, &mut |args| seen.push(args.iter().map(|a| a.to_vec()).collect()))?;
    Ok(seen)
}

fn lines(value: &Value, expires: Option<i64>, target: &TargetCaps) -> Vec<String> {
    let line = |args: &Vec<Vec<u8>>| args.iter().map(|a| a.escape_ascii().to_string()).collect::<Vec<_>>().join(" ");
    rewritten(value, expires, target).unwrap().iter().map(line).collect()
}

#[test]
fn every_type_becomes_its_commands() {
    let mut all = Vec::new();
    for (name, target) in [
        ("E1", REDIS_2_8),
        ("E5", REDIS_2_8),
        ("E8", REDIS_5),
        ("E11b", REDIS_5),
        ("E12b", REDIS_2_8),
        ("E12b", VALKEY_9),
        ("E14", REDIS_8_10),
        ("E15", VALKEY_9),
        ("E16", REDIS_5),
        ("E17", REDIS_5),
        ("E17", REDIS_7),
        ("E18", REDIS_8_10),
        ("E29", REDIS_8_10),
        ("E30", REDIS_8_10),
        ("E31", VALKEY_9),
    ] {
        all.push(format!("# {name} for {:?} {:?}", target.project, target.version));
        all.extend(lines(&example_value(name), Some(5), &target));
    }
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn what_a_target_cannot_be_given_is_an_error_and_nothing_is_written() {
    for (name, target, unsupported) in [
        ("E14", REDIS_7, Unsupported::FieldExpiry),
        ("E14", TargetCaps { version: (8, 1, 1), ..VALKEY_9 }, Unsupported::FieldExpiry),
        ("E16", REDIS_2_8, Unsupported::Type("stream")),
        ("E18", VALKEY_9, Unsupported::Idempotency),
        ("E18", TargetCaps { version: (8, 6, 1), ..REDIS_2_8 }, Unsupported::Idempotency),
        ("E19", REDIS_8_10, Unsupported::Opaque("module")),
        ("E29", VALKEY_9, Unsupported::Nacked),
        ("E30", VALKEY_9, Unsupported::Type("array")),
    ] {
        let mut written = 0;
        let result = commands(b"k", &example_value(name), None, &target, &mut |_| written += 1);
        assert_eq!((result, written), (Err(unsupported), 0), "{name}");
    }
    let late = HashField { field: bytes("f"), value: bytes("v"), expires_at_ms: Some(1 << 46) };
    let error = rewritten(&Value::Hash(vec![late]), None, &VALKEY_9).unwrap_err();
    assert_eq!(error, Unsupported::FieldExpiryTooLate(1 << 46));
}

#[test]
fn accepted_loss_leaves_out_what_the_target_lacks() {
    let old = TargetCaps { accept_loss: true, ..REDIS_7 };
    assert_eq!(lines(&example_value("E14"), None, &old), ["UNLINK k", "HSET k x y g w f v"]);
    let nacked = lines(&example_value("E29"), None, &old);
    assert!(
        nacked.iter().all(|line| !line.starts_with("XNACK")) && nacked.iter().any(|line| line.starts_with("XCLAIM"))
    );
    assert!(rewritten(&example_value("E30"), None, &old).is_err());
    // The nearest time that HPEXPIREAT takes.
    let late = HashField { field: bytes("f"), value: bytes("v"), expires_at_ms: Some(1 << 46) };
    let accepting = TargetCaps { accept_loss: true, ..REDIS_8_10 };
    let lines = lines(&Value::Hash(vec![late]), None, &accepting);
    assert_eq!(lines[2], format!("HPEXPIREAT k {} FIELDS 1 f", (1u64 << 46) - 1));
}

#[test]
fn rewriter_tells_what_it_left_out() {
    let lost = |piece: &Piece, target| {
        let mut rewriter = Rewriter::new(b"k", None, TargetCaps { accept_loss: true, ..target });
        rewriter.piece(&Piece::StreamMeta(StreamMeta::default()), &mut |_| {}).unwrap();
        rewriter.piece(piece, &mut |_| {}).unwrap();
        rewriter.lost()
    };
    let field = HashField { field: bytes("f"), value: bytes("v"), expires_at_ms: Some(9) };
    let fields = Piece::HashFields(vec![field]);
    assert_eq!(lost(&fields, REDIS_7), Some(Unsupported::FieldExpiry));
    assert_eq!(lost(&fields, REDIS_8_10), None);
    let nacked = Pending { id: StreamId { ms: 1, seq: 1 }, delivered_ms: 1, deliveries: 1 };
    assert_eq!(lost(&Piece::StreamNacked(vec![nacked]), VALKEY_9), Some(Unsupported::Nacked));
    assert_eq!(lost(&Piece::StreamPending(vec![nacked]), VALKEY_9), Some(Unsupported::DeletedPending));
    let idempotency = Piece::StreamIdempotency { duration_s: 5, entries_max: 100 };
    assert_eq!(lost(&idempotency, REDIS_7), Some(Unsupported::Idempotency));
}

#[test]
fn pending_entries_that_are_deleted_get_placeholders() {
    let Value::Stream(mut stream) = example_value("E17") else { panic!("no stream") };
    stream.entries.remove(0);
    stream.meta.length = 1;
    let lines = lines(&Value::Stream(stream), None, &REDIS_7);
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn pending_entry_deleted_from_a_streamed_value_is_an_error() {
    let mut rewriter = Rewriter::new(b"k", None, REDIS_7);
    let group = Piece::StreamGroup { name: bytes("g"), last_id: StreamId::ZERO, entries_read: None };
    let pending = Pending { id: StreamId { ms: 1, seq: 1 }, delivered_ms: 1, deliveries: 1 };
    let mut out = |_: &[&[u8]]| {};
    rewriter.piece(&Piece::StreamMeta(StreamMeta::default()), &mut out).unwrap();
    rewriter.piece(&group, &mut out).unwrap();
    rewriter.piece(&Piece::StreamConsumer { name: bytes("c"), seen_ms: 0, active_ms: None }, &mut out).unwrap();
    assert_eq!(rewriter.piece(&Piece::StreamPending(vec![pending]), &mut out), Err(Unsupported::DeletedPending));
}

#[test]
fn commands_hold_at_most_1024_elements_or_a_mebibyte_and_one() {
    let list = Value::List((0..2049).map(|i: u32| i.to_string().into_bytes()).collect());
    let sizes: Vec<usize> = rewritten(&list, None, &REDIS_5).unwrap().iter().map(|args| args.len() - 2).collect();
    assert_eq!(sizes, [0, 1024, 1024, 1]);
    let set = Value::Set((0..5u8).map(|i| vec![i; 600 << 10]).collect());
    let sizes: Vec<usize> = rewritten(&set, None, &REDIS_5).unwrap().iter().map(|args| args.len() - 2).collect();
    assert_eq!(sizes, [0, 2, 2, 1]);
    for (size, expected) in [(16 << 20, 1), ((16 << 20) + 1, 17)] {
        let string = rewritten(&Value::String(vec![7; size]), None, &REDIS_5).unwrap();
        assert_eq!(string.len() - 1, expected);
        let all: usize = string[1..].iter().map(|args| args[2].len()).sum();
        assert_eq!((all, &string[1][0][..]), (size, &b"SET"[..]));
    }
}

#[test]
fn collection_without_elements_is_only_deleted() {
    assert_eq!(lines(&Value::Set(vec![]), Some(9), &REDIS_2_8), ["DEL k"]);
    assert_eq!(lines(&Value::String(vec![]), Some(9), &REDIS_5), ["UNLINK k", "SET k ", "PEXPIREAT k 9"]);
}

#[test]
fn scores_are_written_so_that_their_bits_come_back() {
    for score in [0.1, 1e-300, 5e-324, f64::MAX, f64::MIN_POSITIVE, -0.0, 1e17, 123_456_789.125, 1.0 / 3.0] {
        let member = ZsetMember { member: bytes("m"), score };
        let commands = rewritten(&Value::Zset(vec![member]), None, &REDIS_5).unwrap();
        let text = String::from_utf8(commands[1][2].clone()).unwrap();
        assert_eq!(text.parse::<f64>().unwrap().to_bits(), score.to_bits(), "{text}");
        assert!(text.len() < 26);
    }
}

#[test]
fn fields_rebuilt_late_expire_so_much_later_and_never_later_than_the_target_takes() {
    let late = |target| TargetCaps { fields_late_ms: 1000, ..target };
    let field = |expires_at_ms| HashField { field: bytes("f"), value: bytes("v"), expires_at_ms: Some(expires_at_ms) };
    let last = (1 << 46) - 1;
    for (target, at_ms, want) in [
        (REDIS_8_10, 5, 1005),
        (REDIS_8_10, last - 1001, last - 1),
        (REDIS_8_10, last - 999, last),
        (REDIS_8_10, last, last),
        (VALKEY_9, last, last + 1000),
    ] {
        let hash = Value::Hash(vec![field(at_ms)]);
        let whole = lines(&hash, None, &late(target));
        assert_eq!(whole[2], format!("HPEXPIREAT k {want} FIELDS 1 f"));
        let mut pieces = Vec::new();
        let mut rewriter = Rewriter::new(b"k", None, late(target));
        let piece = Piece::HashFields(vec![field(at_ms)]);
        let mut note = |args: &[&[u8]]| pieces.push(args.join(&b' ').escape_ascii().to_string());
        rewriter.piece(&piece, &mut note).unwrap();
        assert_eq!(pieces, whole);
    }
}
