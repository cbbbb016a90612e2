//! Slots that move between the source's primaries while keyferry follows them.

use super::load::{ClusterLoad, TAGS};
use super::{JOB, fill, full_syncs, sync, until_following};
use crate::client::Client;
use crate::cluster::{Cluster, slot_of};
use crate::compare::{Rules, until_same};
use crate::server::Server;
use crate::wait::{HALF_MINUTE, MINUTE, until};
use std::time::Instant;

/// A slot of the load's keys.
pub fn slot_of_tag(tag: usize) -> u16 {
    slot_of(format!("{{tag{tag}}}").as_bytes())
}

/// What the target says of a slot; empty while it says nothing.
fn state(target: &mut Client, slot: u16) -> String {
    match target.call(&cmd!["HGET", format!("keyferry:{JOB}:slots"), slot]) {
        crate::client::Reply::Nil => String::new(),
        reply => reply.text(),
    }
}

/// Waits until the target says that this shard feeds the slot.
fn until_fed(target: &Server, slot: u16, shard: usize) {
    let mut target = target.client();
    until(MINUTE, &format!("slot {slot} is fed by shard {shard}"), || {
        state(&mut target, slot).starts_with(&format!("fed {shard} "))
    });
}

/// Waits until the target says of no slot that it moves.
pub fn until_at_rest(target: &Server) {
    let mut target = target.client();
    until(MINUTE, "no slot in motion", || {
        let states = target.call(&cmd!["HVALS", format!("keyferry:{JOB}:slots")]);
        states.list().iter().all(|state| !state.text().starts_with("moving"))
    });
}

