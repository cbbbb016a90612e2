//! Values that real servers make, restored and rebuilt on real servers.
//!
//! Takes all servers that there are in `$KEYFERRY_SERVERS` (default `~/.cache/keyferry/servers`, filled by
//! tests/servers.sh): those of its quick set in all pairs, each other one beside its neighbours. `KEYFERRY_MATRIX=all`
//! takes every pair, `KEYFERRY_ONLY=redis-7.0,valkey-9.1` these servers alone.

use keyferry::rdb::{
    Decoder, Event, Limits, Project, Restorer, Rewriter, StreamId, TargetCaps, Value, commands, decode, verify,
};
use redis::Value as Reply;

use crate::servers::{Server, Size, names, populate, start};

/// Those that tests/servers.sh brings by itself: every encoding that is still written is one of theirs.
const QUICK: [&str; 6] = ["redis-6.0", "redis-7.0", "redis-8.0", "redis-8.6", "valkey-8.1", "valkey-9.1"];

/// What must be equal: no order where there is none, no times that commands can't set, no counters that a side lacks, no
/// sign of zero (servers since 7.0 drop it), no greatest deleted id that a placeholder left.
fn comparable(value: Value, counters: bool) -> String {
    match value {
        Value::Set(mut members) => {
            members.sort();
            format!("{members:?}")
        }
        Value::Hash(mut fields) => {
            fields.sort_by(|a, b| a.field.cmp(&b.field));
            format!("{fields:?}")
        }
        Value::Zset(mut members) => {
            members.sort_by(|a, b| a.member.cmp(&b.member));
            let bits: Vec<_> = members.iter().map(|m| (&m.member, (m.score + 0.0).to_bits())).collect();
            format!("{bits:?}")
        }
        Value::Stream(mut stream) => {
            if !counters {
                stream.meta.entries_added = 0;
                stream.meta.max_deleted_id = Default::default();
            }
            stream.meta.first_id = Default::default();
            if stream.meta.max_deleted_id == (StreamId { ms: 0, seq: 1 }) {
                stream.meta.max_deleted_id = StreamId::ZERO;
            }
            stream.groups.sort_by(|a, b| a.name.cmp(&b.name));
            for group in &mut stream.groups {
                group.entries_read = group.entries_read.filter(|_| counters);
                group.consumers.sort_by(|a, b| a.name.cmp(&b.name));
                for consumer in &mut group.consumers {
                    (consumer.seen_ms, consumer.active_ms) = (0, None);
                }
                group.nacked.iter_mut().for_each(|p| p.delivered_ms = 0);
            }
            let records: Vec<_> =
                stream.idempotency.iter().flat_map(|i| &i.producers).filter(|p| !p.records.is_empty()).collect();
            format!("{:?} {:?} {:?} {records:?}", stream.entries, stream.meta, stream.groups)
        }
        other => format!("{other:?}"),
    }
}

