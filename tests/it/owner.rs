//! One owner: a second run of a job is refused, takes over where the first is dead or frozen, and never writes beside it.

use crate::client::Client;
use crate::compare::{Rules, must_be_same, until_same};
use crate::server::{Server, replicate_natively};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, holds_for, until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const KEY: &str = "keyferry:one:owner";

/// Starts the job; what an earlier run left is replaced.
fn start(a: &Server, b: &Server, more: &[&str]) -> Tool {
    let mut args = vec!["--job", "one", "--existing", "replace"];
    args.extend_from_slice(more);
    Tool::sync(a, b, &args)
}

/// The lease's text, empty if there is none.
fn lease(target: &mut Client) -> String {
    match target.call(&cmd!["EXISTS", KEY]).int() {
        0 => String::new(),
        _ => target.get(KEY).text(),
    }
}

fn until_owner(b: &Server, tool: &mut Tool, limit: Duration) -> Duration {
    let (mut target, pid) = (b.client(), format!(" pid={} ", tool.pid()));
    until(limit, "the lease of the new owner", || {
        tool.must_live();
        lease(&mut target).contains(&pid)
    })
}

/// Every connection of the job belongs to the run that holds the lease: what others send can't arrive any more.
fn must_be_alone(b: &Server) {
    let mut target = b.client();
    let text = lease(&mut target);
    let token = text.split(' ').find_map(|w| w.strip_prefix("token="));
    let ours = format!(" name=keyferry:one:{}:", token.expect("a token"));
    let list = target.call(&cmd!["CLIENT", "LIST"]).text();
    let of_job = list.lines().filter(|l| l.contains("name=keyferry:"));
    let (own, others): (Vec<_>, Vec<_>) = of_job.partition(|l| l.contains(&ours));
    assert!(own.len() >= 2 && others.is_empty(), "{list}");
}

/// Writes a key on the source and waits until the target has it.
fn follows(a: &Server, b: &Server, tool: &mut Tool, name: &str) {
    a.client().call(&cmd!["SET", name, 1]);
    let mut target = b.client();
    until(HALF_MINUTE, "the stream", || {
        tool.must_live();
        target.call(&cmd!["EXISTS", name]).int() == 1
    });
}

fn must_be_refused(tool: &mut Tool, owner: &str) {
    tool.must_end(HALF_MINUTE, 3);
    let text = tool.text();
    assert!(text.contains("error: job one already has an owner"), "{text}");
    assert!(text.contains(owner) && text.contains("--takeover"), "{text}");
}

/// Counters that the source counts up until dropped; twice the same write shows in them.
struct Counting<'a>(&'a AtomicBool);

impl<'a> Counting<'a> {
    fn start<'s>(scope: &'s thread::Scope<'s, '_>, a: &'s Server, on: &'a AtomicBool) -> Self
    where
        'a: 's,
    {
        let flag: &'s AtomicBool = on;
        scope.spawn(move || {
            let mut source = a.client();
            for i in 0_u32.. {
                if !flag.load(Ordering::Relaxed) {
                    break;
                }
                source.call(&cmd!["INCR", format!("count:{}", i % 40)]);
                thread::sleep(Duration::from_micros(300));
            }
        });
        Counting(on)
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn second_starter_is_refused_naming_the_owner_and_the_first_goes_on() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut first = start(&a, &b, &[]);
    follows(&a, &b, &mut first, "k");
    for _ in 0..2 {
        let mut second = start(&a, &b, &["--flush-target", "--yes"]);
        must_be_refused(&mut second, &format!("process {}", first.pid()));
    }
    follows(&a, &b, &mut first, "l");
    until_same(&a, &b, HALF_MINUTE, "two starters", &Rules::following(&a));
    first.stop();
    assert_eq!(lease(&mut b.client()), "", "a clean end gives the lease back");
}

#[test]
fn restart_after_a_kill_owns_the_job_at_once() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut tool = start(&a, &b, &[]);
    follows(&a, &b, &mut tool, "k0");
    for i in 1..4 {
        tool.kill();
        tool = start(&a, &b, &[]);
        let waited = until_owner(&b, &mut tool, Duration::from_secs(2));
        assert!(waited < Duration::from_secs(2), "waited {waited:?}");
        follows(&a, &b, &mut tool, &format!("k{i}"));
    }
    tool.stop();
}

