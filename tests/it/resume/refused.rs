//! A target that refuses: for a while, or one command for good.

use super::{following, full_syncs, source, start, two_databases, until_following};
use crate::client::Cmd;
use crate::load::Workload;
use crate::server::{Paused, Server, free_port};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, holds_for, until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn refusals_in_a_row_are_waited_for_with_their_reason() {
    let a = source();
    let b = Server::with("redis-7.0", &["lua-time-limit 100"]);
    let load = Workload::start(&a, fastrand::u64(..), 6000, two_databases(&a));
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    let mut target = b.client();
    target.call(&cmd!["CONFIG", "SET", "maxmemory", 1]);
    tool.until_text("answers OOM", HALF_MINUTE);
    load.until_sent(4000, HALF_MINUTE);
    target.call(&cmd!["CONFIG", "SET", "maxmemory", 0]);
    load.until_sent(4000, HALF_MINUTE);
    target.call(&cmd!["REPLICAOF", "127.0.0.1", free_port()]);
    tool.until_text("READONLY", HALF_MINUTE);
    load.until_sent(4000, HALF_MINUTE);
    target.call(&cmd!["REPLICAOF", "NO", "ONE"]);
    load.until_sent(4000, HALF_MINUTE);
    let mut runner = b.client();
    let script = std::thread::spawn(move || runner.ask(&cmd!["EVAL", "while true do end", 0]));
    tool.until_text("BUSY", HALF_MINUTE);
    target.call(&cmd!["SCRIPT", "KILL"]);
    assert!(script.join().expect("the script's thread ends").is_err());
    load.until_sent(4000, HALF_MINUTE);
    target.call(&cmd!["CLIENT", "PAUSE", 1500, "WRITE"]);
    load.until_sent(12_000, HALF_MINUTE);
    load.stop();
    following(&a, &b, "after four refusals");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// With nothing else going on: neither an answer nor a write wakes keyferry up.
#[test]
fn target_that_stands_still_is_named_and_gone_on_with() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    let paused = Paused::new(&b);
    let writes: Vec<Cmd> = (0..1000).map(|i| cmd!["INCR", format!("n:{}", i % 10)]).collect();
    a.client().load(&writes);
    tool.until_text("target doesn't answer: waiting", HALF_MINUTE);
    drop(paused);
    following(&a, &b, "after the target stood still");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// Busy again and again, for a few milliseconds, wherever a start or the stream happens to be.
#[test]
fn target_that_is_often_busy_stops_no_start() {
    let a = source();
    let b = Server::with("redis-7.0", &["lua-time-limit 1"]);
    let load = Workload::start(&a, fastrand::u64(..), 2000, two_databases(&a));
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    let halt = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut runner = b.client();
            let busy = "local t = redis.call('TIME') local u = t[1] * 1e6 + t[2] + ARGV[1] \
                        repeat t = redis.call('TIME') until t[1] * 1e6 + t[2] > u";
            let began = Instant::now();
            // Not for ever, if the rest fails.
            while !halt.load(Ordering::Relaxed) && began.elapsed() < MINUTE {
                // Reads only: it may be busy while it is a replica or full, too.
                runner.call(&cmd!["EVAL", busy, 0, fastrand::u32(2000..15_000)]);
                holds_for(Duration::from_millis(fastrand::u64(0..6)), "nothing", || true);
            }
        });
        for _ in 0..12 {
            load.until_sent(fastrand::u64(200..1500), HALF_MINUTE);
            tool.must_live();
            tool.kill();
            tool = start(&a, &b, &[]);
        }
        load.until_sent(2000, HALF_MINUTE);
        halt.store(true, Ordering::Relaxed);
    });
    load.stop();
    following(&a, &b, "often busy");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// A target that someone else wrote to: one command fails inside EXEC.
fn with_wrong_type(on_error: &str) -> (Server, Server, Tool) {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().load(&[cmd!["RPUSH", "list", 1], cmd!["SET", "other", 1]]);
    let mut tool = start(&a, &b, &["--on-error", on_error]);
    until_following(&b, &mut tool);
    b.client().load(&[cmd!["DEL", "list"], cmd!["SET", "list", "a string"]]);
    a.client().load(&[cmd!["RPUSH", "list", 2], cmd!["INCR", "other"]]);
    (a, b, tool)
}

#[test]
fn refused_for_good_with_skip_goes_on_and_counts() {
    let (a, b, mut tool) = with_wrong_type("skip");
    let mut target = b.client();
    until(HALF_MINUTE, "what comes behind it", || target.get("other").text() == "2");
    tool.must_live();
    tool.until_text("WRONGTYPE", HALF_MINUTE);
    tool.stop();
    assert!(tool.text().contains("skipped: 1"), "{}", tool.tail());
    drop(a);
}

#[test]
fn refused_for_good_with_stop_ends_and_stays_stopped_until_told() {
    let (a, b, mut tool) = with_wrong_type("stop");
    tool.must_end(HALF_MINUTE, 1);
    let text = tool.text();
    for word in ["RPUSH", "list", "WRONGTYPE", "hint:"] {
        assert!(text.contains(word), "no {word}: {text}");
    }
    // It was lost for ever: to go on as if nothing were would hide that.
    let mut again = start(&a, &b, &["--on-error", "stop"]);
    let code = again.wait(HALF_MINUTE);
    let text = again.text();
    assert!(code == 1 || code == 3, "exit {code}: {text}");
    for word in ["RPUSH", "list", "WRONGTYPE", "hint:"] {
        assert!(text.contains(word), "no {word}: {text}");
    }
    let mut skipping = start(&a, &b, &["--on-error", "skip"]);
    let mut target = b.client();
    a.client().call(&cmd!["SET", "other", 7]);
    until(HALF_MINUTE, "what comes behind it", || target.get("other").text() == "7");
    skipping.stop();
}

#[test]
fn refused_for_good_with_recopy_ends_equal() {
    let (a, b, mut tool) = with_wrong_type("recopy");
    following(&a, &b, "copied again");
    tool.stop();
}

#[test]
fn restart_heals_what_stopped_the_job() {
    let (a, b, mut tool) = with_wrong_type("stop");
    tool.must_end(HALF_MINUTE, 1);
    let mut again = start(&a, &b, &["--on-error", "stop", "--restart"]);
    following(&a, &b, "copied again");
    again.stop();
}
