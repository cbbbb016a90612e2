//! A cluster as a target, but for delivery: what is asked before, the lease, the keys there, settling, the end.

use crate::client::Cmd;
use crate::cluster::{Cluster, slot_of};
use crate::compare::{GRACE_MS, Rules, Snapshot, differences, now_ms, snapshot, until_same};
use crate::server::{FAST, Server};
use crate::tls::Certificates;
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, until};
use keyferry::net::Side;
use keyferry::net::cluster::Cluster as Seen;
use keyferry::net::conn;
use keyferry::net::endpoint::HostPort;
use keyferry::net::locate::Locator;
use keyferry::net::tls::{self, TlsOptions};
use keyferry::offset::ReplOffset;
use keyferry::slot::{Slot, tag};
use keyferry::target::connect::Identity;
use keyferry::target::nodes::{Open, Target};
use keyferry::target::owner::Owner;
use keyferry::target::replicas::{self, Recorded, Watcher};
use keyferry::target::settle::{self, Plan, Settled, Unsettled};
use keyferry::target::{Error, forget, preflight, scan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ALL: [&str; 4] = ["redis-6.0", "redis-7.0", "redis-8.6", "valkey-9.1"];
const JOB: &str = "j";
/// MIGRATE takes along how long a key has left, not when it expires.
const MIGRATED_MS: i64 = 5000;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// The cluster as keyferry reaches it, by its first nodes.
fn target(cluster: &Cluster) -> Target {
    let hosts: Vec<HostPort> =
        cluster.nodes.iter().map(|node| HostPort { host: "127.0.0.1".into(), port: node.port }).collect();
    let server = conn::Server { side: Side::Target, address: hosts[0].clone(), user: None, password: None, tls: None };
    Target::Cluster(Seen::new(server, &hosts, BTreeMap::new()))
}

/// A run that has the job of `cluster`, without keeping it: the lease is written for an hour.
fn owning(cluster: &Cluster) -> Identity {
    let identity = Identity::new(JOB, false);
    let key = identity.lease_key();
    cluster.client().call(&cmd!["SET", key, identity.me.encode(), "PX", GRACE_MS]);
    identity
}

/// Tries again what slots on the move, or a node that has just gone, make fail.
fn retried<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> T {
    let mut done = None;
    until(MINUTE, "what passes to be over", || match attempt() {
        Ok(result) => {
            done = Some(result);
            true
        }
        Err(error) => {
            assert!(error.is_passing(), "{error}");
            false
        }
    });
    done.expect("it was done")
}

fn keys(n: usize) -> Vec<String> {
    (0..n).map(|n| format!("key:{n}")).collect()
}

fn fill(cluster: &Cluster, n: usize) {
    cluster.client().load(&keys(n).iter().map(|key| cmd!["SET", key, key]).collect::<Vec<_>>());
}

/// Moves random slots to and fro for as long as `work` takes.
fn while_slots_move(cluster: &Cluster, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let slot = fastrand::u16(0..16384);
                let to = fastrand::usize(0..cluster.nodes.len());
                if cluster.owner(slot) != to {
                    cluster.move_slot(slot, to);
                }
                std::thread::sleep(Duration::from_millis(fastrand::u64(1..30)));
            }
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = worked {
            std::panic::resume_unwind(panic);
        }
    });
    cluster.until_ok();
}

#[test]
fn cluster_is_found_by_asking_and_what_the_url_says_wins() {
    let (cluster, one) = (Cluster::start("redis-7.0", 2), Server::start("redis-7.0"));
    for (server, told, is) in [
        (&cluster.nodes[0], None, true),
        (&cluster.nodes[0], Some(false), false),
        (&one, None, false),
        (&one, Some(true), true),
    ] {
        let address = HostPort { host: "127.0.0.1".into(), port: server.port };
        let at = conn::Server { side: Side::Target, address, user: None, password: None, tls: None };
        let seen = Seen::new(at.clone(), std::slice::from_ref(&at.address), BTreeMap::new());
        let found = block_on(Target::find(Locator::fixed(at, BTreeMap::new()), seen, told)).expect("it answers");
        assert_eq!(found.is_cluster(), is, "{told:?}");
        if told == Some(true) {
            let error = block_on(preflight::ask(&found, false)).expect_err("it is no cluster");
            assert!(error.to_string().contains("cluster support disabled"), "{error}");
        }
    }
}

