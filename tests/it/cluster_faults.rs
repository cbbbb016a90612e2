//! A cluster as a target whose nodes fail in the middle of other things, and a source that fails over before it.

use crate::client::Reply;
use crate::cluster::{Cluster, slot_of};
use crate::cluster_sync::{TWO_MINUTES, full_syncs, random_load, source, sync, until_following};
use crate::compare::{Rules, until_same};
use crate::server::Paused;
use crate::shards::load::ClusterLoad;
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, until};
use std::net::TcpListener;

/// Keys of one slot, and what is done about them on both sides of a move.
const TORN: usize = 40;

fn torn_keys() -> Vec<String> {
    (0..TORN).map(|n| format!("{{torn}}{n}")).collect()
}

/// Moves some keys of a slot by name, so that its record stays.
fn migrate(k: &Cluster, keys: &[String], from: usize, to: usize) {
    let mut migrate = cmd!["MIGRATE", "127.0.0.1", k.nodes[to].port, "", 0, 20_000, "KEYS"];
    migrate.extend(keys.iter().map(|key| key.as_bytes().to_vec()));
    k.nodes[from].client().call(&migrate);
}

/// A promoted node knows nothing of the move that its primary was in; the other node still does.
#[test]
fn failover_of_the_giver_in_the_middle_of_a_move_is_a_full_sync_when_the_move_is_over() {
    let (a, k) = (source("redis-7.0"), Cluster::with("redis-7.0", 3, 1, &[]));
    let incr: Vec<_> = torn_keys().iter().map(|key| cmd!["INCRBY", key, 1000]).collect();
    a.client().load(&incr);
    let mut tool = sync(&a, &k, &[]);
    until_following(&k, &mut tool);
    let slot = slot_of(b"{torn}");
    let to = (k.owner(slot) + 1) % 3;
    let from = k.begin_move(slot, to);
    let moved = &torn_keys()[..TORN / 2];
    migrate(&k, moved, from, to);
    let heir = k.replicas_of(from)[0];
    k.promote(heir, "");
    a.client().load(&torn_keys().iter().map(|key| cmd!["INCR", key]).collect::<Vec<_>>());
    tool.until_text("a new full sync begins", MINUTE);
    // Nobody can tell what these keys are worth; the taker doesn't even know who owns the slot.
    let mut taker = k.nodes[to].client();
    taker.call(&cmd!["CLUSTER", "SETSLOT", slot, "STABLE"]);
    k.until_ok();
    taker.call(&cmd!["CLUSTER", "SETSLOT", slot, "IMPORTING", k.id(heir)]);
    taker.load(&moved.iter().flat_map(|key| [cmd!["ASKING"], cmd!["DEL", key]]).collect::<Vec<_>>());
    taker.call(&cmd!["CLUSTER", "SETSLOT", slot, "STABLE"]);
    a.client().load(&torn_keys().iter().map(|key| cmd!["INCR", key]).collect::<Vec<_>>());
    until_same(&a, &k, TWO_MINUTES, "after the move", &Rules::following(&a));
    assert_eq!(full_syncs(&a), "2", "{}", tool.tail());
    tool.stop();
}

#[test]
fn keys_lost_with_the_taker_in_the_middle_of_a_move_are_copied_again() {
    let (a, mut k) = (source("redis-7.0"), Cluster::with("redis-7.0", 3, 1, &[]));
    let incr: Vec<_> = torn_keys().iter().map(|key| cmd!["INCRBY", key, 1000]).collect();
    a.client().load(&incr);
    let mut tool = sync(&a, &k, &[]);
    until_following(&k, &mut tool);
    let slot = slot_of(b"{torn}");
    let to = (k.owner(slot) + 1) % 3;
    let from = k.begin_move(slot, to);
    let heir = k.replicas_of(to)[0];
    k.nodes[heir].pause();
    k.nodes[to].client().call(&cmd!["CLIENT", "KILL", "TYPE", "replica"]);
    migrate(&k, &torn_keys()[..TORN / 2], from, to);
    k.nodes[to].kill();
    k.nodes[heir].resume();
    k.promote(heir, "TAKEOVER");
    tool.until_text("a new full sync begins", MINUTE);
    k.nodes[from].client().call(&cmd!["CLUSTER", "SETSLOT", slot, "STABLE"]);
    a.client().load(&torn_keys().iter().map(|key| cmd!["INCR", key]).collect::<Vec<_>>());
    until_same(&a, &k, TWO_MINUTES, "after the move", &Rules::following(&a));
    assert_eq!(full_syncs(&a), "2", "{}", tool.tail());
    tool.stop();
}

