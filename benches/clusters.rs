//! What a cluster costs beside a standalone server, and TLS beside plain: the same keys and writes in the same run, as ratios.
//!
//! `cargo bench --bench clusters -- [--n 1000000] [--rounds 3] [--only copy|random|sessions|tls] [--server redis-7.0]`
//!
//! Uses the servers of `tests/servers.sh` and the release build (or `$KEYFERRY_BIN`). Ways are taken in turn, round by
//! round; a figure is the best of its rounds, since whatever else runs on the machine only makes things slower. Nothing is
//! asserted.
//!
//! A stream is measured as a backlog that is caught up: keyferry is stopped (SIGSTOP) while the source takes the writes,
//! and what counts is the time from when it goes on until the target has the last ones. So neither the load nor the
//! source's work for it is in the figures. All servers and keyferry share the machine's cores, so on two of them the three
//! nodes of a cluster have no more to run on than one server and keyferry have.

#[path = "../tests/it/client.rs"]
#[macro_use]
#[allow(dead_code, unused_macros)]
mod client;
#[path = "../tests/it/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "../tests/it/compare.rs"]
#[allow(dead_code)]
mod compare;
#[allow(dead_code)]
mod parts;
#[path = "../tests/it/server.rs"]
#[allow(dead_code)]
mod server;
#[path = "../tests/it/tls.rs"]
#[allow(dead_code)]
mod tls;
#[path = "../tests/it/tool.rs"]
#[allow(dead_code)]
mod tool;
#[path = "../tests/it/wait.rs"]
#[allow(dead_code)]
mod wait;

use client::{Client, Cmd, Reply, encode};
use cluster::{Cluster, slot_of};
use fastrand::Rng;
use parts::{Blast, CONFIG, LIMIT, Options, cpu_s, mixed_keys, options, peak_mib};
use server::Server;
use std::time::{Duration, Instant};
use tls::{Certificates, tls_url};
use tool::Tool;

/// Primaries of a cluster.
const PRIMARIES: usize = 3;
/// Last writes of a stream: of many slots, so that they say when all are done.
const MARKS: usize = 256;
const SESSIONS: usize = 100_000;
/// How long the number of keys must stay the same before a copy counts as complete.
const QUIET_S: f64 = 1.0;

fn main() {
    let options = options();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("{} keys or writes, {} rounds, {}, load {}", options.n, options.rounds, options.server, load.trim());
    let wants = |what: &str| options.only.as_deref().is_none_or(|only| only == what);
    if wants("copy") {
        copies(&options, &[Way::OneToOne, Way::OneToThree, Way::ThreeToThree]);
    }
    if wants("random") {
        streams(&options, &[Way::OneToOne, Way::OneToThree, Way::ThreeToThree], "random keyspace", random);
    }
    if wants("sessions") {
        streams(&options, &[Way::OneToOne, Way::OneToThree, Way::ThreeToThree], "session store", sessions);
    }
    if wants("tls") {
        copies(&options, &[Way::OneToOne, Way::OneToOneTls]);
        streams(&options, &[Way::OneToOne, Way::OneToOneTls], "random keyspace", random);
    }
}

// ---- what data goes from and to

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    OneToOne,
    OneToOneTls,
    OneToThree,
    ThreeToThree,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::OneToOne => "1 to 1",
            Way::OneToOneTls => "1 to 1, TLS",
            Way::OneToThree => "1 to 3",
            Way::ThreeToThree => "3 to 3",
        }
    }

    fn source(self, options: &Options, certificates: &Certificates) -> End {
        End::start(options, self == Way::ThreeToThree, certificates)
    }

    fn target(self, options: &Options, certificates: &Certificates) -> End {
        End::start(options, matches!(self, Way::OneToThree | Way::ThreeToThree), certificates)
    }
}

/// One end of a job.
enum End {
    One(Server),
    Three(Cluster),
}

impl End {
    fn start(options: &Options, is_cluster: bool, certificates: &Certificates) -> End {
        if is_cluster {
            return End::Three(Cluster::with(&options.server, PRIMARIES, 0, CONFIG));
        }
        let lines = certificates.lines("server", false);
        let config: Vec<&str> = CONFIG.iter().copied().chain(lines.iter().map(String::as_str)).collect();
        End::One(Server::with(&options.server, &config))
    }

    fn url(&self, way: Way) -> String {
        match self {
            End::One(server) if way == Way::OneToOneTls => tls_url(server),
            End::One(server) => server.url(),
            End::Three(cluster) => cluster.url(),
        }
    }

    fn nodes(&self) -> &[Server] {
        match self {
            End::One(server) => std::slice::from_ref(server),
            End::Three(cluster) => &cluster.nodes,
        }
    }

