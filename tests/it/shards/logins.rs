//! User, password and TLS of the URL are those of every node.

use super::{JOB, fill, full_syncs, until_following};
use crate::acl::set_user;
use crate::cluster::Cluster;
use crate::compare::{Rules, until_same};
use crate::server::Server;
use crate::tls::Certificates;
use crate::tool::Tool;
use crate::wait::HALF_MINUTE;

/// What the README's user of a source needs for a cluster besides.
const CLUSTER_RULES: &[&str] = &["+cluster|nodes", "+cluster|shards", "+cluster|slots", "+readonly"];

/// The connections that a node takes for replicas.
fn links(node: &Server) -> String {
    node.client().call(&cmd!["CLIENT", "LIST", "TYPE", "replica"]).text()
}

#[test]
fn readme_user_is_enough_on_every_node() {
    let a = Cluster::start("redis-7.0", 3);
    let b = Server::start("redis-7.0");
    fill(&a);
    a.nodes.iter().for_each(|node| set_user(node, "reader", 1, CLUSTER_RULES));
    let from = format!("redis://reader:password@127.0.0.1:{}", a.nodes[1].port);
    let mut tool = Tool::run(&["sync", &from, &b.url(), "--job", JOB]);
    until_following(&b, &[0, 1, 2]);
    until_same(&a, &b, HALF_MINUTE, "as a user of its own", &Rules::following(&a.nodes[0]));
    for node in &a.nodes {
        assert!(links(node).contains("user=reader"), "{}", links(node));
    }
    tool.stop();
}

#[test]
fn tls_of_the_url_is_that_of_every_node() {
    let certificates = Certificates::new();
    for (name, config) in [
        ("redis-7.0", &["cluster-enabled yes", "tls-cluster yes", "tls-replication yes"][..]),
        ("redis-8.6", &["cluster-enabled yes"]),
    ] {
        let lines = certificates.lines("server", true);
        let config = [config, &lines.iter().map(String::as_str).collect::<Vec<_>>()].concat();
        let a = Cluster::join((0..2).map(|_| Server::with(name, &config)).collect(), 2);
        let b = Server::start(name);
        fill(&a);
        let from = format!("rediss://127.0.0.1:{}", a.nodes[0].port2);
        let file = |name: &str| certificates.text(name);
        let mut tool = Tool::run(&[
            "sync",
            &from,
            &b.url(),
            "--job",
            JOB,
            "--source-cacert",
            &file("ca.crt"),
            "--source-cert",
            &file("client.crt"),
            "--source-key",
            &file("client.key"),
        ]);
        until_following(&b, &[0, 1]);
        until_same(&a, &b, HALF_MINUTE, name, &Rules::following(&a.nodes[0]));
        for node in &a.nodes {
            assert_eq!(full_syncs(node), 1, "{name}");
            let at = format!("laddr=127.0.0.1:{}", node.port2);
            assert!(links(node).contains(&at), "{name}: not on {at}: {}", links(node));
        }
        tool.stop();
    }
}
