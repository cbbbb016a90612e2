//! `--prefer-replica`: each shard is read from a replica where it has one.

use super::load::ClusterLoad;
use super::{full_syncs, sync, until_following};
use crate::cluster::Cluster;
use crate::compare::{Rules, until_same};
use crate::load::{Mix, Workload};
use crate::server::{Server, replicate_natively};
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, MINUTE, until};

#[test]
fn shards_are_read_from_their_replicas_and_the_next_when_one_is_gone() {
    let mut a = Cluster::with("redis-7.0", 2, 1, &["repl-backlog-size 64mb"]);
    let b = Server::start("redis-7.0");
    let had: Vec<u64> = a.nodes.iter().map(full_syncs).collect();
    let load = ClusterLoad::start(&a, 3000);
    let mut tool = sync(&a, &b, &["--prefer-replica", "--progress", "log"]);
    until_following(&b, &[0, 1]);
    tool.until_text("2 shards, 2 of them read from replicas", HALF_MINUTE);
    load.until_sent(2000, MINUTE);
    let now: Vec<u64> = a.nodes.iter().map(full_syncs).collect();
    assert_eq!(now, [had[0], had[1], had[2] + 1, had[3] + 1], "who gave full syncs");
    // Its primary takes its place, where the stream goes on.
    a.nodes[2].kill();
    tool.until_text("2 shards, 1 of them read from replicas", HALF_MINUTE);
    load.until_sent(2000, MINUTE);
    load.stop();
    until_same(&a, &b, MINUTE, "read from replicas", &Rules::following(&a.nodes[0]));
    assert_eq!(full_syncs(&a.nodes[0]), had[0], "a full sync of the primary");
    tool.stop();
}

#[test]
fn standalone_server_is_read_from_its_replica() {
    let (a, replica, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"), Server::start("redis-7.0"));
    replicate_natively(&a, &replica);
    until(HALF_MINUTE, "a replica that its primary calls online", || {
        a.client().info("replication").get("slave0").is_some_and(|line| line.contains("state=online"))
    });
    let load = Workload::start(&a, fastrand::u64(..), 3000, Mix::of(&a));
    let had = full_syncs(&a);
    let mut tool = Tool::sync(&a, &b, &["--prefer-replica", "--job", "j", "--progress", "log"]);
    let mut target = b.client();
    until(MINUTE, "the copy's end", || is_following(&mut target, "j"));
    tool.until_text("read from a replica", HALF_MINUTE);
    load.until_sent(3000, MINUTE);
    load.stop();
    until_same(&a, &b, MINUTE, "read from a replica", &Rules::following(&a));
    assert_eq!((full_syncs(&a), full_syncs(&replica)), (had, 1), "full syncs of the primary and of the replica");
    tool.stop();
    // The end waits for what the primary had written, not for what the replica has.
    let mut finish =
        Tool::run(&["finish", "--source", &a.url(), "--target", &b.url(), "--prefer-replica", "--job", "j"]);
    finish.must_end(MINUTE, 0);
    let exact = Rules { group_hints: false, ..Rules::default() };
    until_same(&a, &b, HALF_MINUTE, "finished", &exact);
}

/// Before 7.0 replicas of a cluster refuse transactions that ask for more than keys.
#[test]
fn keys_that_must_be_copied_are_told_by_the_primaries_of_old_clusters() {
    let a = Cluster::with("redis-6.0", 2, 1, &["repl-backlog-size 64mb"]);
    let b = Server::start("redis-6.0");
    let load = ClusterLoad::with(&a, fastrand::u64(..1_000_000), 2000, &["", "tmp:"]);
    let mut tool = sync(&a, &b, &["--prefer-replica", "--not-key", "*tmp:*", "--progress", "log"]);
    until_following(&b, &[0, 1]);
    tool.until_text("2 shards, 2 of them read from replicas", HALF_MINUTE);
    load.until_sent(3000, MINUTE);
    load.stop();
    let in_scope = |_: u32, key: &[u8]| !key.windows(4).any(|part| part == b"tmp:");
    let rules = Rules { in_scope: &in_scope, ..Rules::following(&a.nodes[0]) };
    until_same(&a, &b, MINUTE, "with keys renamed over the filter's edge", &rules);
    tool.stop();
}
