//! Going on: after kills, refusals, lost writes of the target and failovers of the source, every write is there once.

mod acks;
mod again;
mod expiry;
mod finish;
mod guards;
mod lossy;
mod refused;
mod relative;
mod spool;

use crate::client::{Client, Reply};
use crate::compare::{Rules, databases, is_own_record, scan, until_same};
use crate::load::{Mix, Workload, load_bulk};
use crate::server::{FAST, Server, replicate_natively};
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, MINUTE, until};
use fastrand::Rng;
use std::time::{Duration, Instant};

/// A source that can go on from a good while ago.
fn source() -> Server {
    Server::with("redis-7.0", &[FAST, &["repl-backlog-size 64mb"]].concat())
}

/// Starts the job; its folder for the spool stays the same over its lives.
fn start(a: &Server, b: &Server, more: &[&str]) -> Tool {
    run("sync", a, b, more)
}

fn run(command: &str, a: &Server, b: &Server, more: &[&str]) -> Tool {
    let (from, to) = (a.url(), b.url());
    let spool = a.dir().join("spool").display().to_string();
    let mut args = vec![command, "--source", &from, "--target", &to, "--job", "resume"];
    if !more.contains(&"--spool-dir") {
        args.extend(["--spool-dir", &spool]);
    }
    args.extend_from_slice(more);
    Tool::run(&args)
}

/// Waits until the copy is whole and the records say so.
fn until_following(b: &Server, tool: &mut Tool) {
    let mut target = b.client();
    until(MINUTE, "the copy's end", || {
        tool.must_live();
        is_following(&mut target, "resume")
    });
}

fn record(target: &mut Client, lane: u32) -> String {
    let reply = target.call(&cmd!["GET", format!("keyferry:resume:lane:{lane}")]);
    if reply == Reply::Nil { String::new() } else { reply.text() }
}

fn offset_of(record: &str) -> u64 {
    let word = record.split(' ').find_map(|w| w.strip_prefix("offset="));
    word.expect("an offset").parse().expect("a number")
}

fn full_syncs(a: &Server) -> u32 {
    let stats = a.client().info("stats");
    stats["sync_full"].parse().expect("a number")
}

fn following(a: &Server, b: &Server, what: &str) {
    until_same(a, b, MINUTE, what, &Rules::following(a));
}

/// The same under the filter that leaves `tmp:` out.
fn following_in_scope(a: &Server, b: &Server, what: &str) {
    let rules = Rules { in_scope: &|_, key| !key.starts_with(b"tmp:"), ..Rules::following(a) };
    until_same(a, b, MINUTE, what, &rules);
}

/// Ends the job for good: equal to the last millisecond, and no trace of keyferry.
fn finish(a: &Server, b: &Server, more: &[&str]) {
    run("finish", a, b, more).must_end(MINUTE, 0);
    let rules = Rules { group_hints: false, ..Rules::default() };
    until_same(a, b, HALF_MINUTE, "finished", &rules);
    no_trace(b);
}

fn no_trace(b: &Server) {
    let mut target = b.client();
    for db in databases(&mut target) {
        target.select(db);
        let mut keys = scan(&mut target);
        keys.retain(|key| is_own_record(key));
        assert!(keys.is_empty(), "keyferry's keys are left: {keys:?}");
    }
}

fn two_databases(a: &Server) -> Mix {
    Mix { databases: vec![0, 2], ..Mix::of(a) }
}

/// Waits for the target's save, so that it can restart from it.
fn save(b: &Server) {
    b.client().call(&cmd!["SAVE"]);
}

#[test]
fn resume_after_ten_kills_under_load_ends_equal_with_one_full_sync() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 20_000, 100);
    let load = Workload::start(&a, fastrand::u64(..), 6000, two_databases(&a));
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    let mut rng = Rng::new();
    for _ in 0..10 {
        load.until_sent(rng.u64(500..8000), HALF_MINUTE);
        tool.kill();
        load.until_sent(rng.u64(0..3000), HALF_MINUTE);
        tool = start(&a, &b, &[]);
    }
    load.until_sent(5000, HALF_MINUTE);
    load.stop();
    following(&a, &b, "after ten kills");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
    finish(&a, &b, &[]);
    assert_eq!(full_syncs(&a), 1);
}

