//! One owner: late bytes of killed connections, and two runs that both think the job theirs.

use super::wire::{Late, Moving};
use super::{JOB, Stage, Verdict, differs, ends_equal, needs, text};
use crate::client::Client;
use crate::server::{Server, replicate_natively};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, until};

/// How often a run has lost its target.
fn losses(tool: &Tool) -> usize {
    tool.text().matches("target lost").count()
}

fn until_owner(target: &mut Client, tool: &mut Tool) {
    let own = format!(" pid={} ", tool.pid());
    until(HALF_MINUTE, "the lease of the new owner", || {
        tool.must_live();
        text(target, &format!("keyferry:{JOB}:owner")).contains(&own)
    });
}

/// A flush is sent and its connection cut; when its work is done, by this run or the next, the bytes come after all.
fn late_flush(out: &str, next_run: bool) -> Verdict {
    let stage = Stage::new("1");
    let late = Late::before(stage.b.port, b"INCR\r\n$1\r\nn\r\n");
    let env = [("KEYFERRY_RULES_OUT", out)];
    let mut tool = stage.run_between("sync", stage.a.port, late.port, &env, &[]);
    stage.a.client().call(&cmd!["INCR", "n"]);
    late.until_cut();
    if next_run {
        tool.kill();
        tool = stage.run("sync", out, &[]);
    }
    let mut target = stage.b.client();
    until(HALF_MINUTE, "the flush sent again", || text(&mut target, "n") == "1");
    late.arrive();
    stage.end(tool)
}

#[test]
fn late_bytes_of_an_own_connection_never_run() {
    needs("own-killed", differs!("n", "1", "2"), |out| late_flush(out, false));
}

#[test]
fn late_bytes_of_another_run_never_run() {
    needs("others-killed", differs!("n", "1", "2"), |out| late_flush(out, true));
}

/// The address moves to a promoted replica while one lane still reaches the former primary.
#[test]
fn lanes_on_two_servers_write_nothing() {
    needs("one-server", "refuses RENAME", |out| {
        let stage = Stage::new("2");
        let replica = Server::start("redis-7.0");
        replicate_natively(&stage.b, &replica);
        replica.client().call(&cmd!["REPLICAOF", "NO", "ONE"]);
        let router = keyferry::route::Router::new(2);
        let key_of = |lane: usize| {
            let mut names = (0..).map(|i| format!("n:{i}"));
            names.find(|name| router.lane_of(name.as_bytes()) == lane).expect("a key")
        };
        let moving = Moving::from_to(stage.b.port, replica.port, b":0.1\r\n");
        let env = [("KEYFERRY_RULES_OUT", out)];
        stage.a.client().load(&[cmd!["SET", key_of(1), 1], cmd!["RENAME", key_of(1), key_of(0)]]);
        let mut tool = stage.run_between("sync", stage.a.port, moving.port, &env, &[]);
        until(HALF_MINUTE, "the two servers noticed, or an end", || {
            !tool.alive() || tool.text().contains("reached different servers")
        });
        moving.move_all();
        ends_equal(&stage.a, &replica, tool)
    });
}

/// A run that was frozen while another took the job over: it must not come back and kill that one's connections.
#[test]
fn run_that_lost_its_lease_ends_before_it_kills() {
    needs("lease-looked-at", "killed the second's", |out| {
        let stage = Stage::new("1");
        let mut target = stage.b.client();
        let mut first = stage.run("sync", out, &[]);
        until_owner(&mut target, &mut first);
        first.freeze();
        let mut second = stage.run("sync", "", &["--takeover"]);
        until_owner(&mut target, &mut second);
        stage.a.client().call(&cmd!["SET", "k", 1]);
        until(HALF_MINUTE, "the stream by the second", || text(&mut target, "k") == "1");
        first.thaw();
        until(HALF_MINUTE, "an end of the first, or its return", || !first.alive() || losses(&second) > 0);
        // It may have ended with the second's connections: the second knows by the next write.
        stage.a.client().call(&cmd!["SET", "k", 2]);
        until(HALF_MINUTE, "the next write by the second", || text(&mut target, "k") == "2");
        match losses(&second) {
            0 => stage.end(second),
            _ => Err("the first has killed the second's connections".into()),
        }
    });
}

/// Two that live would kill each other's connections in turns.
#[test]
fn second_run_finds_the_lease_and_leaves_the_first_alone() {
    needs("lease,lease-looked-at", "the first has lost", |out| {
        let stage = Stage::new("1");
        let mut target = stage.b.client();
        let mut first = stage.run("sync", out, &[]);
        until_owner(&mut target, &mut first);
        let mut second = stage.run("sync", out, &[]);
        until(HALF_MINUTE, "an end of the second, or no rest", || {
            !second.alive() || losses(&first) > 1 && losses(&second) > 0
        });
        match losses(&first) {
            0 => stage.end(first),
            times => Err(format!("the first has lost its connections {times} times")),
        }
    });
}