/// Rounds of moves; `KEYFERRY_MOVES` for more.
pub fn rounds(default: usize) -> usize {
    std::env::var("KEYFERRY_MOVES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// How a slot goes to another primary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// SETSLOT and MIGRATE.
    Keys,
    /// CLUSTER MIGRATESLOTS or CLUSTER MIGRATION IMPORT.
    Atomic,
}

pub fn move_slot(cluster: &Cluster, slot: u16, to: usize, way: Way) {
    // Some nodes hear late of the move before.
    cluster.until_ok();
    if cluster.owner(slot) == to {
        return;
    }
    match way {
        Way::Keys => cluster.move_slot(slot, to),
        Way::Atomic => cluster.move_slots_atomically(slot, slot, to),
    }
}

#[test]
fn slots_move_under_load_in_every_way() {
    for (name, ways) in [
        ("redis-7.0", &[Way::Keys][..]),
        ("valkey-9.1", &[Way::Keys, Way::Atomic]),
        ("redis-8.6", &[Way::Atomic, Way::Keys]),
    ] {
        let a = Cluster::start(name, 3);
        let b = Server::start(name);
        fill(&a);
        let load = ClusterLoad::start(&a, 3000);
        // One of them is half moved when the copy begins.
        let half = slot_of_tag(0);
        let to = (a.owner(half) + 1) % 3;
        let from = a.begin_move(half, to);
        a.move_keys(half, from, to, 5);
        let mut tool = sync(&a, &b, &[]);
        until_following(&b, &[0, 1, 2]);
        while a.move_keys(half, from, to, 100) > 0 {}
        a.end_move(half, from, to);
        let mut moved = 1;
        for round in 0..rounds(2) {
            for tag in 0..TAGS {
                let slot = slot_of_tag(tag);
                let before = a.owner(slot);
                move_slot(&a, slot, (tag + round) % 3, ways[(tag + round) % ways.len()]);
                moved += usize::from(a.owner(slot) != before);
            }
        }
        assert!(moved > TAGS, "{name}: only {moved} slots moved");
        load.until_sent(1000, MINUTE);
        load.stop();
        until_same(&a, &b, MINUTE, name, &Rules::following(&a.nodes[0]));
        until_at_rest(&b);
        tool.must_live();
        assert!(a.nodes.iter().all(|node| full_syncs(node) == 1), "{name}: a node gave a second full sync");
        tool.stop();
    }
}

#[test]
fn moves_that_are_broken_off_leave_the_slot_where_it_was() {
    for name in ["redis-7.0", "valkey-9.1", "redis-8.6"] {
        let a = Cluster::start(name, 3);
        let b = Server::start(name);
        fill(&a);
        let load = ClusterLoad::start(&a, 2000);
        let mut tool = sync(&a, &b, &[]);
        until_following(&b, &[0, 1, 2]);
        for tag in 0..6 {
            let slot = slot_of_tag(tag);
            a.until_ok();
            let to = (a.owner(slot) + 1) % 3;
            let from = a.begin_move(slot, to);
            a.move_keys(slot, from, to, 6);
            load.until_sent(100, MINUTE);
            a.turn_back(slot, from, to);
        }
        if name != "redis-7.0" {
            for tag in 6..12 {
                let slot = slot_of_tag(tag);
                let (from, to) = (a.owner(slot), (a.owner(slot) + 1) % 3);
                begin_and_cancel(&a, slot, from, to);
                load.until_sent(100, MINUTE);
            }
        }
        load.until_sent(1000, MINUTE);
        load.stop();
        until_same(&a, &b, MINUTE, name, &Rules::following(&a.nodes[0]));
        until_at_rest(&b);
        tool.must_live();
        tool.stop();
    }
}

/// Begins an atomic move of a slot with enough keys that it can be broken off; it may end before that.
fn begin_and_cancel(cluster: &Cluster, slot: u16, from: usize, to: usize) {
    let (mut loser, mut gainer) = (cluster.nodes[from].client(), cluster.nodes[to].client());
    if cluster.nodes[from].is_valkey() {
        loser.call(&cmd!["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", cluster.id(to)]);
        // Nothing to cancel is an error.
        let _ = loser.ask(&cmd!["CLUSTER", "CANCELSLOTMIGRATIONS"]);
    } else {
        gainer.call(&cmd!["CLUSTER", "MIGRATION", "IMPORT", slot, slot]);
        let _ = gainer.ask(&cmd!["CLUSTER", "MIGRATION", "CANCEL", "ALL"]);
    }
    until(HALF_MINUTE, "no move that goes on", || {
        let moves = match cluster.nodes[from].is_valkey() {
            true => loser.call(&cmd!["CLUSTER", "GETSLOTMIGRATIONS"]),
            false => gainer.call(&cmd!["CLUSTER", "MIGRATION", "STATUS", "ALL"]),
        };
        let text = format!("{moves:?}");
        let of = |word: &str| text.matches(word).count();
        let ended = ["success", "failed", "cancelled", "canceled", "completed"].map(of).iter().sum::<usize>();
        ended >= moves.list().len()
    });
}

#[test]
fn kills_of_keyferry_in_the_middle_of_moves_lose_nothing() {
    for (name, way) in [("redis-7.0", Way::Keys), ("valkey-9.1", Way::Atomic), ("redis-8.6", Way::Atomic)] {
        let a = Cluster::start(name, 3);
        let b = Server::start(name);
        fill(&a);
        let load = ClusterLoad::start(&a, 2000);
        let mut tool = sync(&a, &b, &[]);
        until_following(&b, &[0, 1, 2]);
        for round in 0..rounds(2) {
            for tag in 0..8 {
                let slot = slot_of_tag(tag + 8 * (round % 3));
                a.until_ok();
                let to = (a.owner(slot) + 1) % 3;
                if way == Way::Keys && tag == 3 {
                    // In the middle of one: some keys here, some there.
                    let from = a.begin_move(slot, to);
                    a.move_keys(slot, from, to, 6);
                    load.until_sent(50, MINUTE);
                    tool.kill();
                    while a.move_keys(slot, from, to, 100) > 0 {}
                    a.end_move(slot, from, to);
                    tool = sync(&a, &b, &[]);
                    continue;
                }
                move_slot(&a, slot, to, way);
                if tag == 5 {
                    tool.kill();
                    load.until_sent(50, MINUTE);
                    tool = sync(&a, &b, &[]);
                }
            }
            load.until_sent(500, MINUTE);
        }
        load.stop();
        until_same(&a, &b, MINUTE, name, &Rules::following(&a.nodes[0]));
        until_at_rest(&b);
        tool.must_live();
        assert!(a.nodes.iter().all(|node| full_syncs(node) == 1), "{name}: a node gave a second full sync");
        tool.stop();
    }
}

#[test]
fn slot_of_many_keys_is_followed_again_when_it_has_moved() {
    for (name, way) in [("redis-7.0", Way::Keys), ("valkey-9.1", Way::Atomic), ("redis-8.6", Way::Atomic)] {
        let a = Cluster::start(name, 3);
        let b = Server::start(name);
        let slot = slot_of(b"{many}");
        let sets: Vec<_> = (0..40_000).map(|i| cmd!["SET", format!("{{many}}{i}"), format!("value {i}")]).collect();
        a.client().load(&sets);
        let mut tool = sync(&a, &b, &[]);
        until_following(&b, &[0, 1, 2]);
        let to = (a.owner(slot) + 1) % 3;
        move_slot(&a, slot, to, way);
        let ended = Instant::now();
        until_fed(&b, slot, to);
        println!("{name}: fed by its new owner {:.1} s after the move's end", ended.elapsed().as_secs_f64());
        a.client().call(&cmd!["SET", "{many}last", 1]);
        until_same(&a, &b, MINUTE, name, &Rules::following(&a.nodes[0]));
        tool.must_live();
        tool.stop();
    }
}

#[test]
fn slots_of_a_new_node_are_followed_whether_keyferry_saw_them_move_or_not() {
    for (name, away) in [("redis-7.0", false), ("valkey-9.1", true), ("redis-8.6", true)] {
        let mut a = Cluster::start(name, 3);
        let b = Server::start(name);
        fill(&a);
        let load = ClusterLoad::start(&a, 2000);
        let mut tool = sync(&a, &b, &[]);
        until_following(&b, &[0, 1, 2]);
        load.until_sent(500, MINUTE);
        if away {
            tool.kill();
        }
        let new = a.add();
        if !away {
            until_following(&b, &[3]);
        }
        for tag in 0..6 {
            a.until_ok();
            a.move_slot(slot_of_tag(tag), new);
        }
        load.until_sent(200, MINUTE);
        if away {
            tool = sync(&a, &b, &[]);
            until_following(&b, &[0, 1, 2, 3]);
        }
        for tag in 3..9 {
            a.until_ok();
            let slot = slot_of_tag(tag);
            a.move_slot(slot, if a.owner(slot) == new { 0 } else { new });
        }
        load.until_sent(1000, MINUTE);
        load.stop();
        until_same(&a, &b, MINUTE, name, &Rules::following(&a.nodes[0]));
        until_at_rest(&b);
        tool.must_live();
        tool.stop();
    }
}

#[test]
fn failovers_of_the_source_in_the_middle_of_moves_lose_nothing() {
    for name in ["redis-7.0", "valkey-9.1"] {
        let mut a = Cluster::with(name, 3, 1, &[]);
        let b = Server::start(name);
        // Not every type: what a replica holds of pending entries isn't what its primary does.
        let load = ClusterLoad::start(&a, 2000);
        let mut tool = sync(&a, &b, &[]);
        until_following(&b, &[0, 1, 2]);
        let half = |tag: usize| {
            a.until_ok();
            let slot = slot_of_tag(tag);
            let from = a.owner(slot);
            let to = (from + 1) % 3;
            a.begin_move(slot, to);
            a.move_keys(slot, from, to, 5);
            (slot, from, to)
        };
        // One slot half moved away from a primary that hands over, and one towards it.
        let (slot, from, to) = half(0);
        a.turn_back(slot, from, to);
        let moved = slot_of_tag(1);
        let gainer = (a.owner(moved) + 1) % 3;
        a.move_slot(moved, gainer);
        a.kill_and_promote(gainer, 3 + gainer);
        load.until_sent(1000, MINUTE);
        load.stop();
        until_same(&a, &b, MINUTE, name, &Rules::following(&a.nodes[(gainer + 1) % 3]));
        until_at_rest(&b);
        tool.must_live();
        tool.stop();
    }
}
