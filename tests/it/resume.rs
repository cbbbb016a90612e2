//! Going on: after kills, refusals, lost writes of the target and failovers of the source, every write is there once.

use crate::client::{Client, Reply};
use crate::compare::{GRACE_MS, Rules, databases, is_own_record, must_be_same, now_ms, scan, until_same};
use crate::load::{Mix, Workload, load_bulk};
use crate::server::{FAST, Server, free_port, replicate_natively};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, holds_for, until};
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
        record(&mut target, 0).contains("phase=following")
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
    let rules = Rules { group_hints: false, ..Rules::of(a) };
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

// 1. Resume.

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

// 2. Breaks and refusals.

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

// 3. A target that loses what it had acknowledged.

#[test]
fn target_restarted_from_older_rdb_gets_its_writes_again() {
    let (a, mut b) = (source(), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 5000, 100);
    let load = Workload::start(&a, fastrand::u64(..), 6000, two_databases(&a));
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    for _ in 0..3 {
        load.until_sent(3000, HALF_MINUTE);
        save(&b);
        load.until_sent(4000, HALF_MINUTE);
        b.restart();
    }
    load.until_sent(3000, HALF_MINUTE);
    load.stop();
    following(&a, &b, "after three restarts from older files");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
    finish(&a, &b, &[]);
}

/// The file is from a former life of the job, lease and all.
#[test]
fn target_restarted_from_a_file_of_a_former_run_goes_on_with_this_one() {
    let (a, mut b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "n", 0]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    for _ in 0..3 {
        save(&b);
        a.client().call(&cmd!["INCR", "n"]);
        following(&a, &b, "the first run");
        tool.kill();
        tool = start(&a, &b, &[]);
        a.client().call(&cmd!["INCR", "n"]);
        following(&a, &b, "the second run");
        b.restart();
        a.client().call(&cmd!["INCR", "n"]);
        following(&a, &b, "after the restart from a former run's file");
        tool.must_live();
    }
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// The file is from when the job had another number of lanes: fewer, or more.
#[test]
fn target_restarted_from_a_file_of_another_lane_count_goes_on() {
    let (a, mut b) = (source(), Server::start("redis-7.0"));
    let load = Workload::start(&a, fastrand::u64(..), 4000, two_databases(&a));
    let mut tool = start(&a, &b, &["--lanes", "4"]);
    until_following(&b, &mut tool);
    let mut target = b.client();
    for lanes in ["7", "2", "5", "1"] {
        load.until_sent(1000, HALF_MINUTE);
        save(&b);
        tool.stop();
        tool = start(&a, &b, &["--lanes", lanes]);
        let wanted = format!(" lanes={lanes} ");
        until(HALF_MINUTE, "the new lane count", || record(&mut target, 0).contains(&wanted));
        load.until_sent(1000, HALF_MINUTE);
        b.restart();
        load.until_sent(1000, HALF_MINUTE);
        target = b.client();
        until(HALF_MINUTE, "the new lane count again", || record(&mut target, 0).contains(&wanted));
    }
    load.stop();
    following(&a, &b, "from files of other lane counts");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// The target's records are gone altogether.
#[test]
fn target_that_comes_back_empty_is_copied_again_said_aloud() {
    let (a, mut b) = (source(), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 1000, 100);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    b.restart();
    following(&a, &b, "copied again");
    assert_eq!(full_syncs(&a), 2);
    assert!(tool.text().contains("full sync"), "{}", tool.tail());
    tool.stop();
}

/// The target's replica takes over without the last writes, behind an address that stays.
#[test]
fn target_failover_to_a_lagging_replica_gets_its_writes_again() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let replica = Server::start("redis-7.0");
    replicate_natively(&b, &replica);
    let line = crate::line::Line::to(b.port);
    let load = Workload::start(&a, fastrand::u64(..), 5000, two_databases(&a));
    let (from, to) = (a.url(), format!("redis://127.0.0.1:{}", line.port));
    let mut tool = Tool::run(&["sync", &from, &to, "--job", "resume"]);
    until_following(&b, &mut tool);
    load.until_sent(5000, HALF_MINUTE);
    replica.pause();
    load.until_sent(6000, HALF_MINUTE);
    // The replica never gets what it hasn't by now.
    b.pause();
    replica.resume();
    replica.client().call(&cmd!["REPLICAOF", "NO", "ONE"]);
    line.turn_to(replica.port);
    load.until_sent(5000, HALF_MINUTE);
    load.stop();
    b.resume();
    following(&a, &replica, "after the target's failover");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

// 4. Journal.

#[test]
fn spool_full_stops_with_exit_5_and_resumes() {
    let a = source();
    let b = Server::start("redis-7.0");
    a.client().call(&cmd!["SET", "n", 0]);
    let small = ["--memory", "16MiB", "--spool", "8MiB"];
    let mut tool = start(&a, &b, &small);
    until_following(&b, &mut tool);
    b.pause();
    let mut client = a.client();
    let text = "x".repeat(10_000);
    let mut i = 0;
    while tool.alive() && i < 60 {
        let batch: Vec<_> = (0..100).map(|k| cmd!["SET", format!("k:{i}:{k}"), text]).collect();
        client.load(&batch);
        client.call(&cmd!["INCR", "n"]);
        i += 1;
    }
    tool.must_end(HALF_MINUTE, 5);
    assert!(tool.text().contains("spool"), "{}", tool.tail());
    b.resume();
    let mut tool = start(&a, &b, &[]);
    following(&a, &b, "after a full spool");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

#[test]
fn spool_that_cannot_be_written_stops_with_exit_5_and_resumes() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "n", 0]);
    let dir = a.dir().join("other-spool");
    let spool = dir.display().to_string();
    let mut tool = start(&a, &b, &["--memory", "16MiB", "--spool-dir", &spool]);
    until_following(&b, &mut tool);
    // No folder can be made where a file is.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::write(&dir, "").expect("a file");
    b.pause();
    let mut client = a.client();
    let text = "x".repeat(10_000);
    for i in 0..40 {
        let batch: Vec<_> = (0..100).map(|k| cmd!["SET", format!("k:{i}:{k}"), text]).collect();
        client.load(&batch);
    }
    tool.must_end(HALF_MINUTE, 5);
    assert!(tool.text().contains("spool"), "{}", tool.tail());
    b.resume();
    // Nor does a run begin that could not spool.
    start(&a, &b, &["--spool-dir", &spool]).must_end(HALF_MINUTE, 5);
    let mut tool = start(&a, &b, &[]);
    following(&a, &b, "with a spool that can be written");
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

/// The reader never waits for the target: the source's buffer for its replica stays small.
#[test]
fn slow_target_never_hits_the_sources_output_buffer() {
    let a = Server::with(
        "redis-7.0",
        &[FAST, &["repl-backlog-size 1mb", "client-output-buffer-limit replica 4mb 4mb 2"]].concat(),
    );
    let b = Server::start("redis-7.0");
    load_bulk(&mut a.client(), "bulk:", 10_000, 100);
    let mut tool = start(&a, &b, &["--memory", "64MiB"]);
    until_following(&b, &mut tool);
    b.pause();
    let started = Instant::now();
    let mut client = a.client();
    for r in 0..30 {
        load_bulk(&mut client, &format!("r{}:", r % 5), 8000, 400);
        let batch: Vec<_> = (0..1000).map(|_| cmd!["INCR", "n"]).collect();
        client.load(&batch);
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", tool.pid())).unwrap_or_default();
    let rss = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    let rss_kb: u64 = rss.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    println!("{:?} of writes, {rss_kb} kB", started.elapsed());
    assert!(rss_kb < 128 * 1024, "{rss_kb} kB");
    b.resume();
    following(&a, &b, "after the standstill");
    assert_eq!(full_syncs(&a), 1);
    tool.stop();
}

#[test]
fn spool_files_of_a_dead_run_are_removed() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "n", 0]);
    let mut tool = start(&a, &b, &["--memory", "16MiB"]);
    until_following(&b, &mut tool);
    b.pause();
    let mut client = a.client();
    let text = "x".repeat(10_000);
    let spool = a.dir().join("spool");
    let files = || std::fs::read_dir(&spool).map_or(0, Iterator::count);
    let mut i = 0;
    until(MINUTE, "files of the spool", || {
        let batch: Vec<_> = (0..100).map(|k| cmd!["SET", format!("k:{}:{k}", i % 40), text]).collect();
        client.load(&batch);
        i += 1;
        files() > 0
    });
    tool.kill();
    b.resume();
    let mut tool = start(&a, &b, &[]);
    following(&a, &b, "after a kill with a spool");
    assert_eq!(files(), 0);
    tool.stop();
    assert_eq!(full_syncs(&a), 1);
}

