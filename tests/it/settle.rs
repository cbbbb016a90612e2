//! Settling: late expiries get their true times, whatever breaks on the way.

use crate::client::Cmd;
use crate::compare::{Content, GRACE_MS, Rules, Snapshot, must_be_same, now_ms, snapshot, until_same};
use crate::load::load_types;
use crate::proxy::{Cut, Proxy};
use crate::server::Server;
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE};
use keyferry::delivery::settling::{Expiry, Told};
use keyferry::net::Side;
use keyferry::net::conn;
use keyferry::net::endpoint::HostPort;
use keyferry::net::locate::Locator;
use keyferry::offset::ReplOffset;
use keyferry::source::side::Position;
use keyferry::source::times::Times;
use keyferry::target;
use keyferry::target::connect::Identity;
use keyferry::target::nodes::Target;
use keyferry::target::settle::{Answer, Plan, Settled, Source, Unsettled, settle, unsettle};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const ALL: [&str; 4] = ["redis-6.0", "redis-7.0", "redis-8.0", "valkey-9.1"];

/// One owner for all of a test's calls: another would lose the job to the one before.
static IDENTITY: OnceLock<Identity> = OnceLock::new();

/// What keyferry's own code is called with, as a job would.
struct Job {
    target: Target,
    identity: Identity,
    late_ms: i64,
    in_scope: fn(u32, &[u8]) -> bool,
    bytes_max: usize,
}

impl Job {
    /// The job's next run: the last one has ended and given its lease back.
    fn at(port: u16) -> Job {
        if let Ok(mut client) = crate::client::Client::connect(port, None, None) {
            client.call(&cmd!["DEL", "keyferry:j:owner"]);
        }
        let address = HostPort { host: "127.0.0.1".into(), port };
        let server = conn::Server { side: Side::Target, address, user: None, password: None, tls: None };
        Job {
            target: Target::Standalone(Locator::fixed(server, BTreeMap::new())),
            identity: IDENTITY.get_or_init(|| Identity::new("j", false)).clone(),
            late_ms: GRACE_MS,
            in_scope: |_, key| !key.starts_with(b"foreign"),
            bytes_max: 64 << 20,
        }
    }

    fn plan(&self) -> Plan<'_> {
        Plan {
            target: &self.target,
            identity: &self.identity,
            late_ms: self.late_ms,
            sources_of: &|db| vec![db],
            shard_of: &|_| 0,
            in_scope: &self.in_scope,
            bytes_max: self.bytes_max,
        }
    }

    fn settle(&self) -> Result<Settled, target::Error> {
        block_on(settle(&self.plan(), None))
    }

    fn settle_by(&self, source: &mut Words) -> Result<Settled, target::Error> {
        block_on(settle(&self.plan(), Some(source)))
    }

    fn unsettle(&self) -> Result<Unsettled, target::Error> {
        block_on(unsettle(&self.plan()))
    }
}

/// A source that says what it was given to say.
#[derive(Default)]
struct Words {
    told: BTreeMap<(u32, Vec<u8>), Told>,
    /// How many questions it still answers.
    answers: Option<usize>,
}