#[test]
fn frozen_owner_is_replaced_and_ends_when_it_wakes_up() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let on = AtomicBool::new(true);
    thread::scope(|scope| {
        let load = Counting::start(scope, &a, &on);
        let mut first = start(&a, &b, &[]);
        follows(&a, &b, &mut first, "k");
        first.freeze();
        let mut target = b.client();
        until(HALF_MINUTE, "the lease's end", || lease(&mut target).is_empty());
        let mut second = start(&a, &b, &[]);
        until_owner(&b, &mut second, Duration::from_secs(5));
        follows(&a, &b, &mut second, "l");
        must_be_alone(&b);
        first.thaw();
        first.must_end(HALF_MINUTE, 1);
        let text = first.text();
        let by = format!("process {}", second.pid());
        assert!(text.contains("another owner took job one") && text.contains(&by), "{text}");
        follows(&a, &b, &mut second, "m");
        drop(load);
        until_same(&a, &b, HALF_MINUTE, "a frozen owner", &Rules::following(&a));
        second.stop();
    });
}

#[test]
fn frozen_owner_that_wakes_up_before_anyone_came_goes_on() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut tool = start(&a, &b, &[]);
    follows(&a, &b, &mut tool, "k");
    tool.freeze();
    let mut target = b.client();
    until(HALF_MINUTE, "the lease's end", || lease(&mut target).is_empty());
    tool.thaw();
    until_owner(&b, &mut tool, Duration::from_secs(5));
    follows(&a, &b, &mut tool, "l");
    tool.stop();
}

#[test]
fn takeover_ends_an_owner_that_lives() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("valkey-9.1"));
    let on = AtomicBool::new(true);
    thread::scope(|scope| {
        let load = Counting::start(scope, &a, &on);
        let mut owner = start(&a, &b, &[]);
        follows(&a, &b, &mut owner, "k0");
        for i in 1..4 {
            let mut next = start(&a, &b, &["--takeover"]);
            owner.must_end(HALF_MINUTE, 1);
            assert!(owner.text().contains("another owner took job one"), "{}", owner.text());
            follows(&a, &b, &mut next, &format!("k{i}"));
            must_be_alone(&b);
            owner = next;
        }
        drop(load);
        until_same(&a, &b, HALF_MINUTE, "takeovers", &Rules::following(&a));
        owner.stop();
    });
}

#[test]
fn two_starters_at_the_same_moment_leave_one_owner() {
    for more in [&[][..], &["--takeover"]] {
        let (a, b) = (Server::start("redis-7.0"), Server::start("redis-8.0"));
        a.client().call(&cmd!["SET", "k", 1]);
        for _ in 0..5 {
            let mut tools = [start(&a, &b, more), start(&a, &b, more), start(&a, &b, more)];
            until(HALF_MINUTE, "all but one to end", || {
                tools.iter_mut().filter_map(|t| t.alive().then_some(())).count() == 1
            });
            let mut owners = 0;
            for tool in &mut tools {
                if tool.alive() {
                    until_owner(&b, tool, HALF_MINUTE);
                    owners += 1;
                    continue;
                }
                let code = tool.wait(Duration::ZERO);
                let refused = code == 3 && tool.text().contains("already has an owner");
                let lost = code == 1 && tool.text().contains("another owner took");
                assert!(refused || lost && !more.is_empty(), "exit {code}: {}", tool.tail());
            }
            assert_eq!(owners, 1);
            for tool in &mut tools {
                tool.kill();
            }
        }
    }
}

#[test]
fn owner_of_another_machine_counts_as_dead_without_connections() {
    let (a, b) = (Server::start("redis-6.0"), Server::start("redis-6.0"));
    let mut target = b.client();
    let set = cmd!["SET", KEY, "kf1 token=x host=elsewhere pid=5", "PX", 10_000_000];
    target.call(&set);
    let began = Instant::now();
    let mut tool = start(&a, &b, &[]);
    until_owner(&b, &mut tool, Duration::from_secs(5));
    assert!(began.elapsed() >= Duration::from_secs(1));
    tool.until_text("host=\"elsewhere\"", HALF_MINUTE);
    tool.stop();

    target.call(&set);
    let mut lane = b.client();
    lane.call(&cmd!["CLIENT", "SETNAME", "keyferry:one:x:7:0"]);
    let mut tool = start(&a, &b, &[]);
    must_be_refused(&mut tool, "process 5 on elsewhere");
    lane.call(&cmd!["PING"]);
    let mut tool = start(&a, &b, &["--takeover"]);
    until_owner(&b, &mut tool, HALF_MINUTE);
    until(HALF_MINUTE, "the other's connection to be killed", || lane.ask(&cmd!["PING"]).is_err());
    tool.stop();
}

