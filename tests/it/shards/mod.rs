//! A cluster as the source: each primary a shard, into one server.

mod broken_moves;
mod clusters;
mod failover;
pub mod load;
mod logins;
mod members;
mod motion;
mod replicas;

use crate::client::{Client, Reply};
use crate::cluster::{Cluster, slot_of};
use crate::compare::{Rules, is_own_record, must_be_same, now_ms, scan, until_same};
use crate::load::{load_function, load_types};
use crate::server::Server;
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, until};
use load::ClusterLoad;

/// The job's name in all of these tests.
const JOB: &str = "shards";

/// Arguments for the whole cluster, every node a seed.
fn args(command: &str, source: &Cluster, target: &Server, more: &[&str]) -> Vec<String> {
    let (from, to) = (source.url(), target.url());
    let words = [command, "--source", &from, "--target", &to, "--job", JOB];
    words.iter().chain(more).map(|word| word.to_string()).collect()
}

fn run(command: &str, source: &Cluster, target: &Server, more: &[&str]) -> Tool {
    let args = args(command, source, target, more);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Tool::run(&args)
}

fn sync(source: &Cluster, target: &Server, more: &[&str]) -> Tool {
    run("sync", source, target, more)
}

/// The text of the first lane's record of a shard; empty if there is none.
fn record(target: &mut Client, shard: u32) -> String {
    let key = match shard {
        0 => format!("keyferry:{JOB}:lane:0"),
        shard => format!("keyferry:{JOB}:{shard}:lane:0"),
    };
    match target.call(&cmd!["GET", key]) {
        Reply::Nil => String::new(),
        reply => reply.text(),
    }
}

/// Waits until these shards' copies are whole.
fn until_following(target: &Server, shards: &[u32]) {
    let mut target = target.client();
    until(MINUTE, &format!("the copies of shards {shards:?}"), || {
        shards.iter().all(|shard| record(&mut target, *shard).contains("phase=following"))
    });
}

/// How many full syncs a node has given.
fn full_syncs(node: &Server) -> u64 {
    let stats = node.client().info("stats");
    stats.get("sync_full").and_then(|n| n.parse().ok()).expect("a count of full syncs")
}

fn own_keys(target: &Server) -> Vec<String> {
    let keys = scan(&mut target.client()).into_iter().filter(|key| is_own_record(key));
    keys.map(|key| key.escape_ascii().to_string()).collect()
}

/// A hash tag whose slot a node owns.
fn tag_of(cluster: &Cluster, node: usize) -> String {
    let tags = (0..).map(|i| format!("{{of{i}}}"));
    let mut owned = tags.filter(|tag| cluster.owner(slot_of(tag.as_bytes())) == node);
    owned.next().expect("a tag of the node")
}

/// Every type on every primary.
fn fill(cluster: &Cluster) {
    for node in cluster.owners() {
        let mut client = cluster.nodes[node].client();
        load_types(&cluster.nodes[node], &mut client, 7 + node as u64, &tag_of(cluster, node));
        load_function(&cluster.nodes[node], &mut client);
    }
}

#[test]
fn three_primaries_into_one_server_through_kills_of_keyferry() {
    for name in ["redis-7.0", "valkey-9.1"] {
        let a = Cluster::start(name, 3);
        let b = Server::start(name);
        fill(&a);
        let load = ClusterLoad::start(&a, 5000);
        let mut tool = sync(&a, &b, &[]);
        until_following(&b, &[0, 1, 2]);
        for _ in 0..3 {
            load.until_sent(2000 + fastrand::u64(..4000), MINUTE);
            tool.kill();
            load.until_sent(500, MINUTE);
            tool = sync(&a, &b, &[]);
        }
        load.until_sent(3000, MINUTE);
        load.stop();
        until_same(&a, &b, MINUTE, name, &Rules::following(&a.nodes[0]));
        tool.must_live();
        let listed = format!("{:?}", b.client().call(&cmd!["FUNCTION", "LIST"]));
        assert!(listed.contains("ferrylib"), "{name}: functions on the target: {listed}");
        assert!(a.nodes.iter().all(|node| full_syncs(node) == 1), "{name}: a node gave a second full sync");
        tool.stop();
        assert!(tool.text().contains("source offsets:"), "{}", tool.text());
        run("finish", &a, &b, &[]).must_end(MINUTE, 0);
        let exact = Rules { group_hints: false, ..Rules::default() };
        // Short-lived keys expire on both sides while they are read.
        until_same(&a, &b, HALF_MINUTE, &format!("{name}, finished"), &exact);
        assert_eq!(own_keys(&b), [""; 0], "{name}: keys that a finished job left");
    }
}