impl Source for Words {
    fn times<'a>(&'a mut self, db: u32, keys: &'a [&'a [u8]]) -> Answer<'a> {
        let gone = Told { expiry: Expiry::Gone, level: false };
        let answer = match &mut self.answers {
            Some(0) => Err(conn::Error::Lost {
                side: Side::Source,
                address: "nowhere".into(),
                error: std::io::ErrorKind::BrokenPipe.into(),
            }),
            left => {
                left.iter_mut().for_each(|left| *left -= 1);
                Ok(keys.iter().map(|key| self.told.get(&(db, key.to_vec())).copied().unwrap_or(gone)).collect())
            }
        };
        Box::pin(async { answer })
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Keys that expire and keys that don't in three databases, and fields where there are such; all expiries in the future.
fn fill(server: &Server, keys: usize) {
    let (mut client, at) = (server.client(), now_ms() + 2 * GRACE_MS);
    for db in [0, 2, 9] {
        client.select(db);
        let mut commands: Vec<Cmd> = Vec::new();
        for n in 0..keys / 3 {
            let name = if n % 50 == 0 { format!("foreign:{n}") } else { format!("key:{n}") };
            commands.push(cmd!["SET", name, n]);
            if n % 4 > 0 {
                commands.push(cmd!["PEXPIREAT", name, at + n as i64 * 7]);
            }
        }
        if server.has_field_expiry() {
            // Small ones, a large one, and one in a list pack of few.
            for (name, fields) in [("hash:a", 3), ("hash:b", 300), ("hash:c", keys / 3), ("foreign:h", 5)] {
                for f in 0..fields {
                    let field = format!("field:{f}");
                    commands.push(cmd!["HSET", name, field, f]);
                    if f % 3 > 0 {
                        commands.push(cmd!["HPEXPIREAT", name, at + f as i64, "FIELDS", 1, field]);
                    }
                }
            }
            commands.push(cmd!["PEXPIREAT", "hash:b", at]);
        }
        client.load(&commands);
    }
}

/// What should be there when everything in scope is `late_ms` earlier.
fn earlier(mut all: Snapshot, late_ms: i64) -> Snapshot {
    for ((_, key), entry) in &mut all {
        if key.starts_with(b"foreign") {
            continue;
        }
        if entry.expires_at_ms > 0 {
            entry.expires_at_ms -= late_ms;
        }
        if let Content::Hash(fields) = &mut entry.value {
            fields.iter_mut().filter(|field| field.2 > 0).for_each(|field| field.2 -= late_ms);
        }
    }
    all
}

/// Servers that tell only what is left are exact to a few ms.
fn must_be(server: &Server, want: &Snapshot, what: &str) {
    let slack_ms = if server.version() >= (7, 0) { 0 } else { 50 };
    let rules = Rules { slack_ms, ..Rules::default() };
    let found = crate::compare::differences(want, &snapshot(server), &rules);
    assert!(found.is_empty(), "{what} on {}: {found:?}", server.name);
}

#[test]
fn settled_times_are_exact_and_foreign_keys_untouched() {
    for name in ALL {
        let server = Server::start(name);
        fill(&server, 9000);
        let late = snapshot(&server);
        for bytes_max in [64 << 20, 50_000] {
            let job = Job { bytes_max, ..Job::at(server.port) };
            let settled = job.settle().expect("it settles");
            must_be(&server, &earlier(late.clone(), GRACE_MS), "settled");
            assert_eq!(settled.keys, 3 * (3000 * 3 / 4 - 30) + if server.has_field_expiry() { 3 } else { 0 });
            assert_eq!(settled.fields > 0, server.has_field_expiry());
            assert_eq!(job.settle().expect("again"), settled, "nothing is settled twice");
            must_be(&server, &earlier(late.clone(), GRACE_MS), "settled again");
            assert_eq!(job.unsettle().expect("it is taken back"), Unsettled::Late);
            must_be(&server, &late, "late again");
            assert_eq!(job.unsettle().expect("nothing is taken back twice"), Unsettled::Never);
            must_be(&server, &late, "late again");
        }
    }
}

#[test]
fn settling_cut_at_any_batch_on_redis_6_0_goes_on_or_back_exactly() {
    goes_on_or_back_exactly_from_any_batch("redis-6.0");
}

#[test]
fn settling_cut_at_any_batch_on_redis_7_0_goes_on_or_back_exactly() {
    goes_on_or_back_exactly_from_any_batch("redis-7.0");
}

#[test]
fn settling_cut_at_any_batch_on_redis_8_0_goes_on_or_back_exactly() {
    goes_on_or_back_exactly_from_any_batch("redis-8.0");
}

#[test]
fn settling_cut_at_any_batch_on_valkey_9_1_goes_on_or_back_exactly() {
    goes_on_or_back_exactly_from_any_batch("valkey-9.1");
}

