//! Clusters of every version as `keyferry::net::topology` sees them, and the harness that makes them.

use crate::cluster::{Cluster, slot_of};
use crate::compare::{Rules, must_be_same, snapshot};
use crate::server::Server;
use crate::wait::{MINUTE, until};
use keyferry::net::Side;
use keyferry::net::conn::{Conn, Server as Address};
use keyferry::net::endpoint::HostPort;
use keyferry::net::topology::{self, Direction, Health, Topology, View};
use keyferry::resp::reply::Reply;
use keyferry::slot::Slot;
use std::collections::BTreeMap;

/// One version of each shape that CLUSTER's answers have had.
const VERSIONS: &[&str] = &["redis-6.0", "redis-7.0", "redis-8.6", "valkey-9.1"];

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn address(node: &Server) -> HostPort {
    HostPort { host: "127.0.0.1".into(), port: node.port }
}

async fn connect(node: &Server) -> Conn {
    let server = Address { side: Side::Target, address: address(node), user: None, password: None, tls: None };
    server.connect().await.expect("the node answers")
}

/// What a node says, in all the ways there are to ask.
fn ask(node: &Server) -> Topology {
    runtime().block_on(async {
        let (asked, address_map) = (address(node), BTreeMap::new());
        let view = View { asked: &asked, tls: false, address_map: &address_map };
        topology::ask(&mut connect(node).await, &view).await.expect("a topology")
    })
}

/// What it says in one way; `None` where the node doesn't know that.
fn ask_by(node: &Server, way: &str) -> Option<Topology> {
    runtime().block_on(async {
        let (asked, address_map) = (address(node), BTreeMap::new());
        let view = View { asked: &asked, tls: false, address_map: &address_map };
        let reply = connect(node).await.call(&["CLUSTER", way]).await.expect("an answer");
        let read = match way {
            "SHARDS" => topology::from_shards,
            "SLOTS" => topology::from_slots,
            _ => topology::from_nodes,
        };
        (!matches!(reply, Reply::Error(_))).then(|| read(&reply, &view).expect("a topology"))
    })
}

