//! A cluster into a cluster, whose slots move on both sides.

use super::load::{ClusterLoad, TAGS};
use super::motion::{Way, move_slot, rounds, slot_of_tag};
use super::{JOB, fill, full_syncs};
use crate::client::Reply;
use crate::cluster::{Cluster, ClusterClient, slot_of};
use crate::compare::{Rules, is_own_record, scan, until_same};
use crate::failpoints::{self, ABORTED};
use crate::tool::Tool;
use crate::wait::{MINUTE, until};
use keyferry::slot::{Slot, tag};
use std::time::{Duration, Instant};

const TWO_MINUTES: Duration = Duration::from_secs(120);

/// Enough for whatever is written while nobody is connected.
const BACKLOG: &[&str] = &["repl-backlog-size 64mb"];

fn sync(source: &Cluster, target: &Cluster) -> Tool {
    let (from, to) = (source.url(), target.url());
    Tool::run(&["sync", "--source", &from, "--target", &to, "--job", JOB])
}

/// A run of the program with failpoints, which ends at one.
fn armed(command: &str, (source, target): (&Cluster, &Cluster), place: &str) -> Tool {
    let (from, to) = (source.url(), target.url());
    let args = [command, "--source", &from, "--target", &to, "--job", JOB];
    Tool::run_program(failpoints::program(), &args, &[("KEYFERRY_FAILPOINT", place)])
}

/// What a slot of the target holds under one of the job's names; empty if nothing.
fn own(target: &mut ClusterClient, slot: u16, name: &str) -> String {
    let number = Slot::new(slot).expect("a slot");
    match target.call_on(slot, &cmd!["GET", format!("keyferry:{JOB}:{{{}}}:{name}", tag(number))]) {
        Reply::Nil => String::new(),
        reply => reply.text(),
    }
}

/// Waits until the records of all the load's slots say that their copy is whole.
fn until_following(target: &Cluster, tool: &mut Tool) {
    let mut client = target.client();
    until(MINUTE, "records of slots that are followed", || {
        tool.must_live();
        (0..TAGS).all(|tag| own(&mut client, slot_of_tag(tag), "slot").contains(" f "))
    });
}

/// Waits until the target says of none of the load's slots that it moves.
fn until_at_rest(target: &Cluster) {
    let mut client = target.client();
    until(MINUTE, "no slot in motion", || {
        (0..TAGS).all(|tag| !own(&mut client, slot_of_tag(tag), "state").starts_with("moving"))
    });
}

#[test]
fn slots_move_in_every_way_into_a_cluster_through_kills_of_keyferry() {
    for (name, ways, targets) in [
        ("redis-7.0", &[Way::Keys][..], 2),
        ("valkey-9.1", &[Way::Keys, Way::Atomic], 3),
        ("redis-8.6", &[Way::Atomic, Way::Keys], 2),
    ] {
        let (a, k) = (Cluster::with(name, 3, 0, BACKLOG), Cluster::start(name, targets));
        fill(&a);
        let load = ClusterLoad::start(&a, 2000);
        // One of them is half moved when the copy begins.
        let half = slot_of_tag(0);
        let to = (a.owner(half) + 1) % 3;
        let from = a.begin_move(half, to);
        a.move_keys(half, from, to, 5);
        let mut tool = sync(&a, &k);
        until_following(&k, &mut tool);
        while a.move_keys(half, from, to, 100) > 0 {}
        a.end_move(half, from, to);
        for round in 0..rounds(1) {
            for tag in 0..TAGS {
                let slot = slot_of_tag(tag);
                a.until_ok();
                let way = ways[(tag + round) % ways.len()];
                if tag % 8 != 3 {
                    move_slot(&a, slot, (tag + round) % 3, way);
                    continue;
                }
                // In the middle of one: some keys here, some there.
                let to = (a.owner(slot) + 1) % 3;
                let from = a.begin_move(slot, to);
                a.move_keys(slot, from, to, 6);
                load.until_sent(100, MINUTE);
                tool.must_live();
                tool.kill();
                match round {
                    0 => a.turn_back(slot, from, to),
                    _ => {
                        while a.move_keys(slot, from, to, 100) > 0 {}
                        a.end_move(slot, from, to);
                    }
                }
                tool = sync(&a, &k);
            }
        }
        load.until_sent(1000, MINUTE);
        load.stop();
        until_same(&a, &k, TWO_MINUTES, name, &Rules::following(&a.nodes[0]));
        until_at_rest(&k);
        tool.must_live();
        assert!(a.nodes.iter().all(|node| full_syncs(node) == 1), "{name}: a second full sync: {}", tool.tail());
        tool.stop();
    }
}

