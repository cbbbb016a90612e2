//! One server into one.

use super::Notes;
use super::ferry::{FILTERED, Ferry, JOB};
use super::rollback::RollBack;
use super::states::{STATES, State};
use crate::compare::{Rules, databases, is_own_record, scan, until_same};
use crate::load::{Mix, Workload, load_bulk, load_types};
use crate::server::{FAST, Server};
use crate::tool::is_following;
use crate::wait::{HALF_MINUTE, MINUTE, until};
use fastrand::Rng;
use std::thread;
use std::time::{Duration, Instant};

/// Writes a second.
const RATE: u64 = 6000;

/// What a source before 7.0 streams is late, until `finish`, by as long as it lies back when it is received for the last
/// time: as far as an older file of the target, and the states that follow.
pub const RECEIVED_LATE_MS_MAX: i64 = 60_000;

/// Pairs of servers; the seed chooses.
const PAIRS: &[(&str, &str)] = &[
    ("redis-7.0", "redis-7.0"),
    ("redis-7.0", "redis-7.0"),
    ("redis-7.0", "valkey-8.1"),
    ("redis-8.0", "redis-8.0"),
    ("valkey-9.1", "valkey-9.1"),
    ("redis-6.0", "redis-7.0"),
];

pub fn run(seed: u64, span: Duration) {
    let mut torture = Torture::start(seed);
    let started = Instant::now();
    while started.elapsed() < span {
        let writes = 500 + torture.rng.u64(0..9000);
        torture.load().until_sent(writes, MINUTE);
        torture.event();
        torture.ferry.tool.must_live();
    }
    torture.end();
}

struct Torture {
    seed: u64,
    rng: Rng,
    a: Server,
    b: Server,
    ferry: Ferry,
    load: Option<Workload>,
    filtered: bool,
    lanes_vary: bool,
    rollback: RollBack,
    notes: Notes,
}

impl Torture {
    fn start(seed: u64) -> Torture {
        let mut rng = Rng::with_seed(seed);
        let (from, to) = PAIRS[rng.usize(0..PAIRS.len())];
        let (filtered, lanes_vary) = (rng.u8(0..4) == 0, rng.u8(0..3) == 0);
        let across_databases = !filtered && rng.u8(0..3) == 0;
        println!(
            "torture: KEYFERRY_TORTURE_SEED={seed}, {from} to {to}, filtered {filtered}, lanes vary {lanes_vary}, across \
             databases {across_databases}"
        );
        let a = Server::with(from, &[FAST, &["repl-backlog-size 256mb"]].concat());
        let b = Server::with(to, &["lua-time-limit 100"]);
        load_bulk(&mut a.client(), "bulk:", 20_000, 100);
        load_types(&a, &mut a.client(), seed, "types:");
        let mut prefixes = vec![String::new()];
        prefixes.extend(filtered.then(|| FILTERED.to_string()));
        let mix = Mix { databases: vec![0, 2], across_databases, prefixes, ..Mix::of(&a) };
        let load = Some(Workload::start(&a, seed, RATE, mix));
        let spool = a.dir().join("spool").display().to_string();
        let more = [&["--spool-dir", &spool], &Ferry::filter(filtered)[..]].concat();
        let ferry = Ferry::start(&a.url(), &b.url(), &more);
        let notes = Notes::new();
        let rollback = RollBack::default();
        let torture = Torture { seed, rng, a, b, ferry, load, filtered, lanes_vary, rollback, notes };
        let mut target = torture.b.client();
        until(MINUTE, "the copy's end", || is_following(&mut target, JOB));
        torture
    }

    fn load(&self) -> &Workload {
        self.load.as_ref().expect("the load runs")
    }

    fn note(&mut self, what: &str) {
        self.notes.add(what);
    }

    /// One fault, or one inside another.
    fn event(&mut self) {
        match self.rng.u8(0..12) {
            0..5 => self.blow(),
            5 => self.roll_back(),
            6 | 7 => {
                let source = self.rng.bool();
                self.note(if source { "source stopped" } else { "target stopped" });
                self.stopped(source);
            }
            _ => {
                let state = STATES[self.rng.usize(0..STATES.len())];
                self.in_state(state);
            }
        }
    }

