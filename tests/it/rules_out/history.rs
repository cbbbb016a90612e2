//! The source's history and the time: forks, answers of another history, expiries that the target sees too early.

use super::wire::{Gate, without_first_acks};
use super::{JOB, Stage, Verdict, differs, ends_equal, ends_equal_by, field, needs, offset, record, text};
use crate::compare::{GRACE_MS, Rules};
use crate::server::{FAST, Server, replicate_natively};
use crate::tool::is_following;
use crate::wait::{HALF_MINUTE, until};

fn until_replicated(source: &Server, replica: &Server) {
    let mut client = replica.client();
    until(HALF_MINUTE, "the replica to have all", || {
        client.info("replication")["slave_repl_offset"].parse() == Ok(offset(source))
    });
}

/// A key's value is asked for when the stream was received up to the gate, and lies behind it. Then the source fails
/// over to a replica that never had what lies behind the gate.
#[test]
fn answer_of_another_history_is_asked_for_again() {
    needs("answer-of-this-history", differs!("a", "6", "7"), |out| {
        let stage = Stage::new("1");
        let replica = Server::with("redis-7.0", &[FAST, &["repl-backlog-size 64mb"]].concat());
        replicate_natively(&stage.a, &replica);
        let gate = Gate::before(stage.a.port, b"the gate");
        let mut tool = stage.run_between("sync", gate.port, stage.b.port, &[("KEYFERRY_RULES_OUT", out)], &[]);
        let (mut source, mut other, mut target) = (stage.a.client(), replica.client(), stage.b.client());
        source.call(&cmd!["SET", "passes", 1]);
        until(HALF_MINUTE, "the stream", || text(&mut target, "passes") == "1");

        gate.shut();
        source.load(&[cmd!["SET", "tmp:x", 5], cmd!["RENAME", "tmp:x", "a"], cmd!["SET", "tmp:g", "the gate"]]);
        until_replicated(&stage.a, &replica);
        other.call(&cmd!["REPLICAOF", "NO", "ONE"]);
        let far = "x".repeat(5000);
        source.load(&[cmd!["INCR", "a"], cmd!["INCR", "a"], cmd!["SET", "tmp:pad", far]]);
        gate.open();
        until(HALF_MINUTE, "the question for the key", || source.info("commandstats").contains_key("cmdstat_dump"));
        if !out.is_empty() {
            until(HALF_MINUTE, "the answer", || text(&mut target, "a") == "7");
        }
        gate.turn_to(replica.port);
        other.load(&[cmd!["INCR", "a"], cmd!["SET", "tmp:pad", [far.clone(), far].concat()]]);
        tool.must_live();
        ends_equal(&replica, &stage.b, tool)
    });
}

/// The connection for questions outlives a failover, and leads to what is now a replica of the new primary: one that lags.
#[test]
fn answer_of_a_former_primary_that_lags_is_asked_for_again() {
    needs("answer-not-before-unit", differs!("a", "new", "old"), |out| {
        let stage = Stage::new("1");
        let next = Server::with("redis-7.0", &[FAST, &["repl-backlog-size 64mb"]].concat());
        replicate_natively(&stage.a, &next);
        let gate = Gate::before(stage.a.port, b"nothing that comes");
        let mut tool = stage.run_between("sync", gate.port, stage.b.port, &[("KEYFERRY_RULES_OUT", out)], &[]);
        let (mut former, mut primary, mut target) = (stage.a.client(), next.client(), stage.b.client());
        former.load(&[cmd!["SET", "tmp:x", "old"], cmd!["RENAME", "tmp:x", "a"]]);
        until(HALF_MINUTE, "the first copy", || text(&mut target, "a") == "old");

        until_replicated(&stage.a, &next);
        gate.lead_to(next.port);
        primary.call(&cmd!["REPLICAOF", "NO", "ONE"]);
        replicate_natively(&next, &stage.a);
        // The new primary has no password.
        former.call(&cmd!["CONFIG", "SET", "masterauth", "wrong"]);
        until(HALF_MINUTE, "the stream of the new primary", || {
            primary.call(&cmd!["SET", "passes", 1]);
            text(&mut target, "passes") == "1"
        });
        primary.call(&cmd!["CLIENT", "KILL", "TYPE", "replica"]);
        until(HALF_MINUTE, "the former primary to lag", || former.info("replication")["master_link_status"] == "down");
        primary.load(&[cmd!["SET", "tmp:y", "new"], cmd!["RENAME", "tmp:y", "a"], cmd!["SET", "last", 1]]);
        until(HALF_MINUTE, "the second copy", || text(&mut target, "last") == "1");
        tool.must_live();
        ends_equal(&next, &stage.b, tool)
    });
}