fn goes_on_or_back_exactly_from_any_batch(name: &str) {
    let server = Server::start(name);
    fill(&server, 4500);
    let late = snapshot(&server);
    let settled = earlier(late.clone(), GRACE_MS);
    let mut cuts = 0;
    for batches in 1.. {
        let mut whole = 0;
        for cut in [Cut::BeforeExec, Cut::AfterExec] {
            // One run is cut, one goes on behind it.
            let proxy = Proxy::start(server.port, cut, batches);
            whole += usize::from(Job::at(proxy.port).settle().is_ok());
            Job::at(server.port).settle().expect("it goes on");
            must_be(&server, &settled, "gone on");
            // Taking back is cut; then settling is, and is taken back.
            let proxy = Proxy::start(server.port, cut, batches);
            let _ = Job::at(proxy.port).unsettle();
            Job::at(server.port).unsettle().expect("it is taken back");
            must_be(&server, &late, "taken back");
            let proxy = Proxy::start(server.port, cut, batches);
            let _ = Job::at(proxy.port).settle();
            let proxy = Proxy::start(server.port, cut, batches);
            let _ = Job::at(proxy.port).unsettle();
            Job::at(server.port).unsettle().expect("it is taken back");
            must_be(&server, &late, "broken off and taken back");
            cuts += 1;
        }
        if whole == 2 {
            break;
        }
    }
    assert!(cuts >= 8, "only {cuts} cuts");
}

#[test]
fn refused_batch_is_not_passed_over() {
    let server = Server::start("redis-7.0");
    fill(&server, 6000);
    let late = snapshot(&server);
    let mut client = server.client();
    client.call(&cmd!["CONFIG", "SET", "maxmemory", 1]);
    let error = Job::at(server.port).settle().expect_err("no memory");
    assert!(error.is_passing() && error.to_string().contains("OOM"), "{error}");
    must_be(&server, &late, "nothing was done");
    client.call(&cmd!["CONFIG", "SET", "maxmemory", 0]);
    Job::at(server.port).settle().expect("it settles");
    must_be(&server, &earlier(late, GRACE_MS), "settled");
}

/// What a source says that has true times of `by_ms(n)` before what the target would make of its own: the `n`th key's.
fn earlier_by(settled: &Snapshot, level: bool, by_ms: impl Fn(i64) -> i64) -> (Words, Snapshot) {
    let (mut words, mut want) = (Words::default(), settled.clone());
    for (n, ((db, key), entry)) in want.iter_mut().enumerate() {
        if entry.expires_at_ms > 0 && !key.starts_with(b"foreign") {
            entry.expires_at_ms -= by_ms(n as i64);
            let expiry = Expiry::At { from_ms: entry.expires_at_ms, to_ms: entry.expires_at_ms };
            words.told.insert((*db, key.clone()), Told { expiry, level });
        }
    }
    (words, want)
}

#[test]
fn what_the_source_says_is_settled_over_cuts_on_its_side_and_taken_back() {
    for (name, late_ms) in ALL.iter().flat_map(|name| [(name, GRACE_MS), (name, 0)]) {
        let server = Server::start(name);
        fill(&server, 9000);
        let job = Job { late_ms, ..Job::at(server.port) };
        let (mut words, want) = earlier_by(&earlier(snapshot(&server), late_ms), true, |n| n % 7 * 1000);
        let mut cuts = 0;
        loop {
            // One that it is there, three for the databases of each batch, and one more.
            words.answers = Some(8);
            match job.settle_by(&mut words) {
                Ok(_) => break,
                Err(error) => assert!(error.is_passing(), "{error}"),
            }
            cuts += 1;
            assert!(cuts < 100, "{name} never ends");
        }
        assert!(cuts >= 3, "{name}: only {cuts} cuts");
        must_be(&server, &want, "as the source says");
        words.answers = None;
        job.settle_by(&mut words).expect("again");
        must_be(&server, &want, "as the source says, again");
        assert_eq!(job.unsettle().expect("it is taken back"), Unsettled::Late);
        must_be(&server, &earlier(want, -late_ms), "late again, of the true times");
        assert_eq!(job.unsettle().expect("nothing is left"), Unsettled::Never);
    }
}