/// What the stream has selected isn't said again by a partial resync.
#[test]
fn resume_in_another_database_goes_on_there() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut client = a.client();
    client.call(&cmd!["SET", "k", 0]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    client.select(5);
    for i in 0..5 {
        client.call(&cmd!["RPUSH", "list", i]);
        following(&a, &b, "before the kill");
        tool.kill();
        client.call(&cmd!["RPUSH", "list", format!("{i} meanwhile")]);
        tool = start(&a, &b, &[]);
        following(&a, &b, "after the kill");
    }
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// Transactions over all lanes and two databases: killed while they are in flight, none is applied half or twice.
#[test]
fn resume_amid_joint_flushes_applies_each_once() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "k", 0]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    let mut rng = Rng::new();
    let mut client = a.client();
    let mut target = b.client();
    for _ in 0..6 {
        let mut batch = Vec::new();
        for i in 0..4000 {
            batch.extend([cmd!["MULTI"], cmd!["INCR", format!("n:{}", i % 50)]]);
            batch.extend([cmd!["RPUSH", format!("l:{}", rng.u32(0..50)), i]]);
            batch.extend([cmd!["SELECT", rng.u32(0..3)], cmd!["INCR", "sum"]]);
            batch.push(cmd!["EXEC"]);
            batch.push(cmd!["RENAME", format!("n:{}", i % 50), format!("n:{}", rng.u32(0..50))]);
        }
        let processed = |target: &mut Client| target.info("stats")["total_commands_processed"].parse::<u64>();
        let goal = processed(&mut target).expect("a number") + rng.u64(100..16_000);
        client.pipe(&batch);
        until(HALF_MINUTE, "some of it to be applied", || processed(&mut target).expect("a number") > goal);
        tool.kill();
        tool = start(&a, &b, &[]);
    }
    following(&a, &b, "after kills amid transactions");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

#[test]
fn resume_after_sigterm_needs_no_full_sync_and_tells_of_late_times() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let load = Workload::start(&a, fastrand::u64(..), 6000, two_databases(&a));
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    for _ in 0..4 {
        load.until_sent(4000, HALF_MINUTE);
        tool.stop();
        let text = tool.text();
        assert!(text.contains("keyferry finish"), "{}", tool.tail());
        load.until_sent(2000, HALF_MINUTE);
        tool = start(&a, &b, &[]);
    }
    load.stop();
    following(&a, &b, "after four ends by SIGTERM");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

#[test]
fn resume_takes_under_a_second_to_the_first_unit() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "n", 0]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    let mut best = Duration::MAX;
    for i in 1..4 {
        tool.kill();
        a.client().call(&cmd!["SET", "n", i]);
        let started = Instant::now();
        tool = start(&a, &b, &[]);
        let mut target = b.client();
        until(HALF_MINUTE, "the first unit", || target.get("n").text() == i.to_string());
        best = best.min(started.elapsed());
    }
    println!("resumed in {best:?}");
    assert!(best < Duration::from_secs(5), "resumed in {best:?} at best");
    tool.stop();
}

/// The source's replica takes over; the job goes on there by its secondary replid.
#[test]
fn source_failover_is_followed_by_partial_resync() {
    let (mut a, b) = (source(), Server::start("redis-7.0"));
    let replica = source();
    replicate_natively(&a, &replica);
    let load = Workload::start(&a, fastrand::u64(..), 5000, two_databases(&a));
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    load.until_sent(10_000, HALF_MINUTE);
    load.stop();
    let offset = a.client().info("replication")["master_repl_offset"].clone();
    let mut other = replica.client();
    until(HALF_MINUTE, "the replica to have all", || {
        other.info("replication").get("master_repl_offset") >= Some(&offset)
    });
    following(&a, &b, "before the failover");
    tool.kill();
    a.kill();
    other.call(&cmd!["REPLICAOF", "NO", "ONE"]);
    let load = Workload::start(&replica, fastrand::u64(..), 5000, two_databases(&replica));
    load.until_sent(5000, HALF_MINUTE);
    let before = full_syncs(&replica);
    let mut tool = start(&replica, &b, &[]);
    load.until_sent(5000, HALF_MINUTE);
    load.stop();
    following(&replica, &b, "after the failover");
    assert_eq!(full_syncs(&replica), before, "{}", tool.tail());
    tool.stop();
    finish(&replica, &b, &[]);
}

