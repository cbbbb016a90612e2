//! The harness tested with native replication in keyferry's place: its loads run, its comparer sees what differs.

use crate::compare::{Rules, differences, must_be_same, snapshot, until_same};
use crate::load::{Mix, Workload, load_bulk, load_function, load_types};
use crate::server::{Server, replicate_natively};
use crate::wait::{HALF_MINUTE, MINUTE};

#[test]
fn native_replicas_of_every_type_are_equal() {
    for name in ["redis-6.0", "redis-7.0", "redis-8.6", "valkey-8.1", "valkey-9.1"] {
        let (a, b) = (Server::start(name), Server::start(name));
        let mut client = a.client();
        load_types(&a, &mut client, 7, "");
        client.select(5);
        load_types(&a, &mut client, 8, "five:");
        load_function(&a, &mut client);
        replicate_natively(&a, &b);
        must_be_same(&a, &b, name, &Rules::default());
        let found = snapshot(&b);
        assert!(found.len() > 1900, "{name}: only {} keys", found.len());
    }
}

#[test]
fn native_replicas_follow_the_random_load() {
    for name in ["redis-6.0", "redis-7.0", "redis-8.6", "valkey-9.1"] {
        let (a, b) = (Server::start(name), Server::start(name));
        load_bulk(&mut a.client(), "bulk:", 1000, 100);
        let mix = Mix { databases: vec![0, 1, 3], across_databases: true, ..Mix::of(&a) };
        let load = Workload::start(&a, 11, 15_000, mix);
        load.until_sent(5000, HALF_MINUTE);
        replicate_natively(&a, &b);
        load.until_sent(20_000, HALF_MINUTE);
        load.stop();
        until_same(&a, &b, MINUTE, name, &Rules::following(&a));
    }
}

#[test]
fn comparer_sees_every_kind_of_difference() {
    let (a, b) = (Server::start("redis-8.0"), Server::start("redis-8.0"));
    let mut client = a.client();
    load_types(&a, &mut client, 7, "");
    replicate_natively(&a, &b);
    let mut target = b.client();
    target.call(&cmd!["REPLICAOF", "NO", "ONE"]);
    let want = snapshot(&a);
    assert_eq!(differences(&want, &snapshot(&b), &Rules::default()), [""; 0]);
    let changes = [
        (cmd!["APPEND", "str:1", "x"], "value 0:'str:1'"),
        (cmd!["DEL", "str:2"], "missing 0:'str:2' (string)"),
        (cmd!["SET", "new", "x"], "extra 0:'new' (string)"),
        (cmd!["HSET", "str:3", "f", "x"], ""),
        (cmd!["PEXPIRE", "ttl:1", 1_000_000], "expiry 0:'ttl:1'"),
        (cmd!["PERSIST", "ttl:2"], "expiry 0:'ttl:2'"),
        (cmd!["HPEXPIRE", "hash:0", 1_000_000, "FIELDS", 1, "f0"], "field 0:'hash:0'"),
        (cmd!["HSET", "hash:1", "f0", "other"], "field 0:'hash:1'"),
        (cmd!["LPUSH", "list:1", "x"], "value 0:'list:1'"),
        (cmd!["ZADD", "zset:1", 7, "zz"], "value 0:'zset:1'"),
        (cmd!["XACK", "stream:a", "g1", "1003-0", "1004-1"], "stream 0:'stream:a' group g1 pending"),
        (cmd!["XGROUP", "SETID", "stream:b", "none", "0"], ""),
        (cmd!["XSETID", "stream:b", "9999-0"], "stream 0:'stream:b' last-generated-id"),
        (cmd!["XGROUP", "DELCONSUMER", "stream:a", "g1", "idle-consumer"], "stream 0:'stream:a'"),
        (cmd!["SET", "keyferry:job:0", "a record"], ""),
    ];
    for (change, line) in changes {
        let before = snapshot(&b);
        if target.ask(&change).is_err() {
            continue;
        }
        let lines = differences(&before, &snapshot(&b), &Rules::default());
        match line {
            "" => assert_eq!(lines, [""; 0]),
            _ => assert!(lines.len() == 1 && lines[0].starts_with(line), "{lines:?}, not {line}"),
        }
    }
}

#[test]
fn comparer_takes_expiries_an_hour_late_only_where_told() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let at = crate::compare::now_ms() + 10_000_000;
    a.client().load(&[cmd!["SET", "k", "v"], cmd!["PEXPIREAT", "k", at]]);
    let late = at + crate::compare::GRACE_MS;
    b.client().load(&[cmd!["SET", "k", "v"], cmd!["PEXPIREAT", "k", late]]);
    let (x, y) = (snapshot(&a), snapshot(&b));
    assert_eq!(differences(&x, &y, &Rules::following(&a)), [""; 0]);
    assert_eq!(differences(&x, &y, &Rules::default()).len(), 1);
}

#[test]
fn server_keeps_port_and_folder_over_a_restart() {
    let mut a = Server::start("redis-7.0");
    a.client().load(&[cmd!["SET", "k", "v"], cmd!["SAVE"]]);
    let port = a.port;
    a.restart();
    assert_eq!((a.port, a.client().get("k").text()), (port, "v".to_string()));
}
