//! Following: the stream is applied in order, whole, exactly, and acknowledged as far as it is applied.

use crate::client::{Client, Cmd, Reply};
use crate::compare::{Rules, until_same};
use crate::load::{Mix, Workload, load_bulk};
use crate::server::{FAST, Paused, Server};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, holds_for, until};
use std::collections::BTreeMap;
use std::time::Duration;

fn follows_random_load(from: &str, to: &str, across_databases: bool) {
    let (a, b) = (Server::start(from), Server::start(to));
    load_bulk(&mut a.client(), "bulk:", 50_000, 100);
    let mix = Mix { databases: vec![0, 1, 3], across_databases, ..Mix::of(&a) };
    let load = Workload::start(&a, fastrand::u64(..), 15_000, mix);
    load.until_sent(5000, HALF_MINUTE);
    let mut tool = Tool::sync(&a, &b, &[]);
    load.until_sent(90_000, MINUTE);
    let sent = load.stop();
    let what = format!("{from} to {to} after {sent} writes");
    until_same(&a, &b, HALF_MINUTE, &what, &Rules::following(&a));
    tool.stop();
}

macro_rules! pairs {
    ($($test:ident: $from:literal => $to:literal, $across:literal;)*) => {$(
        #[test]
        fn $test() {
            follows_random_load($from, $to, $across);
        }
    )*};
}
pairs! {
    load_on_redis_6_0_ends_equal: "redis-6.0" => "redis-6.0", false;
    load_on_redis_7_0_ends_equal: "redis-7.0" => "redis-7.0", false;
    load_on_redis_8_0_ends_equal: "redis-8.0" => "redis-8.0", false;
    load_on_redis_8_6_ends_equal: "redis-8.6" => "redis-8.6", false;
    load_on_valkey_8_1_ends_equal: "valkey-8.1" => "valkey-8.1", false;
    load_on_valkey_9_1_ends_equal: "valkey-9.1" => "valkey-9.1", false;
    load_from_redis_7_0_to_8_0_ends_equal: "redis-7.0" => "redis-8.0", false;
    load_from_valkey_8_1_to_9_1_ends_equal: "valkey-8.1" => "valkey-9.1", false;
    load_across_databases_ends_equal: "redis-7.0" => "redis-7.0", true;
    load_across_databases_of_valkey_ends_equal: "valkey-9.1" => "valkey-9.1", true;
}

#[test]
fn load_with_one_lane_ends_equal() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let load = Workload::start(&a, fastrand::u64(..), 10_000, Mix::of(&a));
    let mut tool = Tool::sync(&a, &b, &["--lanes", "1"]);
    load.until_sent(30_000, MINUTE);
    load.stop();
    until_same(&a, &b, HALF_MINUTE, "one lane", &Rules::following(&a));
    tool.stop();
}

/// A source and an equal target that is followed.
fn following(config: &[&str]) -> (Server, Server, Tool) {
    let a = Server::with("redis-7.0", config);
    let b = Server::start("redis-7.0");
    a.client().call(&cmd!["SET", "first", "1"]);
    let tool = Tool::sync(&a, &b, &[]);
    until(HALF_MINUTE, "the copy", || b.client().call(&cmd!["EXISTS", "first"]).int() == 1);
    (a, b, tool)
}

/// What the source says of its first replica: fields of the line `slave0`, and its own offset at that moment.
fn replica_seen(source: &mut Client) -> Option<(BTreeMap<String, String>, i64)> {
    let info = source.info("replication");
    let line = info.get("slave0")?;
    let fields = line
        .split(',')
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect();
    Some((fields, info.get("master_repl_offset")?.parse().ok()?))
}

fn acked_offset(source: &mut Client) -> Option<(i64, i64)> {
    let (fields, own) = replica_seen(source)?;
    Some((fields.get("offset")?.parse().ok()?, own))
}

#[test]
fn acknowledged_offset_reaches_the_sources_own() {
    let (a, b, mut tool) = following(FAST);
    let mut source = a.client();
    let load = Workload::start(&a, 21, 10_000, Mix::of(&a));
    load.until_sent(20_000, HALF_MINUTE);
    load.stop();
    until(HALF_MINUTE, "the acknowledged offset to equal master_repl_offset", || {
        acked_offset(&mut source).is_some_and(|(acked, own)| acked == own)
    });
    let (fields, _) = replica_seen(&mut source).expect("a replica");
    assert_eq!(fields.get("state").map(String::as_str), Some("online"));
    until_same(&a, &b, HALF_MINUTE, "acknowledged is applied", &Rules::following(&a));
    tool.stop();
}