    /// What happens in a moment.
    fn blow(&mut self) {
        match self.rng.u8(0..6) {
            0 | 1 => {
                self.note("kill -9");
                self.ferry.kill();
                if self.rng.bool() {
                    let n = self.rng.u64(0..3000);
                    self.load().until_sent(n, MINUTE);
                }
                self.start_tool();
            }
            2 => {
                self.note("SIGTERM");
                self.ferry.stop();
                if self.rng.bool() {
                    let n = self.rng.u64(0..3000);
                    self.load().until_sent(n, MINUTE);
                }
                self.start_tool();
            }
            3 => {
                self.note("source cut");
                self.a.client().call(&cmd!["CLIENT", "KILL", "TYPE", "replica"]);
            }
            4 => {
                self.note("target cut");
                let mut target = self.b.client();
                target.call(&cmd!["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
            _ => {
                self.note("save");
                self.rollback.save(&self.b);
            }
        }
    }

    fn start_tool(&mut self) {
        if self.lanes_vary && self.rng.u8(0..3) == 0 {
            self.ferry.lanes = Some(self.rng.u32(1..9));
            let lanes = format!("lanes, {:?}", self.ferry.lanes);
            self.note(&lanes);
        }
        self.ferry.start_again();
    }

    /// The target restarts without its last writes, which it had acknowledged.
    fn roll_back(&mut self) {
        if self.rollback.is_old() {
            self.rollback.save(&self.b);
            let n = self.rng.u64(0..5000);
            self.load().until_sent(n, MINUTE);
        }
        let age = self.rollback.age().as_millis();
        self.note(&format!("target restarts from older file, {age} ms old"));
        self.b.restart();
    }

    /// Puts the target into a state for a while, in which more may happen.
    fn in_state(&mut self, state: State) {
        self.note(&format!("{state:?}"));
        let (span, writes_only) = (Duration::from_millis(self.rng.u64(200..2500)), self.rng.bool());
        let entered = state.enter(&self.b, span, writes_only);
        if state == State::OutOfMemory {
            self.ferry.tool.until_text("OOM", HALF_MINUTE);
        }
        self.hold(span, state.answers());
        entered.leave(&self.b);
    }

    fn stopped(&mut self, source: bool) {
        let span = Duration::from_millis(self.rng.u64(500..6000));
        if source {
            self.a.pause();
        } else {
            self.b.pause();
        }
        thread::sleep(span / 2);
        if self.rng.u8(0..4) == 0 {
            self.note("kill -9 in a state");
            self.ferry.kill();
            self.ferry.start_again();
        }
        thread::sleep(span / 2);
        if source {
            self.a.resume();
        } else {
            self.b.resume();
        }
    }

    /// The state lasts; in it keyferry may be killed or cut.
    fn hold(&mut self, span: Duration, answers: bool) {
        thread::sleep(span / 2);
        match self.rng.u8(0..6) {
            0 => {
                self.note("kill -9 in a state");
                self.ferry.kill();
                self.ferry.start_again();
            }
            1 => {
                self.note("source cut in a state");
                self.a.client().call(&cmd!["CLIENT", "KILL", "TYPE", "replica"]);
            }
            2 if answers => {
                self.note("target cut in a state");
                let mut target = self.b.client();
                let _ = target.ask(&cmd!["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
            _ => {}
        }
        thread::sleep(span / 2);
    }

    /// Stops, compares, finishes, compares again.
    fn end(mut self) {
        let writes = self.load.take().map_or(0, Workload::stop);
        let filtered = self.filtered;
        let in_scope = move |_: u32, key: &[u8]| Ferry::is_in_scope(filtered, key);
        let what = format!("seed {}", self.seed);
        let mut following = Rules { in_scope: &in_scope, ..Rules::following(&self.a) };
        if following.slack_ms > 0 {
            following.slack_ms = RECEIVED_LATE_MS_MAX;
        }
        until_same(&self.a, &self.b, MINUTE, &format!("{what}, following"), &following);
        self.ferry.stop();
        self.ferry.finish();
        let exact = Rules { in_scope: &in_scope, group_hints: false, ..Rules::default() };
        until_same(&self.a, &self.b, HALF_MINUTE, &format!("{what}, finished"), &exact);
        let syncs = self.a.client().info("stats");
        assert_eq!(syncs.get("sync_full").map(String::as_str), Some("1"), "{what}: full syncs");
        let mut target = self.b.client();
        for db in databases(&mut target) {
            target.select(db);
            let own: Vec<_> = scan(&mut target).into_iter().filter(|k| is_own_record(k)).collect();
            assert!(own.is_empty(), "{what}: keyferry's keys are left in database {db}: {own:?}");
        }
        let seconds = self.notes.began.elapsed().as_secs();
        println!("torture: {what} ended equal: {writes} writes, {seconds} s, {:?}", self.notes.counts);
    }
}