#[test]
fn preflight_takes_the_oldest_primary_and_refuses_what_any_is_unfit_for() {
    let start = |name: &str| Server::with(name, &[FAST, &["cluster-enabled yes"]].concat());
    let cluster = Cluster::join(vec![start("redis-8.6"), start("redis-6.0"), start("redis-7.0")], 3);
    let target = target(&cluster);
    let found = block_on(preflight::ask(&target, false)).expect("it is fit");
    assert_eq!(found.info.version().0, 6, "{}", found.info.product());
    let ids: BTreeSet<String> = found.servers.iter().map(|(run_id, _)| run_id.clone()).collect();
    assert_eq!(ids.len(), 3);
    let footer = block_on(preflight::footer_version(&target, &owning(&cluster))).expect("it dumps");
    assert_eq!(footer, 9, "that of redis 6.0");
    assert_eq!(cluster.client().call_on(0, &cmd!["DBSIZE"]).int(), 0, "no trace is left there");

    let mut one = cluster.nodes[2].client();
    one.call(&cmd!["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    assert!(matches!(block_on(preflight::ask(&target, false)), Err(Error::Evicts { .. })));
    block_on(preflight::ask(&target, true)).expect("eviction is allowed");
    one.call(&cmd!["CONFIG", "SET", "maxmemory-policy", "noeviction"]);

    cluster.nodes.iter().for_each(|node| _ = node.client().ask(&cmd!["CLUSTER", "DELSLOTS", 5, 16000]));
    let error = block_on(preflight::ask(&target, false)).expect_err("slots without an owner");
    assert!(error.is_passing() && error.to_string().contains("owns slots 5,16000"), "{error}");
}

#[test]
fn databases_are_those_that_every_primary_has() {
    for (name, config, has) in
        [("redis-7.0", &[][..], 1), ("valkey-9.1", &[], 1), ("valkey-9.1", &["cluster-databases 4"], 4)]
    {
        let cluster = Cluster::with(name, 2, 0, config);
        let target = target(&cluster);
        let ask = |db: u32| block_on(preflight::databases(&target, [0, db].into_iter()));
        ask(has - 1).expect("it has that one");
        let error = ask(has).expect_err("it has no more");
        assert!(matches!(&error, Error::NoDatabase { db, .. } if *db == has), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("--db-map")), "{error}");
    }
}

#[test]
fn source_with_several_databases_is_refused_before_anything_is_written_unless_they_are_folded() {
    let (source, cluster) = (Server::start("redis-7.0"), Cluster::start("redis-7.0", 2));
    let mut client = source.client();
    for db in [0, 3] {
        client.select(db);
        client.call(&cmd!["SET", format!("k{db}"), db]);
    }
    let sync = |more: &[&str]| {
        let (from, to) = (source.url(), cluster.url());
        let mut tool = Tool::run(&[&["sync", &from, &to, "--once"], more].concat());
        let code = tool.wait(HALF_MINUTE);
        (code, tool.text())
    };
    let (code, text) = sync(&[]);
    assert!(code == 3 && text.contains("no database 3") && text.contains("--db-map"), "{code}: {text}");
    assert!(snapshot(&cluster).is_empty());
    for node in &cluster.nodes {
        assert_eq!(node.client().dbsize(), 0, "not even a lease");
    }
}

#[test]
fn keys_are_found_and_removed_on_every_primary_while_slots_move() {
    for name in ALL {
        let cluster = Cluster::start(name, 3);
        let (target, identity) = (target(&cluster), owning(&cluster));
        fill(&cluster, 4000);
        let list = || {
            let mut found = BTreeSet::new();
            let each = |db: u32, key: &[u8]| {
                assert_eq!(db, 0);
                found.insert(key.to_vec());
            };
            block_on(scan::each_key_in(&target, &[0], each)).map(|()| found)
        };
        let in_scope = |_: u32, key: &[u8]| !key.ends_with(b"7");
        while_slots_move(&cluster, || {
            let found = retried(list);
            assert!(keys(4000).iter().all(|key| found.contains(key.as_bytes())), "{name}: {} found", found.len());
            let error = block_on(preflight::no_existing_keys(&target, &[0], |_, key| key == b"key:5"));
            let error = error.expect_err("it is there, or slots are on the move");
            assert!(error.is_passing() || error.to_string().contains("key:5"), "{error}");
            retried(|| block_on(scan::remove_in(&target, &identity, &[0], in_scope)));
        });
        let left: BTreeSet<Vec<u8>> = snapshot(&cluster).into_keys().map(|(_, key)| key).collect();
        let want: BTreeSet<Vec<u8>> =
            keys(4000).into_iter().filter(|key| key.ends_with('7')).map(String::into_bytes).collect();
        assert_eq!(left, want, "{name}");
        let error = block_on(preflight::no_existing_keys(&target, &[0], |_, _| true)).expect_err("400 are left");
        assert!(matches!(error, Error::ExistingKeys { keys: 400, .. }), "{error}");
        retried(|| block_on(preflight::flush(&target, &identity, (4, 0, 0))));
        assert!(snapshot(&cluster).is_empty());
        let lease = cluster.client().call(&cmd!["GET", identity.lease_key()]);
        assert!(lease.text().contains(identity.token()), "the lease outlives it");
    }
}

#[test]
fn slot_left_in_motion_is_waited_for_and_named() {
    let cluster = Cluster::start("redis-7.0", 2);
    let target = target(&cluster);
    fill(&cluster, 100);
    let slot = slot_of(b"key:1");
    let from = cluster.owner(slot);
    cluster.begin_move(slot, 1 - from);
    let error = block_on(scan::each_key_in(&target, &[0], |_, _| {})).expect_err("it is on the move");
    assert!(error.is_passing() && error.to_string().contains(&format!("slot {slot} ")), "{error}");
    cluster.turn_back(slot, from, 1 - from);
    block_on(scan::each_key_in(&target, &[0], |_, _| {})).expect("it rests");
}

#[test]
fn lease_is_kept_while_its_slot_moves_and_its_node_fails() {
    for name in ["redis-6.0", "redis-7.0", "valkey-9.1"] {
        let mut cluster = Cluster::with(name, 2, 1, &[]);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (target, first, second) = (target(&cluster), Identity::new(JOB, false), Identity::new(JOB, false));
        let acquire = |id: &Identity, mut takeover: bool| runtime.block_on(Owner::acquire(&target, id, &mut takeover));
        let owner = acquire(&first, false).expect("nobody has it");
        let key = first.lease_key();
        let slot = slot_of(&key);
        let holds = |cluster: &Cluster, id: &Identity| {
            let mut client = cluster.client();
            let ms = client.call(&cmd!["PTTL", key]).int();
            client.call(&cmd!["GET", key]).bytes().ends_with(id.me.encode().as_bytes()) && ms > 0
        };
        assert!(holds(&cluster, &first), "{name}");
        let refused = acquire(&second, false).map(|_| ()).expect_err("it has an owner");
        assert!(matches!(refused, Error::Owned { .. }), "{refused}");
        // It goes with its slot, and is renewed where it is then.
        let from = cluster.owner(slot);
        cluster.move_slot(slot, 1 - from);
        cluster.until_ok();
        let renewed = |cluster: &Cluster| {
            let before = cluster.client().call(&cmd!["PTTL", key]).int();
            until(MINUTE, "the lease is renewed", || cluster.client().call(&cmd!["PTTL", key]).int() > before);
        };
        renewed(&cluster);
        assert!(holds(&cluster, &first), "{name}");
        // Its node dies, and the replica that takes over has it, or it is taken again.
        let primary = 1 - from;
        cluster.until_linked(primary + 2);
        cluster.kill_and_promote(primary, primary + 2);
        until(MINUTE, "the lease is there again", || holds(&cluster, &first));
        renewed(&cluster);
        let refused = acquire(&second, false).map(|_| ()).expect_err("it has an owner");
        assert!(matches!(refused, Error::Owned { .. }), "{refused}");
        // Whoever takes it over kills the other's connections on every node.
        let other = acquire(&second, true).expect("it is taken over");
        let lost = runtime.block_on(async { tokio::time::timeout(MINUTE, owner.lost()).await });
        assert!(matches!(lost, Ok(Error::OwnerLost { .. })), "{lost:?}");
        assert!(holds(&cluster, &second), "{name}");
        runtime.block_on(other.release());
        assert_eq!(cluster.client().call(&cmd!["EXISTS", key]).int(), 0, "{name}");
    }
}

#[test]
fn new_owner_kills_connections_on_every_primary() {
    let cluster = Cluster::start("redis-7.0", 3);
    let (target, first, second) = (target(&cluster), owning(&cluster), Identity::new(JOB, false));
    block_on(async {
        let mut all: Vec<Open> = target.open(Some(&first)).await.expect("it is the owner's");
        assert_eq!(all.len(), 3);
        let mut takeover = true;
        let owner = Owner::acquire(&target, &second, &mut takeover).await.expect("it is taken over");
        for open in &mut all {
            assert!(open.conn.call(&["PING"]).await.is_err(), "{} still listens to the old owner", open.conn.address());
        }
        let lost = target.open(Some(&first)).await.map(|_| ()).expect_err("it is another's");
        assert!(matches!(lost, Error::OwnerLost { .. }), "{lost}");
        owner.release().await;
    });
}

/// Keys that expire, keys that don't, and keys out of scope; fields where there are such.
fn fill_expiring(cluster: &Cluster, n: usize) {
    let at = now_ms() + 2 * GRACE_MS;
    let mut commands: Vec<Cmd> = Vec::new();
    for i in 0..n {
        let key = if i % 50 == 0 { format!("foreign:{i}") } else { format!("key:{i}") };
        commands.push(cmd!["SET", key, i]);
        if i % 4 > 0 {
            commands.push(cmd!["PEXPIREAT", key, at + i as i64 * 7]);
        }
        if cluster.nodes[0].has_field_expiry() && i % 5 == 0 {
            let hash = format!("hash:{i}");
            commands.push(cmd!["HSET", hash, "f", 1, "g", 2]);
            commands.push(cmd!["HPEXPIREAT", hash, at + i as i64, "FIELDS", 1, "f"]);
        }
    }
    cluster.client().load(&commands);
}

fn earlier(mut all: Snapshot) -> Snapshot {
    for ((_, key), entry) in &mut all {
        if key.starts_with(b"foreign") {
            continue;
        }
        if entry.expires_at_ms > 0 {
            entry.expires_at_ms -= GRACE_MS;
        }
        if let crate::compare::Content::Hash(fields) = &mut entry.value {
            fields.iter_mut().filter(|field| field.2 > 0).for_each(|field| field.2 -= GRACE_MS);
        }
    }
    all
}

fn must_be(cluster: &Cluster, want: &Snapshot, what: &str) {
    let slack_ms = if cluster.nodes[0].version() >= (7, 0) { 0 } else { 50 };
    must_be_within(cluster, want, slack_ms, what);
}

fn must_be_within(cluster: &Cluster, want: &Snapshot, slack_ms: i64, what: &str) {
    let found = differences(want, &snapshot(cluster), &Rules { slack_ms, ..Rules::default() });
    assert!(found.is_empty(), "{what} on {}: {found:?}", cluster.nodes[0].name);
}

struct Job<'a> {
    target: &'a Target,
    identity: &'a Identity,
    bytes_max: usize,
}

