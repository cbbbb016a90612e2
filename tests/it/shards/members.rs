//! Nodes that join and leave the source cluster while keyferry follows it.

use super::load::ClusterLoad;
use super::{JOB, own_keys, record, sync, until_following};
use crate::cluster::Cluster;
use crate::compare::{Rules, until_same};
use crate::server::Server;
use crate::wait::{HALF_MINUTE, MINUTE, until};

#[test]
fn empty_node_that_joins_is_followed_and_forgotten_when_it_leaves() {
    let mut a = Cluster::start("redis-7.0", 2);
    let b = Server::start("redis-7.0");
    let load = ClusterLoad::start(&a, 3000);
    let mut tool = sync(&a, &b, &[]);
    until_following(&b, &[0, 1]);
    let node = a.add();
    tool.until_text("a primary has joined the source cluster", HALF_MINUTE);
    until_following(&b, &[2]);
    // A new process finds it in the records.
    load.until_sent(1000, MINUTE);
    tool.kill();
    let mut tool = sync(&a, &b, &[]);
    tool.until_text("resumed shard=2", HALF_MINUTE);
    load.until_sent(1000, MINUTE);
    a.remove(node);
    tool.until_text("a primary has left the source cluster", HALF_MINUTE);
    let mut target = b.client();
    until(HALF_MINUTE, "an end of the shard's records", || record(&mut target, 2).is_empty());
    let of_shard = |key: &String| key.starts_with(&format!("keyferry:{JOB}:2:"));
    assert!(!own_keys(&b).iter().any(of_shard), "{:?}", own_keys(&b));
    load.until_sent(1000, MINUTE);
    load.stop();
    until_same(&a, &b, MINUTE, "after a node came and went", &Rules::following(&a.nodes[0]));
    tool.stop();
}

#[test]
fn node_that_left_while_keyferry_was_away_means_a_copy_of_all_said_aloud() {
    let mut a = Cluster::start("redis-7.0", 2);
    let b = Server::start("redis-7.0");
    let node = a.add();
    let load = ClusterLoad::start(&a, 3000);
    let mut tool = sync(&a, &b, &[]);
    until_following(&b, &[0, 1, 2]);
    load.until_sent(1000, MINUTE);
    tool.kill();
    a.remove(node);
    load.until_sent(500, MINUTE);
    // What its slots were, had it any, nobody can tell.
    let mut tool = sync(&a, &b, &[]);
    tool.until_text("a new full sync of all shards begins", HALF_MINUTE);
    load.until_sent(1000, MINUTE);
    load.stop();
    until_same(&a, &b, MINUTE, "after a node was gone", &Rules::following(&a.nodes[0]));
    tool.stop();
}

#[test]
fn one_node_of_a_cluster_is_a_server_of_its_own_when_told_so() {
    let a = Cluster::start("redis-7.0", 2);
    let b = Server::start("redis-7.0");
    let (here, there) = (super::tag_of(&a, 0), super::tag_of(&a, 1));
    let mut client = a.client();
    client.call(&cmd!["SET", format!("{here}k"), 1]);
    client.call(&cmd!["SET", format!("{there}k"), 1]);
    let from = format!("{}?cluster=false", a.nodes[0].url());
    let mut tool = crate::tool::Tool::run(&["sync", "--source", &from, "--target", &b.url(), "--once"]);
    tool.must_end(MINUTE, 0);
    let mut target = b.client();
    assert_eq!(target.call(&cmd!["EXISTS", format!("{here}k")]).int(), 1);
    assert_eq!(target.call(&cmd!["EXISTS", format!("{there}k")]).int(), 0);
}
