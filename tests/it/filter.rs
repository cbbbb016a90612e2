//! `--db`, `--db-map`, `--key` and their kin, in the copy and in the stream, with commands that cross the edge.

use crate::client::{Client, Cmd};
use crate::compare::{Rules, must_be_same, until_same};
use crate::load::{Mix, Workload, load_types};
use crate::server::Server;
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE};

const SCOPE: &[&str] = &["--db", "2,5", "--key", "user:*", "--not-key", "user:tmp:*"];

fn in_scope(db: u32, key: &[u8]) -> bool {
    (db == 2 || db == 5) && key.starts_with(b"user:") && !key.starts_with(b"user:tmp:")
}

fn scoped(source: &Server) -> Rules<'static> {
    Rules { in_scope: &in_scope, ..Rules::following(source) }
}

fn filtered_load(from: &str, to: &str, across_databases: bool) {
    let (a, b) = (Server::start(from), Server::start(to));
    let mut client = a.client();
    for db in [0, 2, 5, 7] {
        client.select(db);
        for prefix in ["user:", "user:tmp:", "other:"] {
            load_types(&a, &mut client, u64::from(db), prefix);
        }
    }
    let mix = Mix {
        prefixes: vec!["user:".into(), "user:tmp:".into(), "other:".into()],
        // First the one with the blocked reader.
        databases: vec![2, 0, 5, 7],
        keys: 30,
        across_databases,
        ..Mix::of(&a)
    };
    let load = Workload::start(&a, fastrand::u64(..), 10_000, mix);
    let mut tool = Tool::sync(&a, &b, SCOPE);
    load.until_sent(70_000, MINUTE);
    load.stop();
    until_same(&a, &b, HALF_MINUTE, "filtered load", &scoped(&a));
    tool.stop();
}

#[test]
fn filtered_load_on_redis_7_0_ends_equal() {
    filtered_load("redis-7.0", "redis-7.0", false);
}

#[test]
fn filtered_load_on_redis_6_0_ends_equal() {
    filtered_load("redis-6.0", "redis-6.0", false);
}

#[test]
fn filtered_load_on_valkey_9_1_ends_equal() {
    filtered_load("valkey-9.1", "valkey-9.1", false);
}

#[test]
fn filtered_load_across_databases_ends_equal() {
    filtered_load("redis-8.0", "redis-8.0", true);
}

/// A source with values in and out of scope in four databases, followed under [`SCOPE`].
fn crossing() -> (Server, Server, Client, Tool) {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut source = a.client();
    for db in [0, 2, 5, 9] {
        source.select(db);
        let mut batch: Vec<Cmd> = Vec::new();
        for p in ["user:", "user:tmp:", "tmp:"] {
            for i in 0..20 {
                batch.push(cmd!["SET", format!("{p}str:{i}"), format!("{p}{db}-{i}")]);
                batch.push(cmd!["SADD", format!("{p}set:{i}"), i, i + 1, format!("{p}{db}")]);
                batch.push(cmd!["RPUSH", format!("{p}list:{i}"), "a", "b", p]);
                batch.push(cmd!["ZADD", format!("{p}zset:{i}"), 1, "a", 2, p]);
                batch.push(cmd!["SETBIT", format!("{p}bit:{i}"), i, 1]);
                batch.push(cmd!["PFADD", format!("{p}hll:{i}"), i, p]);
            }
        }
        source.load(&batch);
    }
    let tool = Tool::sync(&a, &b, SCOPE);
    until_same(&a, &b, HALF_MINUTE, "the copy", &scoped(&a));
    source.select(2);
    (a, b, source, tool)
}

fn crosses(what: &str, commands: &[Cmd]) {
    let (a, b, mut source, mut tool) = crossing();
    for db in [2, 0, 5] {
        source.select(db);
        source.load(commands);
        until_same(&a, &b, HALF_MINUTE, what, &scoped(&a));
    }
    tool.stop();
}

