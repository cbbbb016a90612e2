//! Clusters at either end, or at both.

use super::Notes;
use super::ends::{End, Load};
use super::ferry::Ferry;
use super::moves::{Way, move_some};
use super::rollback::RollBack;
use super::standalone::RECEIVED_LATE_MS_MAX;
use super::states::{STATES, STATES_OF_NODES, State};
use super::takeovers::{How, take_over};
use crate::client::{Client, Reply};
use crate::compare::{Rules, is_own_record, scan, until_same};
use crate::wait::{HALF_MINUTE, MINUTE, until};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

const TWO_MINUTES: Duration = Duration::from_secs(120);

/// Writes a second: there are up to twelve servers on the machine.
const RATE: u64 = 2500;

/// Primaries of the source and of the target; 0 is a standalone server.
const SHAPES: &[(usize, usize)] = &[(0, 3), (3, 0), (3, 2), (3, 3)];

/// Versions of both; the seed chooses.
const VERSIONS: &[(&str, &str)] = &[
    ("redis-7.0", "redis-7.0"),
    ("valkey-9.1", "valkey-9.1"),
    ("redis-8.6", "redis-8.6"),
    ("redis-6.0", "redis-6.0"),
    ("redis-6.0", "redis-7.0"),
    ("redis-7.0", "valkey-9.1"),
];

/// How long after a slot came to a node a failover there may have lost keys of it. (Until the node's next floor, which is
/// written every second unless something else is wrong, too.)
const MOVE_SETTLES: Duration = Duration::from_secs(10);

/// MIGRATE takes along how long a key has left, not when it expires.
const MIGRATED_MS: i64 = 5000;

/// Keys whose values say that all that was written before is on the target, on whatever nodes.
const MARKERS: usize = 32;

/// Libraries of functions that come and go.
const LIBRARIES: u32 = 3;

pub fn run(seed: u64, span: Duration) {
    let mut torture = Torture::start(seed);
    let started = Instant::now();
    while started.elapsed() < span {
        torture.until_some(4000);
        let fault = torture.some_fault();
        torture.event(fault);
        torture.ferry.tool.must_live();
    }
    torture.end();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Terminate,
    Freeze,
    Cut(Side),
    Stop(Side),
    Refuse,
    RollBack,
    TakeOver(Side),
    Move(Side),
    Flush,
    Function,
}

struct Torture {
    seed: u64,
    rng: Rng,
    a: End,
    b: End,
    ferry: Ferry,
    load: Option<Load>,
    filtered: bool,
    faults: Vec<Fault>,
    rollback: RollBack,
    /// Full syncs that the rules allow for what was done, the first of each shard aside.
    excused: u32,
    /// So many of them because a primary of the source was lost with what it had sent.
    lost_history: u32,
    /// So many of them because a node of the target was lost that a slot had just moved to.
    torn: u32,
    /// Something was done that allows a full sync, which may go on.
    unsettled: bool,
    /// When slots of the target moved last.
    moved: Option<Instant>,
    /// When a node of the target took over last: all its slots have just come to it.
    took_over: Option<Instant>,
    /// Keys of the target moved with the time that they have left.
    times_moved: bool,
    marker: u32,
    functions: BTreeMap<String, String>,
    notes: Notes,
}

impl Torture {
    fn start(seed: u64) -> Torture {
        let mut rng = Rng::with_seed(seed);
        let shape = SHAPES[rng.usize(0..SHAPES.len())];
        let (from, to) = VERSIONS[rng.usize(0..VERSIONS.len())];
        let (filtered, prefer_replica) = (rng.u8(0..4) == 0, shape.0 > 0 && rng.u8(0..6) == 0);
        println!(
            "torture: KEYFERRY_TORTURE_SEED={seed}, {from} to {to}, primaries {shape:?}, filtered {filtered}, prefers \
             replicas {prefer_replica}"
        );
        let ends = thread::scope(|scope| {
            let target = scope.spawn(|| End::start(to, shape.1));
            (End::start(from, shape.0), target.join())
        });
        let (a, b) = (ends.0, ends.1.expect("the target starts"));
        let load = Load::start(&a, seed, RATE, filtered);
        load.until_sent(4000);
        let spool = a.first().dir().join("spool").display().to_string();
        let mut more = Ferry::filter(filtered);
        more.extend(["--spool-dir", &spool]);
        more.extend(prefer_replica.then_some("--prefer-replica"));
        let mut ferry = Ferry::start(&a.url(), &b.url(), &more);
        ferry.until_following();
        let faults = faults(shape, &a);
        Torture {
            seed,
            rng,
            a,
            b,
            ferry,
            load: Some(load),
            filtered,
            faults,
            rollback: RollBack::default(),
            excused: 0,
            lost_history: 0,
            torn: 0,
            unsettled: false,
            moved: None,
            took_over: None,
            times_moved: false,
            marker: 0,
            functions: BTreeMap::new(),
            notes: Notes::new(),
        }
    }