#[test]
fn key_that_expired_at_the_source_is_gone_and_one_that_was_deleted_later_stays() {
    let server = Server::start("redis-7.0");
    fill(&server, 3000);
    let want = earlier(snapshot(&server), GRACE_MS);
    let (mut words, mut want) = earlier_by(&want, false, |_| 0);
    for ((_, key), told) in &mut words.told {
        told.expiry = Expiry::Gone;
        told.level = key.ends_with(b"7");
    }
    want.retain(|key, entry| entry.expires_at_ms < 0 || !words.told.get(key).is_some_and(|told| told.level));
    Job::at(server.port).settle_by(&mut words).expect("it settles");
    must_be(&server, &want, "settled");
}

#[test]
fn expiries_in_the_past_are_gone_and_largest_ones_stay() {
    for name in ["redis-7.0", "redis-8.0", "valkey-9.1"] {
        let server = Server::start(name);
        let mut client = server.client();
        let soon = now_ms() + GRACE_MS / 2;
        client.load(&[
            cmd!["SET", "past", 1, "PXAT", soon],
            cmd!["SET", "largest", 1, "PXAT", i64::MAX],
            cmd!["SET", "none", 1],
        ]);
        if server.has_field_expiry() {
            let largest = if server.is_valkey() { i64::MAX } else { (1 << 46) - 1 };
            client.load(&[
                cmd!["HSET", "h", "past", 1, "largest", 1, "none", 1],
                cmd!["HPEXPIREAT", "h", soon, "FIELDS", 1, "past"],
                cmd!["HPEXPIREAT", "h", largest, "FIELDS", 1, "largest"],
                cmd!["HSET", "only", "past", 1],
                cmd!["HPEXPIREAT", "only", soon, "FIELDS", 1, "past"],
            ]);
        }
        let settled = Job::at(server.port).settle().expect("it settles");
        let n = if server.has_field_expiry() { 1 } else { 0 };
        assert_eq!(settled, Settled { keys: 1, fields: 2 * n, left: 1 + n }, "{name}");
        assert_eq!(client.call(&cmd!["EXISTS", "past", "only"]).int(), 0);
        assert_eq!(client.call(&cmd!["PEXPIRETIME", "largest"]).int(), i64::MAX);
        if server.has_field_expiry() {
            assert_eq!(client.call(&cmd!["HLEN", "h"]).int(), 2);
        }
    }
}

/// 100,000 keys, cut again and again by the server's side.
#[test]
fn hundred_thousand_keys_under_random_kills_end_exact() {
    for name in ["redis-7.0", "valkey-9.1"] {
        let server = Server::start(name);
        fill(&server, 100_000);
        let late = snapshot(&server);
        // Before the kills begin, which would take the connection that it makes, too.
        let job = Job { bytes_max: 1 << 20, ..Job::at(server.port) };
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = server.client();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    client.call(&cmd!["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                    std::thread::sleep(Duration::from_millis(fastrand::u64(1..150)));
                }
            });
            let started = Instant::now();
            let (mut attempt, mut failed) = (0, 0);
            while started.elapsed() < Duration::from_secs(6) {
                attempt += 1;
                let (plan, back) = (job.plan(), attempt % 7 == 0);
                let done = match back {
                    true => block_on(unsettle(&plan)).map(|_| ()),
                    false => block_on(settle(&plan, None)).map(|_| ()),
                };
                failed += u32::from(done.is_err());
            }
            // First, or a failure would leave the other thread, and with it this scope, running for ever.
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(failed > 5, "only {failed} of {attempt} were cut");
        });
        Job::at(server.port).settle().expect("it settles");
        must_be(&server, &earlier(late, GRACE_MS), "after kills");
    }
}