#[test]
fn lists_of_keys_are_cut_to_the_scope() {
    crosses(
        "DEL, UNLINK, MSET, MSETNX",
        &[
            cmd!["MSET", "user:1", "a", "tmp:1", "b", "user:tmp:1", "c", "user:2", "d"],
            cmd!["DEL", "user:str:1", "tmp:str:1", "user:tmp:str:1"],
            cmd!["UNLINK", "tmp:str:2", "user:str:2"],
            cmd!["MSETNX", "user:nx", "1", "tmp:nx", "2"],
            cmd!["DEL", "tmp:str:3", "user:tmp:str:3"],
        ],
    );
}

#[test]
fn renames_and_copies_over_the_edge_end_equal() {
    crosses(
        "RENAME, RENAMENX, COPY",
        &[
            cmd!["RENAME", "user:str:4", "tmp:gone"],
            cmd!["RENAME", "tmp:str:4", "user:came-in"],
            cmd!["APPEND", "user:came-in", "!"],
            cmd!["RENAME", "tmp:str:5", "user:str:5"],
            cmd!["RENAMENX", "tmp:str:6", "user:nx-in"],
            cmd!["RENAMENX", "user:str:6", "user:tmp:nx-out"],
            cmd!["COPY", "tmp:list:1", "user:copied"],
            cmd!["COPY", "user:list:1", "tmp:copied"],
            cmd!["COPY", "tmp:list:2", "user:list:2", "REPLACE"],
            cmd!["RPUSH", "user:copied", "more"],
        ],
    );
}

#[test]
fn store_commands_over_the_edge_end_equal() {
    crosses(
        "*STORE, BITOP, PFMERGE, SORT",
        &[
            cmd!["SUNIONSTORE", "user:union", "tmp:set:1", "user:set:1"],
            cmd!["SINTERSTORE", "user:inter", "tmp:set:2", "user:set:2"],
            cmd!["SDIFFSTORE", "user:set:3", "user:set:3", "tmp:set:3"],
            cmd!["SUNIONSTORE", "tmp:union", "tmp:set:1", "user:set:1"],
            cmd!["ZUNIONSTORE", "user:zu", 2, "tmp:zset:1", "user:zset:1"],
            cmd!["ZRANGESTORE", "user:zr", "tmp:zset:2", 0, -1],
            cmd!["BITOP", "XOR", "user:bits", "tmp:bit:1", "user:bit:2"],
            cmd!["PFMERGE", "user:hll:1", "tmp:hll:2", "user:hll:3"],
            cmd!["SORT", "tmp:set:4", "ALPHA", "STORE", "user:sorted"],
            cmd!["SORT", "user:set:4", "ALPHA", "STORE", "tmp:sorted"],
            cmd!["SADD", "user:union", "after"],
        ],
    );
}

#[test]
fn moved_elements_over_the_edge_end_equal() {
    crosses(
        "SMOVE, LMOVE, RPOPLPUSH, LMPOP",
        &[
            cmd!["SMOVE", "tmp:set:5", "user:set:5", "tmp:2"],
            cmd!["SMOVE", "user:set:6", "tmp:set:6", "6"],
            cmd!["SADD", "tmp:set:7", "x"],
            cmd!["SMOVE", "tmp:set:7", "user:set:7", "x"],
            cmd!["LMOVE", "tmp:list:3", "user:list:3", "LEFT", "RIGHT"],
            cmd!["LMOVE", "user:list:4", "tmp:list:4", "LEFT", "LEFT"],
            cmd!["RPOPLPUSH", "tmp:list:5", "user:list:5"],
            cmd!["BLMOVE", "tmp:list:6", "user:list:6", "RIGHT", "LEFT", 1],
            cmd!["LMPOP", 2, "tmp:list:7", "user:list:7", "LEFT"],
            cmd!["LPUSH", "user:list:3", "after"],
        ],
    );
}

