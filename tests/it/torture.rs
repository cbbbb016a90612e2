//! The torture: under random load, keyferry and both servers are killed, cut, stopped, rolled back and made to refuse,
//! in random order; what the source held must be on the target in the end, once, and exactly after `finish`.
//!
//! `KEYFERRY_TORTURE_S` is how long it lasts in seconds (60), `KEYFERRY_TORTURE_SEED` what it does (printed).

use crate::compare::{Rules, databases, is_own_record, scan, until_same};
use crate::load::{Mix, Workload, load_bulk, load_types};
use crate::server::{FAST, Server, free_port};
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, MINUTE, until};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// Writes a second.
const RATE: u64 = 6000;

/// How far back an RDB may lie that the target restarts from: the source's backlog must reach there.
const SAVED_AGE_MAX: Duration = Duration::from_secs(20);

/// What a source before 7.0 streams is late, until `finish`, by as long as it lies back when it is received for the last
/// time: as far as an older file of the target, and the states that follow.
const RECEIVED_LATE_MS_MAX: i64 = 60_000;

/// Pairs of servers; the seed chooses.
const PAIRS: &[(&str, &str)] = &[
    ("redis-7.0", "redis-7.0"),
    ("redis-7.0", "redis-7.0"),
    ("redis-7.0", "valkey-8.1"),
    ("redis-8.0", "redis-8.0"),
    ("valkey-9.1", "valkey-9.1"),
    ("redis-6.0", "redis-7.0"),
];

#[test]
fn torture_ends_equal() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seed = number("KEYFERRY_TORTURE_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    let span = Duration::from_secs(number("KEYFERRY_TORTURE_S").unwrap_or(60));
    let mut torture = Torture::start(seed);
    let started = Instant::now();
    while started.elapsed() < span {
        let writes = 500 + torture.rng.u64(0..9000);
        torture.load().until_sent(writes, MINUTE);
        torture.event();
        torture.tool.must_live();
    }
    torture.end();
}

/// What becomes of keys below `tmp:` in a run whose seed chooses a filter.
const FILTERED: &str = "tmp:";

/// A state that a server is put into for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    SourceStopped,
    TargetStopped,
    OutOfMemory,
    ReadOnly,
    Busy,
    ClientsPaused,
}

const STATES: [State; 6] = [
    State::SourceStopped,
    State::TargetStopped,
    State::OutOfMemory,
    State::ReadOnly,
    State::Busy,
    State::ClientsPaused,
];

