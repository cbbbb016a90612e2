//! Relative times: sources before 7.0 stream how long a key has left, and what is received late must not live longer.

use super::{finish, no_trace, run, start, until_following};
use crate::client::{Client, Cmd};
use crate::compare::{GRACE_MS, Rules, expiries, must_be_same, now_ms, until_same};
use crate::load::{Mix, Workload, load_bulk};
use crate::proxy::{Cut, Proxy};
use crate::server::{FAST, Server};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, until};

/// How long a key lives whose end is waited for; so late is received what was written with it.
const LATE_MS: i64 = 3000;

/// It sends no PING that would move its offset.
fn source() -> Server {
    Server::with("redis-6.0", &[FAST, &["repl-backlog-size 64mb", "repl-ping-replica-period 3600"]].concat())
}

/// Expiries said in every way that such a source knows, in two databases, on keys `<p>…`.
fn write(client: &mut Client, p: &str) {
    client.call(&cmd!["SET", "payload", "v"]);
    let payload = client.call(&cmd!["DUMP", "payload"]);
    for db in [0, 2] {
        client.select(db);
        let mut batch: Vec<Cmd> = Vec::new();
        for n in 0..300 {
            let (ms, key) = (600_000 + 7 * n, |kind: &str| format!("{p}{kind}:{n}"));
            batch.extend([
                cmd!["SET", key("px"), n, "PX", ms],
                cmd!["SET", key("ex"), n, "EX", 500 + n],
                cmd!["SETEX", key("setex"), 400 + n, n],
                cmd!["PSETEX", key("psetex"), ms, n],
                cmd!["HSET", key("expire"), "f", n],
                cmd!["EXPIRE", key("expire"), 300 + n],
                cmd!["RPUSH", key("pexpire"), n],
                cmd!["PEXPIRE", key("pexpire"), ms],
                cmd!["RESTORE", key("restore"), ms, payload.bytes()],
                cmd!["SET", key("at"), n],
                cmd!["PEXPIREAT", key("at"), now_ms() + i64::from(ms)],
                cmd!["MULTI"],
                cmd!["INCR", key("multi")],
                cmd!["EXPIRE", key("multi"), 900],
                cmd!["EXEC"],
                cmd!["SET", key("none"), n],
                cmd!["SET", key("soon"), n, "PX", 20_000 + 10 * n],
            ]);
        }
        client.load(&batch);
    }
    client.select(0);
}

/// Waits until a key written now has lived for [`LATE_MS`] on the source.
fn until_late(client: &mut Client) {
    client.call(&cmd!["SET", "lives", 1, "PX", LATE_MS]);
    until(HALF_MINUTE, "a key to expire on the source", || client.call(&cmd!["EXISTS", "lives"]).int() == 0);
}

fn expiry(server: &Server, db: u32, key: &str) -> i64 {
    let mut client = server.client();
    client.select(db);
    let absolute = client.knows("PEXPIRETIME");
    expiries(&mut client, &[key.into()], absolute)[0]
}

/// A job that was killed with a part of `write` beyond its records, and left down while the rest was written, and a
/// while longer.
fn killed(to: &str, more: &[&str]) -> (Server, Server) {
    let (a, b) = (source(), Server::start(to));
    let mut client = a.client();
    write(&mut client, "copied:");
    let mut tool = start(&a, &b, more);
    until_following(&b, &mut tool);
    write(&mut client, "followed:");
    until_same(&a, &b, MINUTE, "followed", &Rules::following(&a));
    // What is received, and received again, and what is received by the next run alone.
    b.pause();
    write(&mut client, "pending:");
    until(HALF_MINUTE, "the source to have sent it", || {
        client.call(&cmd!["CLIENT", "LIST", "TYPE", "replica"]).text().contains(" omem=0 ")
    });
    tool.kill();
    b.resume();
    write(&mut client, "down:");
    until_late(&mut client);
    (a, b)
}

/// Late by what they were received late, while the job follows.
fn following(a: &Server, b: &Server, grace_ms: i64) {
    let rules = Rules { late_ms: grace_ms, slack_ms: 60_000, group_hints: false, ..Rules::default() };
    until_same(a, b, MINUTE, "gone on", &rules);
    // Of what was pending the first is in the flushes that the target had.
    for (db, key) in [(2, "pending:px:299"), (0, "down:px:7")] {
        let late_ms = expiry(b, db, key) - grace_ms - expiry(a, db, key);
        assert!(late_ms >= LATE_MS - 100, "{key} is {late_ms} ms late: nothing is tested");
    }
}

