//! A full sync again: nothing of an earlier copy lives on.

use super::{finish, following, full_syncs, record, source, start, two_databases, until_following};
use crate::load::{Workload, load_bulk};
use crate::server::{FAST, Server};
use crate::wait::{HALF_MINUTE, until};
use fastrand::Rng;

#[test]
fn resume_after_kill_in_copy_leaves_no_stale_key() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 30_000, 500);
    a.client().call(&cmd!["SET", "bulk:5", 41]);
    let mut tool = start(&a, &b, &["--rate", "8MiB"]);
    let mut target = b.client();
    until(HALF_MINUTE, "half of the copy", || target.dbsize() > 12_000);
    tool.kill();
    let mut source = a.client();
    let dels: Vec<_> = (0..30_000).step_by(2).map(|i| cmd!["DEL", format!("bulk:{i}")]).collect();
    source.load(&dels);
    source.call(&cmd!["DEL", "bulk:5"]);
    let mut tool = start(&a, &b, &["--rate", "8MiB"]);
    until(HALF_MINUTE, "the second copy", || full_syncs(&a) == 2);
    // Builds on leftovers if they are still there.
    let incrs: Vec<_> = (0..2000).step_by(2).map(|i| cmd!["APPEND", format!("bulk:{i}"), "x"]).collect();
    source.load(&incrs);
    source.load(&[cmd!["INCR", "bulk:5"], cmd!["SET", "new", 1]]);
    following(&a, &b, "after a kill in the copy");
    tool.stop();
    finish(&a, &b, &[]);
}

#[test]
fn kills_in_the_copy_under_load_end_equal() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 30_000, 300);
    let load = Workload::start(&a, fastrand::u64(..), 4000, two_databases(&a));
    let mut rng = Rng::new();
    let mut target = b.client();
    let mut tool = start(&a, &b, &["--rate", "8MiB"]);
    for _ in 0..4 {
        let part = rng.u64(1000..20_000) as i64;
        until(HALF_MINUTE, "a part of the copy", || {
            target.dbsize() > part || record(&mut target, 0).contains("following")
        });
        tool.kill();
        let from = rng.u32(0..25_000);
        let dels: Vec<_> = (from..from + 3000).map(|i| cmd!["DEL", format!("bulk:{i}")]).collect();
        a.client().load(&dels);
        tool = start(&a, &b, &["--rate", "8MiB"]);
    }
    load.until_sent(4000, HALF_MINUTE);
    load.stop();
    following(&a, &b, "after kills in the copy");
    tool.stop();
    finish(&a, &b, &[]);
}

/// The source went past its backlog while keyferry was down.
#[test]
fn lost_backlog_means_a_full_sync_without_leftovers() {
    let a = Server::with("redis-7.0", &[FAST, &["repl-backlog-size 16kb"]].concat());
    let b = Server::start("redis-7.0");
    load_bulk(&mut a.client(), "bulk:", 3000, 100);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    tool.kill();
    let mut source = a.client();
    let dels: Vec<_> = (0..3000).step_by(3).map(|i| cmd!["DEL", format!("bulk:{i}")]).collect();
    source.load(&dels);
    load_bulk(&mut source, "more:", 1000, 100);
    let mut tool = start(&a, &b, &[]);
    source.call(&cmd!["APPEND", "bulk:0", "x"]);
    following(&a, &b, "copied again");
    assert!(tool.text().contains("full sync"), "{}", tool.tail());
    until(HALF_MINUTE, "a status line without the reason for what is done", || {
        source.call(&cmd!["INCR", "told"]);
        let text = tool.text();
        let last = text.lines().rev().find(|line| line.starts_with("following:"));
        last.is_some_and(|line| !line.contains("full sync"))
    });
    assert_eq!(full_syncs(&a), 2);
    tool.stop();
    finish(&a, &b, &[]);
}
