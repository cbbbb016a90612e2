//! Key guards: what stands elsewhere than the stream, over kills and rollbacks.

use super::{following_in_scope, full_syncs, offset_of, record, save, source, start, two_databases, until_following};
use crate::load::{Mix, Workload};
use crate::server::Server;
use crate::wait::{HALF_MINUTE, until};
use fastrand::Rng;
use std::time::Duration;

/// RENAME over the filter's edge, killed right after, while the renamed keys are written on.
#[test]
fn rename_over_the_edge_survives_kills_under_load() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mix = Mix { prefixes: vec![String::new(), "tmp:".into()], keys: 20, ..two_databases(&a) };
    let load = Workload::start(&a, fastrand::u64(..), 5000, mix);
    let filter = ["--not-key", "tmp:*"];
    let mut tool = start(&a, &b, &filter);
    until_following(&b, &mut tool);
    let mut rng = Rng::new();
    let mut client = a.client();
    for i in 0..8 {
        load.until_sent(rng.u64(500..3000), HALF_MINUTE);
        let mut batch = Vec::new();
        for k in 0..20 {
            let (out, kept) = (format!("tmp:n:{k}"), format!("n:{}", k % 5));
            batch.extend([cmd!["SET", out, i * 100 + k], cmd!["RENAME", out, kept]]);
            batch.extend([cmd!["INCR", kept], cmd!["APPEND", kept, 1]]);
        }
        client.load(&batch);
        tool.kill();
        client.load(&(0..5).map(|k| cmd!["INCR", format!("n:{k}")]).collect::<Vec<_>>());
        tool = start(&a, &b, &filter);
    }
    load.until_sent(3000, HALF_MINUTE);
    load.stop();
    following_in_scope(&a, &b, "renames over the edge");
    assert_eq!(full_syncs(&a), 1);
    // Guards go once every record has passed them.
    let mut target = b.client();
    until(HALF_MINUTE, "the guards' end", || target.call(&cmd!["KEYS", "keyferry:resume:guards:*"]).list().is_empty());
    tool.stop();
}

/// A unit that its lane has already, but another lane's record lies before: it isn't copied again, for the lane would
/// leave the copy out, and what comes behind it builds on the first.
#[test]
fn rename_over_the_edge_that_its_lane_has_is_not_copied_again() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let more = ["--not-key", "tmp:*", "--lanes", "2"];
    a.client().call(&cmd!["SET", "first", 1]);
    let mut tool = start(&a, &b, &more);
    until_following(&b, &mut tool);
    let (mut source, mut target) = (a.client(), b.client());
    let mut apart = 0;
    for i in 0..6 {
        source.load(&[cmd!["SET", "tmp:x", i], cmd!["RENAME", "tmp:x", "c"]]);
        until(HALF_MINUTE, "the copied key", || {
            target.call(&cmd!["EXISTS", "c"]).int() == 1 && target.get("c").text() == i.to_string()
        });
        tool.kill();
        let (one, two) = (record(&mut target, 0), record(&mut target, 1));
        apart += u32::from(offset_of(&one) != offset_of(&two));
        source.load(&vec![cmd!["APPEND", "c", "x"]; 50]);
        tool = start(&a, &b, &more);
        following_in_scope(&a, &b, "a rename seen again");
    }
    assert!(apart > 0, "the lanes' records never lay apart");
    tool.stop();
}

/// A stop while a unit waits for a copy of the source: the next run makes it, and the stop doesn't wait.
#[test]
fn sigterm_while_a_key_is_copied_ends_soon_and_resumes() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mix = Mix { prefixes: vec![String::new(), "tmp:".into()], ..two_databases(&a) };
    let load = Workload::start(&a, fastrand::u64(..), 5000, mix);
    let filter = ["--not-key", "tmp:*"];
    let mut tool = start(&a, &b, &filter);
    until_following(&b, &mut tool);
    for i in 0..8 {
        load.until_sent(1500, HALF_MINUTE);
        if i % 2 == 0 {
            a.pause();
        }
        tool.terminate();
        tool.must_end(Duration::from_secs(10), 0);
        a.resume();
        tool = start(&a, &b, &filter);
    }
    load.until_sent(1500, HALF_MINUTE);
    load.stop();
    following_in_scope(&a, &b, "stops amid copies");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// A database that is flushed takes its guards with it: a later run doesn't leave out what comes behind.
#[test]
fn flushed_databases_guards_go_with_it() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let more = ["--not-key", "tmp:*", "--lanes", "2", "--rate", "1MiB"];
    a.client().call(&cmd!["SET", "first", 1]);
    let mut tool = start(&a, &b, &more);
    until_following(&b, &mut tool);
    let (mut source, mut target) = (a.client(), b.client());
    source.select(2);
    target.select(2);
    // More than a flush takes, so that the first ends between what was flushed and where the copied key stands.
    let (parts, part) = (30, "x".repeat(100_000));
    let mut batch = vec![cmd!["SET", "tmp:x", 1], cmd!["RENAME", "tmp:x", "c"], cmd!["FLUSHDB"]];
    batch.extend((0..parts).map(|_| cmd!["APPEND", "c", part]));
    b.pause();
    source.load(&batch);
    b.resume();
    until(HALF_MINUTE, "a part of what comes behind the flush", || {
        let len = target.call(&cmd!["STRLEN", "c"]).int() as usize;
        len > 0 && len < parts * part.len()
    });
    tool.kill();
    let mut tool = start(&a, &b, &["--not-key", "tmp:*", "--lanes", "2"]);
    following_in_scope(&a, &b, "behind a flush");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// The same with databases that change places, whose keys are all copied.
#[test]
fn swapped_databases_are_told_apart_after_a_kill() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let more = ["--not-key", "tmp:*", "--lanes", "2"];
    let mix =
        Mix { prefixes: vec![String::new(), "tmp:".into()], across_databases: true, keys: 15, ..two_databases(&a) };
    let load = Workload::start(&a, fastrand::u64(..), 3000, mix);
    let mut tool = start(&a, &b, &more);
    until_following(&b, &mut tool);
    let mut rng = Rng::new();
    for _ in 0..12 {
        load.until_sent(rng.u64(200..2000), HALF_MINUTE);
        tool.kill();
        tool = start(&a, &b, &more);
    }
    load.until_sent(1000, HALF_MINUTE);
    load.stop();
    following_in_scope(&a, &b, "swaps and kills");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// Guards and a target that loses its last writes: what was copied is copied again.
#[test]
fn rename_over_the_edge_survives_a_target_from_an_older_file() {
    let (a, mut b) = (source(), Server::start("redis-7.0"));
    let mix = Mix { prefixes: vec![String::new(), "tmp:".into()], keys: 20, ..two_databases(&a) };
    let load = Workload::start(&a, fastrand::u64(..), 5000, mix);
    let mut tool = start(&a, &b, &["--not-key", "tmp:*"]);
    until_following(&b, &mut tool);
    for _ in 0..4 {
        load.until_sent(2000, HALF_MINUTE);
        save(&b);
        load.until_sent(3000, HALF_MINUTE);
        b.restart();
    }
    load.until_sent(3000, HALF_MINUTE);
    load.stop();
    following_in_scope(&a, &b, "renames over the edge");
    assert_eq!(full_syncs(&a), 1);
    tool.stop();
}
