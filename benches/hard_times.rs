//! What a job costs when things are not as they should be: a target that is far, or stands still, a crash, a long settling.
//!
//! `cargo bench --bench hard_times -- [--n 1000000] [--only far|spool|stalled|resume|steady|settle] [--server redis-7.0]`
//!
//! Uses the servers of `tests/servers.sh` and the release build (or `$KEYFERRY_BIN`). Nothing is asserted.

#[path = "../tests/it/client.rs"]
#[macro_use]
#[allow(dead_code, unused_macros)]
mod client;
#[allow(dead_code)]
mod parts;
#[path = "../tests/it/server.rs"]
#[allow(dead_code)]
mod server;
#[path = "../tests/it/tool.rs"]
#[allow(dead_code)]
mod tool;
#[path = "../tests/it/wait.rs"]
#[allow(dead_code)]
mod wait;

use client::{Client, Cmd};
use parts::{Blast, CONFIG, LIMIT, cpu_s, peak_mib, plain_blast, until_following};
use server::{Paused, Server};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tool::Tool;
use wait::until;

/// How far the far target is, each way.
const FAR: Duration = Duration::from_micros(3500);
/// How long the target stands still, and what the source takes meanwhile.
const STALL: Duration = Duration::from_secs(12);
const STALL_BYTES: usize = 150 << 20;
const STEADY_WRITES_PER_SECOND: usize = 30_000;
const STEADY: Duration = Duration::from_secs(10);
const ROUNDS: usize = 3;

type Measure = fn(&Options);

struct Options {
    n: usize,
    only: Option<String>,
    server: String,
}

fn main() {
    let options = options();
    let measurements: [(&str, Measure); 6] = [
        ("far", far),
        ("spool", spool),
        ("stalled", stalled),
        ("resume", resume),
        ("steady", steady),
        ("settle", settle),
    ];
    for (name, measure) in measurements {
        if options.only.as_deref().is_none_or(|only| only == name) {
            measure(&options);
        }
    }
}

fn options() -> Options {
    let mut options = Options { n: 1_000_000, only: None, server: "redis-7.0".into() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--n" => options.n = value().parse().expect("--n: a number"),
            "--only" => options.only = Some(value()),
            "--server" => options.server = value(),
            "--bench" => {}
            _ => panic!("unknown option {word}: --n, --only, --server"),
        }
    }
    options
}

/// Two servers and a job between them that follows.
struct Pair {
    source: Server,
    target: Server,
    tool: Tool,
}

impl Pair {
    fn start(options: &Options, config: &[&str], more: &[&str]) -> Pair {
        let source = Server::with(&options.server, &[CONFIG, config].concat());
        let target = Server::with(&options.server, CONFIG);
        let tool = Tool::sync(&source, &target, more);
        until_following(&mut source.client(), &mut target.client());
        Pair { source, target, tool }
    }

    /// Seconds until the target has a write that is made now.
    fn catch_up_s(&self) -> f64 {
        let started = Instant::now();
        let (mut source, mut target) = (self.source.client(), self.target.client());
        let marks: Vec<Cmd> = (0..64).map(|i| cmd!["INCR", format!("end:{i}")]).collect();
        source.load(&marks);
        until(LIMIT, "the end of the stream", || {
            (0..64).all(|i| target.get(&format!("end:{i}")) == source.get(&format!("end:{i}")))
        });
        started.elapsed().as_secs_f64()
    }

    fn full_syncs(&self) -> String {
        self.source.client().info("stats").remove("sync_full").unwrap_or_default()
    }
}

/// Passes bytes on, each a time later than it came.
struct FarLine {
    port: u16,
}

impl FarLine {
    fn to(port: u16, delay: Duration) -> FarLine {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let line = FarLine { port: listener.local_addr().expect("an address").port() };
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                for (from, into) in [(&near, &far), (&far, &near)] {
                    let _ = from.set_nodelay(true);
                    if let (Ok(from), Ok(into)) = (from.try_clone(), into.try_clone()) {
                        pass_on(from, into, delay);
                    }
                }
            }
        });
        line
    }
}