#[test]
fn fields_are_late_while_following_and_exact_after_the_end() {
    let pairs = [
        ("redis-8.0", "redis-8.0"),
        ("redis-8.6", "redis-8.0"),
        ("valkey-9.1", "valkey-9.1"),
        ("redis-8.0", "valkey-9.1"),
        ("valkey-9.1", "redis-8.0"),
    ];
    for (from, to) in pairs {
        let (a, b) = (Server::start(from), Server::start(to));
        let mut source = a.client();
        // Redis 8.0's own values only: what the other side can't hold is not of interest here.
        let at = now_ms() + 500_000;
        let mut hashes: Vec<Cmd> = Vec::new();
        for (name, fields) in [("small", 5usize), ("large", 2000)] {
            for f in 0..fields {
                hashes.push(cmd!["HSET", name, format!("f{f}"), "v".repeat(f % 40)]);
                if f % 2 == 0 {
                    hashes.push(cmd!["HPEXPIREAT", name, at + f as i64, "FIELDS", 1, format!("f{f}")]);
                }
            }
        }
        source.load(&hashes);
        let mut tool = Tool::sync(&a, &b, &[]);
        until_same(&a, &b, MINUTE, "following", &Rules::following(&a));
        source.load(&[cmd!["HSET", "live", "f", 1, "g", 2], cmd!["HPEXPIREAT", "live", at, "FIELDS", 1, "g"]]);
        until_same(&a, &b, MINUTE, "following", &Rules::following(&a));
        let mut target = b.client();
        for (key, field, true_ms) in
            [("small", "f0", at), ("large", "f0", at), ("large", "f1998", at + 1998), ("live", "g", at)]
        {
            let time = target.call(&cmd!["HPEXPIRETIME", key, "FIELDS", 1, field]);
            assert_eq!(time.list()[0].int(), true_ms + GRACE_MS, "{from} to {to}: {key} {field}");
        }
        tool.stop();
        Tool::run(&["finish", &a.url(), &b.url()]).must_end(MINUTE, 0);
        must_be_same(&a, &b, &format!("{from} to {to} after the end"), &Rules::default());
    }
}

#[test]
fn finish_after_a_kill_settles_and_removes_the_records() {
    for name in ["redis-6.0", "redis-7.0", "redis-8.0", "valkey-9.1"] {
        let (a, b) = (Server::start(name), Server::start(name));
        load_types(&a, &mut a.client(), 3, "");
        let mut tool = Tool::sync(&a, &b, &[]);
        until_same(&a, &b, MINUTE, "following", &Rules::following(&a));
        tool.kill();
        let mut target = b.client();
        let own = cmd!["KEYS", "keyferry:*"];
        assert!(!target.call(&own).list().is_empty());
        target.load(&[cmd!["SET", "keyferry:other:lane:0", "another job's"]]);
        let (from, to) = (a.url(), b.url());
        let mut finish = Tool::run(&["finish", &from, &to]);
        finish.must_end(HALF_MINUTE, 0);
        assert!(finish.text().contains("settled: "), "{}", finish.text());
        must_be_same(&a, &b, "finished", &Rules::default());
        assert_eq!(target.call(&own).list().len(), 1, "only the other job's record is left");
        // Nor does an option of the job's beginning do anything now.
        for more in [&[][..], &["--flush-target", "--yes"]] {
            let mut again = Tool::run(&[&["finish", &from, &to], more].concat());
            again.must_end(HALF_MINUTE, 1);
            assert!(again.text().contains("no records of job"), "{}", again.text());
        }
        assert!(target.call(&cmd!["DBSIZE"]).int() > 100, "the target was emptied");
    }
}

#[test]
fn finish_with_the_source_gone_leaves_times_late_and_says_so() {
    let (mut a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let at = now_ms() + 1_000_000;
    a.client().load(&[cmd!["SET", "k", 1, "PXAT", at]]);
    let mut tool = Tool::sync(&a, &b, &[]);
    until_same(&a, &b, MINUTE, "following", &Rules::following(&a));
    tool.kill();
    a.kill();
    let (from, to) = (a.url(), b.url());
    let mut finish = Tool::run(&["finish", &from, &to, "--source-gone"]);
    finish.must_end(HALF_MINUTE, 0);
    assert!(finish.text().contains("late"), "{}", finish.text());
    let mut target = b.client();
    assert_eq!(target.call(&cmd!["PEXPIRETIME", "k"]).int(), at + GRACE_MS);
    assert_eq!(target.call(&cmd!["KEYS", "keyferry:*"]).list().len(), 0);
}

#[test]
fn finish_with_another_filter_is_refused() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().load(&[cmd!["SET", "k", 1, "PX", 1_000_000]]);
    let mut tool = Tool::sync(&a, &b, &["--key", "k*"]);
    until_same(&a, &b, MINUTE, "following", &Rules::following(&a));
    tool.kill();
    let (from, to) = (a.url(), b.url());
    let mut finish = Tool::run(&["finish", &from, &to]);
    finish.must_end(HALF_MINUTE, 3);
    assert!(finish.text().contains("another filter"), "{}", finish.text());
    let mut finish = Tool::run(&["finish", &from, &to, "--key", "k*"]);
    finish.must_end(HALF_MINUTE, 0);
    must_be_same(&a, &b, "finished", &Rules::default());
}

