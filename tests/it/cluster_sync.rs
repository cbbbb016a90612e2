//! A cluster as a target: what the source holds and streams is there in the end, each once, whatever becomes of its nodes,
//! of its slots and of keyferry.

use crate::client::{Client, Reply, Subscriber};
use crate::cluster::{Cluster, slot_of};
use crate::compare::{Rules, snapshot, until_same};
use crate::load::{Mix, Workload, load_bulk, load_types};
use crate::server::{FAST, Server};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, until};
use keyferry::slot::{Slot, tag};
use std::time::Duration;

pub const TWO_MINUTES: Duration = Duration::from_secs(120);

/// A source whose backlog reaches back to where a lost target may stand.
pub fn source(name: &str) -> Server {
    Server::with(name, &[FAST, &["repl-backlog-size 256mb"]].concat())
}

pub fn sync(from: &Server, to: &Cluster, more: &[&str]) -> Tool {
    let (from, to) = (from.url(), to.url());
    let mut args = vec!["sync", "--source", &from, "--target", &to, "--job", "j"];
    args.extend_from_slice(more);
    Tool::run(&args)
}

/// Waits until the floors of all three primaries say that the copy is whole.
pub fn until_following(cluster: &Cluster, tool: &mut Tool) {
    until(MINUTE, "floors that say that the job follows", || {
        tool.must_live();
        let mut client = cluster.client();
        [0, 5461, 10922].into_iter().filter_map(Slot::new).all(|slot| {
            let floor = client.call(&cmd!["GET", format!("keyferry:j:{{{}}}:floor:0", tag(slot))]);
            !matches!(floor, Reply::Nil) && floor.text().contains("phase=following")
        })
    });
}

/// As many keys as there are of each type, which a random load writes.
pub fn random_load(source: &Server, seed: u64, rate: u64) -> Workload {
    Workload::start(source, seed, rate, Mix::of(source))
}

pub fn full_syncs(source: &Server) -> String {
    source.client().info("stats")["sync_full"].clone()
}

#[test]
fn once_of_every_type_leaves_nothing_of_the_job() {
    for (from, to) in [("redis-6.0", "redis-7.0"), ("redis-8.6", "redis-8.6"), ("valkey-9.1", "valkey-9.1")] {
        let (a, k) = (source(from), Cluster::start(to, 3));
        load_types(&a, &mut a.client(), 7, "");
        load_bulk(&mut a.client(), "bulk:", 3000, 100);
        let mut tool = sync(&a, &k, &["--once"]);
        tool.must_end(MINUTE, 0);
        until_same(&a, &k, HALF_MINUTE, from, &Rules::default());
        for node in &k.nodes {
            let mut names = crate::compare::scan(&mut node.client());
            names.retain(|name| name.starts_with(b"keyferry:"));
            assert!(names.is_empty(), "{names:?}");
        }
    }
}

#[test]
fn random_load_with_kill_9_of_keyferry_ends_equal() {
    for (name, seed) in [("redis-7.0", 21), ("valkey-9.1", 22)] {
        let (a, k) = (source(name), Cluster::start(name, 3));
        load_types(&a, &mut a.client(), 7, "types:");
        let load = random_load(&a, seed, 6000);
        let mut tool = sync(&a, &k, &[]);
        for round in 0..5 {
            load.until_sent(4000 + 1500 * round, MINUTE);
            tool.must_live();
            if round == 4 {
                // Killed in the copy, the last run would copy again.
                until_following(&k, &mut tool);
            }
            tool.kill();
            tool = sync(&a, &k, &[]);
        }
        load.until_sent(4000, MINUTE);
        load.stop();
        until_same(&a, &k, TWO_MINUTES, name, &Rules::following(&a));
        tool.must_live();
        assert!(!tool.text().contains("full sync begins"), "the last run went on: {}", tool.tail());
        tool.stop();
        let mut finish = finish(&a, &k);
        finish.must_end(MINUTE, 0);
        until_same(&a, &k, HALF_MINUTE, "after finish", &Rules { group_hints: false, ..Rules::default() });
    }
}

