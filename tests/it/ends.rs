//! How a run ends: by itself, by a signal, and what it says then.

use crate::client::Cmd;
use crate::compare::{Rules, must_be_same, until_same};
use crate::load::{load_bulk, load_types};
use crate::server::Server;
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, until};
use std::time::Duration;

#[test]
fn sigterm_and_sigint_drain_and_end_with_0() {
    for interrupt in [false, true] {
        let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
        a.client().call(&cmd!["SET", "first", 1]);
        let mut tool = Tool::sync(&a, &b, &[]);
        until(HALF_MINUTE, "the copy", || b.client().call(&cmd!["EXISTS", "first"]).int() == 1);
        // No expiries: without keyferry, nobody tells the target that a key of the source is gone.
        let batch: Vec<Cmd> = (0..20_000).map(|i| cmd!["INCR", format!("n:{}", i % 500)]).collect();
        a.client().load(&batch);
        until_same(&a, &b, HALF_MINUTE, "before the signal", &Rules::following(&a));
        if interrupt {
            tool.interrupt();
        } else {
            tool.terminate();
        }
        tool.must_end(HALF_MINUTE, 0);
        until_same(&a, &b, Duration::ZERO, "after the signal", &Rules::following(&a));
    }
}

/// Whatever the source was told is applied must be on the target after a stop under load.
#[test]
fn sigterm_under_load_leaves_whole_transactions_only() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut source = a.client();
    source.load(&[cmd!["MSET", "x", 0, "y", 0]]);
    let mut tool = Tool::sync(&a, &b, &[]);
    let mut target = b.client();
    until(HALF_MINUTE, "the copy", || target.call(&cmd!["EXISTS", "x", "y"]).int() == 2);
    let step = [cmd!["MULTI"], cmd!["INCR", "x"], cmd!["INCR", "y"], cmd!["EXEC"]];
    for _ in 0..500 {
        source.load(&step);
    }
    tool.terminate();
    while tool.alive() {
        source.load(&step);
    }
    tool.must_end(HALF_MINUTE, 0);
    let pair = target.call(&cmd!["MGET", "x", "y"]);
    assert_eq!(pair.list()[0], pair.list()[1], "half a transaction");
}

#[test]
fn sigterm_in_the_copy_ends_soon() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 50_000, 1000);
    let mut tool = Tool::sync(&a, &b, &["--rate", "1MiB"]);
    until(HALF_MINUTE, "part of the copy", || b.client().dbsize() > 100);
    tool.terminate();
    tool.must_end(Duration::from_secs(10), 0);
}

#[test]
fn sigterm_while_nothing_answers_ends_soon() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "first", 1]);
    let mut tool = Tool::sync(&a, &b, &[]);
    until(HALF_MINUTE, "the copy", || b.client().call(&cmd!["EXISTS", "first"]).int() == 1);
    b.pause();
    a.client().call(&cmd!["SET", "second", 1]);
    tool.terminate();
    // A second signal (of another kind: two of one kind may be delivered as one) ends at once, without draining.
    tool.interrupt();
    tool.wait(Duration::from_secs(15));
    b.resume();
}

#[test]
fn the_summary_says_what_was_done() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut source = a.client();
    load_types(&a, &mut source, 1, "");
    source.select(5);
    source.load(&[cmd!["SET", "only-one-here", 1]]);
    let tool = Tool::once(&a, &b, &[], HALF_MINUTE);
    must_be_same(&a, &b, "the copy", &Rules::default());
    let text = tool.text().to_lowercase();
    for word in ["string", "hash", "stream", "keys", "offset"] {
        assert!(text.contains(word), "no {word} in the summary: {text}");
    }
    let keyspace = source.info("keyspace");
    let keys = |line: &String| line.split(['=', ',']).nth(1)?.parse::<u64>().ok();
    let count = keyspace.values().filter_map(keys).sum::<u64>().to_string();
    let shown = text.replace([',', '_'], "");
    assert!(shown.contains(&count), "no {count} keys in the summary: {text}");
}

#[test]
fn json_logs_are_json() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "k", "v"]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("log").display().to_string();
    let options = ["--log-format", "json", "--log-file", &file, "--log-level", "debug"];
    Tool::once(&a, &b, &options, HALF_MINUTE);
    let log = std::fs::read_to_string(&file).expect("the log file is there");
    assert!(!log.is_empty());
    for line in log.lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    }
}

#[test]
fn json_on_stderr_is_never_broken_by_progress_or_errors() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().load(&[cmd!["SET", "k", "v"], cmd!["SET", "n", "1"]]);
    let json = ["--log-format", "json", "--progress", "log"];
    let mut tool = Tool::sync(&a, &b, &json);
    until(HALF_MINUTE, "the copy", || b.client().call(&cmd!["EXISTS", "n"]).int() == 1);
    b.client().load(&[cmd!["DEL", "n"], cmd!["RPUSH", "n", "e"]]);
    a.client().call(&cmd!["INCR", "n"]);
    tool.must_end(HALF_MINUTE, 1);
    let text = tool.text();
    for line in text.lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    }
    for part in
        ["\"level\":\"INFO\",\"message\":\"following: ", "\"level\":\"ERROR\",\"message\":\"", "WRONGTYPE", "\"hint\":"]
    {
        assert!(text.contains(part), "no {part} in: {text}");
    }
}
