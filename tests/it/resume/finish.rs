//! The end of a job.

use super::{finish, following, full_syncs, no_trace, run, source, start, two_databases, until_following};
use crate::client::Client;
use crate::compare::{Rules, must_be_same, now_ms};
use crate::load::Workload;
use crate::server::{FAST, Server};
use crate::wait::{HALF_MINUTE, MINUTE, holds_for, until};
use std::time::Duration;

#[test]
fn finish_interrupted_and_run_again_ends_exactly() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut client = a.client();
    let at = now_ms() + 3_000_000;
    for from in (0..60_000).step_by(5000) {
        let batch: Vec<_> = (from..from + 5000).map(|i| cmd!["SET", format!("k:{i}"), i, "PXAT", at + i]).collect();
        client.load(&batch);
    }
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    following(&a, &b, "before finish");
    tool.stop();
    let load = Workload::start(&a, fastrand::u64(..), 3000, two_databases(&a));
    let mut target = b.client();
    for round in 0..4 {
        let mut finish = run("finish", &a, &b, &[]);
        let exact = |target: &mut Client| {
            let asked: Vec<_> = (0..60_000).step_by(500).map(|i| cmd!["PEXPIRETIME", format!("k:{i}")]).collect();
            target.pipe(&asked).iter().filter(|r| r.int() < at + 60_000).count()
        };
        until(MINUTE, "some settled keys", || exact(&mut target) > round * 20 || !finish.alive());
        finish.kill();
        load.until_sent(1000, HALF_MINUTE);
    }
    load.stop();
    if target.call(&cmd!["KEYS", "keyferry:*"]).list().is_empty() {
        // It was done before it could be killed.
        return;
    }
    finish(&a, &b, &[]);
    assert_eq!(full_syncs(&a), 1);
}

#[test]
fn sync_after_a_broken_off_finish_goes_on() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut client = a.client();
    let at = now_ms() + 3_000_000;
    let batch: Vec<_> = (0..40_000).map(|i| cmd!["SET", format!("k:{i}"), i, "PXAT", at + i]).collect();
    client.load(&batch);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    tool.stop();
    let mut broken = run("finish", &a, &b, &[]);
    let mut target = b.client();
    until(MINUTE, "some settled keys", || {
        let asked: Vec<_> = (0..40_000).step_by(500).map(|i| cmd!["PEXPIRETIME", format!("k:{i}")]).collect();
        target.pipe(&asked).iter().any(|r| r.int() < at + 40_000) || !broken.alive()
    });
    broken.kill();
    client.load(&[cmd!["INCR", "k:7"], cmd!["PEXPIREAT", "k:9", at + 77]]);
    let mut tool = start(&a, &b, &["--existing", "replace"]);
    following(&a, &b, "sync again");
    tool.stop();
    finish(&a, &b, &[]);
}

#[test]
fn finish_with_the_source_gone_removes_the_records() {
    let (mut a, b) = (source(), Server::start("redis-7.0"));
    let at = now_ms() + 900_000;
    a.client().call(&cmd!["SET", "k", 1, "PXAT", at]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    tool.kill();
    a.kill();
    run("finish", &a, &b, &["--source-gone"]).must_end(HALF_MINUTE, 0);
    no_trace(&b);
    assert_eq!(b.client().get("k").text(), "1");
}

#[test]
fn finish_of_a_job_that_never_ran_says_so() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut tool = run("finish", &a, &b, &[]);
    let code = tool.wait(HALF_MINUTE);
    assert!(code == 1 || code == 3, "exit {code}");
    assert!(tool.text().contains("no records"), "{}", tool.tail());
    no_trace(&b);
}

/// A former run's end by `finish` leaves nothing to go on from: the next run starts anew.
#[test]
fn finished_job_leaves_the_target_as_anyone_elses() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "k", 1]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    tool.stop();
    finish(&a, &b, &[]);
    must_be_same(&a, &b, "finished", &Rules::default());
    let mut again = start(&a, &b, &[]);
    again.must_end(HALF_MINUTE, 3);
}

/// Frozen longer than anything waits for: the link is lost and taken up again.
#[test]
fn frozen_keyferry_goes_on_where_it_was() {
    let a = Server::with(
        "redis-7.0",
        &[FAST, &["repl-backlog-size 64mb", "repl-timeout 3", "repl-ping-replica-period 1"]].concat(),
    );
    let b = Server::start("redis-7.0");
    let load = Workload::start(&a, fastrand::u64(..), 4000, two_databases(&a));
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    tool.freeze();
    let mut source = a.client();
    until(HALF_MINUTE, "the source to give the link up", || {
        source.info("replication").get("connected_slaves").map(String::as_str) == Some("0")
    });
    tool.thaw();
    load.until_sent(4000, HALF_MINUTE);
    load.stop();
    following(&a, &b, "thawed");
    holds_for(Duration::from_millis(300), "the job", || tool.alive());
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}