fn finish(from: &Server, to: &Cluster) -> Tool {
    let (from, to) = (from.url(), to.url());
    Tool::run(&["finish", "--source", &from, "--target", &to, "--job", "j"])
}

#[test]
fn primary_killed_while_its_replica_lags_is_sent_again_what_it_lost() {
    let (a, mut k) = (source("redis-7.0"), Cluster::with("redis-7.0", 3, 1, &[]));
    load_bulk(&mut a.client(), "bulk:", 5000, 100);
    let load = random_load(&a, 31, 5000);
    let mut tool = sync(&a, &k, &[]);
    until_following(&k, &mut tool);
    for primary in 0..2 {
        let replica = 3 + primary;
        let offset = |client: &mut Client| client.info("replication")["master_repl_offset"].parse::<u64>();
        k.nodes[replica].pause();
        k.nodes[primary].client().call(&cmd!["CLIENT", "KILL", "TYPE", "replica"]);
        // What was sent it before that, it still reads.
        let sent = offset(&mut k.nodes[primary].client()).expect("an offset");
        load.until_sent(3000, MINUTE);
        until(MINUTE, "writes that the replica lacks", || {
            offset(&mut k.nodes[primary].client()).is_ok_and(|now| now > sent)
        });
        let had = offset(&mut k.nodes[primary].client()).expect("an offset");
        k.nodes[primary].kill();
        k.nodes[replica].resume();
        let has = offset(&mut k.nodes[replica].client()).expect("an offset");
        assert!(has < had, "the failover loses nothing: {has} of {had}");
        k.promote(replica, "TAKEOVER");
        load.until_sent(3000, MINUTE);
        tool.must_live();
    }
    load.stop();
    until_same(&a, &k, TWO_MINUTES, "after two failovers", &Rules::following(&a));
    tool.must_live();
    assert_eq!(full_syncs(&a), "1", "{}", tool.tail());
}

#[test]
fn slots_moved_with_their_keys_under_load_lose_nothing() {
    for name in ["redis-7.0", "valkey-9.1"] {
        let (a, k) = (source(name), Cluster::start(name, 3));
        let load = random_load(&a, 41, 4000);
        let mut tool = sync(&a, &k, &[]);
        until_following(&k, &mut tool);
        for n in 0..60 {
            let key = format!("{}:{n}", ["cnt", "lst", "hsh", "stm", "str"][n % 5]);
            let slot = slot_of(key.as_bytes());
            let to = (k.owner(slot) + 1) % 3;
            let from = k.begin_move(slot, to);
            load.until_sent(100, MINUTE);
            while k.move_keys(slot, from, to, 1) > 0 {}
            if n % 7 == 3 {
                tool.kill();
                tool = sync(&a, &k, &[]);
            }
            k.end_move(slot, from, to);
        }
        load.until_sent(2000, MINUTE);
        load.stop();
        until_same(&a, &k, TWO_MINUTES, name, &Rules::following(&a));
        tool.must_live();
        assert_eq!(full_syncs(&a), "1", "{}", tool.tail());
    }
}

