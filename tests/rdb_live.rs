//! Values that real servers make, restored and rebuilt on real servers.
//!
//! Takes all servers that there are in `$KEYFERRY_SERVERS` (default `~/.cache/keyferry/servers`, filled by
//! tests/servers.sh); `KEYFERRY_ONLY=redis-7.0,valkey-9.1` takes these alone.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use keyferry::rdb::{
    Decoder, Event, Limits, Project, Restorer, Rewriter, StreamId, TargetCaps, Value, Version, commands, decode, verify,
};
use redis::Value as Reply;

const START_MAX: Duration = Duration::from_secs(15);

struct Server {
    name: String,
    child: Child,
    connection: redis::Connection,
    dir: tempfile::TempDir,
    project: Project,
    version: Version,
    footer: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn servers_dir() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/keyferry/servers");
    std::env::var_os("KEYFERRY_SERVERS").map_or_else(home, PathBuf::from)
}

fn free_port() -> u16 {
    (20_000..21_000).rev().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

fn start(name: &str) -> Option<Server> {
    let binary = servers_dir().join(name).join("bin/redis-server");
    if !binary.exists() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let child = Command::new(binary)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let client = redis::Client::open(("127.0.0.1", port)).unwrap();
    let began = Instant::now();
    let mut connection = loop {
        match client.get_connection() {
            Ok(connection) => break connection,
            Err(error) if began.elapsed() > START_MAX => panic!("{name} does not start: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let info: String = redis::cmd("INFO").arg("server").query(&mut connection).unwrap();
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let (project, version) = match field("valkey_version") {
        Some(version) => (Project::Valkey, version),
        None => (Project::Redis, field("redis_version").unwrap()),
    };
    let numbers: Vec<u16> = version.split('.').map(|n| n.parse().unwrap_or(0)).collect();
    let version = (numbers[0], numbers[1], numbers[2]);
    let _: Reply = redis::cmd("SET").arg("scratch").arg("x").query(&mut connection).unwrap();
    let scratch: Vec<u8> = redis::cmd("DUMP").arg("scratch").query(&mut connection).unwrap();
    let footer = verify(&scratch, false).unwrap().footer_version;
    let _: Reply = redis::cmd("FLUSHALL").query(&mut connection).unwrap();
    Some(Server { name: name.into(), child, connection, dir, project, version, footer })
}

impl Server {
    fn call(&mut self, args: &[&[u8]]) -> Result<Reply, String> {
        let mut cmd = redis::Cmd::new();
        args.iter().for_each(|arg| _ = cmd.arg(*arg));
        cmd.query::<Reply>(&mut self.connection).map_err(|error| error.to_string())
    }

    fn line(&mut self, line: &str) -> Result<Reply, String> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.call(&args)
    }

    fn dump(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.call(&[b"DUMP", key]).unwrap() {
            Reply::BulkString(payload) => Some(payload),
            _ => None,
        }
    }

    fn keys(&mut self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut self.connection).unwrap();
        keys.sort();
        keys
    }
}

/// One command each; what a server doesn't know it refuses.
const LINES: &[&str] = &[
    "SET s hello",
    "SET i 1000",
    "SET i8 -5",
    "SET i32 -100000",
    "PFADD hll a b c",
    "RPUSH l a 1 -300 12 13 70000 10000000 12345678901 x",
    "RPUSH l1 one",
    "SADD ints 1 2 70000",
    "SADD ints16 1 2 3",
    "SADD ints64 1 12345678901",
    "SADD words a bc 7",
    "ZADD z 1 a 2.5 b 1e-300 c 5e-324 d inf e -inf f -0.0 g 0.1 h 1e17 i 3 j 1.7976931348623157e308 k",
    "HMSET h f v n 12 neg -7",
    "HMSET ht a 1 b 2 c 3",
    "HPEXPIREAT ht 33177117420000 FIELDS 1 a",
    "HPEXPIREAT ht 33177117420500 FIELDS 1 b",
    "XADD x 1-1 f v",
    "XADD x 1-2 f w",
    "XADD x 2-0 g 1 h x",
    "XDEL x 1-2",
    "XADD xg 1-1 f v",
    "XADD xg 1-2 f w",
    "XADD xg 5-0 f x",
    "XADD xg 6-0 f y",
    "XGROUP CREATE xg g 0",
    "XREADGROUP GROUP g c1 COUNT 2 STREAMS xg >",
    "XREADGROUP GROUP g c2 COUNT 1 STREAMS xg >",
    "XGROUP CREATECONSUMER xg g idle",
    "XGROUP CREATE xg other 1-2",
    "XDEL xg 1-1",
    "XDEL xg 6-0",
    "XADD xe 3-3 a b",
    "XDEL xe 3-3",
    "XGROUP CREATE xz g 0 MKSTREAM",
    "XREADGROUP GROUP g c STREAMS xz >",
    "XADD xt 1-0 a b",
    "XADD xt 2-0 a b",
    "XADD xt 3-0 a b",
    "XGROUP CREATE xt g 0",
    "XREADGROUP GROUP g c STREAMS xt >",
    "XTRIM xt MAXLEN 1",
    "XADD xr 1-1 a b",
    "XGROUP CREATE xr g 0 ENTRIESREAD 99",
    "XADD xn 1-1 f v",
    "XADD xn 2-1 f v",
    "XGROUP CREATE xn g 0",
    "XREADGROUP GROUP g c STREAMS xn >",
    "XNACK xn g FAIL IDS 1 2-1 RETRYCOUNT 5",
    "XADD xi IDMP p1 i1 * a 1",
    "XADD xi IDMP p1 i2 * a 2",
    "XADD xi IDMP p2 i1 * a 3",
    "XADD xd IDMP p1 i1 9-9 a 1",
    "ARSET a 3 x 5 2.5 0.1",
    "ARSET a 100000 y",
    "ARINSERT a z",
    "ARSET a2 18446744073709551000 q",
    "HIMPORT PREPARE p id n",
    "HIMPORT SET tmpl p 7 bob",
    "HIMPORT SET tmpl2 p 8 elisabeth-the-second-who-was-a-queen-of-a-united-kingdom-for-seventy-years",
    "VADD vec VALUES 3 1 2 3 el",
    "XADD xim IDMP p1 i1 * a 1",
    "XTRIM xim MAXLEN 0",
    "XADD xnd 1-1 f v",
    "XADD xnd 2-1 f v",
    "XGROUP CREATE xnd g 0",
    "XREADGROUP GROUP g c STREAMS xnd >",
    "XNACK xnd FAIL IDS 1 1-1",
    "XNACK xnd g FAIL IDS 1 1-1 RETRYCOUNT 2",
    "XDEL xnd 1-1",
];

/// Makes every kind of value that the server knows.
fn populate(server: &mut Server) {
    for line in LINES {
        let _ = server.line(line);
    }
    let long = vec![b'z'; 20_000];
    let odd: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for args in [
        &[&b"SET"[..], b"lzf", &long][..],
        &[b"SET", b"", b""],
        &[b"SET", b"\xac\xed\x00\x05t\r\n {}", &odd],
        &[b"RPUSH", b"llong", &long, b"a", &odd, b"b", &long],
    ] {
        server.call(args).unwrap();
    }
    for i in 0..2000u32 {
        let text = format!("member:{i}:{}", "y".repeat(i as usize % 90));
        let number = format!("{}", f64::from(i) / 7.0);
        let id = format!("{}-{}", 100 + i / 3, i % 3 + 1);
        server.call(&[b"RPUSH", b"lbig", text.as_bytes()]).unwrap();
        server.call(&[b"SADD", b"sbig", text.as_bytes()]).unwrap();
        server.call(&[b"ZADD", b"zbig", number.as_bytes(), text.as_bytes()]).unwrap();
        server.call(&[b"HSET", b"hbig", text.as_bytes(), number.as_bytes()]).unwrap();
        let _ = server.call(&[b"XADD", b"xbig", id.as_bytes(), b"same", text.as_bytes(), b"n", number.as_bytes()]);
    }
    let _ = server.line("HPEXPIREAT hbig 33177117420000 FIELDS 1 member:0:");
}

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
fn values_of_every_server_restore_and_rebuild_on_every_other() {
    let only = std::env::var("KEYFERRY_ONLY").unwrap_or_default();
    let mut names: Vec<String> = std::fs::read_dir(servers_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("stack") && (only.is_empty() || only.split(',').any(|o| o == name)))
        .collect();
    names.sort();
    assert!(!names.is_empty(), "no servers: run tests/servers.sh");
    let mut servers: Vec<Server> = names.iter().filter_map(|name| start(name)).collect();
    let mut wrong = 0;
    for at in 0..servers.len() {
        let mut source = servers.remove(at);
        source.line("FLUSHALL").unwrap();
        populate(&mut source);
        wrong += check_file(&mut source);
        wrong += check_pieces(&mut source);
        for target in &mut servers {
            target.line("FLUSHALL").unwrap();
            wrong += transfer(&mut source, target);
        }
        servers.insert(at, source);
    }
    assert_eq!(wrong, 0);
}