    fn load(&self) -> &Load {
        self.load.as_ref().expect("the load runs")
    }

    fn some_fault(&mut self) -> Fault {
        self.faults[self.rng.usize(0..self.faults.len())]
    }

    fn one_in(&mut self, n: u8) -> bool {
        self.rng.u8(0..n) == 0
    }

    fn until_some(&mut self, max: u64) {
        let n = self.rng.u64(0..max);
        self.load().until_sent(n);
    }

    /// A copy of a shard can't outlive most faults: each of them may make it begin again.
    fn shards(&self) -> u32 {
        self.a.primaries().len() as u32
    }

    fn excuse(&mut self, n: u32) {
        self.excused += n;
        self.unsettled = true;
    }

    fn event(&mut self, fault: Fault) {
        if self.unsettled {
            if self.rng.bool() {
                self.calm();
            } else {
                self.excused += self.shards();
            }
        }
        match fault {
            Fault::Kill | Fault::Terminate => self.end_and_start(fault == Fault::Kill),
            Fault::Freeze => self.freeze(),
            Fault::Cut(side) => self.cut(side),
            Fault::Stop(side) => self.stop(side),
            Fault::Refuse => self.refuse(),
            Fault::RollBack => self.roll_back(),
            Fault::TakeOver(side) => self.take_over(side),
            Fault::Move(side) => self.move_slots(side),
            Fault::Flush => {
                self.notes.add("FLUSHALL");
                let source = self.a.some_primary(&mut self.rng);
                source.client().call(&cmd!["FLUSHALL"]);
            }
            Fault::Function => self.change_function(),
        }
    }

    fn end_and_start(&mut self, kill: bool) {
        self.notes.add(if kill { "kill -9" } else { "SIGTERM" });
        if kill {
            self.ferry.kill();
        } else {
            self.ferry.stop();
        }
        if self.rng.bool() {
            self.until_some(2000);
        }
        self.ferry.start_again();
    }

    fn freeze(&mut self) {
        let span = Duration::from_millis(self.rng.u64(200..4000));
        self.notes.add(&format!("keyferry stopped, {span:?}"));
        self.ferry.tool.freeze();
        thread::sleep(span);
        self.ferry.tool.thaw();
    }