/// `cargo test --profile quick --test it settle_speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn settle_speed() {
    for name in ALL {
        let server = Server::start(name);
        let mut client = server.client();
        for part in 0..100 {
            let commands: Vec<Cmd> = (0..10_000)
                .map(|n| cmd!["SET", format!("key:{:07}", part * 10_000 + n), "value", "PX", 2 * GRACE_MS])
                .collect();
            client.load(&commands);
        }
        let (started, before) = (Instant::now(), (cpu_s(std::process::id()), cpu_s(server.pid())));
        let settled = Job::at(server.port).settle().expect("it settles");
        let took = started.elapsed().as_secs_f64();
        let (own, its) = (cpu_s(std::process::id()) - before.0, cpu_s(server.pid()) - before.1);
        println!("{name}: {} keys settled in {took:.2} s; CPU {own:.2} s, server {its:.2} s", settled.keys);
    }
}

/// The same from a source that is asked; `cargo test` as above.
#[test]
#[ignore = "a measurement"]
fn settle_speed_where_the_source_is_asked() {
    struct Asked(Times);
    impl Source for Asked {
        fn times<'a>(&'a mut self, db: u32, keys: &'a [&'a [u8]]) -> Answer<'a> {
            Box::pin(self.0.ask(db, keys))
        }
    }
    for to in ["redis-7.0", "redis-6.0"] {
        let (source, server) = (Server::start("redis-6.0"), Server::start(to));
        let at = now_ms() + GRACE_MS;
        for part in 0..100 {
            let commands = |late_ms: i64| -> Vec<Cmd> {
                let key = |n: i64| format!("key:{:07}", part * 10_000 + n);
                let set = |n: i64| [cmd!["SET", key(n), "value"], cmd!["PEXPIREAT", key(n), at + n + late_ms]];
                (0..10_000).flat_map(set).collect()
            };
            source.client().load(&commands(0));
            // Received three seconds late.
            server.client().load(&commands(GRACE_MS + 3000));
        }
        let address = HostPort { host: "127.0.0.1".into(), port: source.port };
        let from = conn::Server { side: Side::Source, address, user: None, password: None, tls: None };
        let stands = Position { replid: None, offset: ReplOffset(0) };
        let mut asked = Asked(Times::new(from.into(), (6, 0, 16), stands));
        let (started, before) = (Instant::now(), [std::process::id(), server.pid(), source.pid()].map(cpu_s));
        let job = Job::at(server.port);
        let settled = block_on(settle(&job.plan(), Some(&mut asked))).expect("it settles");
        let took = started.elapsed().as_secs_f64();
        let after = [std::process::id(), server.pid(), source.pid()].map(cpu_s);
        let [own, its, sources] = [0, 1, 2].map(|i| after[i] - before[i]);
        println!(
            "redis-6.0 to {to}: {} keys settled in {took:.2} s; CPU {own:.2} s, target {its:.2} s, source {sources:.2} s",
            settled.keys
        );
        must_be(&server, &snapshot(&source), "settled");
    }
}

/// Seconds of CPU that a process has used, of 100 ticks each.
fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let words: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = [11, 12].map(|at: usize| words[at].parse::<f64>().unwrap_or(0.0)).iter().sum();
    ticks / 100.0
}