/// One lane has a unit that lies behind the fork, the other's record lies before it: from there the new primary could go
/// on, and never take that unit back.
#[test]
fn records_on_both_sides_of_a_fork_are_not_gone_on_with() {
    needs("one-history", "extra 0:'a'", |out| {
        let stage = Stage::new("2");
        let replica = Server::with("redis-7.0", &[FAST, &["repl-backlog-size 64mb"]].concat());
        replicate_natively(&stage.a, &replica);
        until_replicated(&stage.a, &replica);
        replica.client().call(&cmd!["REPLICAOF", "NO", "ONE"]);
        let mut target = stage.b.client();
        let before: Vec<String> = (0..2).map(|lane| record(&mut target, lane)).collect();
        // Its lane among two.
        let key = "a";
        let lane = keyferry::route::Router::new(2).lane_of(key.as_bytes());
        stage.a.client().call(&cmd!["SET", key, "only here"]);
        let mut tool = stage.run("sync", "", &[]);
        until(HALF_MINUTE, "the unit", || text(&mut target, key) == "only here");
        tool.stop();
        // An idle lane's record lags behind.
        target.call(&cmd!["SET", format!("keyferry:{JOB}:lane:{}", 1 - lane), before[1 - lane]]);
        // What follows lies behind every record.
        replica.client().call(&cmd!["SET", "tmp:pad", "x".repeat(5000)]);
        let env = [("KEYFERRY_RULES_OUT", out)];
        let tool = stage.run_between("sync", replica.port, stage.b.port, &env, &[]);
        ends_equal(&replica, &stage.b, tool)
    });
}

/// The source renews a key in its last moments, and the target hears of it when its own clock is past them.
fn renewed_while_down(grace: &'static str, out: &str) -> Verdict {
    let stage = Stage::with("1", &["--expiry-grace", grace], &[cmd!["SET", "first", 1]]);
    let (mut source, mut target) = (stage.a.client(), stage.b.client());
    let mut tool = stage.run("sync", "", &[]);
    // So long that a busy machine comes to the INCR before they expire.
    source.load(&[cmd!["SET", "a", 5, "PX", 2000], cmd!["SET", "gone", 1, "PX", 2000]]);
    until(HALF_MINUTE, "the keys", || text(&mut target, "a") == "5");
    tool.kill();
    assert_eq!(source.call(&cmd!["INCR", "a"]).int(), 6, "it was renewed too late");
    source.load(&[cmd!["PEXPIRE", "a", 5_000_000]]);
    until(HALF_MINUTE, "the source to expire the other", || text(&mut source, "gone").is_empty());
    if grace != "1h" {
        until(HALF_MINUTE, "the target's clock", || text(&mut target, "a").is_empty());
    }
    let tool = stage.run("sync", out, &[]);
    let late_ms = if grace == "50ms" { 50 } else { GRACE_MS };
    ends_equal_by(&stage.a, &stage.b, tool, &Rules { late_ms, ..Rules::default() })
}

#[test]
fn expiries_are_later_than_any_delay() {
    assert_eq!(renewed_while_down("1h", ""), Ok(()));
    assert_eq!(
        renewed_while_down("0", ""),
        Err(differs!("a", "6", "1").to_owned()),
        "exact at once, and nothing against delays"
    );
}

/// The same with a lateness that is shorter than the time for which the job stood still: it copies again.
#[test]
fn job_that_stood_still_for_longer_than_the_lateness_copies_again() {
    needs("old-copied-again", differs!("a", "6", "1"), |out| renewed_while_down("50ms", out));
}

/// A source that doesn't hear the first ACKs (one whose snapshot's child wasn't reaped yet) begins its stream soon all the
/// same: before the target's record is written, once a second, three times more.
#[test]
fn first_acks_follow_soon_on_each_other() {
    needs("first-acks-often", "no stream", |out| {
        let a = Server::start("redis-7.0");
        a.client().call(&cmd!["SET", "first", 1]);
        let stage = Stage { a, b: Server::start("redis-7.0"), lanes: "1", more: Vec::new() };
        let port = without_first_acks(stage.a.port, 10);
        let mut tool = stage.run_between("sync", port, stage.b.port, &[("KEYFERRY_RULES_OUT", out)], &[]);
        let mut target = stage.b.client();
        until(HALF_MINUTE, "the copy's end", || {
            tool.must_live();
            is_following(&mut target, JOB)
        });
        stage.a.client().call(&cmd!["SET", "streamed", 1]);
        let mut times = vec![field(&record(&mut target, 0), "time")];
        let mut streamed = false;
        until(HALF_MINUTE, "the stream, or records without it", || {
            let time = field(&record(&mut target, 0), "time");
            if times.last() != Some(&time) {
                times.push(time);
            }
            streamed = text(&mut target, "streamed") == "1";
            streamed || times.len() > 4
        });
        if streamed { Ok(()) } else { Err("no stream while the record was written four times".into()) }
    });
}
