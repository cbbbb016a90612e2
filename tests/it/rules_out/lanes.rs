//! Lane counts, and keys that can't be trusted, over both.

use super::{JOB, Stage, Verdict, differs, field, needs, needs_beside, offset, record, text};
use crate::compare::Rules;
use crate::server::{FAST, Server};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, until};

fn lane_key(lane: usize) -> String {
    format!("keyferry:{JOB}:lane:{lane}")
}

/// A record with another value in one of its fields.
fn with_field(record: &str, name: &str, value: &str) -> String {
    record.replace(&format!(" {name}={}", field(record, name)), &format!(" {name}={value}"))
}

/// A key of the last of so many lanes.
fn key_of_last(lanes: usize) -> String {
    let router = keyferry::route::Router::new(lanes);
    let mut names = (0..).map(|i| format!("n:{i}"));
    names.find(|key| router.lane_of(key.as_bytes()) == lanes - 1).expect("a key")
}

/// A target that comes back from a file of four lanes while the job has two: the first two lanes' records don't tell how
/// far the others are.
#[test]
fn records_of_more_lanes_are_all_read() {
    needs("lane-count-read", "Plain('1') != Plain('2')", |out| {
        let stage = Stage::new("4");
        let (mut target, key) = (stage.b.client(), key_of_last(4));
        let old = record(&mut target, 0);
        let tool = stage.run("sync", out, &["--lanes", "2"]);
        let of_two = |record: &str| !record.is_empty() && field(record, "lanes") == "2";
        until(HALF_MINUTE, "two lanes", || of_two(&record(&mut target, 0)));
        let start = field(&record(&mut target, 0), "offset");
        stage.a.client().call(&cmd!["INCR", key]);
        let later = offset(&stage.a).to_string();
        let has_passed = |record: String| field(&record, "offset").parse::<u64>().ok() >= later.parse().ok();
        until(HALF_MINUTE, "the unit", || (0..2).all(|lane| has_passed(record(&mut target, lane))));
        // As the file has it: lane 3 has applied the unit. Frozen, so that no record is written in between.
        tool.freeze();
        target.call(&cmd!["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let file = (0..4).map(|lane| {
            let offset = if lane == 3 { &later } else { &start };
            cmd!["SET", lane_key(lane), with_field(&old, "offset", offset)]
        });
        target.load(&file.collect::<Vec<_>>());
        tool.thaw();
        stage.end(tool)
    });
}

/// The target has a key that isn't the source's, and a note that it can't be trusted.
fn suspect(lanes: &'static str, key: &str) -> Stage {
    let stage = Stage::with(lanes, &["--not-key", "tmp:*"], &[cmd!["SET", key, 7]]);
    let note = cmd!["HSET", guards_key(0), format!("0:{key}"), 0];
    stage.b.client().load(&[cmd!["SET", key, "wrong"], note]);
    stage
}

fn guards_key(lane: usize) -> String {
    format!("keyferry:{JOB}:guards:{lane}")
}

/// They are copied before lanes are changed, which is why that is out here.
#[test]
fn keys_that_cannot_be_trusted_move_with_the_lane_count() {
    needs_beside("lanes-level-first", "suspects-move", differs!("k", "7", "wrong"), |out| {
        let stage = suspect("1", "k");
        let tool = stage.run("sync", out, &["--lanes", "3"]);
        stage.end(tool)
    });
}

#[test]
fn guard_of_an_earlier_copy_hides_no_distrust() {
    needs("distrust-over-guards", "Plain('7') != Plain('wrong')", |out| {
        let key = key_of_last(3);
        let stage = suspect("3", &key);
        // In the hash of the key's own lane, which is read behind that of the note.
        stage.b.client().call(&cmd!["HSET", guards_key(2), format!("0:{key}"), 1]);
        let tool = stage.run("sync", out, &[]);
        stage.end(tool)
    });
}

/// The end of a job waits for a unit with which they can be copied. The source has none until the job is seen to wait.
#[test]
fn finish_waits_for_keys_that_cannot_be_trusted() {
    needs("suspects-awaited", differs!("k", "7", "wrong"), finish_of_a_suspect);
}

fn finish_of_a_suspect(out: &str) -> Verdict {
    let stage = suspect("1", "k");
    let (mut source, mut target) = (stage.a.client(), stage.b.client());
    source.call(&cmd!["CONFIG", "SET", "repl-ping-replica-period", 3600]);
    let mut tool = stage.run("finish", out, &[]);
    let mut times = vec![record(&mut target, 0)];
    until(HALF_MINUTE, "the end, or two more records of a job that waits", || {
        let now = record(&mut target, 0);
        if times.last() != Some(&now) {
            times.push(now);
        }
        !tool.alive() || times.len() > 2
    });
    source.call(&cmd!["SET", "tmp:unit", 1]);
    tool.must_end(HALF_MINUTE, 0);
    super::equal(&stage.a, &stage.b, &Rules::default())
}

/// It has no records, so whatever is there is another's.
fn finish_of_an_unknown_job(out: &str) -> (Tool, String) {
    let (a, b) = (Server::with("redis-7.0", FAST), Server::start("redis-7.0"));
    b.client().call(&cmd!["SET", "someone", "else's"]);
    let stage = Stage { a, b, lanes: "1", more: vec!["--flush-target", "--yes"] };
    let mut tool = stage.run("finish", out, &[]);
    tool.wait(HALF_MINUTE);
    let left = text(&mut stage.b.client(), "someone");
    (tool, left)
}

#[test]
fn finish_of_an_unknown_job_ends_at_once_and_never_empties_a_target() {
    needs("finish-needs-records", "exit 3", |out| match finish_of_an_unknown_job(out).0.wait(HALF_MINUTE) {
        1 => Ok(()),
        code => Err(format!("exit {code}")),
    });
    let empties = |out: &str| match finish_of_an_unknown_job(out).1.as_str() {
        "else's" => Ok(()),
        _ => Err("emptied".to_owned()),
    };
    needs_beside("finish-needs-records", "finish-never-flushes", "emptied", empties);
}