impl Job<'_> {
    fn plan(&self) -> Plan<'_> {
        Plan {
            target: self.target,
            identity: self.identity,
            late_ms: GRACE_MS,
            sources_of: &|db| vec![db],
            shard_of: &|_| 0,
            in_scope: &|_, key| !key.starts_with(b"foreign"),
            bytes_max: self.bytes_max,
        }
    }

    fn settle(&self) -> Result<Settled, Error> {
        block_on(settle::settle(&self.plan(), None))
    }

    fn unsettle(&self) -> Result<Unsettled, Error> {
        block_on(settle::unsettle(&self.plan()))
    }
}

#[test]
fn settled_times_on_a_cluster_are_exact_and_taken_back_exactly() {
    for name in ALL {
        let cluster = Cluster::start(name, 3);
        fill_expiring(&cluster, 4000);
        let (target, identity) = (target(&cluster), owning(&cluster));
        let late = snapshot(&cluster);
        for bytes_max in [64 << 20, 50_000] {
            let job = Job { target: &target, identity: &identity, bytes_max };
            let settled = job.settle().expect("it settles");
            must_be(&cluster, &earlier(late.clone()), "settled");
            assert_eq!(settled.keys, 4000 * 3 / 4 - 40, "{name}");
            assert_eq!(settled.fields, if cluster.nodes[0].has_field_expiry() { 800 } else { 0 }, "{name}");
            assert_eq!(job.settle().expect("again"), settled, "nothing is settled twice");
            must_be(&cluster, &earlier(late.clone()), "settled again");
            assert_eq!(job.unsettle().expect("it is taken back"), Unsettled::Late);
            must_be(&cluster, &late, "late again");
            assert_eq!(job.unsettle().expect("nothing is taken back twice"), Unsettled::Never);
            must_be(&cluster, &late, "late again");
        }
    }
}