    fn cut(&mut self, side: Side) {
        self.notes.add(&format!("{side:?} cut"));
        match side {
            Side::Source => {
                let mut node = self.a.some_primary(&mut self.rng).client();
                node.call(&cmd!["CLIENT", "KILL", "TYPE", "replica"]);
            }
            Side::Target => {
                let mut node = self.b.some_primary(&mut self.rng).client();
                node.call(&cmd!["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
        }
    }

    /// A node stands still, perhaps for so long that another takes its place.
    fn stop(&mut self, side: Side) {
        if side == Side::Target && self.has_just_moved() {
            self.calm();
        }
        let span = Duration::from_millis(self.rng.u64(300..6000));
        let kills = self.one_in(4);
        self.notes.add(&format!("{side:?} stopped, {span:?}, keyferry killed: {kills}"));
        let end = if side == Side::Source { &self.a } else { &self.b };
        let owners = end.cluster().map(|cluster| cluster.owners());
        let node = end.some_primary(&mut self.rng);
        node.pause();
        thread::sleep(span / 2);
        if kills {
            self.ferry.kill();
            self.ferry.start_again();
        }
        thread::sleep(span / 2);
        node.resume();
        end.until_whole();
        if owners != end.cluster().map(|cluster| cluster.owners()) {
            self.notes.add(&format!("{side:?} taken over meanwhile"));
            self.excuse_takeover(side, true);
            if side == Side::Target {
                self.took_over = Some(Instant::now());
            }
        }
    }

    /// The rules for full syncs behind a failover.
    fn excuse_takeover(&mut self, side: Side, loses: bool) {
        match side {
            // What keyferry has received may be lost.
            Side::Source if loses => {
                self.lost_history += 1;
                self.excuse(1);
            }
            Side::Source => {}
            Side::Target => {
                let again = self.took_over.is_some_and(|at| at.elapsed() < MOVE_SETTLES);
                if again || self.has_just_moved() {
                    self.torn += self.shards();
                    self.excuse(self.shards());
                }
            }
        }
    }

    fn has_just_moved(&self) -> bool {
        self.moved.is_some_and(|at| at.elapsed() < MOVE_SETTLES)
    }

    /// A server of the target refuses what it's told.
    fn refuse(&mut self) {
        let states = if self.b.cluster().is_some() { STATES_OF_NODES } else { STATES };
        let state = states[self.rng.usize(0..states.len())];
        let (span, writes_only) = (Duration::from_millis(self.rng.u64(200..2500)), self.rng.bool());
        self.notes.add(&format!("{state:?}, {span:?}"));
        let owners = self.b.cluster().map(|cluster| cluster.owners());
        let server = self.b.some_primary(&mut self.rng);
        let entered = state.enter(server, span, writes_only);
        if state == State::OutOfMemory {
            self.ferry.tool.until_text("OOM", HALF_MINUTE);
        }
        thread::sleep(span / 2);
        match self.rng.u8(0..6) {
            0 => {
                self.notes.add("kill -9 in a state");
                self.ferry.kill();
                self.ferry.start_again();
            }
            1 => {
                self.notes.add("source cut in a state");
                let source = self.a.some_primary(&mut self.rng);
                source.client().call(&cmd!["CLIENT", "KILL", "TYPE", "replica"]);
            }
            _ => {}
        }
        thread::sleep(span / 2);
        entered.leave(server);
        if owners != self.b.cluster().map(|cluster| cluster.owners()) {
            self.notes.add("Target taken over meanwhile");
            self.excuse_takeover(Side::Target, true);
        }
    }

    /// The target restarts without its last writes, which it had acknowledged.
    fn roll_back(&mut self) {
        let End::One(server) = &mut self.b else { return };
        let load = self.load.as_ref().expect("the load runs");
        if self.rollback.is_old() {
            self.rollback.save(server);
            load.until_some(&mut self.rng, 3000);
        }
        self.notes.add(&format!("target restarts from older file, {:?} old", self.rollback.age()));
        server.restart();
    }

    fn take_over(&mut self, side: Side) {
        let (how, mut down) = (How::some(&mut self.rng), self.one_in(4));
        match side {
            // Behind two failovers that it missed nobody can go on; so it must have followed the last.
            Side::Source => self.calm(),
            // Where slots moved and nodes failed while it was away nobody can know.
            Side::Target => down &= !self.has_just_moved(),
        }
        self.notes.add(&format!("{side:?} failover, {how:?}, keyferry away: {down}"));
        self.excuse_takeover(side, how != How::InOrder);
        if down {
            self.ferry.kill();
        }
        let end = if side == Side::Source { &mut self.a } else { &mut self.b };
        let load = self.load.as_ref().expect("the load runs");
        take_over(end.cluster_mut().expect("a cluster"), load, &mut self.rng, how);
        if down {
            self.ferry.start_again();
        }
        if side == Side::Target {
            self.took_over = Some(Instant::now());
            if self.has_just_moved() {
                // Nor may it go away before it has seen what was lost.
                self.calm();
            }
        }
    }

    fn move_slots(&mut self, side: Side) {
        let end = if side == Side::Source { &self.a } else { &self.b };
        let (cluster, load) = (end.cluster().expect("a cluster"), self.load.as_ref().expect("the load runs"));
        for _ in 0..1 + self.rng.u8(0..4) {
            let (way, kills) = (Way::some(cluster, &mut self.rng), self.rng.u8(0..5) == 0);
            self.notes.add(&format!("{side:?} slot moved {way:?}, keyferry killed: {kills}"));
            // Who writes to a slot that is turned back with keys away doesn't find them.
            let way = (way, side == Side::Source);
            move_some(cluster, load, &mut self.rng, way, Some(&mut self.ferry).filter(|_| kills));
            if side == Side::Target {
                self.times_moved |= way.0 != Way::Atomic;
                self.moved = Some(Instant::now());
            }
        }
    }

    fn change_function(&mut self) {
        let name = format!("lib{}", self.rng.u32(0..LIBRARIES));
        let version = self.rng.u32(..);
        let remove = self.one_in(4);
        self.notes.add(if remove { "FUNCTION DELETE" } else { "FUNCTION LOAD" });
        if remove {
            self.functions.remove(&name);
        } else {
            let code =
                format!("#!lua name={name}\nredis.register_function('{name}_f', function() return {version} end)");
            self.functions.insert(name.clone(), code);
        }
        self.write_functions();
    }

    /// Makes every primary of the source have the functions that there should be.
    fn write_functions(&self) {
        for source in self.a.primaries() {
            let mut client = source.client();
            for name in (0..LIBRARIES).map(|n| format!("lib{n}")) {
                match self.functions.get(&name) {
                    Some(code) => _ = client.call(&cmd!["FUNCTION", "LOAD", "REPLACE", code]),
                    // It may not be there.
                    None => _ = client.ask(&cmd!["FUNCTION", "DELETE", name]),
                }
            }
        }
    }

    /// Waits until all that was written is applied, and no copy goes on.
    fn calm(&mut self) {
        self.a.until_whole();
        self.b.until_whole();
        self.marker += 1;
        let keys: Vec<String> = (0..MARKERS).map(|n| format!("marker:{n}")).collect();
        let marker = self.marker.to_string();
        self.a.set_all(&keys, &marker);
        let (ferry, b) = (&mut self.ferry, &self.b);
        until(TWO_MINUTES, "what was written last to be applied", || {
            ferry.tool.must_live();
            let is_there = |value: &Reply| matches!(value, Reply::Bytes(text) if *text == marker.as_bytes());
            b.strings(&keys).is_some_and(|found| found.iter().all(is_there))
        });
        self.ferry.until_following();
        self.unsettled = false;
    }

    /// Stops, compares, finishes, compares again.
    fn end(mut self) {
        self.a.until_whole();
        self.b.until_whole();
        self.write_functions();
        let writes = self.load.take().map_or(0, Load::stop);
        let filtered = self.filtered;
        let in_scope = move |_: u32, key: &[u8]| Ferry::is_in_scope(filtered, key);
        let what = format!("seed {}", self.seed);
        let moved_ms = if self.times_moved { MIGRATED_MS } else { 0 };
        let mut following = Rules { in_scope: &in_scope, ..Rules::following(self.a.first()) };
        following.slack_ms = if following.slack_ms > 0 { RECEIVED_LATE_MS_MAX } else { moved_ms };
        until_same(&self.a, &self.b, TWO_MINUTES, &format!("{what}, following"), &following);
        self.ferry.stop();
        self.ferry.finish();
        let exact = Rules { in_scope: &in_scope, group_hints: false, slack_ms: moved_ms, ..Rules::default() };
        until_same(&self.a, &self.b, MINUTE, &format!("{what}, finished"), &exact);
        self.must_have_functions();
        for target in self.b.primaries() {
            let own: Vec<_> = scan(&mut target.client()).into_iter().filter(|key| is_own_record(key)).collect();
            assert!(own.is_empty(), "{what}: keyferry's keys are left: {own:?}");
        }
        let again = self.ferry.full_syncs() - self.shards();
        let reasons = self.ferry.reasons();
        let (seconds, excused) = (self.notes.began.elapsed().as_secs(), self.excused);
        assert!(again <= excused, "{what}: {again} full syncs, of which {excused} are allowed: {reasons:#?}");
        let of = |side: &str| reasons.iter().filter(|reason| reason.contains(side)).count() as u32;
        let (lost, torn) = (of("the source can't go on"), of("while slot"));
        assert!(
            lost <= self.lost_history,
            "{what}: the source went on {} times at most: {reasons:#?}",
            self.lost_history
        );
        assert!(torn <= self.torn, "{what}: slots moved in {} shards at most: {reasons:#?}", self.torn);
        println!(
            "torture: {what} ended equal: {writes} writes, {seconds} s, {again} full syncs of {excused} allowed, {:?}, {reasons:?}",
            self.notes.counts
        );
    }

    fn must_have_functions(&self) {
        let libraries = |client: &mut Client| -> BTreeMap<String, String> {
            let list = client.call(&cmd!["FUNCTION", "LIST", "WITHCODE"]);
            let text = |library: &Reply, field: &str| library.field(field).expect("it is told").text();
            list.list().iter().map(|one| (text(one, "library_name"), text(one, "library_code"))).collect()
        };
        if self.a.first().version() >= (7, 0) {
            for target in self.b.primaries() {
                let found = libraries(&mut target.client());
                assert_eq!(found, self.functions, "functions on the target's node {}", target.port);
            }
        }
    }
}

/// What may happen between ends of these shapes, some of it more often.
fn faults((from, to): (usize, usize), source: &End) -> Vec<Fault> {
    let mut all = vec![
        Fault::Kill,
        Fault::Kill,
        Fault::Terminate,
        Fault::Freeze,
        Fault::Cut(Side::Source),
        Fault::Cut(Side::Target),
        Fault::Stop(Side::Source),
        Fault::Stop(Side::Target),
        Fault::Refuse,
        Fault::Refuse,
        Fault::Flush,
    ];
    if source.first().version() >= (7, 0) {
        all.push(Fault::Function);
    }
    match to {
        0 => all.extend([Fault::RollBack, Fault::RollBack]),
        _ => all.extend(
            [Fault::TakeOver(Side::Target), Fault::TakeOver(Side::Target), Fault::Move(Side::Target)].repeat(2),
        ),
    }
    if from > 0 {
        all.extend([Fault::TakeOver(Side::Source); 3]);
        all.extend([Fault::Move(Side::Source); 4]);
    }
    all
}