struct Torture {
    seed: u64,
    rng: Rng,
    a: Server,
    b: Server,
    tool: Tool,
    load: Option<Workload>,
    filtered: bool,
    lanes_vary: bool,
    lanes: Option<u32>,
    /// When the target was last saved, if it was.
    saved: Option<Instant>,
    counts: BTreeMap<String, u32>,
    began: Instant,
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
        let load = Workload::start(&a, seed, RATE, mix);
        let tool = run(&a, &b, filtered, None);
        let torture = Torture {
            seed,
            rng,
            a,
            b,
            tool,
            load: Some(load),
            filtered,
            lanes_vary,
            lanes: None,
            saved: None,
            counts: BTreeMap::new(),
            began: Instant::now(),
        };
        let mut target = torture.b.client();
        until(MINUTE, "the copy's end", || is_following(&mut target, "torture"));
        torture
    }

    fn load(&self) -> &Workload {
        self.load.as_ref().expect("the load runs")
    }

    fn note(&mut self, what: &str) {
        let at = self.began.elapsed().as_millis();
        println!("{at:>7} ms: {what}");
        *self.counts.entry(what.split(',').next().unwrap_or_default().to_string()).or_default() += 1;
    }

    /// One fault, or one inside another.
    fn event(&mut self) {
        match self.rng.u8(0..12) {
            0..5 => self.blow(true),
            5 => self.roll_back(),
            _ => {
                let state = STATES[self.rng.usize(0..STATES.len())];
                self.in_state(state);
            }
        }
    }

    /// What happens in a moment. `answers`: both servers do.
    fn blow(&mut self, answers: bool) {
        match self.rng.u8(0..if answers { 6 } else { 2 }) {
            0 | 1 => {
                self.note("kill -9");
                self.tool.kill();
                if answers && self.rng.bool() {
                    let n = self.rng.u64(0..3000);
                    self.load().until_sent(n, MINUTE);
                }
                self.start_tool();
            }
            2 => {
                self.note("SIGTERM");
                self.tool.stop();
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
                self.save();
            }
        }
    }

    fn start_tool(&mut self) {
        if self.lanes_vary && self.rng.u8(0..3) == 0 {
            self.lanes = Some(self.rng.u32(1..9));
            self.note(&format!("lanes, {:?}", self.lanes));
        }
        self.tool = run(&self.a, &self.b, self.filtered, self.lanes);
    }

    fn save(&mut self) {
        let mut target = self.b.client();
        target.call(&cmd!["BGSAVE"]);
        until(HALF_MINUTE, "the target's BGSAVE", || {
            let info = target.info("persistence");
            info.get("rdb_bgsave_in_progress").map(String::as_str) == Some("0")
        });
        self.saved = Some(Instant::now());
    }

    /// The target restarts without its last writes, which it had acknowledged.
    fn roll_back(&mut self) {
        if self.saved.is_none_or(|at| at.elapsed() > SAVED_AGE_MAX) {
            self.save();
            let n = self.rng.u64(0..5000);
            self.load().until_sent(n, MINUTE);
        }
        let age = self.saved.map_or(0, |at| at.elapsed().as_millis());
        self.note(&format!("target restarts from older file, {age} ms old"));
        self.b.restart();
    }

    /// Puts a server into a state for a while, in which more may happen.
    fn in_state(&mut self, state: State) {
        self.note(&format!("{state:?}"));
        let span = Duration::from_millis(self.rng.u64(200..2500));
        match state {
            State::SourceStopped => self.stopped(true),
            State::TargetStopped => self.stopped(false),
            State::OutOfMemory => {
                self.b.client().call(&cmd!["CONFIG", "SET", "maxmemory", 1]);
                self.tool.until_text("OOM", HALF_MINUTE);
                self.hold(span, true);
                self.b.client().call(&cmd!["CONFIG", "SET", "maxmemory", 0]);
            }
            State::ReadOnly => {
                self.b.client().call(&cmd!["REPLICAOF", "127.0.0.1", free_port()]);
                self.hold(span, true);
                self.b.client().call(&cmd!["REPLICAOF", "NO", "ONE"]);
            }
            State::Busy => {
                let (mut runner, mut killer) = (self.b.client(), self.b.client());
                let script = thread::spawn(move || runner.ask(&cmd!["EVAL", "while true do end", 0]));
                until(HALF_MINUTE, "a busy target", || killer.ask(&cmd!["PING"]).is_err_and(|e| e.contains("BUSY")));
                self.hold(span, false);
                killer.call(&cmd!["SCRIPT", "KILL"]);
                let ended = script.join().expect("the script's thread ends");
                assert!(ended.is_err(), "the script was killed");
            }
            State::ClientsPaused => {
                let what = ["WRITE", "ALL"][self.rng.usize(0..2)];
                let mut target = self.b.client();
                let mut pause = cmd!["CLIENT", "PAUSE", span.as_millis().to_string()];
                // Which clients: since 6.2.
                pause.extend((self.b.version() >= (6, 2)).then(|| what.as_bytes().to_vec()));
                target.call(&pause);
                self.hold(span, false);
            }
        }
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
            self.tool.kill();
            self.tool = run(&self.a, &self.b, self.filtered, self.lanes);
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
                self.tool.kill();
                self.tool = run(&self.a, &self.b, self.filtered, self.lanes);
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
        let in_scope = move |_: u32, key: &[u8]| !(filtered && key.starts_with(FILTERED.as_bytes()));
        let what = format!("seed {}", self.seed);
        let mut following = Rules { in_scope: &in_scope, ..Rules::following(&self.a) };
        if following.slack_ms > 0 {
            following.slack_ms = RECEIVED_LATE_MS_MAX;
        }
        until_same(&self.a, &self.b, MINUTE, &format!("{what}, following"), &following);
        self.tool.stop();
        let args = args("finish", &self.a, &self.b, filtered, self.lanes);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut finish = Tool::run(&args);
        finish.must_end(MINUTE, 0);
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
        println!(
            "torture: {what} ended equal: {writes} writes, {} s, {:?}",
            self.began.elapsed().as_secs(),
            self.counts
        );
    }
}

fn args(command: &str, a: &Server, b: &Server, filtered: bool, lanes: Option<u32>) -> Vec<String> {
    let spool = a.dir().join("spool").display().to_string();
    let (from, to) = (a.url(), b.url());
    let mut args: Vec<String> =
        [command, "--source", &from, "--target", &to, "--job", "torture", "--spool-dir", &spool]
            .map(String::from)
            .to_vec();
    if let Some(lanes) = lanes {
        args.extend(["--lanes".into(), lanes.to_string()]);
    }
    if filtered {
        args.extend(["--not-key".into(), format!("{FILTERED}*")]);
    }
    args
}

fn run(a: &Server, b: &Server, filtered: bool, lanes: Option<u32>) -> Tool {
    let args = args("sync", a, b, filtered, lanes);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Tool::run(&args)
}