#[test]
fn settling_under_kills_and_moving_slots_ends_exact() {
    for name in ALL {
        let cluster = Cluster::start(name, 3);
        fill_expiring(&cluster, 20_000);
        let (target, identity) = (target(&cluster), owning(&cluster));
        let late = snapshot(&cluster);
        let (done, mut failed) = (AtomicBool::new(false), 0);
        let job = Job { target: &target, identity: &identity, bytes_max: 300_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let node = &cluster.nodes[fastrand::usize(0..3)];
                    node.client().call(&cmd!["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                    let slot = fastrand::u16(0..16384);
                    let (from, to) = (cluster.owner(slot), fastrand::usize(0..3));
                    if from != to && fastrand::bool() {
                        cluster.move_slot(slot, to);
                    }
                    std::thread::sleep(Duration::from_millis(fastrand::u64(1..200)));
                }
            });
            for attempt in 0..24 {
                let back = attempt % 5 == 4;
                let result = if back { job.unsettle().map(|_| ()) } else { job.settle().map(|_| ()) };
                if let Err(error) = result {
                    assert!(error.is_passing(), "{name}: {error}");
                    failed += 1;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        cluster.until_ok();
        println!("{name}: {failed} of 24 were broken off");
        assert!(failed > 0, "{name}: nothing was broken off");
        let settled = retried(|| job.settle());
        must_be_within(&cluster, &earlier(late.clone()), MIGRATED_MS, "after kills");
        assert!(settled.keys > 0);
        retried(|| job.unsettle());
        must_be_within(&cluster, &late, MIGRATED_MS, "taken back after kills");
    }
}

#[test]
fn marker_of_a_slot_is_in_it_and_a_key_due_soon_is_noted_there() {
    let cluster = Cluster::start("redis-7.0", 2);
    let (target, identity) = (target(&cluster), owning(&cluster));
    let mut client = cluster.client();
    client.load(&[cmd!["SET", "soon", 1, "PXAT", now_ms() + GRACE_MS + 60_000], cmd!["SET", "none", 1]]);
    let job = Job { target: &target, identity: &identity, bytes_max: 1 << 20 };
    assert_eq!(job.settle().expect("it settles").keys, 1);
    let tag = tag(Slot::of(b"soon"));
    assert!(client.call(&cmd!["GET", format!("keyferry:{JOB}:{{{tag}}}:settling")]).text().contains("keys=1"));
    let guard = client.call(&cmd!["HGETALL", format!("keyferry:{JOB}:{{{tag}}}:guards")]);
    assert_eq!((guard.list()[0].text(), guard.list()[1].text()), ("0:soon".into(), "0".into()));
    let own: usize =
        cluster.nodes.iter().map(|node| node.client().call(&cmd!["KEYS", "keyferry:*"]).list().len()).sum();
    assert_eq!(own, 3, "with the lease");
    assert_eq!(job.unsettle().expect("it is taken back"), Unsettled::Late);
}

#[test]
fn job_leaves_nothing_but_its_lease_and_an_end_that_was_broken_off_is_gone_on_with() {
    let cluster = Cluster::start("redis-7.0", 3);
    let (target, identity) = (target(&cluster), owning(&cluster));
    fill(&cluster, 500);
    let records = |count: usize| {
        let of = |n| format!("keyferry:{JOB}:{{{}}}:slot", tag(Slot::new(n).expect("a slot")));
        let all: Vec<Cmd> = (0..count).map(|n| cmd!["SET", of((n * 7) as u16), "a record"]).collect();
        cluster.client().load(&all);
        cluster.client().load(&[cmd!["SET", "keyferry:jj:lane:0", "another job's"]]);
    };
    let left = || -> usize {
        let own = |node: &Server| node.client().call(&cmd!["KEYS", "keyferry:*"]).list().len();
        cluster.nodes.iter().map(own).sum()
    };
    records(2000);
    while_slots_move(&cluster, || {
        retried(|| block_on(forget::forget(&target, &identity)));
    });
    assert_eq!(left(), 2, "the lease and the other job's");
    assert!(!block_on(forget::end_ended(&target, &identity)).expect("it answers"));
    records(300);
    cluster.client().load(&[cmd!["SET", forget::ending_key(JOB), 1]]);
    assert!(block_on(forget::end_ended(&target, &identity)).expect("it goes on"));
    assert_eq!(left(), 2);
    assert_eq!(snapshot(&cluster).len(), 500);
}

/// What a test says of the records, and what it hears of the replicas.
struct Watched {
    recorded: Mutex<Option<ReplOffset>>,
    heard: Mutex<Option<(ReplOffset, usize)>>,
    known: Mutex<BTreeSet<String>>,
}

impl Watcher for Watched {
    fn recorded(&self) -> Option<Recorded> {
        let servers = self.known.lock().expect("not poisoned").iter().cloned().collect();
        (*self.recorded.lock().expect("not poisoned")).map(|offset| Recorded { offset, servers })
    }

    fn covered(&self, offset: ReplOffset, replicas: usize) {
        *self.heard.lock().expect("not poisoned") = Some((offset, replicas));
    }
}

#[test]
fn offset_is_covered_when_replicas_of_every_primary_have_it() {
    let mut cluster = Cluster::with("redis-7.0", 2, 1, &[]);
    let target = target(&cluster);
    let run_id = |node: usize| cluster.nodes[node].client().info("server").remove("run_id").expect("a run id");
    let known = [0, 1].map(run_id).into_iter().collect();
    let (promoted, watched) =
        (run_id(2), Watched { recorded: Mutex::new(None), heard: Mutex::new(None), known: Mutex::new(known) });
    let set = |offset| *watched.recorded.lock().expect("not poisoned") = Some(ReplOffset(offset));
    let heard = || *watched.heard.lock().expect("not poisoned");
    let stop = tokio::sync::Notify::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_on(async {
                tokio::select! {
                    () = replicas::watch(&target, &watched) => {}
                    () = stop.notified() => {}
                }
            });
        });
        set(100);
        until(MINUTE, "all replicas have it", || heard() == Some((ReplOffset(100), 2)));
        // One replica of two doesn't get on.
        cluster.nodes[3].pause();
        fill(&cluster, 200);
        set(200);
        crate::wait::holds_for(Duration::from_secs(3), "no word of what one replica lacks", || {
            heard().is_some_and(|(offset, _)| offset < ReplOffset(200))
        });
        cluster.nodes[3].resume();
        until(MINUTE, "the replica has it too", || heard().is_some_and(|(offset, _)| offset == ReplOffset(200)));
        // A replica has taken over, and nobody has looked at its records yet.
        cluster.kill_and_promote(0, 2);
        set(300);
        crate::wait::holds_for(Duration::from_secs(3), "no word of a new primary's records", || {
            heard().is_some_and(|(offset, _)| offset == ReplOffset(200))
        });
        watched.known.lock().expect("not poisoned").insert(promoted.clone());
        until(MINUTE, "the new primary counts", || heard() == Some((ReplOffset(300), 1)));
        stop.notify_one();
    });
}