/// The promoted replica lacks writes that the target has already: going on there would keep them for ever.
#[test]
fn source_failover_behind_the_target_is_a_full_sync_said_aloud() {
    let (mut a, b) = (source(), Server::start("redis-7.0"));
    let replica = source();
    replicate_natively(&a, &replica);
    a.client().load(&[cmd!["SET", "k", 1], cmd!["SET", "stays", 1]]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    replica.pause();
    a.client().load(&[cmd!["INCR", "k"], cmd!["SET", "never", "on the replica"]]);
    following(&a, &b, "before the failover");
    tool.kill();
    a.kill();
    replica.resume();
    let mut other = replica.client();
    other.call(&cmd!["REPLICAOF", "NO", "ONE"]);
    // Unless the stopped replica had them in its socket.
    let lost = other.call(&cmd!["EXISTS", "never"]).int() == 0;
    other.call(&cmd!["INCR", "k"]);
    let before = full_syncs(&replica);
    let mut tool = start(&replica, &b, &[]);
    following(&replica, &b, "after a failover that lost writes");
    if lost {
        assert_eq!(full_syncs(&replica), before + 1);
        assert!(tool.text().contains("full sync"), "{}", tool.tail());
    }
    tool.stop();
}

#[test]
fn other_filter_is_refused_without_restart() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().load(&[cmd!["SET", "tmp:a", 1], cmd!["SET", "b", 1]]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    tool.stop();
    for other in [&["--not-key", "tmp:*"][..], &["--db-map", "0:3"], &["--expiry-grace", "2h"]] {
        let mut refused = start(&a, &b, other);
        refused.must_end(HALF_MINUTE, 3);
        let text = refused.text();
        assert!(text.contains("--restart") && text.contains("hint:"), "{text}");
    }
    // Nothing was touched: the job goes on as it was.
    a.client().call(&cmd!["INCR", "b"]);
    let mut tool = start(&a, &b, &[]);
    following(&a, &b, "with its own filter");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
    let mut tool = start(&a, &b, &["--not-key", "tmp:*", "--restart"]);
    let rules = Rules { in_scope: &|_, key| !key.starts_with(b"tmp:"), ..Rules::following(&a) };
    until(HALF_MINUTE, "a second full sync", || full_syncs(&a) == 2);
    a.client().load(&[cmd!["INCR", "tmp:a"], cmd!["INCR", "b"]]);
    let mut target = b.client();
    until(HALF_MINUTE, "the new filter's job", || target.get("b").text() == "3");
    // What lies outside the new filter isn't this job's any more.
    target.call(&cmd!["DEL", "tmp:a"]);
    until_same(&a, &b, HALF_MINUTE, "with another filter", &rules);
    tool.stop();
}

#[test]
fn other_lane_count_is_taken_over() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let load = Workload::start(&a, fastrand::u64(..), 5000, two_databases(&a));
    let mut tool = start(&a, &b, &["--lanes", "3"]);
    until_following(&b, &mut tool);
    for lanes in ["1", "8", "2", "5"] {
        load.until_sent(3000, HALF_MINUTE);
        tool.kill();
        tool = start(&a, &b, &["--lanes", lanes]);
        let wanted = format!("lanes={lanes} ");
        let mut target = b.client();
        until(HALF_MINUTE, &wanted, || {
            tool.must_live();
            record(&mut target, 0).contains(&wanted)
        });
        let keys = target.call(&cmd!["KEYS", "keyferry:resume:lane:*"]);
        assert_eq!(keys.list().len().to_string(), lanes, "{keys:?}");
    }
    load.until_sent(3000, HALF_MINUTE);
    load.stop();
    following(&a, &b, "over five lane counts");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
    finish(&a, &b, &[]);
}
