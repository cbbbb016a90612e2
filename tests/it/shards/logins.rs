//! User, password and TLS of the URL are those of every node.

use super::{JOB, fill, full_syncs, until_following};
use crate::acl::set_user;
use crate::cluster::Cluster;
use crate::compare::{Rules, until_same};
use crate::server::Server;
use crate::tls::Certificates;
use crate::tool::Tool;
use crate::wait::HALF_MINUTE;

/// The connections that a node takes for replicas.
fn links(node: &Server) -> String {
    node.client().call(&cmd!["CLIENT", "LIST", "TYPE", "replica"]).text()
}

#[test]
fn readme_users_are_enough_on_every_node_of_both_sides() {
    for (name, lines) in [("redis-7.0", 1), ("redis-6.0", 2), ("valkey-9.1", 1)] {
        let (a, b) = (Cluster::start(name, 3), Cluster::start(name, 2));
        fill(&a);
        a.nodes.iter().for_each(|node| set_user(node, "reader", lines, &[]));
        b.nodes.iter().for_each(|node| set_user(node, "writer", 2, &[]));
        let url = |cluster: &Cluster, user| format!("redis://{user}:password@127.0.0.1:{}", cluster.nodes[1].port);
        let (from, to) = (url(&a, "reader"), url(&b, "writer"));
        let mut tool = Tool::run(&["sync", &from, &to, "--job", JOB]);
        tool.until_text("following", HALF_MINUTE);
        until_same(&a, &b, HALF_MINUTE, name, &Rules::following(&a.nodes[0]));
        for node in &a.nodes {
            // Before 6.2 the list doesn't tell users.
            assert!(name == "redis-6.0" || links(node).contains("user=reader"), "{name}: {}", links(node));
        }
        tool.stop();
        let mut tool = Tool::run(&["finish", &from, &to, "--job", JOB]);
        tool.must_end(HALF_MINUTE, 0);
        until_same(&a, &b, HALF_MINUTE, name, &Rules { group_hints: false, ..Rules::default() });
    }
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
