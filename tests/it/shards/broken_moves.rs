//! Moves of slots that don't end as they began: cancelled, failed with a server, turned over to a third.

use super::load::ClusterLoad;
use super::motion::{Way, move_slot, slot_of_tag, until_at_rest};
use super::{fill, full_syncs, sync, until_following};
use crate::cluster::Cluster;
use crate::compare::{Rules, until_same};
use crate::server::Server;
use crate::wait::{HALF_MINUTE, MINUTE, until};

/// Enough for whatever is written while nobody is connected.
const BACKLOG: &[&str] = &["repl-backlog-size 64mb"];

/// Keys that make an atomic move last for a while.
const MANY: usize = 60_000;

fn fill_slot(cluster: &Cluster, tag: usize) {
    let sets: Vec<_> = (0..MANY).map(|i| cmd!["SET", format!("{{tag{tag}}}many{i}"), format!("value {i}")]).collect();
    cluster.client().load(&sets);
}

/// Begins an atomic move, and returns when it is under way; false if it has ended already.
fn begin_atomic(cluster: &Cluster, slot: u16, from: usize, to: usize) -> bool {
    let (mut loser, mut gainer) = (cluster.nodes[from].client(), cluster.nodes[to].client());
    if cluster.nodes[from].is_valkey() {
        loser.call(&cmd!["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", cluster.id(to)]);
    } else {
        gainer.call(&cmd!["CLUSTER", "MIGRATION", "IMPORT", slot, slot]);
    }
    !is_at_rest(cluster, from, to)
}

fn is_at_rest(cluster: &Cluster, from: usize, to: usize) -> bool {
    let moves = match cluster.nodes[from].is_valkey() {
        true => cluster.nodes[from].client().call(&cmd!["CLUSTER", "GETSLOTMIGRATIONS"]),
        false => cluster.nodes[to].client().call(&cmd!["CLUSTER", "MIGRATION", "STATUS", "ALL"]),
    };
    moves.list().iter().all(|one| {
        let state = one.field("state").expect("a state").text();
        ["success", "failed", "cancelled", "canceled", "completed"].contains(&state.as_str())
    })
}

fn cancel_atomic(cluster: &Cluster, from: usize, to: usize) {
    let words = match cluster.nodes[from].is_valkey() {
        true => (from, cmd!["CLUSTER", "CANCELSLOTMIGRATIONS"]),
        false => (to, cmd!["CLUSTER", "MIGRATION", "CANCEL", "ALL"]),
    };
    // Nothing to cancel is an error: it ended just before.
    let _ = cluster.nodes[words.0].client().ask(&words.1);
    until(HALF_MINUTE, "no atomic move that goes on", || is_at_rest(cluster, from, to));
}

#[test]
fn atomic_moves_cancelled_on_their_way_and_begun_again_through_kills() {
    for name in ["valkey-9.1", "redis-8.6"] {
        let a = Cluster::with(name, 3, 0, BACKLOG);
        let b = Server::start(name);
        fill(&a);
        fill_slot(&a, 1);
        let slot = slot_of_tag(1);
        let load = ClusterLoad::start(&a, 2000);
        let mut tool = sync(&a, &b, &[]);
        until_following(&b, &[0, 1, 2]);
        let mut cancelled = 0;
        for round in 0..4 {
            a.until_ok();
            let from = a.owner(slot);
            let to = (from + 1) % 3;
            let under_way = begin_atomic(&a, slot, from, to);
            if round % 2 == 1 {
                tool.kill();
                tool = sync(&a, &b, &[]);
            }
            cancel_atomic(&a, from, to);
            cancelled += usize::from(under_way && a.owner(slot) == from);
            load.until_sent(200, MINUTE);
        }
        assert!(cancelled > 0, "{name}: every move ended before it was cancelled");
        // Once more to its end, with keyferry killed meanwhile.
        a.until_ok();
        let (from, to) = (a.owner(slot), (a.owner(slot) + 1) % 3);
        begin_atomic(&a, slot, from, to);
        tool.kill();
        tool = sync(&a, &b, &[]);
        until(MINUTE, "the move's end", || is_at_rest(&a, from, to));
        load.until_sent(500, MINUTE);
        load.stop();
        until_same(&a, &b, MINUTE, name, &Rules::following(&a.nodes[0]));
        until_at_rest(&b);
        tool.must_live();
        assert!(a.nodes.iter().all(|node| full_syncs(node) == 1), "{name}: a second full sync: {}", tool.tail());
        tool.stop();
    }
}