#[test]
#[ignore = "takes four minutes on two cores: run it by name"]
fn slots_of_both_sides_move_while_a_target_primary_fails() {
    for name in ["redis-7.0", "valkey-9.1"] {
        let (a, mut k) = (Cluster::with(name, 3, 0, BACKLOG), Cluster::with(name, 2, 1, &[]));
        fill(&a);
        let load = ClusterLoad::start(&a, 1500);
        let mut tool = sync(&a, &k);
        until_following(&k, &mut tool);
        for round in 0..rounds(1) {
            for tag in 0..12 {
                let slot = slot_of_tag(tag);
                a.until_ok();
                k.until_ok();
                let (from, to) = (a.owner(slot), (a.owner(slot) + 1) % 3);
                let (here, there) = (k.owner(slot), *k.owners().iter().find(|n| **n != k.owner(slot)).expect("two"));
                a.begin_move(slot, to);
                a.move_keys(slot, from, to, 6);
                // The same slot moves on the target, or another one.
                let (other, here, there) = match tag % 2 {
                    0 => (slot, here, there),
                    _ => {
                        let other = slot_of_tag(tag + 12);
                        (other, k.owner(other), *k.owners().iter().find(|n| **n != k.owner(other)).expect("two"))
                    }
                };
                k.begin_move(other, there);
                load.until_sent(60, MINUTE);
                k.move_keys(other, here, there, 6);
                if tag == 5 {
                    tool.must_live();
                    tool.kill();
                    tool = sync(&a, &k);
                }
                while a.move_keys(slot, from, to, 100) > 0 {}
                a.end_move(slot, from, to);
                load.until_sent(60, MINUTE);
                while k.move_keys(other, here, there, 100) > 0 {}
                k.end_move(other, here, there);
                if tag == 8 && round < 2 {
                    // Right behind a move, while its keys are copied.
                    let (primary, replica) = if round == 0 { (0, 2) } else { (1, 3) };
                    k.until_linked(replica);
                    k.kill_and_promote(primary, replica);
                }
            }
        }
        load.until_sent(1000, MINUTE);
        load.stop();
        until_same(&a, &k, TWO_MINUTES, name, &Rules::following(&a.nodes[0]));
        until_at_rest(&k);
        tool.must_live();
        tool.stop();
    }
}

#[test]
fn nodes_of_the_source_come_with_slots_and_go_into_a_cluster() {
    for name in ["redis-7.0", "valkey-9.1"] {
        let (mut a, k) = (Cluster::with(name, 3, 0, BACKLOG), Cluster::start(name, 2));
        fill(&a);
        let load = ClusterLoad::start(&a, 1500);
        let mut tool = sync(&a, &k);
        until_following(&k, &mut tool);
        let new = a.add();
        tool.until_text("a primary has joined the source cluster", MINUTE);
        for tag in 0..6 {
            a.until_ok();
            a.move_slot(slot_of_tag(tag), new);
        }
        load.until_sent(300, MINUTE);
        tool.kill();
        for tag in 4..8 {
            a.until_ok();
            let slot = slot_of_tag(tag);
            a.move_slot(slot, if a.owner(slot) == new { 0 } else { new });
        }
        tool = sync(&a, &k);
        load.until_sent(300, MINUTE);
        for tag in 0..TAGS {
            a.until_ok();
            let slot = slot_of_tag(tag);
            if a.owner(slot) == new {
                a.move_slot(slot, tag % 3);
            }
        }
        a.remove(new);
        tool.until_text("a primary has left the source cluster", MINUTE);
        load.until_sent(1000, MINUTE);
        load.stop();
        until_same(&a, &k, TWO_MINUTES, name, &Rules::following(&a.nodes[0]));
        until_at_rest(&k);
        tool.must_live();
        tool.stop();
    }
}