/// Nothing ends its connections: they are silent.
#[test]
fn primary_that_hangs_is_left_when_its_replica_takes_over() {
    let (a, k) = (source("redis-7.0"), Cluster::with("redis-7.0", 3, 1, &[]));
    let load = random_load(&a, 61, 3000);
    let mut tool = sync(&a, &k, &[]);
    until_following(&k, &mut tool);
    load.until_sent(2000, MINUTE);
    let hanging = Paused::new(&k.nodes[0]);
    // Its heir has what was acknowledged: nothing is lost.
    k.nodes[3].client().call(&cmd!["CLUSTER", "FAILOVER", "TAKEOVER"]);
    load.until_sent(1000, MINUTE);
    load.stop();
    let keys: Vec<String> = (0..300).map(|n| format!("behind:{n}")).collect();
    a.client().load(&keys.iter().map(|key| cmd!["SET", key, 1]).collect::<Vec<_>>());
    // It would be taken for gone after a minute of silence.
    until(HALF_MINUTE, "what was written while it hangs", || {
        tool.must_live();
        let owned = |key: &&String| slot_of(key.as_bytes()) < 5461;
        let asks: Vec<_> = keys.iter().filter(owned).map(|key| cmd!["EXISTS", key]).collect();
        k.nodes[3].client().pipe(&asks).iter().all(|reply| *reply == Reply::Int(1))
    });
    drop(hanging);
    k.until_ok();
    until_same(&a, &k, TWO_MINUTES, "after it is back", &Rules::following(&a));
    assert_eq!(full_syncs(&a), "1", "{}", tool.tail());
    tool.stop();
}

/// What takes connections in a dead node's place says nothing, as where its host is cut off.
#[test]
fn node_that_cannot_be_connected_holds_up_no_other() {
    let partly = ["cluster-require-full-coverage no"];
    let (a, mut k) = (source("redis-7.0"), Cluster::with("redis-7.0", 3, 1, &partly));
    let mut tool = sync(&a, &k, &[]);
    until_following(&k, &mut tool);
    let (dead, alive) = (0, 1);
    let tag = (0..).map(|n| format!("{{{n}}}")).find(|tag| k.owner(slot_of(tag.as_bytes())) == alive);
    let key = tag.expect("every node has slots");
    // Nobody takes over.
    let heir = k.replicas_of(dead)[0];
    k.nodes[heir].pause();
    k.nodes[dead].kill();
    let silent = TcpListener::bind(("127.0.0.1", k.nodes[dead].port)).expect("the dead node's port");
    tool.until_text("target lost", HALF_MINUTE);
    let (mut source, mut target) = (a.client(), k.nodes[alive].client());
    for n in 0..200 {
        source.call(&cmd!["SET", key, n]);
        let told = Reply::Bytes(n.to_string().into_bytes());
        until(HALF_MINUTE, "a write on a node that is there", || target.get(&key) == told);
    }
    let tried = tool.text().matches("did not answer for").count();
    assert!(tried < 5, "{tried} times a connection was waited for: {}", tool.tail());
    drop(silent);
    k.nodes[heir].resume();
    k.promote(heir, "TAKEOVER");
    k.rejoin(dead);
    k.until_ok();
    until_same(&a, &k, TWO_MINUTES, "after it is back", &Rules::following(&a));
    tool.stop();
}

