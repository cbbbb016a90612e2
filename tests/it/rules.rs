//! Commands that no key belongs to: SWAPDB, MOVE, COPY DB, FLUSHDB, FLUSHALL, FUNCTION, SCRIPT, PUBLISH.

use crate::client::{Client, Cmd, Reply, Subscriber};
use crate::compare::{Rules, must_be_same, until_same};
use crate::server::Server;
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, until};

fn following(name: &str) -> (Server, Server, Client, Tool) {
    let (a, b) = (Server::start(name), Server::start(name));
    let mut source = a.client();
    for db in [3, 1, 0] {
        source.select(db);
        let batch: Vec<Cmd> = (0..50).map(|i| cmd!["SET", format!("k{i}"), format!("{db}-{i}")]).collect();
        source.load(&batch);
    }
    let tool = Tool::sync(&a, &b, &[]);
    until_same(&a, &b, HALF_MINUTE, "the copy", &Rules::following(&a));
    (a, b, source, tool)
}

#[test]
fn swapdb_is_followed_and_repeated_swaps_too() {
    let (a, b, mut source, mut tool) = following("redis-7.0");
    for (x, y) in [(0, 1), (1, 3), (0, 9), (2, 2), (9, 0)] {
        source.load(&[
            cmd!["SET", format!("before-{x}-{y}"), 1],
            cmd!["SWAPDB", x, y],
            cmd!["SET", format!("after-{x}-{y}"), 1],
        ]);
        until_same(&a, &b, HALF_MINUTE, &format!("SWAPDB {x} {y}"), &Rules::following(&a));
    }
    tool.stop();
}

#[test]
fn move_and_copy_to_another_database_are_followed() {
    let (a, b, mut source, mut tool) = following("redis-7.0");
    source.load(&[
        cmd!["MOVE", "k1", 7],
        cmd!["MOVE", "k2", 1],
        cmd!["COPY", "k3", "k3-copy", "DB", 1],
        cmd!["COPY", "k4", "k4", "DB", 3, "REPLACE"],
        cmd!["SET", "k1", "again"],
        cmd!["MULTI"],
        cmd!["SET", "tx", 1],
        cmd!["MOVE", "tx", 7],
        cmd!["EXEC"],
    ]);
    until_same(&a, &b, HALF_MINUTE, "MOVE and COPY DB", &Rules::following(&a));
    tool.stop();
}

#[test]
fn flushdb_takes_its_database_only() {
    let (a, b, mut source, mut tool) = following("redis-8.0");
    source.load(&[cmd!["SELECT", 1], cmd!["SET", "before", 1], cmd!["FLUSHDB"], cmd!["SET", "after", 1]]);
    until_same(&a, &b, HALF_MINUTE, "FLUSHDB", &Rules::following(&a));
    source.load(&[cmd!["SELECT", 3], cmd!["FLUSHDB", "ASYNC"], cmd!["SELECT", 0]]);
    source.load(&[cmd!["MULTI"], cmd!["FLUSHDB"], cmd!["SET", "in-tx", 1], cmd!["EXEC"]]);
    until_same(&a, &b, HALF_MINUTE, "FLUSHDB in a transaction", &Rules::following(&a));
    tool.stop();
}

#[test]
fn flushall_takes_everything_and_following_goes_on() {
    let (a, b, mut source, mut tool) = following("valkey-8.1");
    source.load(&[cmd!["SET", "before", 1], cmd!["FLUSHALL"], cmd!["SET", "after", 1]]);
    until_same(&a, &b, HALF_MINUTE, "FLUSHALL", &Rules::following(&a));
    source.load(&[cmd!["SELECT", 5], cmd!["SET", "later", 1], cmd!["FLUSHALL", "SYNC"]]);
    source.call(&cmd!["SET", "last", 1]);
    until_same(&a, &b, HALF_MINUTE, "FLUSHALL SYNC", &Rules::following(&a));
    tool.stop();
}

#[test]
fn functions_are_followed() {
    for name in ["redis-7.0", "valkey-9.1"] {
        let (a, b, mut source, mut tool) = following(name);
        let list = cmd!["FUNCTION", "LIST", "WITHCODE"];
        let code = |lib: &str, n: u32| {
            format!("#!lua name={lib}\nredis.register_function('f_{lib}', function() return {n} end)")
        };
        let mut target = b.client();
        let steps = [
            cmd!["FUNCTION", "LOAD", code("one", 1)],
            cmd!["FUNCTION", "LOAD", "REPLACE", code("one", 2)],
            cmd!["FUNCTION", "LOAD", code("two", 3)],
            cmd!["FUNCTION", "DELETE", "one"],
            cmd!["FUNCTION", "FLUSH"],
        ];
        for step in steps {
            source.call(&step);
            let want = sorted(&source.call(&list));
            until(HALF_MINUTE, "the same functions", || sorted(&target.call(&list)) == want);
        }
        must_be_same(&a, &b, name, &Rules::following(&a));
        tool.stop();
    }
}