#[test]
fn reads_of_a_cluster_and_a_server_are_compared_alike() {
    let (cluster, one) = (Cluster::start("redis-7.0", 2), Server::start("redis-7.0"));
    let commands: Vec<Cmd> = keys(200).iter().map(|key| cmd!["RPUSH", key, key]).collect();
    cluster.client().load(&commands);
    one.client().load(&commands);
    until_same(&one, &cluster, MINUTE, "the same", &Rules::default());
    cluster.client().call(&cmd!["RPUSH", "key:7", "more"]);
    assert_eq!(differences(&snapshot(&one), &snapshot(&cluster), &Rules::default()).len(), 1);
}

/// A cluster of one primary with these config lines, reached at `host` with an address map.
fn nodes_announced(config: &[&str], host: &str, map: &[(&str, &str)]) -> (Cluster, Vec<String>) {
    let cluster = Cluster::with("redis-7.0", 1, 0, config);
    let at = |host: &str| HostPort { host: host.into(), port: cluster.nodes[0].port };
    let map = map.iter().map(|(announced, reachable)| (at(announced), at(reachable))).collect();
    let server = conn::Server { side: Side::Target, address: at(host), user: None, password: None, tls: None };
    let target = Target::Cluster(Seen::new(server, &[at(host)], map));
    let all = block_on(target.open(None)).expect("it is reached where it is announced, or mapped to");
    let addresses = all.iter().map(|open| open.conn.address().rsplit_once(':').expect("a port").0.to_owned()).collect();
    (cluster, addresses)
}