    fn cpu_s(&self) -> f64 {
        self.nodes().iter().map(|node| cpu_s(node.pid())).sum()
    }

    fn load(&self, commands: &[Cmd]) {
        match self {
            End::One(server) => server.client().load(commands),
            End::Three(cluster) => cluster.client().load(commands),
        }
    }

    fn clients(&self) -> Clients {
        Clients(self.nodes().iter().map(Server::client).collect())
    }
}

/// A connection to each node.
struct Clients(Vec<Client>);

impl Clients {
    fn keys(&mut self) -> i64 {
        self.0.iter_mut().map(Client::dbsize).sum()
    }

    /// keyferry's own keys.
    fn own(&mut self) -> i64 {
        self.0.iter_mut().map(|client| client.call(&cmd!["KEYS", "*keyferry:*"]).list().len() as i64).sum()
    }

    fn get(&mut self, key: &str) -> Reply {
        let at = node_of(key.as_bytes(), self.0.len());
        self.0[at].get(key)
    }
}

/// The node of a key, among so many that share the slots evenly.
fn node_of(key: &[u8], nodes: usize) -> usize {
    match nodes {
        1 => 0,
        nodes => {
            let slot = usize::from(slot_of(key));
            (0..nodes).find(|n| slot < (n + 1) * 16384 / nodes).expect("a slot below 16384")
        }
    }
}

/// A job from a source to a fresh target.
struct Job {
    way: Way,
    target: End,
    tool: Tool,
    started: Instant,
    target0_s: f64,
}

impl Job {
    fn start(way: Way, options: &Options, source: &End, certificates: &Certificates) -> Job {
        let target = way.target(options, certificates);
        let (from, to, ca) = (source.url(way), target.url(way), certificates.text("ca.crt"));
        let mut args = vec!["sync", "--source", &from, "--target", &to];
        if way == Way::OneToOneTls {
            args.extend(["--source-cacert", &ca, "--target-cacert", &ca]);
        }
        let (target0_s, started) = (target.cpu_s(), Instant::now());
        Job { way, tool: Tool::run(&args), target, started, target0_s }
    }

    /// What it took so far.
    fn row(&self) -> Row {
        Row {
            wall_s: self.started.elapsed().as_secs_f64(),
            cpu_s: cpu_s(self.tool.pid()),
            target_cpu_s: self.target.cpu_s() - self.target0_s,
            peak_mib: peak_mib(&self.tool),
        }
    }

    /// Waits until the target has marks that are written now.
    fn until_marked(&mut self, source: &End, text: usize) {
        self.mark(source, text);
        self.until_seen(text);
    }

    fn mark(&self, source: &End, text: usize) {
        let marks: Vec<Cmd> = (0..MARKS).map(|i| cmd!["SET", format!("mark:{i}"), text]).collect();
        source.load(&marks);
    }