// 5. Expiry.

/// Keys renewed in their last moments, counters that are built upon, and some that aren't renewed.
fn short_lived(client: &mut Client, n: u32, ms: u32) {
    let batch: Vec<_> = (0..n)
        .flat_map(|i| [cmd!["SET", format!("renewed:{i}"), i, "PX", ms], cmd!["SET", format!("gone:{i}"), i, "PX", ms]])
        .collect();
    client.load(&batch);
}

fn renew(client: &mut Client, n: u32) {
    let batch: Vec<_> = (0..n)
        .flat_map(|i| [cmd!["INCR", format!("renewed:{i}")], cmd!["PEXPIRE", format!("renewed:{i}"), 500_000 + i]])
        .collect();
    client.load(&batch);
}

fn renewed_live(a: &Server, b: &Server, n: u32) {
    let (mut source, mut target) = (a.client(), b.client());
    until(HALF_MINUTE, "the source to expire the others", || source.call(&cmd!["KEYS", "gone:*"]).list().is_empty());
    following(a, b, "after the expiry");
    for i in 0..n {
        assert_eq!(target.get(&format!("renewed:{i}")).text(), (i + 1).to_string());
    }
}

#[test]
fn renewed_key_lives_while_target_stood_still() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "first", 1]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    short_lived(&mut a.client(), 200, 2500);
    let mut target = b.client();
    until(HALF_MINUTE, "the keys", || target.dbsize() > 400);
    b.pause();
    renew(&mut a.client(), 200);
    let mut source = a.client();
    until(HALF_MINUTE, "the others to expire", || source.call(&cmd!["KEYS", "gone:*"]).list().is_empty());
    b.resume();
    renewed_live(&a, &b, 200);
    tool.stop();
    finish(&a, &b, &[]);
    assert_eq!(full_syncs(&a), 1);
}