#[test]
fn nodes_are_reached_by_ipv6_and_through_the_address_map() {
    let (_v6, addresses) = nodes_announced(&["bind 127.0.0.1 ::1", "cluster-announce-ip ::1"], "::1", &[]);
    assert_eq!(addresses, ["[::1]"]);
    let announced = ["cluster-announce-ip 192.0.2.7"];
    let (_nat, addresses) = nodes_announced(&announced, "127.0.0.1", &[("192.0.2.7", "127.0.0.1")]);
    assert_eq!(addresses, ["127.0.0.1"]);
}

#[test]
fn nodes_of_a_cluster_with_tls_are_reached_at_their_ports_for_it() {
    let certificates = Certificates::new();
    // Up to 7.0 nodes only tell each other the ports that their own links are of.
    let over_tls = ["cluster-enabled yes", "tls-cluster yes", "tls-replication yes"];
    for (name, config) in
        [("redis-6.0", &over_tls[..]), ("redis-7.0", &over_tls), ("redis-8.6", &["cluster-enabled yes"])]
    {
        let lines = certificates.lines("server", false);
        let config = [config, &lines.iter().map(String::as_str).collect::<Vec<_>>()].concat();
        let nodes: Vec<Server> = (0..2).map(|_| Server::with(name, &config)).collect();
        let cluster = Cluster::join(nodes, 2);
        let options = TlsOptions { cacert: Some(certificates.path("ca.crt")), ..TlsOptions::default() };
        let connector = tls::connector(Side::Target, &options).expect("the CA is read");
        let address = HostPort { host: "127.0.0.1".into(), port: cluster.nodes[0].port2 };
        let tls = Some((connector, options));
        let server = conn::Server { side: Side::Target, address: address.clone(), user: None, password: None, tls };
        let target = Target::Cluster(Seen::new(server, &[address], BTreeMap::new()));
        let all = block_on(target.open(None)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let reached: BTreeSet<String> = all.iter().map(|open| open.conn.address().to_owned()).collect();
        let want = cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port2)).collect();
        assert_eq!(reached, want, "{name}");
    }
}