fn pass_on(mut from: TcpStream, mut into: TcpStream, delay: Duration) {
    type Waiting = (Mutex<VecDeque<(Instant, Vec<u8>)>>, Condvar);
    let waiting: Arc<Waiting> = Arc::default();
    let arrived = Arc::clone(&waiting);
    thread::spawn(move || {
        let mut buf = vec![0; 1 << 20];
        loop {
            let n = from.read(&mut buf).unwrap_or(0);
            let mut queue = arrived.0.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push_back((Instant::now() + delay, buf[..n].to_vec()));
            arrived.1.notify_one();
            if n == 0 {
                return;
            }
        }
    });
    thread::spawn(move || {
        loop {
            let queue = waiting.0.lock().unwrap_or_else(PoisonError::into_inner);
            let mut queue = waiting.1.wait_while(queue, |q| q.is_empty()).unwrap_or_else(PoisonError::into_inner);
            let Some((at, bytes)) = queue.pop_front() else { continue };
            drop(queue);
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if bytes.is_empty() || into.write_all(&bytes).is_err() {
                let _ = into.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    });
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The same stream to a target near and far.
fn far(options: &Options) {
    let blast = plain_blast(options.n);
    let once = |delay: Duration| {
        let (source, target) = (Server::with(&options.server, CONFIG), Server::with(&options.server, CONFIG));
        let line = FarLine::to(target.port, delay);
        let (from, to) = (source.url(), format!("redis://127.0.0.1:{}", line.port));
        let tool = Tool::run(&["sync", "--source", &from, "--target", &to]);
        until_following(&mut source.client(), &mut target.client());
        let pair = Pair { source, target, tool };
        let started = Instant::now();
        blast.send(pair.source.port);
        pair.catch_up_s();
        started.elapsed().as_secs_f64()
    };
    let near_s = median((0..ROUNDS).map(|_| once(Duration::ZERO)).collect());
    let far_s = median((0..ROUNDS).map(|_| once(FAR)).collect());
    println!(
        "far: {} writes, near {near_s:.2} s, 3.5 ms away each way {far_s:.2} s = {:.2} x",
        options.n,
        far_s / near_s
    );
}

/// What waited in memory and on disk while the target stood still, and how fast each is applied.
fn spool(options: &Options) {
    let blast = plain_blast(options.n * 3);
    let once = |memory: &str| {
        let pair = Pair::start(options, &[], &["--memory", memory, "--ack", "received"]);
        let paused = Paused::new(&pair.target);
        blast.send(pair.source.port);
        let mut client = pair.source.client();
        until(LIMIT, "the job to receive everything", || {
            let info = client.info("replication");
            let offset = info.get("master_repl_offset").cloned().unwrap_or_default();
            info.get("slave0").is_some_and(|replica| replica.contains(&format!("offset={offset},")))
        });
        let cpu0_s = cpu_s(pair.tool.pid());
        drop(paused);
        (pair.catch_up_s(), cpu_s(pair.tool.pid()) - cpu0_s, peak_mib(&pair.tool))
    };
    let mib = blast.bytes.len() >> 20;
    for memory in ["4GiB", "64MiB"] {
        let rounds: Vec<(f64, f64, f64)> = (0..ROUNDS).map(|_| once(memory)).collect();
        let of = |field: fn(&(f64, f64, f64)) -> f64| median(rounds.iter().map(field).collect());
        println!(
            "spool: {mib} MiB wait, --memory {memory}: caught up in {:.2} s, {:.2} s CPU, peak {:.0} MiB",
            of(|r| r.0),
            of(|r| r.1),
            of(|r| r.2)
        );
    }
}

/// A target that stands still while the source's limit for replicas is small.
fn stalled(options: &Options) {
    let limit = ["client-output-buffer-limit replica 8mb 8mb 0", "repl-backlog-size 1mb"];
    let pair = Pair::start(options, &limit, &[]);
    let paused = Paused::new(&pair.target);
    let (mut client, started) = (pair.source.client(), Instant::now());
    let value = "v".repeat(1000);
    for n in 0..STALL_BYTES / 1000 / 500 {
        let batch: Vec<Cmd> = (0..500).map(|i| cmd!["SET", format!("k:{}", (n * 500 + i) % 50_000), value]).collect();
        client.load(&batch);
        let due = STALL.mul_f64((n * 500 * 1000) as f64 / STALL_BYTES as f64);
        thread::sleep(due.saturating_sub(started.elapsed()));
    }
    drop(paused);
    let caught_up_s = pair.catch_up_s();
    println!(
        "stalled: 12 s and 150 MB behind, caught up in {caught_up_s:.2} s, peak {:.0} MiB, full syncs {}",
        peak_mib(&pair.tool),
        pair.full_syncs()
    );
}

/// From the start of a process after kill -9 to the first write that it applies.
fn resume(options: &Options) {
    let mut times = Vec::new();
    let mut syncs = String::new();
    for _ in 0..ROUNDS {
        let Pair { source, target, mut tool } = Pair::start(options, &[], &[]);
        plain_blast(options.n / 4).send(source.port);
        tool.kill();
        source.client().call(&cmd!["SET", "after", "1"]);
        let started = Instant::now();
        let tool = Tool::sync(&source, &target, &[]);
        let mut client = target.client();
        while client.get("after") != source.client().get("after") {
            assert!(started.elapsed() < LIMIT, "the job never went on");
            thread::sleep(Duration::from_millis(1));
        }
        times.push(started.elapsed().as_secs_f64());
        syncs = Pair { source, target, tool }.full_syncs();
    }
    println!("resume: {:.2} s from the start to the first write applied, full syncs {syncs}", median(times));
}

/// The processor's share while following at an even pace.
fn steady(options: &Options) {
    let pair = Pair::start(options, &[], &[]);
    let mut client: Client = pair.source.client();
    let (cpu0_s, started) = (cpu_s(pair.tool.pid()), Instant::now());
    let mut sent = 0;
    while started.elapsed() < STEADY {
        let batch: Vec<Cmd> =
            (0..100).map(|i| cmd!["SET", format!("k:{}", (sent + i) % 100_000), "v".repeat(100)]).collect();
        client.load(&batch);
        sent += batch.len();
        let due = Duration::from_secs_f64(sent as f64 / STEADY_WRITES_PER_SECOND as f64);
        thread::sleep(due.saturating_sub(started.elapsed()));
    }
    let (wall_s, used_s) = (started.elapsed().as_secs_f64(), cpu_s(pair.tool.pid()) - cpu0_s);
    println!("steady: {:.0} writes/s cost {:.1} % of a core", sent as f64 / wall_s, used_s / wall_s * 100.0);
}

/// Keys that all expire, and the end of their job.
fn settle(options: &Options) {
    let Pair { source, target, mut tool } = Pair::start(options, &[], &[]);
    let mut bytes = Vec::new();
    for i in 0..options.n {
        client::encode(&cmd!["SET", format!("k:{i}"), "v", "EX", 100_000 + i % 1000], &mut bytes);
    }
    Blast { bytes, replies: options.n, writes: options.n }.send(source.port);
    until(LIMIT, "all keys", || target.client().dbsize() >= source.client().dbsize());
    tool.stop();
    let (from, to) = (source.url(), target.url());
    let started = Instant::now();
    let mut finish = Tool::run(&["finish", "--source", &from, "--target", &to]);
    finish.must_end(LIMIT, 0);
    println!("settle: finish with {} keys that expire takes {:.2} s", options.n, started.elapsed().as_secs_f64());
}