#[test]
fn renewed_key_lives_while_keyferry_was_down() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "first", 1]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    short_lived(&mut a.client(), 200, 2500);
    let mut target = b.client();
    until(HALF_MINUTE, "the keys", || target.dbsize() > 400);
    tool.kill();
    renew(&mut a.client(), 200);
    let mut source = a.client();
    until(HALF_MINUTE, "the others to expire", || source.call(&cmd!["KEYS", "gone:*"]).list().is_empty());
    let mut tool = start(&a, &b, &[]);
    renewed_live(&a, &b, 200);
    tool.stop();
    finish(&a, &b, &[]);
    assert_eq!(full_syncs(&a), 1);
}

#[test]
fn renewed_hash_field_lives_while_target_stood_still() {
    let (a, b) = (Server::start("redis-8.0"), Server::start("redis-8.0"));
    a.client().call(&cmd!["SET", "first", 1]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    let mut source = a.client();
    source.load(&[
        cmd!["HSET", "h", "renewed", 1, "gone", 1, "stays", 1],
        cmd!["HPEXPIRE", "h", 2000, "FIELDS", 2, "renewed", "gone"],
    ]);
    following(&a, &b, "with short-lived fields");
    b.pause();
    source.load(&[cmd!["HINCRBY", "h", "renewed", 1], cmd!["HPEXPIRE", "h", 500_000, "FIELDS", 1, "renewed"]]);
    until(HALF_MINUTE, "the other field to expire", || source.call(&cmd!["HLEN", "h"]).int() == 2);
    b.resume();
    following(&a, &b, "after the field's expiry");
    let value = b.client().call(&cmd!["HGET", "h", "renewed"]);
    assert_eq!(value.text(), "2");
    tool.stop();
    finish(&a, &b, &[]);
}

#[test]
fn expiry_grace_of_zero_writes_times_exactly() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "copied", 1, "PXAT", now_ms() + 900_000]);
    let mut tool = start(&a, &b, &["--expiry-grace", "0"]);
    until_following(&b, &mut tool);
    a.client().load(&[cmd!["SET", "streamed", 1, "EX", 5000], cmd!["EXPIRE", "copied", 700]]);
    until_same(&a, &b, HALF_MINUTE, "exact at once", &Rules::of(&a));
    tool.stop();
    finish(&a, &b, &["--expiry-grace", "0"]);
}

#[test]
fn late_times_are_an_hour_late_and_said() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let at = now_ms() + 900_000;
    a.client().call(&cmd!["SET", "k", 1, "PXAT", at]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    assert_eq!(b.client().call(&cmd!["PEXPIRETIME", "k"]).int(), at + GRACE_MS);
    tool.stop();
    assert!(tool.text().contains("late"), "{}", tool.tail());
    finish(&a, &b, &[]);
    assert_eq!(b.client().call(&cmd!["PEXPIRETIME", "k"]).int(), at);
}

// 6. Full sync again.

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
    assert_eq!(full_syncs(&a), 2);
    tool.stop();
    finish(&a, &b, &[]);
}

// 8. Key guards.

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

// 9. Acknowledgements.

#[test]
fn ack_tells_what_is_applied() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut client = a.client();
    client.call(&cmd!["SET", "n", 0]);
    let mut tool = start(&a, &b, &[]);
    until_following(&b, &mut tool);
    let mut target = b.client();
    for i in 1..20 {
        client.call(&cmd!["SET", "n", i]);
        assert_eq!(client.call(&cmd!["WAIT", 1, 10_000]).int(), 1);
        assert_eq!(target.get("n").text(), i.to_string(), "WAIT told what isn't there");
    }
    b.pause();
    client.call(&cmd!["SET", "n", "held back"]);
    assert_eq!(client.call(&cmd!["WAIT", 1, 1500]).int(), 0);
    b.resume();
    assert_eq!(client.call(&cmd!["WAIT", 1, 10_000]).int(), 1);
    assert_eq!(target.get("n").text(), "held back");
    tool.stop();
}

#[test]
fn ack_received_tells_what_has_come() {
    let (a, b) = (source(), Server::start("redis-7.0"));
    let mut client = a.client();
    client.call(&cmd!["SET", "n", 0]);
    let mut tool = start(&a, &b, &["--ack", "received"]);
    until_following(&b, &mut tool);
    b.pause();
    client.call(&cmd!["SET", "n", 1]);
    assert_eq!(client.call(&cmd!["WAIT", 1, 10_000]).int(), 1);
    b.resume();
    following(&a, &b, "after the pause");
    tool.stop();
}

// 10. Finish.

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
    must_be_same(&a, &b, "finished", &Rules::of(&a));
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