#[test]
fn lists_of_keys_transactions_and_scripts_over_many_slots_end_equal() {
    let (a, k) = (source("redis-8.6"), Cluster::start("redis-8.6", 3));
    let mut tool = sync(&a, &k, &[]);
    until_following(&k, &mut tool);
    let mut client = a.client();
    let many: Vec<String> = (0..500).map(|n| format!("many:{n}")).collect();
    let mut commands = Vec::new();
    for round in 0..3 {
        for some in many.chunks(50) {
            let mut mset = cmd!["MSET"];
            some.iter().for_each(|key| mset.extend(cmd![key, format!("{key}-{round}")]));
            commands.push(mset);
        }
    }
    for (name, some) in [("DEL", &many[..100]), ("UNLINK", &many[100..200])] {
        let mut del = cmd![name];
        some.iter().for_each(|key| del.extend(cmd![key]));
        commands.push(del);
    }
    commands.push(cmd!["MULTI"]);
    commands.extend((0..100).map(|n| cmd!["INCR", format!("tx:{}", n % 20)]));
    commands.push(cmd!["RENAME", "many:300", "many:301"]);
    commands.push(cmd!["APPEND", "many:301", "x"]);
    commands.push(cmd!["EXEC"]);
    commands.push(cmd!["EVAL", "for i=1,40 do redis.call('RPUSH','script:'..i,i) end", 0]);
    commands.push(cmd!["SADD", "s1", "a", "b"]);
    commands.push(cmd!["SADD", "s2", "b", "c"]);
    commands.push(cmd!["SUNIONSTORE", "s3", "s1", "s2"]);
    commands.push(cmd!["SADD", "s3", "later"]);
    commands.push(cmd!["SORT", "s1", "ALPHA", "BY", "w_*", "STORE", "sorted"]);
    client.load(&commands);
    until_same(&a, &k, MINUTE, "commands over many slots", &Rules::following(&a));
    tool.must_live();
    tool.stop();
    assert!(tool.text().contains("transactions split over slots: 2"), "{}", tool.tail());
}

#[test]
fn flushall_empties_every_primary_and_what_follows_begins_anew() {
    let (a, k) = (source("redis-7.0"), Cluster::start("redis-7.0", 3));
    load_bulk(&mut a.client(), "bulk:", 5000, 20);
    let mut tool = sync(&a, &k, &[]);
    until_following(&k, &mut tool);
    let mut client = a.client();
    let incr = |n: usize| cmd!["INCR", format!("fresh:{}", n % 300)];
    for round in 0..3 {
        client.load(&(0..600).map(incr).collect::<Vec<_>>());
        client.call(&cmd![if round == 1 { "FLUSHDB" } else { "FLUSHALL" }]);
        client.load(&(0..900).map(incr).collect::<Vec<_>>());
        if round == 2 {
            tool.kill();
            tool = sync(&a, &k, &[]);
        }
    }
    let transaction = [cmd!["MULTI"], cmd!["INCR", "before"], cmd!["FLUSHALL"], cmd!["INCR", "behind"], cmd!["EXEC"]];
    client.load(&transaction);
    client.load(&(0..900).map(incr).collect::<Vec<_>>());
    until_same(&a, &k, MINUTE, "after FLUSHALL", &Rules::following(&a));
    tool.must_live();
}

#[test]
fn functions_are_on_every_primary_and_messages_come_once() {
    let (a, k) = (source("redis-7.0"), Cluster::start("redis-7.0", 3));
    let library = |name: &str, n: usize| {
        format!("#!lua name={name}\nredis.register_function('{name}_f', function(k,a) return {n} end)")
    };
    let mut client = a.client();
    client.call(&cmd!["FUNCTION", "LOAD", library("early", 1)]);
    let mut tool = sync(&a, &k, &[]);
    until_following(&k, &mut tool);
    let mut ears: Vec<Subscriber> = k.nodes.iter().map(|node| Subscriber::new(node.client(), "news")).collect();
    let mut commands: Vec<_> = (0..50).map(|n| cmd!["PUBLISH", "news", n]).collect();
    commands.extend([
        cmd!["FUNCTION", "LOAD", library("late", 2)],
        cmd!["FUNCTION", "LOAD", "REPLACE", library("early", 3)],
        cmd!["FUNCTION", "LOAD", library("gone", 4)],
        cmd!["FUNCTION", "DELETE", "gone"],
        cmd!["PUBLISH", "news", "end"],
        cmd!["SET", "after", "1"],
    ]);
    client.load(&commands);
    for ear in &mut ears {
        let got: Vec<String> = (0..51).map(|_| ear.next()).collect();
        let want: Vec<String> = (0..50).map(|n| n.to_string()).chain(["end".to_string()]).collect();
        assert_eq!(got, want);
    }
    let libraries = |client: &mut Client| {
        let list = client.call(&cmd!["FUNCTION", "LIST", "WITHCODE"]);
        let code = |library: &crate::client::Reply| library.field("library_code").expect("its code").text();
        let mut all: Vec<String> = list.list().iter().map(code).collect();
        all.sort();
        all
    };
    let want = libraries(&mut client);
    assert_eq!(want.len(), 2);
    until(HALF_MINUTE, "the functions on every primary", || {
        k.nodes.iter().all(|node| libraries(&mut node.client()) == want)
    });
    until_same(&a, &k, HALF_MINUTE, "the key behind", &Rules::following(&a));
    tool.must_live();
}