#[test]
fn once_ends_when_every_shard_has_caught_up() {
    let a = Cluster::start("redis-8.6", 3);
    let b = Server::start("redis-8.6");
    fill(&a);
    let mut tool = sync(&a, &b, &["--once"]);
    tool.must_end(MINUTE, 0);
    must_be_same(&a, &b, "once", &Rules::default());
    assert_eq!(own_keys(&b), [""; 0]);
}

#[test]
fn flush_of_one_shard_removes_only_what_its_slots_hold() {
    let a = Cluster::start("redis-7.0", 3);
    let b = Server::start("redis-7.0");
    fill(&a);
    let mut tool = sync(&a, &b, &[]);
    until_following(&b, &[0, 1, 2]);
    until_same(&a, &b, HALF_MINUTE, "copied", &Rules::following(&a.nodes[0]));
    let (flushed, other) = (tag_of(&a, 1), tag_of(&a, 2));
    a.nodes[1].client().call(&cmd!["FLUSHALL"]);
    a.client().call(&cmd!["SET", format!("{flushed}after"), "there"]);
    until_same(&a, &b, HALF_MINUTE, "one shard flushed", &Rules::following(&a.nodes[0]));
    let mut target = b.client();
    assert_eq!(target.get(&format!("{flushed}after")).text(), "there");
    assert_eq!(target.call(&cmd!["EXISTS", format!("{other}stream:a")]).int(), 1);
    // In a transaction as well: what it wrote before is gone with the rest.
    let inner = [cmd!["SET", format!("{flushed}lost"), 1], cmd!["FLUSHDB"], cmd!["SET", format!("{flushed}kept"), 2]];
    let mut all = vec![cmd!["MULTI"]];
    all.extend(inner);
    all.push(cmd!["EXEC"]);
    a.nodes[1].client().load(&all);
    until_same(&a, &b, HALF_MINUTE, "one shard flushed in a transaction", &Rules::following(&a.nodes[0]));
    tool.stop();
}

#[test]
fn sync_after_a_broken_off_finish_asks_each_shard_for_its_own_keys() {
    let a = Cluster::start("redis-7.0", 3);
    let b = Server::start("redis-7.0");
    // Due so soon that each of them is noted, and copied again.
    let at = now_ms() + 100_000;
    let commands: Vec<_> = (0..30_000).map(|i| cmd!["SET", format!("k:{i}"), i, "PXAT", at + i % 1000]).collect();
    let mut client = a.client();
    client.load(&commands);
    let mut tool = sync(&a, &b, &[]);
    until_following(&b, &[0, 1, 2]);
    tool.stop();
    let mut broken = run("finish", &a, &b, &[]);
    let mut target = b.client();
    until(MINUTE, "some settled keys", || {
        let asked: Vec<_> = (0..30_000).step_by(500).map(|i| cmd!["PEXPIRETIME", format!("k:{i}")]).collect();
        target.pipe(&asked).iter().any(|r| r.int() < at + 1000) || !broken.alive()
    });
    broken.kill();
    let noted: Vec<i64> = ["guards:0", "1:guards:0", "2:guards:0"]
        .iter()
        .map(|hash| target.call(&cmd!["HLEN", format!("keyferry:{JOB}:{hash}")]).int())
        .collect();
    assert!(noted.iter().all(|n| *n > 0), "keys noted by shard: {noted:?}");
    client.load(&[cmd!["INCR", "k:7"], cmd!["INCR", "k:8"], cmd!["PEXPIREAT", "k:9", at + 1077]]);
    let mut tool = sync(&a, &b, &[]);
    until_same(&a, &b, MINUTE, "sync again", &Rules::following(&a.nodes[0]));
    tool.stop();
    run("finish", &a, &b, &[]).must_end(MINUTE, 0);
    until_same(&a, &b, HALF_MINUTE, "finished", &Rules::default());
}

#[test]
fn signal_in_the_copy_of_a_cluster_stops_all_and_it_begins_again_later() {
    let a = Cluster::start("redis-7.0", 3);
    let b = Server::start("redis-7.0");
    fill(&a);
    // So slow that no copy ends before the signal.
    let mut tool = sync(&a, &b, &["--rate", "200KiB"]);
    until(HALF_MINUTE, "records of all shards", || (0..3).all(|shard| !record(&mut b.client(), shard).is_empty()));
    tool.terminate();
    tool.must_end(HALF_MINUTE, 0);
    let following = |shard| record(&mut b.client(), shard).contains("phase=following");
    assert!(!(0..3).any(following), "a copy was whole before the signal");
    let leftover = format!("{}leftover", tag_of(&a, 1));
    b.client().call(&cmd!["SET", leftover, "of a broken-off copy"]);
    let mut tool = sync(&a, &b, &[]);
    until_following(&b, &[0, 1, 2]);
    until_same(&a, &b, HALF_MINUTE, "copied again", &Rules::following(&a.nodes[0]));
    tool.stop();
}