#[test]
fn scripts_and_transactions_keep_what_is_in_scope() {
    let script = "redis.call('SET',KEYS[1],ARGV[1]) redis.call('SET',KEYS[2],ARGV[1])";
    crosses(
        "EVAL, MULTI",
        &[
            cmd!["EVAL", script, 2, "user:lua", "tmp:lua", "z"],
            cmd!["EVAL", script, 2, "tmp:lua", "user:tmp:lua", "z"],
            cmd!["MULTI"],
            cmd!["INCR", "user:m"],
            cmd!["INCR", "tmp:m"],
            cmd!["INCR", "user:m2"],
            cmd!["EXEC"],
            cmd!["MULTI"],
            cmd!["INCR", "tmp:m"],
            cmd!["EXEC"],
            cmd!["MULTI"],
            cmd!["RENAME", "tmp:str:8", "user:in-tx"],
            cmd!["APPEND", "user:in-tx", "!"],
            cmd!["RENAME", "user:str:9", "tmp:out-tx"],
            cmd!["EXEC"],
        ],
    );
}

#[test]
fn moves_between_databases_over_the_edge_end_equal() {
    let (a, b, mut source, mut tool) = crossing();
    source.load(&[
        cmd!["MOVE", "user:str:10", 7],
        cmd!["COPY", "user:str:11", "user:c11", "DB", 5],
        cmd!["COPY", "user:str:12", "user:c12", "DB", 7],
        cmd!["COPY", "tmp:str:12", "user:c13", "DB", 5],
        cmd!["SELECT", 9],
        cmd!["SET", "user:from9", "1"],
        cmd!["MOVE", "user:from9", 5],
        cmd!["COPY", "user:list:1", "user:from9-list", "DB", 2],
    ]);
    until_same(&a, &b, HALF_MINUTE, "MOVE and COPY DB", &scoped(&a));
    tool.stop();
}

#[test]
fn swaps_and_flushes_under_a_filter_end_equal() {
    let (a, b, mut source, mut tool) = crossing();
    let mut target = b.client();
    target.select(2);
    target.call(&cmd!["SET", "not-from-the-source", "1"]);
    let steps = [cmd!["SWAPDB", 2, 5], cmd!["SWAPDB", 2, 9], cmd!["SWAPDB", 0, 9], cmd!["FLUSHDB"]];
    for step in &steps {
        source.select(5);
        source.call(step);
        let mine = |db: u32, key: &[u8]| in_scope(db, key);
        let rules = Rules { in_scope: &mine, ..Rules::following(&a) };
        target.select(2);
        assert_eq!(target.call(&cmd!["DEL", "not-from-the-source"]).int(), 1, "{step:?}");
        until_same(&a, &b, HALF_MINUTE, "SWAPDB and FLUSHDB", &rules);
        target.call(&cmd!["SET", "not-from-the-source", "1"]);
    }
    source.call(&cmd!["FLUSHALL"]);
    source.call(&cmd!["SET", "user:after", "1"]);
    until_same_but_one(&a, &b);
    tool.stop();
}

/// Only `user:after` from the source, and what someone else wrote out of scope.
fn until_same_but_one(a: &Server, b: &Server) {
    let mut target = b.client();
    target.select(5);
    crate::wait::until(HALF_MINUTE, "FLUSHALL in scope", || target.call(&cmd!["EXISTS", "user:after"]).int() == 1);
    target.select(2);
    let left = target.call(&cmd!["DEL", "not-from-the-source"]);
    assert_eq!(left.int(), 1, "FLUSHALL took a key that is out of scope");
    until_same(a, b, HALF_MINUTE, "after FLUSHALL", &scoped(a));
}