#[test]
fn refusals_in_passing_are_waited_for_and_lose_nothing() {
    let (a, k) = (source("redis-7.0"), Cluster::with("redis-7.0", 3, 1, &[]));
    let load = random_load(&a, 51, 4000);
    let mut tool = sync(&a, &k, &[]);
    until_following(&k, &mut tool);
    // OOM on one node, MISCONF-like refusal by NOREPLICAS on another.
    k.nodes[0].client().call(&cmd!["CONFIG", "SET", "maxmemory", "1"]);
    k.nodes[1].client().call(&cmd!["CONFIG", "SET", "min-replicas-to-write", "2"]);
    tool.until_text("OOM", MINUTE);
    tool.until_text("NOREPLICAS", MINUTE);
    load.until_sent(3000, MINUTE);
    k.nodes[0].client().call(&cmd!["CONFIG", "SET", "maxmemory", "0"]);
    k.nodes[1].client().call(&cmd!["CONFIG", "SET", "min-replicas-to-write", "0"]);
    // A failover in order: the connections live on, to a server that takes no writes.
    k.promote(5, "");
    load.until_sent(3000, MINUTE);
    load.stop();
    until_same(&a, &k, TWO_MINUTES, "after refusals", &Rules::following(&a));
    tool.must_live();
    assert_eq!(full_syncs(&a), "1", "{}", tool.tail());
}

#[test]
fn several_databases_need_a_map_and_an_unmapped_one_ends_the_job() {
    let (a, k) = (source("redis-7.0"), Cluster::start("redis-7.0", 3));
    let mut client = a.client();
    client.load(&(0..300).map(|n| cmd!["SET", format!("zero:{n}"), n]).collect::<Vec<_>>());
    client.select(1);
    client.load(&(0..300).map(|n| cmd!["RPUSH", format!("one:{n}"), n, "x"]).collect::<Vec<_>>());
    let mut tool = sync(&a, &k, &["--once"]);
    assert!([2, 3].contains(&tool.wait(MINUTE)), "{}", tool.tail());
    assert!(tool.text().contains("--db-map"), "{}", tool.tail());
    assert!(snapshot(&k).is_empty(), "refused, and yet written");

    let mut tool = sync(&a, &k, &["--db-map", "0:0,1:0"]);
    until_following(&k, &mut tool);
    let folded = Rules { database: &|_| 0, ..Rules::following(&a) };
    until_same(&a, &k, MINUTE, "folded databases", &folded);
    client.load(&(0..300).map(|n| cmd!["RPUSH", format!("one:{n}"), "more"]).collect::<Vec<_>>());
    client.call(&cmd!["FLUSHDB"]);
    client.load(&(0..100).map(|n| cmd!["RPUSH", format!("one:{n}"), "again"]).collect::<Vec<_>>());
    until_same(&a, &k, MINUTE, "a folded database flushed", &folded);
    client.select(5);
    client.call(&cmd!["SET", "five", "1"]);
    assert_eq!(tool.wait(MINUTE), 1, "{}", tool.tail());
    assert!(tool.text().contains("db-map"), "{}", tool.tail());
}