/// Keys of the job `j` that end in `end`, on all nodes.
fn own_keys(cluster: &Cluster, end: &str) -> usize {
    let of = |node: &Server| node.client().call(&cmd!["KEYS", format!("keyferry:j:*{end}")]).list().len();
    cluster.nodes.iter().map(of).sum()
}

#[test]
fn finish_killed_while_it_settles_and_while_it_removes_records_ends_exactly() {
    for name in ["redis-7.0", "valkey-9.1"] {
        let (source, cluster) = (Server::start(name), Cluster::start(name, 3));
        let at = now_ms() + GRACE_MS;
        let mut client = source.client();
        let batch: Vec<Cmd> = (0..60_000).map(|i| cmd!["SET", format!("k:{i}"), i, "PXAT", at + i]).collect();
        client.load(&batch);
        let (from, to) = (source.url(), cluster.url());
        let run = |command: &str| Tool::run(&[command, &from, &to, "--job", "j"]);
        let mut sync = run("sync");
        until_same(&source, &cluster, MINUTE, "following", &Rules::following(&source));
        client.load(&[cmd!["INCR", "k:7"], cmd!["PEXPIREAT", "k:9", at + 77]]);
        until_same(&source, &cluster, MINUTE, "following", &Rules::following(&source));
        sync.stop();
        // While it settles: some slots are done.
        let mut finish = run("finish");
        until(MINUTE, "some settled slots", || own_keys(&cluster, ":settling") > 0 || !finish.alive());
        assert!(finish.alive(), "{}", finish.text());
        finish.kill();
        // What is taken up again first takes all of it back.
        client.load(&[cmd!["INCR", "k:8"], cmd!["PEXPIREAT", "k:11", at + 78]]);
        let mut sync = run("sync");
        until_same(&source, &cluster, MINUTE, "following again", &Rules::following(&source));
        assert_eq!(own_keys(&cluster, ":settling"), 0, "{name}");
        sync.stop();
        // While it removes the records: some are gone.
        let mut finish = run("finish");
        until(MINUTE, "records that are being removed", || own_keys(&cluster, ":ending") > 0 || !finish.alive());
        finish.kill();
        let mut finish = run("finish");
        let code = finish.wait(MINUTE);
        assert!(code == 0 || code == 1 && finish.text().contains("no records"), "{code}: {}", finish.text());
        until(HALF_MINUTE, "nothing of the job", || own_keys(&cluster, "") == 0);
        until_same(&source, &cluster, HALF_MINUTE, "finished", &Rules::default());
        assert_eq!(client.info("stats")["sync_full"], "1", "{name}");
    }
}