#[test]
fn times_received_late_are_true_after_finish() {
    for to in ["redis-7.0", "redis-6.0", "valkey-9.1"] {
        let (a, b) = killed(to, &[]);
        let mut tool = start(&a, &b, &[]);
        following(&a, &b, GRACE_MS);
        tool.stop();
        finish(&a, &b, &[]);
    }
}

#[test]
fn times_received_late_are_true_after_finish_without_lateness() {
    let exact = ["--expiry-grace", "0"];
    let (a, b) = killed("redis-7.0", &exact);
    let mut tool = start(&a, &b, &exact);
    following(&a, &b, 0);
    tool.stop();
    finish(&a, &b, &exact);
}

#[test]
fn times_received_late_are_true_after_once() {
    for grace in ["1h", "0"] {
        let more = ["--expiry-grace", grace];
        let (a, b) = killed("redis-7.0", &more);
        run("sync", &a, &b, &[&["--once"], &more[..]].concat()).must_end(MINUTE, 0);
        until_same(&a, &b, HALF_MINUTE, "after --once", &Rules::default());
        no_trace(&b);
    }
}

/// keyferry stands still in the middle of its copy, while the source writes.
#[test]
fn times_received_late_during_a_copy_are_true_after_it() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut client = a.client();
    load_bulk(&mut client, "bulk:", 20_000, 500);
    let mut tool = run("sync", &a, &b, &["--once", "--rate", "4MiB"]);
    let mut target = b.client();
    until(HALF_MINUTE, "the copy to begin", || target.dbsize() > 1000);
    tool.freeze();
    write(&mut client, "meanwhile:");
    until_late(&mut client);
    tool.thaw();
    tool.must_end(MINUTE, 0);
    until_same(&a, &b, HALF_MINUTE, "after --once", &Rules::default());
    no_trace(&b);
}

/// Its time has come, but the source has not noticed yet: no DEL of it is in the stream.
#[test]
fn key_that_has_expired_unnoticed_is_gone_after_finish() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let (mut client, mut target) = (a.client(), b.client());
    client.load(&[cmd!["SET", "first", 1], cmd!["DEBUG", "SET-ACTIVE-EXPIRE", 0]]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    tool.kill();
    client.load(&(0..10).map(|n| cmd!["SET", format!("gone:{n}"), n, "PX", 10_000]).collect::<Vec<_>>());
    client.load(&[cmd!["SET", "lives", 1, "PX", 10_500], cmd!["SET", "stays", 1, "EX", 100]]);
    until(HALF_MINUTE, "the keys' time", || client.call(&cmd!["EXISTS", "lives"]).int() == 0);
    assert_eq!(client.info("stats")["expired_keys"], "1", "the source has noticed");
    run("finish", &a, &b, &[]).must_end(MINUTE, 0);
    let left = target.call(&cmd!["KEYS", "gone:*"]);
    assert!(left.list().is_empty(), "they live on: {left:?}");
    must_be_same(&a, &b, "finished", &Rules::default());
}

/// Other keys are written while it settles, so that the source's offset is never the target's.
#[test]
fn times_are_true_while_the_source_goes_on() {
    let more = ["--not-key", "live:*"];
    let (a, b) = killed("redis-7.0", &more);
    let mix = Mix { prefixes: vec!["live:".into()], ..Mix::of(&a) };
    let load = Workload::start(&a, fastrand::u64(..), 2000, mix);
    load.until_sent(500, HALF_MINUTE);
    run("finish", &a, &b, &more).must_end(MINUTE, 0);
    load.stop();
    let in_scope = |_: u32, key: &[u8]| !key.starts_with(b"live:");
    let rules = Rules { in_scope: &in_scope, ..Rules::default() };
    until_same(&a, &b, HALF_MINUTE, "finished", &rules);
    no_trace(&b);
}

/// `finish` by a connection for questions that breaks at each `n`th group of keys.
fn finish_over_cuts(a: &Server, b: &Server, n: usize) -> Tool {
    let proxy = Proxy::start(a.port, Cut::BeforeExec, n);
    let (from, to) = (format!("redis://127.0.0.1:{}", proxy.port), b.url());
    Tool::run(&["finish", "--source", &from, "--target", &to, "--job", "resume"])
}

