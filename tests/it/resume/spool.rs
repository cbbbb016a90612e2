//! A target that stands still: what memory has no room for goes to disk, and a full disk stops the job.

use super::{following, full_syncs, source, start, until_following};
use crate::load::load_bulk;
use crate::server::{FAST, Server, replicate_natively};
use crate::wait::{HALF_MINUTE, MINUTE, holds_for, until};
use std::time::{Duration, Instant};

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
        &[FAST, &["repl-backlog-size 1mb", "client-output-buffer-limit replica 8mb 8mb 5"]].concat(),
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
        // As fast as it can is no load that a limit of 8 MB is made for.
        holds_for(Duration::from_millis(150), "the job", || tool.alive());
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

/// What a replica of the target has can't be lost by a failover: it needn't be kept any longer, and no sooner.
#[test]
fn spool_is_kept_until_a_replica_of_the_target_has_it() {
    let (a, b, replica) = (source(), Server::start("redis-7.0"), Server::start("redis-7.0"));
    replicate_natively(&b, &replica);
    a.client().call(&cmd!["SET", "n", 0]);
    let mut tool = start(&a, &b, &["--memory", "16MiB"]);
    until_following(&b, &mut tool);
    replica.pause();
    let text = "x".repeat(10_000);
    let batch: Vec<_> = (0..4000).map(|i| cmd!["SET", format!("k:{}", i % 500), text]).collect();
    a.client().load(&batch);
    following(&a, &b, "with a replica that stands still");
    let spool = a.dir().join("spool");
    let files = || std::fs::read_dir(&spool).map_or(0, Iterator::count);
    // The target was asked for its replicas several times.
    holds_for(Duration::from_secs(4), "the spool", || files() > 0);
    replica.resume();
    until(HALF_MINUTE, "the spool to be given up", || files() == 0);
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