/// Its primaries with slots as `port slots: replicas' ports`.
fn shown(topology: &Topology) -> Vec<String> {
    let mut lines: Vec<String> = topology
        .owners()
        .map(|p| {
            let replicas: Vec<u16> = p.replicas.iter().map(|r| r.address.port).collect();
            format!("{} {}: {replicas:?}", p.address.port, p.slots)
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn every_way_to_ask_any_version_tells_the_same() {
    for name in VERSIONS {
        let cluster = Cluster::with(name, 2, 1, &[]);
        // CLUSTER SLOTS leaves out replicas that have nothing yet.
        cluster.client().load(&[cmd!["SET", "k5", 1], cmd!["SET", "k6", 1]]);
        let port = |n: usize| cluster.nodes[n].port;
        let mut want = [format!("{} 0-8191: [{}]", port(0), port(2)), format!("{} 8192-16383: [{}]", port(1), port(3))];
        want.sort();
        for node in &cluster.nodes {
            for way in ["SHARDS", "SLOTS", "NODES"] {
                let known = way != "SHARDS" || *name != "redis-6.0";
                until(MINUTE, &format!("what {name} says to {way}"), || match ask_by(node, way) {
                    Some(topology) => shown(&topology) == want,
                    None => !known,
                });
            }
            let all = ask(node);
            assert_eq!(shown(&all), want, "{name}");
            assert!(all.is_whole() && all.motions().is_empty(), "{name}");
            let ids: Vec<&str> = all.owners().map(|p| p.id.as_str()).collect();
            assert!(ids.contains(&cluster.id(0)) && ids.contains(&cluster.id(1)), "{name}: {ids:?}");
        }
    }
}

#[test]
fn moves_and_failed_primaries_are_seen() {
    for name in VERSIONS {
        let mut cluster = Cluster::with(name, 2, 1, &[]);
        let slot = |n| Slot::new(n).expect("a slot");
        cluster.begin_move(77, 1);
        let motions = ask(&cluster.nodes[0]).motions().to_vec();
        assert_eq!(motions.len(), 1, "{name}");
        assert_eq!((motions[0].slot, &motions[0].direction), (slot(77), &Direction::MigratingTo(cluster.id(1).into())));
        let motions = ask(&cluster.nodes[1]).motions().to_vec();
        assert_eq!(
            (motions[0].slot, &motions[0].direction),
            (slot(77), &Direction::ImportingFrom(cluster.id(0).into()))
        );
        // Replicas of Valkey know what their primary does; no other node does.
        let told = ask(&cluster.nodes[2]).motions().len();
        assert_eq!(told, usize::from(cluster.nodes[2].is_valkey()), "{name}");
        cluster.end_move(77, 0, 1);
        cluster.until_ok();
        let topology = ask(&cluster.nodes[0]);
        assert_eq!(topology.owner(slot(77)).map(|p| p.id.as_str()), Some(cluster.id(1)), "{name}");
        assert!(topology.is_whole(), "{name}");

        cluster.kill_and_promote(0, 2);
        let gone = cluster.id(0).to_owned();
        until(MINUTE, "the dead primary is known as failed", || {
            let topology = ask(&cluster.nodes[1]);
            topology.primary(&gone).is_some_and(|p| p.health == Health::Failed && p.slots.is_empty())
        });
        for node in &cluster.nodes[1..] {
            let topology = ask(node);
            assert_eq!(topology.owner(slot(1)).map(|p| p.id.as_str()), Some(cluster.id(2)), "{name}");
            assert!(topology.is_whole(), "{name}");
        }
    }
}

#[test]
fn host_names_and_unknown_endpoints_are_read_as_servers_mean_them() {
    for name in ["redis-7.0", "redis-8.6", "valkey-9.1"] {
        let cluster = Cluster::with(name, 1, 0, &["cluster-announce-hostname localhost"]);
        let node = &cluster.nodes[0];
        let host = || ask(node).primaries()[0].address.host.clone();
        assert_eq!(host(), "127.0.0.1", "{name}");
        let mut client = node.client();
        client.call(&cmd!["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"]);
        assert_eq!(host(), "localhost", "{name}");
        client.call(&cmd!["CONFIG", "SET", "cluster-announce-hostname", ""]);
        assert_eq!(host(), "127.0.0.1", "{name}: none is set");
        client.call(&cmd!["CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint"]);
        assert_eq!(host(), "127.0.0.1", "{name}: where it was asked");
    }
}

#[test]
fn clusters_of_the_harness_serve_and_move_slots() {
    for name in ["redis-6.0", "redis-7.0", "redis-8.6", "valkey-9.1"] {
        let (cluster, one) = (Cluster::start(name, 3), Server::start(name));
        let mut client = cluster.client();
        let keys: Vec<String> = (0..3000).map(|n| format!("k{n}")).collect();
        let sets: Vec<_> = keys.iter().map(|key| cmd!["SET", key, key]).collect();
        client.load(&sets);
        one.client().load(&sets);
        must_be_same(&one, &cluster, name, &Rules::default());
        assert_eq!(client.call(&cmd!["GET", "k5"]).text(), "k5");
        let slot = slot_of(b"k5");
        let to = (0..3).find(|n| *n != cluster.owner(slot)).expect("another node");
        cluster.move_slot(slot, to);
        assert_eq!(cluster.owner(slot), to, "{name}");
        assert_eq!(client.call(&cmd!["GET", "k5"]).text(), "k5", "{name}: by the old map");
        let (slot, to) = (slot_of(b"k6"), 0);
        if cluster.owner(slot) != to {
            let from = cluster.begin_move(slot, to);
            cluster.move_keys(slot, from, to, 100);
            assert_eq!(client.call(&cmd!["GET", "k6"]).text(), "k6", "{name}: by ASK");
            cluster.turn_back(slot, from, to);
            assert_eq!(client.call(&cmd!["GET", "k6"]).text(), "k6", "{name}: turned back");
        }
        if ["redis-8.6", "valkey-9.1"].contains(&name) {
            let to = (cluster.owner(100) + 1) % 3;
            cluster.move_slots_atomically(100, 120, to);
        }
        cluster.until_ok();
        must_be_same(&one, &cluster, name, &Rules::default());
    }
}

#[test]
fn cluster_of_the_harness_fails_over_with_and_without_its_primary() {
    let mut cluster = Cluster::with("redis-7.0", 2, 1, &[]);
    let mut client = cluster.client();
    client.load(&(0..500).map(|n| cmd!["SET", format!("k{n}"), n]).collect::<Vec<_>>());
    cluster.promote(2, "");
    assert_eq!(cluster.owners(), [1, 2]);
    cluster.until_linked(0);
    assert_eq!(snapshot(&cluster).len(), 500);
    cluster.kill_and_promote(1, 3);
    cluster.until_ok();
    assert_eq!(cluster.owners(), [2, 3]);
    client.refresh();
    assert_eq!(client.call(&cmd!["GET", "k1"]).text(), "1");
}