#[test]
fn wiped_lease_is_taken_again_before_a_starter_can() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut first = start(&a, &b, &[]);
    follows(&a, &b, &mut first, "k");
    for i in 0..3 {
        a.client().call(&cmd!["FLUSHALL"]);
        follows(&a, &b, &mut first, &format!("l{i}"));
        let mut second = start(&a, &b, &[]);
        must_be_refused(&mut second, &format!("process {}", first.pid()));
        first.must_live();
    }
    first.stop();
}

/// The lease stands as long as the job waits for a target that is full or away.
#[test]
fn owner_keeps_its_job_over_a_full_target_and_a_restarted_one() {
    let (a, mut b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut tool = start(&a, &b, &[]);
    follows(&a, &b, &mut tool, "k");
    let mut target = b.client();
    target.call(&cmd!["CONFIG", "SET", "maxmemory", 1]);
    holds_for(Duration::from_secs(12), "the lease", || !lease(&mut target).is_empty());
    target.call(&cmd!["CONFIG", "SET", "maxmemory", 0]);
    follows(&a, &b, &mut tool, "l");
    b.restart();
    until_owner(&b, &mut tool, HALF_MINUTE);
    follows(&a, &b, &mut tool, "m");
    tool.stop();
}

/// Full memory passes: who starts then waits, and says for what.
#[test]
fn starter_waits_for_a_full_target() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "k", 1]);
    let mut target = b.client();
    target.call(&cmd!["CONFIG", "SET", "maxmemory", 1]);
    let mut tool = start(&a, &b, &["--once"]);
    tool.until_text("OOM", HALF_MINUTE);
    tool.must_live();
    target.call(&cmd!["CONFIG", "SET", "maxmemory", 0]);
    tool.must_end(HALF_MINUTE, 0);
    must_be_same(&a, &b, "a full target", &Rules::default());
}

#[test]
fn run_that_is_refused_later_gives_the_lease_back() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "k", 1]);
    b.client().call(&cmd!["SET", "other", 1]);
    let mut tool = Tool::sync(&a, &b, &["--job", "one"]);
    tool.must_end(HALF_MINUTE, 3);
    assert_eq!(b.client().call(&cmd!["KEYS", "*"]).list().len(), 1);
    b.client().call(&cmd!["DEL", "other"]);
    Tool::once(&a, &b, &["--job", "one"], HALF_MINUTE);
    must_be_same(&a, &b, "after --once", &Rules::default());
    assert_eq!(b.client().call(&cmd!["KEYS", "*"]).list().len(), 1);
}

#[test]
fn user_that_may_not_list_connections_is_told_the_rule_or_goes_on_unfenced() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "k", 1]);
    let mut acl = cmd!["ACL", "SETUSER", "writer", "on", ">pw", "~*", "&*", "+@all"];
    acl.extend(cmd!["-client|list", "-client|kill"]);
    b.client().call(&acl);
    let (from, to) = (a.url(), format!("redis://writer:pw@127.0.0.1:{}", b.port));
    let args = ["sync", &from, &to, "--job", "one", "--once"];
    let mut tool = Tool::run(&args);
    tool.must_end(HALF_MINUTE, 3);
    assert!(tool.text().contains("+client|list +client|kill"), "{}", tool.text());
    assert_eq!(b.client().dbsize(), 0);
    let mut tool = Tool::run(&[&args[..], &["--unfenced"]].concat());
    tool.must_end(HALF_MINUTE, 0);
    must_be_same(&a, &b, "unfenced", &Rules::default());
}

/// The lease is no hindrance to a replica of the target, and goes over to it.
#[test]
fn lease_is_replicated_with_the_target() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let replica = Server::start("redis-7.0");
    replicate_natively(&b, &replica);
    let mut tool = start(&a, &b, &[]);
    until_owner(&b, &mut tool, HALF_MINUTE);
    until_owner(&replica, &mut tool, HALF_MINUTE);
    tool.stop();
    let mut client = replica.client();
    until(HALF_MINUTE, "the lease's end there", || lease(&mut client).is_empty());
}
