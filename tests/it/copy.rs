//! `--once`: a copy that ends by itself, of every type, between versions, over what is already there.

use crate::client::{Client, Cmd};
use crate::compare::{Rules, is_own_record, must_be_same, now_ms, scan};
use crate::load::{Mix, Workload, load_bulk, load_function, load_types};
use crate::server::{FAST, Server};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, until};

fn copies_every_type(from: &str, to: &str) {
    let (a, b) = (Server::start(from), Server::start(to));
    load_four_databases(&a);
    Tool::once(&a, &b, &[], MINUTE);
    must_be_same(&a, &b, &format!("{from} to {to}"), &Rules::default());
    if a.version() >= (7, 0) {
        let list = cmd!["FUNCTION", "LIST", "WITHCODE"];
        assert_eq!(a.client().call(&list), b.client().call(&list), "functions");
    }
    let mut target = b.client();
    let keys = scan(&mut target);
    let records: Vec<_> = keys.iter().filter(|k| is_own_record(k)).collect();
    assert!(records.is_empty(), "--once leaves its records: {records:?}");
}

fn load_four_databases(server: &Server) {
    let mut client = server.client();
    load_types(server, &mut client, 7, "");
    for db in [2, 5, 15] {
        client.select(db);
        load_types(server, &mut client, u64::from(db), &format!("d{db}:"));
    }
    load_function(server, &mut client);
}

macro_rules! pairs {
    ($($test:ident: $from:literal => $to:literal;)*) => {$(
        #[test]
        fn $test() {
            copies_every_type($from, $to);
        }
    )*};
}
pairs! {
    once_redis_6_0_to_6_0_is_equal: "redis-6.0" => "redis-6.0";
    once_redis_6_0_to_7_0_is_equal: "redis-6.0" => "redis-7.0";
    once_redis_7_0_to_7_0_is_equal: "redis-7.0" => "redis-7.0";
    once_redis_7_0_to_8_0_is_equal: "redis-7.0" => "redis-8.0";
    once_redis_7_0_to_valkey_8_1_is_equal: "redis-7.0" => "valkey-8.1";
    once_redis_8_0_to_8_0_is_equal: "redis-8.0" => "redis-8.0";
    once_redis_8_0_to_8_6_is_equal: "redis-8.0" => "redis-8.6";
    once_redis_8_6_to_8_6_is_equal: "redis-8.6" => "redis-8.6";
    once_valkey_8_1_to_8_1_is_equal: "valkey-8.1" => "valkey-8.1";
    once_valkey_8_1_to_9_1_is_equal: "valkey-8.1" => "valkey-9.1";
    once_valkey_9_1_to_9_1_is_equal: "valkey-9.1" => "valkey-9.1";
}

#[test]
fn once_from_a_snapshot_on_disk_is_equal() {
    for name in ["redis-6.0", "redis-7.0", "valkey-9.1"] {
        let a = Server::with(name, &["repl-diskless-sync no"]);
        let b = Server::start(name);
        load_types(&a, &mut a.client(), 3, "");
        Tool::once(&a, &b, &[], MINUTE);
        must_be_same(&a, &b, name, &Rules::default());
    }
}

#[test]
fn once_from_an_uncompressed_snapshot_is_equal() {
    let a = Server::with("redis-7.0", &[FAST, &["rdbcompression no", "rdbchecksum no"]].concat());
    let b = Server::start("redis-7.0");
    load_types(&a, &mut a.client(), 4, "");
    Tool::once(&a, &b, &[], MINUTE);
    must_be_same(&a, &b, "no compression, no checksum", &Rules::default());
}

#[test]
fn once_of_an_empty_source_ends_at_once() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    Tool::once(&a, &b, &[], HALF_MINUTE);
    assert_eq!(b.client().dbsize(), 0);
}

/// All that the source wrote during the copy is there at the end, though the load stopped before it.
#[test]
fn once_applies_what_was_written_meanwhile() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 20_000, 1000);
    let load = Workload::start(&a, 5, 3000, Mix { databases: vec![0, 3], ..Mix::of(&a) });
    let mut tool = Tool::sync(&a, &b, &["--once", "--rate", "4MiB"]);
    until(HALF_MINUTE, "the copy to begin", || b.client().dbsize() > 1000);
    load.until_sent(5000, HALF_MINUTE);
    load.stop();
    tool.must_live();
    tool.must_end(MINUTE, 0);
    let rules = Rules { group_hints: false, ..Rules::default() };
    must_be_same(&a, &b, "written during the copy", &rules);
}

#[test]
fn once_of_big_values_with_little_memory_is_equal() {
    let (a, b) = (Server::start("redis-8.0"), Server::start("redis-8.0"));
    let mut client = a.client();
    client.call(&cmd!["SET", "big:string", vec![b'x'; 80 << 20]]);
    load_big(&mut client);
    let at = now_ms() + 1_000_000_000;
    for kind in ["string", "list", "set", "zset", "hash", "stream"] {
        client.call(&cmd!["PEXPIREAT", format!("big:{kind}"), at]);
    }
    Tool::once(&a, &b, &["--memory", "64MiB"], MINUTE);
    must_be_same(&a, &b, "big values", &Rules::default());
}

