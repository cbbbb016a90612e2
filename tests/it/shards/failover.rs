//! Source primaries that fail over: the shard goes on with the promoted node.

use super::load::ClusterLoad;
use super::{JOB, full_syncs, record, sync, until_following};
use crate::cluster::Cluster;
use crate::compare::{Rules, until_same};
use crate::server::Server;
use crate::wait::{MINUTE, until};

/// Enough for whatever is written while nobody is connected.
const BACKLOG: &[&str] = &["repl-backlog-size 64mb"];

fn offset(node: &Server) -> u64 {
    let info = node.client().info("replication");
    info.get("master_repl_offset").and_then(|n| n.parse().ok()).expect("an offset")
}

fn replid(node: &Server) -> String {
    node.client().info("replication").get("master_replid").cloned().expect("a replid")
}

/// Waits until a record of some shard is of the history that a node has now.
fn until_history(target: &Server, node: &Server) {
    let (mut client, wanted) = (target.client(), replid(node));
    until(MINUTE, "a record of the promoted node's history", || {
        (0..3).any(|shard| record(&mut client, shard).contains(&wanted))
    });
}

#[test]
fn promoted_nodes_go_on_by_partial_resync() {
    let mut a = Cluster::with("redis-7.0", 3, 1, BACKLOG);
    let b = Server::start("redis-7.0");
    let load = ClusterLoad::start(&a, 4000);
    let mut tool = sync(&a, &b, &[]);
    until_following(&b, &[0, 1, 2]);
    load.until_sent(3000, MINUTE);

    // In order, under load: node 3 follows node 0.
    let had = full_syncs(&a.nodes[3]);
    a.promote(3, "");
    load.until_sent(3000, MINUTE);
    load.stop();
    let following = Rules::following(&a.nodes[4]);
    until_same(&a, &b, MINUTE, "after a failover in order", &following);
    assert_eq!(full_syncs(&a.nodes[3]), had, "a full sync of the node that was promoted in order");

    // Killed, when its replica has everything: node 4 follows node 1.
    until(MINUTE, "a replica that has everything", || offset(&a.nodes[1]) == offset(&a.nodes[4]));
    let had = full_syncs(&a.nodes[4]);
    a.kill_and_promote(1, 4);
    let load = ClusterLoad::start(&a, 4000);
    load.until_sent(3000, MINUTE);
    load.stop();
    until_same(&a, &b, MINUTE, "after a kill", &following);
    assert_eq!(full_syncs(&a.nodes[4]), had, "a full sync of the node that was promoted after a kill");

    // Killed in full flight: whatever it takes, the end is the same.
    let load = ClusterLoad::start(&a, 4000);
    load.until_sent(2000, MINUTE);
    a.kill_and_promote(2, 5);
    load.until_sent(3000, MINUTE);
    load.stop();
    until_same(&a, &b, MINUTE, "after a kill in full flight", &following);
    tool.stop();
}

#[test]
fn failover_while_keyferry_was_away_is_no_full_sync() {
    let a = Cluster::with("redis-7.0", 3, 1, BACKLOG);
    let b = Server::start("redis-7.0");
    let load = ClusterLoad::start(&a, 4000);
    let mut tool = sync(&a, &b, &[]);
    until_following(&b, &[0, 1, 2]);
    load.until_sent(2000, MINUTE);
    tool.kill();
    let had: Vec<u64> = a.nodes.iter().map(full_syncs).collect();
    load.until_sent(1000, MINUTE);
    a.promote(3, "");
    load.until_sent(1000, MINUTE);
    // The seeds are the nodes that still are what they were.
    let mut tool = sync(&a, &b, &[]);
    load.until_sent(2000, MINUTE);
    load.stop();
    until_same(&a, &b, MINUTE, JOB, &Rules::following(&a.nodes[0]));
    until_history(&b, &a.nodes[3]);
    // Node 0 follows node 3 now, which may cost it a full sync of its own; nobody else gave one.
    let now: Vec<u64> = a.nodes.iter().map(full_syncs).collect();
    assert_eq!(now, had, "full syncs");
    tool.stop();
}

#[test]
fn primary_that_stops_answering_is_left_when_its_replica_takes_over() {
    let a = Cluster::with("redis-7.0", 3, 1, BACKLOG);
    let b = Server::start("redis-7.0");
    let mut tool = sync(&a, &b, &[]);
    until_following(&b, &[0, 1, 2]);
    until(MINUTE, "a replica that has everything", || offset(&a.nodes[0]) == offset(&a.nodes[3]));
    let had = full_syncs(&a.nodes[3]);
    // Its connections stay open, and say nothing.
    let stopped = crate::server::Paused::new(&a.nodes[0]);
    let mut replica = a.nodes[3].client();
    replica.call(&cmd!["CLUSTER", "FAILOVER", "TAKEOVER"]);
    until(MINUTE, "the new primary's word to all", || {
        let seen = a.nodes[1].client().call(&cmd!["CLUSTER", "NODES"]).text();
        seen.lines().any(|line| line.starts_with(a.id(3)) && line.contains("master"))
    });
    until_history(&b, &a.nodes[3]);
    assert_eq!(full_syncs(&a.nodes[3]), had, "a full sync of the promoted node");
    drop(stopped);
    a.until_ok();
    let load = ClusterLoad::start(&a, 3000);
    load.until_sent(3000, MINUTE);
    load.stop();
    until_same(&a, &b, MINUTE, "after the old primary is back", &Rules::following(&a.nodes[1]));
    // The old primary may need one, and nobody else.
    assert!(full_syncs(&a.nodes[3]) <= had + 1, "full syncs of the promoted node");
    tool.stop();
}