#[test]
fn nothing_is_acknowledged_that_a_paused_target_has_not_applied() {
    let (a, b, mut tool) = following(FAST);
    let mut source = a.client();
    until(HALF_MINUTE, "a first acknowledgement", || {
        acked_offset(&mut source).is_some_and(|(acked, own)| acked == own)
    });
    let paused = Paused::new(&b);
    let (_, before) = acked_offset(&mut source).expect("a replica");
    source.call(&cmd!["SET", "held-back", "x".repeat(10_000)]);
    holds_for(Duration::from_secs(3), "the old acknowledged offset", || {
        acked_offset(&mut source).is_some_and(|(acked, _)| acked < before + 10_000)
    });
    let (fields, _) = replica_seen(&mut source).expect("a replica");
    let lag: u32 = fields["lag"].parse().expect("a number");
    assert!(lag <= 2, "the last ACK came {lag} s ago");
    drop(paused);
    until_same(&a, &b, HALF_MINUTE, "after the pause", &Rules::following(&a));
    tool.stop();
}

#[test]
fn long_commands_arrive_whole() {
    let (a, b, mut tool) = following(FAST);
    let mut source = a.client();
    let mut push = cmd!["RPUSH", "long"];
    push.extend((0..200_000).map(|i: i32| i.to_string().into_bytes()));
    source.call(&push);
    source.call(&cmd!["SET", "big", vec![b'z'; 40 << 20]]);
    source.load(&[cmd!["SET", "empty", ""], cmd!["SET", "", "the empty key"]]);
    source.call(&cmd!["SET", b"bin\r\n\x00\xff*3\r\n", b"$5\r\n\r\n"]);
    until_same(&a, &b, HALF_MINUTE, "long commands", &Rules::following(&a));
    tool.stop();
}

/// A reader of the target never sees one write of a transaction without the other, on whatever lanes they lie.
#[test]
fn transactions_are_never_seen_half() {
    let (a, b, mut tool) = following(FAST);
    let mut source = a.client();
    let keys: Vec<String> = (0..12).map(|i| format!("account:{i}")).collect();
    let mut rng = fastrand::Rng::with_seed(31);
    let mut read = cmd!["MGET"];
    read.extend(keys.iter().map(|k| k.clone().into_bytes()));
    let mut target = b.client();
    let mut sums = 0;
    for _ in 0..300 {
        let (x, y) = (rng.usize(0..12), rng.usize(0..12));
        let n = rng.i32(1..100);
        let batch: Vec<Cmd> = vec![cmd!["MULTI"], cmd!["INCRBY", keys[x], n], cmd!["DECRBY", keys[y], n], cmd!["EXEC"]];
        source.load(&batch);
        let total: i64 = target.call(&read).list().iter().filter(|r| **r != Reply::Nil).map(Reply::int).sum();
        assert_eq!(total, 0, "a transfer was seen half");
        sums += 1;
    }
    assert_eq!(sums, 300);
    until_same(&a, &b, HALF_MINUTE, "transfers", &Rules::following(&a));
    tool.stop();
}

#[test]
fn a_keys_writes_keep_their_order_over_renames() {
    let (a, b, mut tool) = following(FAST);
    let mut source = a.client();
    let mut batch = vec![cmd!["SET", "walk:0", "0"]];
    for i in 0..2000 {
        batch.push(cmd!["APPEND", format!("walk:{i}"), "x"]);
        batch.push(cmd!["RENAME", format!("walk:{i}"), format!("walk:{}", i + 1)]);
    }
    source.load(&batch);
    until_same(&a, &b, HALF_MINUTE, "a value that wanders over all lanes", &Rules::following(&a));
    assert_eq!(b.client().get("walk:2000").text().len(), 2001);
    tool.stop();
}

#[test]
fn expired_keys_go_with_the_source() {
    let (a, b, mut tool) = following(FAST);
    let mut source = a.client();
    let mut batch = Vec::new();
    for i in 0..200 {
        batch.push(cmd!["SET", format!("soon:{i}"), "v", "PX", 300 + i]);
        batch.push(cmd!["SET", format!("renewed:{i}"), "1", "PX", 300 + i]);
        batch.push(cmd!["INCR", format!("renewed:{i}")]);
        batch.push(cmd!["PEXPIRE", format!("renewed:{i}"), 1_000_000]);
    }
    source.load(&batch);
    until(HALF_MINUTE, "the source to expire its keys", || source.dbsize() == 201);
    until_same(&a, &b, HALF_MINUTE, "after the expiry", &Rules::following(&a));
    tool.stop();
}

#[test]
fn keepalives_of_an_idle_source_keep_the_link() {
    let fast_pings = [FAST, &["repl-ping-replica-period 1", "repl-timeout 4"]].concat();
    let (a, b, mut tool) = following(&fast_pings);
    let mut source = a.client();
    let connected = |source: &mut Client| source.info("stats").get("sync_full").cloned();
    let before = connected(&mut source);
    holds_for(Duration::from_secs(6), "the replica's connection", || replica_seen(&mut source).is_some());
    assert_eq!(connected(&mut source), before, "full syncs");
    source.call(&cmd!["SET", "after", "1"]);
    until_same(&a, &b, HALF_MINUTE, "after idling", &Rules::following(&a));
    tool.stop();
}

#[test]
fn progress_lines_come_where_there_is_no_terminal() {
    let (_a, _b, mut tool) = following(FAST);
    tool.until_text("lag", HALF_MINUTE);
    tool.stop();
}