fn value_of(payload: &[u8]) -> Value {
    let verified = verify(payload, false).unwrap();
    decode(&verified.value, &Limits::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn differ(what: &str, expected: &str, got: &str) {
    let at = expected.bytes().zip(got.bytes()).take_while(|(a, b)| a == b).count();
    let cut = |s: &str| s.chars().skip(at.saturating_sub(200)).take(400).collect::<String>();
    println!("    DIFFERENT {what}\n      expected …{}\n      got      …{}", cut(expected), cut(got));
}

/// Restores and rebuilds everything of `source` on `target`; returns how many went wrong.
fn transfer(source: &mut Server, target: &mut Server) -> usize {
    let restorer = Restorer::new(target.project, target.version, target.footer);
    let caps = TargetCaps::new(target.project, target.version);
    let counters = |s: &Server| s.project == Project::Valkey || s.version >= (7, 0, 0);
    let (mut restored, mut rebuilt, mut wrong, mut without) = (0, 0, 0, Vec::new());
    for key in source.keys() {
        let payload = source.dump(&key).unwrap();
        let name = key.escape_ascii().to_string();
        let both = counters(source) && counters(target);
        let expected = comparable(value_of(&payload), both);
        let _ = target.call(&[b"DEL", &key]);
        if let Some(ours) = restorer.restamp(&payload, false).unwrap() {
            match target.call(&[b"RESTORE", &key, b"0", &ours]) {
                Ok(_) => {
                    restored += 1;
                    let got = comparable(value_of(&target.dump(&key).unwrap()), both);
                    // A server clamps what it doesn't believe.
                    if got != expected && name != "xr" {
                        wrong += 1;
                        differ(&format!("{name} restored"), &expected, &got);
                    }
                }
                // The module is not there.
                Err(_) if name == "vec" => {}
                Err(error) => {
                    wrong += 1;
                    println!("    REFUSED {name} restored: {error}");
                }
            }
        }
        let mut errors = Vec::new();
        let value = value_of(&payload);
        match commands(&key, &value, None, &caps, &mut |args| {
            if let Err(error) = target.call(args) {
                let shown: Vec<String> =
                    args.iter().take(9).map(|a| a.escape_ascii().to_string().chars().take(30).collect()).collect();
                errors.push(format!("{}: {error}", shown.join(" ")));
            }
        }) {
            Err(unsupported) => without.push(format!("{name}: {unsupported}")),
            Ok(()) => {
                rebuilt += 1;
                let got = comparable(target.dump(&key).map_or(Value::List(vec![]), |p| value_of(&p)), both);
                if (got != expected && name != "xr") || !errors.is_empty() {
                    wrong += 1;
                    differ(&format!("{name} rebuilt {errors:?}"), &expected, &got);
                }
            }
        }
    }
    wrong += transfer_functions(source, target);
    println!(
        "  {} -> {}: {restored} restored, {rebuilt} rebuilt, {wrong} wrong; {without:?}",
        source.name, target.name
    );
    wrong
}

/// Function libraries, where both have them.
fn transfer_functions(source: &mut Server, target: &mut Server) -> usize {
    let code = "#!lua name=mylib\nredis.register_function('f1', function(keys,args) return 1 end)\n";
    if source.call(&[b"FUNCTION", b"LOAD", b"REPLACE", code.as_bytes()]).is_err() {
        return 0;
    }
    let Ok(Reply::BulkString(payload)) = source.line("FUNCTION DUMP") else {
        return 1;
    };
    let restorer = Restorer::new(target.project, target.version, target.footer);
    let Some(ours) = restorer.restamp_functions(&payload, false).unwrap() else {
        return 0;
    };
    match target.call(&[b"FUNCTION", b"RESTORE", &ours, b"REPLACE"]) {
        Ok(_) => usize::from(target.line("FUNCTION DUMP").is_ok_and(|r| r == Reply::BulkString(vec![]))),
        Err(error) => {
            println!("    REFUSED functions: {error}");
            1
        }
    }
}

/// The server's own file has the values that its DUMP gives.
fn check_file(server: &mut Server) -> usize {
    server.line("SAVE").unwrap();
    let file = std::fs::read(server.dir.path().join("dump.rdb")).unwrap();
    let mut decoder = Decoder::new(Limits::default());
    let (mut wrong, mut found, mut ended) = (0, 0, false);
    for chunk in file.chunks(777) {
        decoder.feed(chunk);
        loop {
            match decoder.next().unwrap() {
                None => break,
                Some(Event::Key(key)) => {
                    found += 1;
                    let value = decode(&key.value, &Limits::default()).unwrap_or_else(|e| panic!("{e}"));
                    let payload = server.dump(key.name).unwrap();
                    let (a, b) = (comparable(value_of(&payload), true), comparable(value, true));
                    if a != b {
                        wrong += 1;
                        differ(&format!("{} in the file", key.name.escape_ascii()), &a, &b);
                    }
                    let same = Restorer::new(server.project, server.version, server.footer);
                    if let Some(ours) = same.payload(&key.value, key.meta).unwrap()
                        && !matches!(key.value.value_type, 5 | 22)
                    {
                        let _ = server.call(&[b"DEL", b"copy"]);
                        if let Err(error) = server.call(&[b"RESTORE", b"copy", b"0", &ours.to_vec()]) {
                            wrong += 1;
                            println!("    REFUSED {} from the file: {error}", key.name.escape_ascii());
                        }
                    }
                }
                Some(Event::End { crc_checked }) => ended = crc_checked,
                Some(Event::BigKey(_)) => decoder.skip_value(),
                Some(_) => {}
            }
        }
    }
    assert!(ended);
    let _ = server.call(&[b"DEL", b"copy"]);
    println!("{}: {found} keys in its file, {wrong} wrong", server.name);
    wrong
}

/// Streams every value of the server's file piece by piece into commands for the same server.
fn check_pieces(server: &mut Server) -> usize {
    let file = std::fs::read(server.dir.path().join("dump.rdb")).unwrap();
    let caps = TargetCaps::new(server.project, server.version);
    let limits = Limits { value_bytes_max: 0, ..Limits::default() };
    let mut decoder = Decoder::new(limits);
    let (mut wrong, mut rebuilt, mut without, mut rewriter, mut name) = (0, 0, Vec::new(), None, Vec::new());
    for chunk in file.chunks(4096) {
        decoder.feed(chunk);
        loop {
            match decoder.next().unwrap() {
                None => break,
                Some(Event::BigKey(head)) => {
                    name = head.name.to_vec();
                    match decoder.stream_value() {
                        Ok(()) => rewriter = Some(Rewriter::new(b"copy", None, caps)),
                        Err(_) => decoder.skip_value(),
                    }
                }
                Some(Event::BigPiece(piece)) => {
                    let mut out = |args: &[&[u8]]| {
                        if let Err(error) = server.call(args) {
                            wrong += 1;
                            println!("    {} in pieces: {error}", name.escape_ascii());
                        }
                    };
                    if let Some(writer) = &mut rewriter
                        && let Err(unsupported) = writer.piece(&piece, &mut out)
                    {
                        without.push(format!("{}: {unsupported}", name.escape_ascii()));
                        rewriter = None;
                    }
                }
                Some(Event::BigEnd) => {
                    let Some(mut writer) = rewriter.take() else {
                        continue;
                    };
                    writer.finish(&mut |_| {});
                    let expected = comparable(value_of(&server.dump(&name).unwrap()), true);
                    let got = server.dump(b"copy").map(|payload| comparable(value_of(&payload), true));
                    rebuilt += 1;
                    if got.as_ref() != Some(&expected) && name != b"xr" {
                        wrong += 1;
                        differ(&format!("{} in pieces", name.escape_ascii()), &expected, &got.unwrap_or_default());
                    }
                }
                Some(_) => {}
            }
        }
    }
    let _ = server.call(&[b"DEL", b"copy"]);
    println!("{}: {rebuilt} rebuilt in pieces, {wrong} wrong; {without:?}", server.name);
    wrong
}

#[test]
fn values_of_every_server_restore_and_rebuild_on_others() {
    let only = std::env::var("KEYFERRY_ONLY").unwrap_or_default();
    let every_pair = !only.is_empty() || std::env::var("KEYFERRY_MATRIX").is_ok_and(|which| which == "all");
    let names = names().into_iter().filter(|name| only.is_empty() || only.split(',').any(|o| o == name));
    let mut servers: Vec<Server> = names.filter_map(|name| start(&name)).collect();
    assert!(!servers.is_empty(), "no servers: run tests/servers.sh");
    let mut wrong = 0;
    for at in 0..servers.len() {
        let mut source = servers.remove(at);
        source.line("FLUSHALL").unwrap();
        populate(&mut source, &Size { elements: 2000, pad_max: 90, odd_bytes: 100_000 });
        wrong += check_file(&mut source);
        wrong += check_pieces(&mut source);
        let count = servers.len();
        for (place, target) in servers.iter_mut().enumerate() {
            // Without the source itself, those beside it stand at its place and before.
            let beside = place == at % count || (place + 1) % count == at % count;
            let quick = QUICK.contains(&source.name.as_str()) && QUICK.contains(&target.name.as_str());
            if !(every_pair || beside || quick) {
                continue;
            }
            target.line("FLUSHALL").unwrap();
            wrong += transfer(&mut source, target);
        }
        servers.insert(at, source);
    }
    assert_eq!(wrong, 0);
}