#[test]
fn times_are_true_over_cuts_of_the_connection_that_asks() {
    let (a, b) = killed("redis-7.0", &[]);
    let mut tool = finish_over_cuts(&a, &b, 90);
    tool.must_end(MINUTE, 0);
    assert!(tool.text().contains("lost"), "nothing was cut: {}", tool.tail());
    until_same(&a, &b, HALF_MINUTE, "finished", &Rules::default());
    no_trace(&b);
}

/// What a broken-off `finish` had given its true time is late again, of that, and true after the next.
#[test]
fn finish_broken_off_and_taken_back_ends_with_true_times() {
    let (a, b) = killed("redis-7.0", &[]);
    let mut target = b.client();
    let mut broken = finish_over_cuts(&a, &b, 50);
    until(HALF_MINUTE, "a part to be settled", || target.call(&cmd!["EXISTS", "keyferry:resume:settling"]).int() == 1);
    broken.kill();
    assert_eq!(target.call(&cmd!["EXISTS", "keyferry:resume:settling"]).int(), 1, "it was done before");
    let mut client = a.client();
    write(&mut client, "then:");
    until_late(&mut client);
    let mut tool = start(&a, &b, &[]);
    tool.until_text("late again", HALF_MINUTE);
    let rules = Rules { slack_ms: 60_000, ..Rules::following(&a) };
    until_same(&a, &b, MINUTE, "gone on", &rules);
    let settled_ms = |(db, key): (u32, &str)| expiry(&b, db, key) - GRACE_MS;
    for key in [(0, "then:px:7"), (2, "then:px:7")] {
        assert!(settled_ms(key) > expiry(&a, key.0, key.1) + LATE_MS - 100, "nothing is tested");
    }
    tool.stop();
    finish(&a, &b, &[]);
}

#[test]
fn keys_of_databases_mapped_into_one_have_their_own_times() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut client = a.client();
    client.call(&cmd!["SET", "first", 1]);
    let map = ["--db-map", "2:0"];
    let mut tool = start(&a, &b, &map);
    until_following(&b, &mut tool);
    tool.kill();
    client.load(&[cmd!["SET", "zero", 1, "EX", 500], cmd!["SET", "both", 0, "EX", 9000]]);
    client.select(2);
    client.load(&[cmd!["SET", "two", 1, "EX", 700], cmd!["SET", "both", 2, "EX", 1000]]);
    let mut other = a.client();
    until_late(&mut other);
    run("finish", &a, &b, &map).must_end(MINUTE, 0);
    assert_eq!(b.client().get("both").text(), "2");
    let keys = |names: [&str; 2]| names.map(|name| name.as_bytes().to_vec());
    assert_eq!(expiry(&b, 0, "zero"), expiry(&a, 0, "zero"));
    let want = expiries(&mut client, &keys(["two", "both"]), false);
    assert_eq!(expiries(&mut b.client(), &keys(["two", "both"]), true), want);
}

/// A user who may not ask is told what is missing; one who may not ask ROLE gets true times all the same.
#[test]
fn source_user_needs_to_ask_for_times() {
    let (a, b) = killed("redis-7.0", &[]);
    let mut client = a.client();
    let rights = "+psync +replconf +ping +info ~* +dump +exists +time +multi +exec +select";
    let mut acl = cmd!["ACL", "SETUSER", "mover", "on", ">word"];
    acl.extend(rights.split(' ').map(|w| w.as_bytes().to_vec()));
    client.call(&acl);
    let (from, to) = (format!("redis://mover:word@127.0.0.1:{}", a.port), b.url());
    let finish = || Tool::run(&["finish", "--source", &from, "--target", &to, "--job", "resume"]);
    let mut refused = finish();
    refused.must_end(MINUTE, 1);
    assert!(refused.text().contains("NOPERM") && refused.text().contains("+pttl"), "{}", refused.tail());
    client.call(&cmd!["ACL", "SETUSER", "mover", "+pttl"]);
    finish().must_end(MINUTE, 0);
    until_same(&a, &b, HALF_MINUTE, "finished", &Rules::default());
    no_trace(&b);
}