/// 300,000 elements of each type.
fn load_big(client: &mut Client) {
    let add = |command: &str, items: &str| {
        format!(
            "for i=0,299999,1000 do local t={{}} for j=i,i+999 do {items} end \
             redis.call('{command}',KEYS[1],unpack(t)) end"
        )
    };
    let one = |text: &str| format!("t[#t+1]={text}");
    let two = |x: &str, y: &str| format!("t[#t+1]={x} t[#t+1]={y}");
    for (kind, script) in [
        ("list", add("RPUSH", &one("'a list item that is not small '..j"))),
        ("set", add("SADD", &one("'member '..j"))),
        ("zset", add("ZADD", &two("j*0.25", "'member '..j"))),
        ("hash", add("HSET", &two("'field '..j", "'value '..j"))),
        ("stream", "for i=1,60000 do redis.call('XADD',KEYS[1],i..'-1','n',i,'v',string.rep('y',200)) end".into()),
    ] {
        client.call(&cmd!["EVAL", script, 1, format!("big:{kind}")]);
    }
    client.load(&[
        cmd!["XGROUP", "CREATE", "big:stream", "g", "30000-1"],
        cmd!["XREADGROUP", "GROUP", "g", "c", "COUNT", 2000, "STREAMS", "big:stream", ">"],
    ]);
}

#[test]
fn once_keeps_eviction_hints_and_delivery_times() {
    let lru = [FAST, &["maxmemory-policy volatile-lru"]].concat();
    let (a, b) = (Server::with("redis-7.0", &lru), Server::with("redis-7.0", &lru));
    let mut client = a.client();
    client.load(&[
        cmd!["RPUSH", "list", "a", "b"],
        cmd!["XADD", "stream", "1-1", "f", "v"],
        cmd!["XGROUP", "CREATE", "stream", "g", "0"],
        cmd!["XREADGROUP", "GROUP", "g", "c", "STREAMS", "stream", ">"],
        cmd!["XCLAIM", "stream", "g", "c", 0, "1-1", "IDLE", 5_000_000, "RETRYCOUNT", 7],
    ]);
    let payload = client.call(&cmd!["DUMP", "list"]);
    client.call(&cmd!["RESTORE", "cold", 0, payload.bytes(), "IDLETIME", 4000]);
    Tool::once(&a, &b, &[], HALF_MINUTE);
    let mut target = b.client();
    let idle = target.call(&cmd!["OBJECT", "IDLETIME", "cold"]).int();
    assert!((3990..4100).contains(&idle), "idle for {idle} s, not 4000");
    let pending = target.call(&cmd!["XPENDING", "stream", "g", "-", "+", 10]);
    let entry = pending.list()[0].list();
    assert!(entry[2].int() >= 5_000_000, "delivered {:?} ms ago", entry[2]);
    assert_eq!(entry[3].int(), 7, "deliveries");
}

/// Keys of the target and of the source that have one name in common.
fn with_existing() -> (Server, Server) {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let source: [Cmd; 3] =
        [cmd!["RPUSH", "both", "new"], cmd!["HSET", "hash", "f", "new"], cmd!["SET", "only-source", "1"]];
    let target: [Cmd; 3] =
        [cmd!["RPUSH", "both", "old"], cmd!["HSET", "hash", "g", "old"], cmd!["SET", "only-target", "1"]];
    a.client().load(&source);
    b.client().load(&target);
    (a, b)
}

#[test]
fn existing_keys_are_refused_and_nothing_is_written() {
    let (a, b) = with_existing();
    let mut tool = Tool::sync(&a, &b, &["--once"]);
    let code = tool.wait(HALF_MINUTE);
    assert!(code == 1 || code == 3, "exit {code}: {}", tool.tail());
    let text = tool.text();
    assert!(text.contains("--existing"), "names no way out: {text}");
    let mut target = b.client();
    assert_eq!(target.dbsize(), 3);
    assert_eq!(target.call(&cmd!["LINDEX", "both", 0]).text(), "old");
}

#[test]
fn existing_keys_out_of_scope_are_no_reason_to_refuse() {
    let (a, b) = with_existing();
    a.client().call(&cmd!["SET", "user:1", "x"]);
    Tool::once(&a, &b, &["--key", "user:*"], HALF_MINUTE);
    let mut target = b.client();
    assert_eq!(target.get("user:1").text(), "x");
    assert_eq!(target.dbsize(), 4);
}

#[test]
fn existing_replace_takes_the_source_value_and_keeps_others() {
    let (a, b) = with_existing();
    Tool::once(&a, &b, &["--existing", "replace"], HALF_MINUTE);
    let mut target = b.client();
    assert_eq!(target.get("only-target").text(), "1");
    target.call(&cmd!["DEL", "only-target"]);
    must_be_same(&a, &b, "replaced, not appended to", &Rules::default());
}

#[test]
fn existing_keep_leaves_the_target_value_and_counts_it() {
    let (a, b) = with_existing();
    let mut tool = Tool::sync(&a, &b, &["--once", "--existing", "keep"]);
    tool.must_end(HALF_MINUTE, 0);
    let mut target = b.client();
    assert_eq!(target.call(&cmd!["LRANGE", "both", 0, -1]).list().len(), 1);
    assert_eq!(target.call(&cmd!["LINDEX", "both", 0]).text(), "old");
    assert_eq!(target.call(&cmd!["HGETALL", "hash"]).list().len(), 2);
    assert_eq!(target.get("only-source").text(), "1");
    let text = tool.text();
    assert!(text.to_lowercase().contains("skipped: 2"), "the summary says nothing: {text}");
}

#[test]
fn flush_target_empties_it_first() {
    let (a, b) = with_existing();
    Tool::once(&a, &b, &["--flush-target", "--yes"], HALF_MINUTE);
    must_be_same(&a, &b, "flushed and copied", &Rules::default());
}

#[test]
fn flush_target_without_yes_and_terminal_touches_nothing() {
    let (a, b) = with_existing();
    let mut tool = Tool::sync(&a, &b, &["--once", "--flush-target"]);
    let code = tool.wait(HALF_MINUTE);
    assert_ne!(code, 0, "{}", tool.tail());
    assert!(tool.text().contains("--yes"), "{}", tool.tail());
    assert_eq!(b.client().dbsize(), 3);
}