#[test]
fn slots_that_move_on_to_a_third_primary_at_once() {
    for (name, ways) in [
        ("redis-7.0", [Way::Keys, Way::Keys]),
        ("valkey-9.1", [Way::Atomic, Way::Keys]),
        ("redis-8.6", [Way::Keys, Way::Atomic]),
    ] {
        let a = Cluster::with(name, 3, 0, BACKLOG);
        let b = Server::start(name);
        fill(&a);
        let load = ClusterLoad::start(&a, 2500);
        let mut tool = sync(&a, &b, &[]);
        until_following(&b, &[0, 1, 2]);
        for tag in 0..10 {
            let slot = slot_of_tag(tag);
            let first = a.owner(slot);
            for hop in 1..=3 {
                // Two away, and home again.
                move_slot(&a, slot, (first + hop) % 3, ways[hop % 2]);
            }
            if tag % 4 == 3 {
                tool.kill();
                tool = sync(&a, &b, &[]);
            }
        }
        load.until_sent(500, MINUTE);
        load.stop();
        until_same(&a, &b, MINUTE, name, &Rules::following(&a.nodes[0]));
        until_at_rest(&b);
        tool.must_live();
        tool.stop();
    }
}

/// How a primary goes in the middle of a move.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Going {
    /// CLUSTER FAILOVER on its replica.
    InOrder,
    /// Killed, and its replica told to take over.
    Killed,
}

#[test]
fn primaries_that_fail_over_while_they_give_or_take_a_slot_lose_nothing() {
    for (name, way) in [("redis-7.0", Way::Keys), ("valkey-9.1", Way::Atomic), ("redis-8.6", Way::Atomic)] {
        let mut a = Cluster::with(name, 3, 1, BACKLOG);
        let b = Server::start(name);
        if way == Way::Atomic {
            fill_slot(&a, 1);
        }
        let slot = slot_of_tag(1);
        let load = ClusterLoad::start(&a, 2000);
        let mut tool = sync(&a, &b, &[]);
        until_following(&b, &[0, 1, 2]);
        for (round, (going, gives)) in
            [(Going::InOrder, true), (Going::InOrder, false), (Going::Killed, true), (Going::Killed, false)]
                .into_iter()
                .enumerate()
        {
            a.until_ok();
            let from = a.owner(slot);
            let to =
                *a.owners().iter().find(|node| **node != from && a.replica_of(**node).is_some()).expect("a gainer");
            let fails = if gives { from } else { to };
            let Some(replica) = a.replica_of(fails) else { continue };
            a.until_linked(replica);
            match way {
                Way::Keys => {
                    a.begin_move(slot, to);
                    a.move_keys(slot, from, to, 5);
                }
                Way::Atomic => _ = begin_atomic(&a, slot, from, to),
            }
            match going {
                Going::InOrder => a.promote(replica, ""),
                Going::Killed => a.kill_and_promote(fails, replica),
            }
            if way == Way::Keys {
                // An operator begins again what the promoted one doesn't know of, and the other has with one that is gone.
                let (from, to) = if gives { (replica, to) } else { (from, replica) };
                a.mark_move(slot, from, to);
                while a.move_keys(slot, from, to, 100) > 0 {}
                a.end_move(slot, from, to);
            }
            a.until_ok();
            if way == Way::Atomic {
                // One that takes may wait for its loser to come back.
                a.owners().into_iter().for_each(|node| cancel_atomic(&a, node, node));
            }
            until(MINUTE, "the end of a move whose server has gone", || {
                way == Way::Keys || a.owners().into_iter().all(|node| is_at_rest(&a, node, node))
            });
            load.until_sent(300, MINUTE);
            tool.must_live();
            println!("{name}: round {round}, {going:?} of node {fails}, gives {gives}");
        }
        load.until_sent(500, MINUTE);
        load.stop();
        let lives = a.owners()[0];
        until_same(&a, &b, MINUTE, name, &Rules::following(&a.nodes[lives]));
        until_at_rest(&b);
        tool.must_live();
        tool.stop();
    }
}