#[test]
fn slot_of_many_keys_is_followed_again_in_a_cluster() {
    for (name, way) in [("redis-7.0", Way::Keys), ("valkey-9.1", Way::Atomic), ("redis-8.6", Way::Atomic)] {
        let (a, k) = (Cluster::start(name, 3), Cluster::start(name, 2));
        let slot = slot_of(b"{many}");
        let sets: Vec<_> = (0..40_000).map(|i| cmd!["SET", format!("{{many}}{i}"), format!("value {i}")]).collect();
        a.client().load(&sets);
        let mut tool = sync(&a, &k);
        let mut client = k.client();
        until(MINUTE, "the slot's copy", || own(&mut client, slot, "slot").contains(" f "));
        let to = (a.owner(slot) + 1) % 3;
        move_slot(&a, slot, to, way);
        let ended = Instant::now();
        until(MINUTE, "the slot is fed by its new owner", || {
            own(&mut client, slot, "state").starts_with(&format!("fed {to} "))
        });
        println!("{name}: fed by its new owner {:.1} s after the move's end", ended.elapsed().as_secs_f64());
        a.client().call(&cmd!["SET", "{many}last", 1]);
        until_same(&a, &k, MINUTE, name, &Rules::following(&a.nodes[0]));
        tool.must_live();
        tool.stop();
    }
}

/// What else is written of slots that move, and at the end of a job, than on a standalone target.
#[test]
fn killed_at_every_place_of_a_move_and_of_the_end_the_next_run_ends_equal() {
    let (a, k) = (Cluster::with("redis-7.0", 3, 0, BACKLOG), Cluster::start("redis-7.0", 2));
    fill(&a);
    let load = ClusterLoad::start(&a, 1500);
    let mut tool = sync(&a, &k);
    until_following(&k, &mut tool);
    tool.kill();
    let places =
        ["state-given:1", "switch-past-lanes:1", "switched-past-lanes:1", "floor-answered:2", "record-answered:9"];
    for (tag, place) in places.into_iter().enumerate() {
        let mut dies = armed("sync", (&a, &k), place);
        let slot = slot_of_tag(tag);
        a.move_slot(slot, (a.owner(slot) + 1) % 3);
        assert_eq!(dies.wait(MINUTE), ABORTED, "at {place} it ended otherwise: {}", dies.tail());
        load.until_sent(200, MINUTE);
    }
    let mut tool = sync(&a, &k);
    load.until_sent(1000, MINUTE);
    load.stop();
    until_same(&a, &k, TWO_MINUTES, "after kills at every place", &Rules::following(&a.nodes[0]));
    until_at_rest(&k);
    tool.stop();
    for place in ["ending-marked:1", "records-part-removed:1"] {
        let mut dies = armed("finish", (&a, &k), place);
        assert_eq!(dies.wait(MINUTE), ABORTED, "at {place} it ended otherwise: {}", dies.tail());
    }
    let (from, to) = (a.url(), k.url());
    Tool::run(&["finish", "--source", &from, "--target", &to, "--job", JOB]).must_end(MINUTE, 0);
    until_same(&a, &k, MINUTE, "finished", &Rules { group_hints: false, ..Rules::default() });
    for node in &k.nodes {
        let own: Vec<_> = scan(&mut node.client()).into_iter().filter(|key| is_own_record(key)).collect();
        assert!(own.is_empty(), "keyferry's keys are left: {own:?}");
    }
}