#[test]
fn keys_that_are_there_are_refused_kept_replaced_or_flushed_as_told() {
    let source = Server::start("redis-7.0");
    source.client().load(&keys(300).iter().map(|key| cmd!["SET", key, "source"]).collect::<Vec<_>>());
    for (more, code, of_target) in [
        (&[][..], 3, "target"),
        (&["--existing", "keep"], 0, "target"),
        (&["--existing", "replace"], 0, "source"),
        (&["--flush-target", "--yes"], 0, "source"),
    ] {
        let cluster = Cluster::start("redis-7.0", 3);
        let mut client = cluster.client();
        client.load(&keys(100).iter().map(|key| cmd!["SET", key, "target"]).collect::<Vec<_>>());
        client.load(&[cmd!["SET", "else", "target"]]);
        // One node is enough, and what it is may be said.
        let (from, to) = (source.url(), cluster.nodes[2].url() + "?cluster=true");
        let mut tool = Tool::run(&[&["sync", &from, &to, "--once", "--job", "j"], more].concat());
        tool.must_end(MINUTE, code);
        client.refresh();
        assert!((0..100).all(|n| client.call(&cmd!["GET", format!("key:{n}")]).text() == of_target), "{more:?}");
        let flushed = more.contains(&"--flush-target");
        assert_eq!(client.call(&cmd!["EXISTS", "else"]).int(), i64::from(!flushed), "{more:?}");
        let copied = (100..300).filter(|n| client.call(&cmd!["EXISTS", format!("key:{n}")]).int() == 1).count();
        assert_eq!(copied, if code == 0 { 200 } else { 0 }, "{more:?}");
        let text = tool.text();
        assert!(code == 0 || text.contains("101 keys in scope") && text.contains("--existing"), "{text}");
        until(HALF_MINUTE, "nothing of the job", || own_keys(&cluster, "") == 0);
    }
}

#[test]
fn databases_folded_by_a_map_go_to_a_cluster_and_a_write_to_another_ends_the_job() {
    let (source, cluster) = (Server::start("redis-7.0"), Cluster::start("redis-7.0", 2));
    let mut client = source.client();
    for db in [0, 3] {
        client.select(db);
        client.call(&cmd!["SET", format!("k{db}"), db]);
    }
    let (from, to) = (source.url(), cluster.url());
    let mut tool = Tool::run(&["sync", &from, &to, "--job", "j", "--db-map", "3:0"]);
    until(MINUTE, "both databases in one", || snapshot(&cluster).len() == 2);
    client.select(5);
    client.call(&cmd!["SET", "k5", 5]);
    tool.must_end(MINUTE, 1);
    assert!(tool.text().contains("--db-map"), "{}", tool.text());
    assert_eq!(snapshot(&cluster).len(), 2);
}

/// A source before 7.0 streams how long keys have left, which counts from when that was received. At the end it's asked.
#[test]
fn true_times_of_an_old_cluster_are_asked_of_each_of_its_primaries() {
    let source = Cluster::start("redis-6.0", 2);
    let (one, cluster) = (Server::start("redis-7.0"), Cluster::start("redis-7.0", 3));
    let urls = [one.url(), cluster.url()];
    let run = |command: &str, to: &str, job: &str| Tool::run(&[command, &source.url(), to, "--job", job]);
    let mut tools = [run("sync", &urls[0], "one"), run("sync", &urls[1], "many")];
    fill(&source, 100);
    let following = |late: &Server| Rules { slack_ms: 5000, ..Rules::following(late) };
    until_same(&source, &one, MINUTE, "following", &following(&one));
    until_same(&source, &cluster, MINUTE, "following", &following(&one));
    tools.iter().for_each(Tool::freeze);
    let late: Vec<Cmd> = keys(1000).iter().map(|key| cmd!["SET", key, 1, "PX", 2 * GRACE_MS]).collect();
    source.client().load(&late);
    let sent_ms = now_ms();
    until(HALF_MINUTE, "two seconds in which nothing is received", || now_ms() > sent_ms + 2000);
    tools.iter().for_each(Tool::thaw);
    until_same(&source, &one, MINUTE, "following again", &following(&one));
    until_same(&source, &cluster, MINUTE, "following again", &following(&one));
    tools.iter_mut().for_each(Tool::stop);
    run("finish", &urls[0], "one").must_end(MINUTE, 0);
    run("finish", &urls[1], "many").must_end(MINUTE, 0);
    until_same(&source, &one, HALF_MINUTE, "exact on a server", &Rules::default());
    until_same(&source, &cluster, HALF_MINUTE, "exact on a cluster", &Rules::default());
}