    fn until_seen(&mut self, text: usize) {
        let (mut clients, started) = (self.target.clients(), Instant::now());
        let text = Reply::Bytes(text.to_string().into_bytes());
        for i in 0..MARKS {
            // One after the other, so that asking costs next to nothing.
            while clients.get(&format!("mark:{i}")) != text {
                self.tool.must_live();
                assert!(started.elapsed() < LIMIT, "{}: the stream never came to its end", self.way.name());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// What a measurement took.
#[derive(Clone, Copy, Default)]
struct Row {
    wall_s: f64,
    cpu_s: f64,
    target_cpu_s: f64,
    peak_mib: f64,
}

fn best(rows: &[Row], field: impl Fn(&Row) -> f64) -> f64 {
    rows.iter().map(field).fold(f64::INFINITY, f64::min)
}

/// Each way's figures beside those of the first.
fn report(what: &str, n: usize, ways: &[Way], rows: &[Vec<Row>]) {
    let of = |rows: &[Row]| (best(rows, |r| r.wall_s), best(rows, |r| r.cpu_s));
    let (base_wall_s, base_cpu_s) = of(&rows[0]);
    for (way, rows) in ways.iter().zip(rows) {
        let ((wall_s, used_s), target_s) = (of(rows), best(rows, |r| r.target_cpu_s));
        println!(
            "{what} {}: {wall_s:.2} s = {:.0} k/s = {:.2} of the rate; keyferry {used_s:.2} s CPU = {:.2} us each = {:.2} x; \
             target {:.2} us each; peak {:.0} MiB",
            way.name(),
            n as f64 / wall_s / 1e3,
            base_wall_s / wall_s,
            used_s / n as f64 * 1e6,
            used_s / base_cpu_s,
            target_s / n as f64 * 1e6,
            best(rows, |r| r.peak_mib),
        );
    }
}

// ---- copy

fn copies(options: &Options, ways: &[Way]) {
    let certificates = Certificates::new();
    let sources: Vec<End> = ways.iter().map(|way| way.source(options, &certificates)).collect();
    for source in &sources {
        mixed_keys(options.n, |part| source.load(part));
    }
    let mut rows = vec![Vec::new(); ways.len()];
    for _ in 0..options.rounds {
        for ((way, source), rows) in ways.iter().zip(&sources).zip(&mut rows) {
            let want = source.clients().keys();
            rows.push(copy_once(&mut Job::start(*way, options, source, &certificates), want));
        }
    }
    report("copy", options.n, ways, &rows);
}

/// What it took until the target held `want` keys besides keyferry's own, which are counted only when all is quiet.
fn copy_once(job: &mut Job, want: i64) -> Row {
    let mut clients = job.target.clients();
    let mut seen: Vec<(Row, i64)> = Vec::new();
    loop {
        let (keys, row) = (clients.keys(), job.row());
        if seen.last().is_none_or(|&(_, last)| last != keys) {
            seen.push((row, keys));
        }
        let quiet_s = row.wall_s - seen.last().map_or(row.wall_s, |(last, _)| last.wall_s);
        if keys >= want && quiet_s > QUIET_S {
            let own = clients.own();
            if let Some(&(row, _)) = seen.iter().find(|&&(_, n)| n >= want + own) {
                return row;
            }
        }
        job.tool.must_live();
        assert!(job.started.elapsed() < LIMIT, "only {keys} of {want} keys came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

// ---- stream

/// Writes for each node of the source.
type Writes = fn(usize, &mut dyn FnMut(&[u8], &Cmd));

/// Random keys, as many as writes: 90 % SET, and in turn INCR, LPUSH and XADD, which must run just once.
fn random(n: usize, put: &mut dyn FnMut(&[u8], &Cmd)) {
    let mut rng = Rng::with_seed(5);
    for i in 0..n {
        let k = rng.usize(0..n);
        let command = match (i % 10, i / 10 % 3) {
            (9, 0) => cmd!["INCR", format!("c:{k}")],
            (9, 1) => cmd!["LPUSH", format!("l:{k}"), "v".repeat(20)],
            (9, _) => cmd!["XADD", format!("x:{k}"), "*", "f", "v".repeat(20)],
            _ => cmd!["SET", format!("s:{k}"), "v".repeat(100)],
        };
        put(&command[1], &command);
    }
}

/// HSET and EXPIRE of one session, and then of another.
fn sessions(n: usize, put: &mut dyn FnMut(&[u8], &Cmd)) {
    let mut rng = Rng::with_seed(6);
    for i in 0..n / 2 {
        let key = format!("session:{}", rng.usize(0..SESSIONS));
        let hset = cmd!["HSET", key, format!("f{}", i % 7), "w".repeat(60)];
        put(key.as_bytes(), &hset);
        put(key.as_bytes(), &cmd!["EXPIRE", key, 1800]);
    }
}

fn streams(options: &Options, ways: &[Way], what: &str, writes: Writes) {
    let certificates = Certificates::new();
    let mut rows = vec![Vec::new(); ways.len()];
    for _ in 0..options.rounds {
        for (way, rows) in ways.iter().zip(&mut rows) {
            rows.push(stream_once(*way, options, &certificates, writes));
        }
    }
    report(what, options.n, ways, &rows);
}

fn stream_once(way: Way, options: &Options, certificates: &Certificates, writes: Writes) -> Row {
    let source = way.source(options, certificates);
    let nodes = source.nodes().len();
    let mut parts: Vec<Blast> = (0..nodes).map(|_| Blast { bytes: Vec::new(), replies: 0, writes: 0 }).collect();
    writes(options.n, &mut |key, command| {
        let part = &mut parts[node_of(key, nodes)];
        encode(command, &mut part.bytes);
        part.writes += 1;
        // XADD answers with an id, which has a line for its length.
        part.replies += if command[0] == b"XADD" { 2 } else { 1 };
    });
    let mut job = Job::start(way, options, &source, certificates);
    job.until_marked(&source, 1);
    job.tool.freeze();
    for (part, node) in parts.iter().zip(source.nodes()) {
        part.send(node.port);
    }
    job.mark(&source, 2);
    let before = job.row();
    job.tool.thaw();
    job.until_seen(2);
    let after = job.row();
    Row {
        wall_s: after.wall_s - before.wall_s,
        cpu_s: after.cpu_s - before.cpu_s,
        target_cpu_s: after.target_cpu_s - before.target_cpu_s,
        peak_mib: after.peak_mib,
    }
}