#[test]
fn databases_are_mapped_in_copy_and_stream() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut source = a.client();
    for db in [0, 2, 5] {
        source.select(db);
        load_types(&a, &mut source, u64::from(db), &format!("d{db}:"));
    }
    let rules = Rules {
        in_scope: &|db, _| db == 2 || db == 5,
        database: &|db| if db == 2 { 0 } else { 1 },
        ..Rules::following(&a)
    };
    let mut tool = Tool::sync(&a, &b, &["--db", "2,5", "--db-map", "2:0,5:1"]);
    until_same(&a, &b, HALF_MINUTE, "the mapped copy", &rules);
    for db in [0, 2, 5] {
        source.select(db);
        source.load(&[
            cmd!["SET", format!("d{db}:new"), "1"],
            cmd!["MOVE", format!("d{db}:str:1"), 7],
            cmd!["RENAME", format!("d{db}:str:2"), format!("d{db}:renamed")],
            cmd!["MULTI"],
            cmd!["INCR", format!("d{db}:cnt")],
            cmd!["EXEC"],
        ]);
    }
    source.call(&cmd!["COPY", "d5:str:3", "d2:from-5", "DB", 2]);
    until_same(&a, &b, HALF_MINUTE, "the mapped stream", &rules);
    tool.stop();
}

fn once_under(options: &[&str], in_scope: &dyn Fn(u32, &[u8]) -> bool) {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    load_types(&a, &mut a.client(), 9, "");
    let mut args = vec!["--once"];
    args.extend_from_slice(options);
    let mut tool = Tool::sync(&a, &b, &args);
    tool.must_end(HALF_MINUTE, 0);
    let rules = Rules { in_scope, ..Rules::default() };
    must_be_same(&a, &b, &format!("{options:?}"), &rules);
    assert!(b.client().dbsize() > 0, "{options:?} lets nothing pass");
}

#[test]
fn key_patterns_mean_what_the_servers_mean() {
    once_under(&["--key", "str:?", "--key", "[h-i]*:1[0-3]"], &|_, k| {
        let one = k.len() == 5 && k.starts_with(b"str:");
        let two = matches!(k, [b'h' | b'i', .., b':', b'1', b'0'..=b'3']);
        one || two
    });
    once_under(&["--key", "bin:*"], &|_, k| k.starts_with(b"bin:"));
    once_under(&["--not-key", "*:*"], &|_, k| !k.contains(&b':'));
}

#[test]
fn key_regexes_see_raw_bytes() {
    once_under(&["--key-regex", r"^str:\d\d$"], &|_, k| {
        k.len() == 6 && k.starts_with(b"str:") && k[4..].iter().all(u8::is_ascii_digit)
    });
    once_under(&["--not-key-regex", r"(?-u:\xff)"], &|_, k| !k.contains(&0xff));
}

#[test]
fn value_types_filter_the_copy() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    load_types(&a, &mut a.client(), 9, "");
    Tool::once(&a, &b, &["--type", "hash,stream"], HALF_MINUTE);
    let found = crate::compare::snapshot(&b);
    let want = crate::compare::snapshot(&a);
    let kinds = |e: &crate::compare::Entry| e.kind == "hash" || e.kind == "stream";
    assert_eq!(found.len(), want.values().filter(|e| kinds(e)).count());
    assert!(found.values().all(kinds));
}

#[test]
fn commands_are_left_out_of_the_stream() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut source = a.client();
    source.load(&[cmd!["SET", "k", "1"], cmd!["XADD", "s", "1-1", "f", "v"]]);
    let mut tool = Tool::sync(&a, &b, &["--not-command", "flushall,append,xgroup|destroy"]);
    until_same(&a, &b, HALF_MINUTE, "the copy", &Rules::default());
    source.load(&[
        cmd!["APPEND", "k", "2"],
        cmd!["XGROUP", "CREATE", "s", "g", "0"],
        cmd!["XGROUP", "DESTROY", "s", "g"],
        cmd!["FLUSHALL"],
        cmd!["SET", "end", "1"],
    ]);
    let mut target = b.client();
    crate::wait::until(HALF_MINUTE, "the last write", || target.call(&cmd!["EXISTS", "end"]).int() == 1);
    assert_eq!(target.get("k").text(), "1");
    assert_eq!(target.call(&cmd!["XINFO", "GROUPS", "s"]).list().len(), 1);
    tool.stop();
}