/// Libraries come in no particular order.
fn sorted(list: &Reply) -> Vec<Reply> {
    let mut libraries = list.list().to_vec();
    libraries.sort_unstable();
    libraries
}

#[test]
fn script_effects_are_followed_and_script_commands_do_no_harm() {
    let (a, b, mut source, mut tool) = following("redis-6.0");
    let body = "redis.call('SET', KEYS[1], ARGV[1]); redis.call('INCR', KEYS[2]); return redis.call('TIME')[1]";
    let sha = source.call(&cmd!["SCRIPT", "LOAD", body]).text();
    source.load(&[
        cmd!["EVALSHA", sha, 2, "by-script", "count", "1"],
        cmd!["SCRIPT", "FLUSH"],
        cmd!["EVAL", body, 2, "by-script", "count", "2"],
    ]);
    until_same(&a, &b, HALF_MINUTE, "scripts", &Rules::following(&a));
    tool.stop();
}

#[test]
fn messages_reach_the_targets_subscribers_but_sentinels_do_not_meet() {
    let (a, b, mut source, mut tool) = following("redis-7.0");
    let mut listener = Subscriber::new(b.client(), "news");
    let mut hello = Subscriber::new(b.client(), "__sentinel__:hello");
    source.load(&[
        cmd!["PUBLISH", "__sentinel__:hello", "127.0.0.1,26379,…"],
        cmd!["PUBLISH", "news", "first"],
        cmd!["SET", "end", 1],
    ]);
    assert_eq!(listener.next(), "first");
    until_same(&a, &b, HALF_MINUTE, "messages", &Rules::following(&a));
    b.client().call(&cmd!["PUBLISH", "__sentinel__:hello", "own"]);
    assert_eq!(hello.next(), "own", "a hello of the source's sentinels came through");
    tool.stop();
}

#[test]
fn an_error_of_the_target_stops_with_command_and_key() {
    let (_a, b, mut source, mut tool) = following("redis-7.0");
    source.call(&cmd!["SET", "wronged", "1"]);
    let mut target = b.client();
    until(HALF_MINUTE, "the key", || target.call(&cmd!["EXISTS", "wronged"]).int() == 1);
    target.load(&[cmd!["DEL", "wronged"], cmd!["RPUSH", "wronged", "someone else's"]]);
    source.call(&cmd!["INCR", "wronged"]);
    tool.must_end(HALF_MINUTE, 1);
    let text = tool.text();
    for word in ["WRONGTYPE", "wronged", "INCR", "hint:"] {
        assert!(text.to_lowercase().contains(&word.to_lowercase()), "no {word:?} in: {text}");
    }
}

#[test]
fn an_error_of_the_target_is_skipped_and_counted_where_told() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut source = a.client();
    source.call(&cmd!["SET", "wronged", "1"]);
    let mut tool = Tool::sync(&a, &b, &["--on-error", "skip"]);
    until_same(&a, &b, HALF_MINUTE, "the copy", &Rules::following(&a));
    let mut target = b.client();
    target.load(&[cmd!["DEL", "wronged"], cmd!["RPUSH", "wronged", "someone else's"]]);
    source.load(&[cmd!["INCR", "wronged"], cmd!["SET", "after", "1"]]);
    until(HALF_MINUTE, "what came after", || target.call(&cmd!["EXISTS", "after"]).int() == 1);
    tool.stop();
    let text = tool.text().to_lowercase();
    assert!(text.contains("skipped: 1"), "the summary is silent: {text}");
}

#[test]
fn out_of_memory_is_waited_out_and_said() {
    let (a, b, mut source, mut tool) = following("redis-7.0");
    let mut target = b.client();
    target.call(&cmd!["CONFIG", "SET", "maxmemory", 1]);
    let batch: Vec<Cmd> = (0..500).map(|i| cmd!["INCR", format!("n{}", i % 50)]).collect();
    source.load(&batch);
    tool.until_text("OOM", HALF_MINUTE);
    target.call(&cmd!["CONFIG", "SET", "maxmemory", 0]);
    until_same(&a, &b, HALF_MINUTE, "after OOM", &Rules::following(&a));
    tool.stop();
}

#[test]
fn a_value_that_is_skipped_is_not_counted_as_copied() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().load(&[cmd!["SET", "taken", "1"], cmd!["HSET", "refused", "f", "v"], cmd!["RPUSH", "refused too", "e"]]);
    let mut acl = cmd!["ACL", "SETUSER", "writer", "on", ">pw"];
    acl.extend(["~*", "&*", "+@all", "-restore"].map(|w| w.as_bytes().to_vec()));
    b.client().call(&acl);
    let to = b.url().replace("redis://", "redis://writer:pw@");
    let mut tool = Tool::run(&["sync", &a.url(), &to, "--once", "--on-error", "skip"]);
    tool.must_end(HALF_MINUTE, 0);
    let text = tool.text();
    for part in ["keys: 1\n", "database 0: 1 string\n", "skipped: 2 "] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}