/// A node that falls back makes the router start again, and what stands for a unit is copied anew, at a later offset. The
/// first copy is on its way to another node: it must not run unknown to the router, or what came behind it is left out.
#[test]
fn copy_on_its_way_to_one_node_while_another_falls_back_is_made_once() {
    let (a, mut k) = (source("redis-7.0"), Cluster::with("redis-7.0", 3, 1, &[]));
    let mut tool = sync(&a, &k, &["--not-key", "*tmp:*"]);
    until_following(&k, &mut tool);
    let (falls_back, pauses, other) = (0, 1, 2);
    let on = |node| (0..).map(|n| format!("{{{n}}}")).find(|tag| k.owner(slot_of(tag.as_bytes())) == node);
    let [lost, copied, seen] = [falls_back, pauses, other].map(|node| on(node).expect("every node has slots"));
    let until_seen = |tool: &mut Tool, n: i64| {
        a.client().call(&cmd!["SET", seen, n]);
        until(HALF_MINUTE, "what was written last on the third node", || {
            tool.must_live();
            k.nodes[other].client().get(&seen) == Reply::Bytes(n.to_string().into_bytes())
        });
    };
    let heir = k.replicas_of(falls_back)[0];
    k.nodes[heir].pause();
    k.nodes[falls_back].client().call(&cmd!["CLIENT", "KILL", "TYPE", "replica"]);
    a.client().load(&vec![cmd!["INCR", lost]; 100]);
    until_seen(&mut tool, 1);
    until(HALF_MINUTE, "what its replica lacks", || k.nodes[falls_back].client().get(&lost).bytes() == b"100");
    // It answers what is asked meanwhile.
    k.nodes[pauses].client().call(&cmd!["CLIENT", "PAUSE", 8000, "WRITE"]);
    let hidden = format!("{copied}tmp:list");
    a.client().load(&[cmd!["RPUSH", hidden, "first"], cmd!["RPOPLPUSH", hidden, copied]]);
    until_seen(&mut tool, 2);
    a.client().load(&[cmd!["RPUSH", copied, "second"], cmd!["RPUSH", copied, "third"]]);
    until_seen(&mut tool, 3);
    k.nodes[falls_back].kill();
    k.nodes[heir].resume();
    k.nodes[heir].client().call(&cmd!["CLUSTER", "FAILOVER", "TAKEOVER"]);
    tool.until_text("the target's records moved", HALF_MINUTE);
    let in_scope = |_: u32, key: &[u8]| !key.windows(4).any(|part| part == b"tmp:");
    k.rejoin(falls_back);
    k.until_ok();
    until_same(&a, &k, MINUTE, "after the fall", &Rules { in_scope: &in_scope, ..Rules::following(&a) });
    assert_eq!(full_syncs(&a), "1", "{}", tool.tail());
    tool.stop();
}

#[test]
fn history_that_got_another_name_is_gone_on_with_by_the_next_process() {
    let a = Cluster::with("redis-7.0", 3, 1, &["repl-backlog-size 64mb"]);
    let k = Cluster::start("redis-7.0", 2);
    let load = ClusterLoad::start(&a, 3000);
    let (from, to) = (a.url(), k.url());
    let args = ["sync", "--source", &from, "--target", &to, "--job", "j"];
    let mut tool = Tool::run(&args);
    tool.until_text("following:", MINUTE);
    load.until_sent(1000, MINUTE);
    a.promote(3, "");
    tool.until_text("partial resync", MINUTE);
    // Records behind the end of the old name are there.
    load.until_sent(3000, MINUTE);
    tool.kill();
    let mut tool = Tool::run(&args);
    load.until_sent(1000, MINUTE);
    load.stop();
    until_same(&a, &k, TWO_MINUTES, "after a failover and a kill", &Rules::following(&a.nodes[0]));
    assert!(!tool.text().contains("full sync"), "{}", tool.tail());
    tool.stop();
}
