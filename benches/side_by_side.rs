//! keyferry beside native replication: the same data between the same two servers in the same run, as ratios.
//!
//! `cargo bench --bench side_by_side -- [--n 1000000] [--rounds 3] [--only copy|stream|tx|delay] [--server redis-7.0]`
//!
//! Uses the servers of `tests/servers.sh` and the release build (or `$KEYFERRY_BIN`). Every figure is the median of
//! the rounds; nothing is asserted. The two programs, the load and both servers share the machine's cores.

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

use client::{Client, Cmd, Subscriber};
use fastrand::Rng;
use parts::{
    Blast, CONFIG, LIMIT, Options, cpu_s, mixed_keys, options, peak_mib, plain_blast, transaction_blast,
    until_following,
};
use server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tool::Tool;

/// Last writes of a stream, enough that every lane has some.
const END_MARKS: usize = 64;
const DELAY_WRITES_PER_SECOND: u64 = 5000;
const DELAY_PROBES: usize = 1500;

fn main() {
    let options = options();
    println!("{} keys or writes, {} rounds, {}", options.n, options.rounds, options.server);
    let wants = |what: &str| options.only.as_deref().is_none_or(|only| only == what);
    if wants("copy") {
        copy(&options);
    }
    if wants("stream") || wants("tx") {
        streams(&options, wants("stream"), wants("tx"));
    }
    if wants("delay") {
        delay(&options);
    }
}

/// One measurement of one program.
#[derive(Clone, Copy, Default)]
struct Row {
    wall_s: f64,
    cpu_s: f64,
    peak_mib: f64,
    target_cpu_s: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Program {
    Native,
    Keyferry,
}

/// Who keeps the target equal; ends when dropped.
enum Mover {
    Native,
    Keyferry(Tool),
}

impl Mover {
    fn start(program: Program, source: &Server, target: &Server) -> Mover {
        match program {
            Program::Native => {
                let mut client = target.client();
                client.call(&cmd!["REPLICAOF", "127.0.0.1", source.port]);
                Mover::Native
            }
            Program::Keyferry => Mover::Keyferry(Tool::sync(source, target, &[])),
        }
    }

    fn cpu_s(&self) -> f64 {
        match self {
            Mover::Native => 0.0,
            Mover::Keyferry(tool) => cpu_s(tool.pid()),
        }
    }

    fn peak_mib(&self) -> f64 {
        match self {
            Mover::Native => 0.0,
            Mover::Keyferry(tool) => peak_mib(tool),
        }
    }
}

fn median(rows: &[Row], field: impl Fn(&Row) -> f64) -> f64 {
    let mut values: Vec<f64> = rows.iter().map(field).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn report(what: &str, native: &[Row], ours: &[Row]) {
    let base = median(native, |r| r.wall_s);
    let wall = median(ours, |r| r.wall_s);
    println!(
        "{what}: native {base:.2} s, keyferry {wall:.2} s = {:.2} x native, {:.2} s CPU, peak {:.0} MiB; \
         target's CPU {:.2} s, native {:.2} s",
        wall / base,
        median(ours, |r| r.cpu_s),
        median(ours, |r| r.peak_mib),
        median(ours, |r| r.target_cpu_s),
        median(native, |r| r.target_cpu_s),
    );
}

// ---- copy

fn copy(options: &Options) {
    let source = Server::with(&options.server, CONFIG);
    mixed_keys(options.n, |part| source.client().load(part));
    let want = source.client().dbsize();
    let (mut native, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        native.push(copy_once(Program::Native, options, &source, want));
        ours.push(copy_once(Program::Keyferry, options, &source, want));
    }
    report(&format!("copy of {want} keys"), &native, &ours);
}

fn copy_once(program: Program, options: &Options, source: &Server, want: i64) -> Row {
    let target = Server::with(&options.server, CONFIG);
    let mut client = target.client();
    let before_s = cpu_s(target.pid());
    let started = Instant::now();
    let mover = Mover::start(program, source, &target);
    let wall_s = match program {
        Program::Native => {
            until_link_up(&mut client);
            started.elapsed().as_secs_f64()
        }
        Program::Keyferry => time_to_keys(&mut client, want, started),
    };
    Row { wall_s, cpu_s: mover.cpu_s(), peak_mib: mover.peak_mib(), target_cpu_s: cpu_s(target.pid()) - before_s }
}

fn until_link_up(client: &mut Client) {
    let started = Instant::now();
    while client.info("replication").get("master_link_status").map(String::as_str) != Some("up") {
        assert!(started.elapsed() < LIMIT, "native replication never came up");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Seconds until the target held `want` keys besides keyferry's own records, which are counted only when all is quiet.
fn time_to_keys(client: &mut Client, want: i64, started: Instant) -> f64 {
    let mut seen: Vec<(f64, i64)> = Vec::new();
    loop {
        let keys = client.ask(&cmd!["DBSIZE"]).map_or(0, |n| n.int());
        let now = started.elapsed().as_secs_f64();
        if seen.last().is_none_or(|&(_, last)| last != keys) {
            seen.push((now, keys));
        }
        let quiet_s = now - seen.last().map_or(now, |&(at, _)| at);
        if keys >= want && quiet_s > 1.0 {
            let own = client.call(&cmd!["KEYS", "*keyferry:*"]).list().len() as i64;
            if let Some(&(at, _)) = seen.iter().find(|&&(_, n)| n >= want + own) {
                return at;
            }
        }
        assert!(started.elapsed() < LIMIT, "only {keys} of {want} keys came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

// ---- stream

fn streams(options: &Options, plain: bool, transactions: bool) {
    let source = Server::with(&options.server, CONFIG);
    let mut rates = Vec::new();
    let blasts = [
        (true, "stream", plain_blast(options.n)),
        (transactions, "transactions of three keys", transaction_blast(options.n)),
    ];
    for (wanted, what, blast) in blasts {
        if !wanted {
            continue;
        }
        let (mut native, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            native.push(stream_once(Program::Native, options, &source, &blast));
            ours.push(stream_once(Program::Keyferry, options, &source, &blast));
        }
        let rate = |rows: &[Row]| blast.writes as f64 / median(rows, |r| r.wall_s);
        if plain || what != "stream" {
            report(&format!("{what}, {} writes", blast.writes), &native, &ours);
        }
        rates.push((rate(&native), rate(&ours)));
    }
    if let [(native, ours), (native_tx, ours_tx)] = rates[..] {
        println!(
            "transactions: {:.0} k writes/s = {:.2} of the plain stream's {:.0} k (native {:.2})",
            ours_tx / 1e3,
            ours_tx / ours,
            ours / 1e3,
            native_tx / native
        );
    }
}

fn stream_once(program: Program, options: &Options, source: &Server, blast: &Blast) -> Row {
    let target = Server::with(&options.server, CONFIG);
    let mut writer = source.client();
    writer.call(&cmd!["FLUSHALL"]);
    let mover = Mover::start(program, source, &target);
    let mut client = target.client();
    until_following(&mut writer, &mut client);
    let (cpu0_s, target0_s) = (mover.cpu_s(), cpu_s(target.pid()));
    let started = Instant::now();
    blast.send(source.port);
    let marks: Vec<Cmd> = (0..END_MARKS).map(|i| cmd!["SET", format!("end:{i}"), "1"]).collect();
    writer.load(&marks);
    let mut ask = cmd!["EXISTS"];
    ask.extend((0..END_MARKS).map(|i| format!("end:{i}").into_bytes()));
    while client.call(&ask).int() < END_MARKS as i64 {
        assert!(started.elapsed() < LIMIT, "the stream never came to its end");
        std::thread::sleep(Duration::from_millis(5));
    }
    Row {
        wall_s: started.elapsed().as_secs_f64(),
        cpu_s: mover.cpu_s() - cpu0_s,
        peak_mib: mover.peak_mib(),
        target_cpu_s: cpu_s(target.pid()) - target0_s,
    }
}

// ---- delay

fn delay(options: &Options) {
    for (name, program) in [("native", Program::Native), ("keyferry", Program::Keyferry)] {
        let mut all = Vec::new();
        for _ in 0..options.rounds {
            all.push(delays(program, options));
        }
        let mut medians: Vec<f64> = all.iter().map(|d| d[d.len() / 2]).collect();
        let mut p99s: Vec<f64> = all.iter().map(|d| d[d.len() * 99 / 100]).collect();
        medians.sort_by(f64::total_cmp);
        p99s.sort_by(f64::total_cmp);
        println!(
            "delay at {DELAY_WRITES_PER_SECOND} writes/s, {name}: median {:.2} ms, p99 {:.2} ms (write on the source to event on the target)",
            medians[medians.len() / 2],
            p99s[p99s.len() / 2]
        );
    }
}

/// Milliseconds from before a write on the source to its keyspace event on the target, sorted.
fn delays(program: Program, options: &Options) -> Vec<f64> {
    let source = Server::with(&options.server, CONFIG);
    let target = Server::with(&options.server, CONFIG);
    let mut writer = source.client();
    let _mover = Mover::start(program, &source, &target);
    until_following(&mut writer, &mut target.client());
    let halt = Arc::new(AtomicBool::new(false));
    let load = {
        let (client, halt) = (source.client(), Arc::clone(&halt));
        std::thread::spawn(move || steady_load(client, &halt))
    };
    let mut events = Subscriber::new(target.client(), "__keyspace@0__:probe");
    let mut delays = Vec::with_capacity(DELAY_PROBES);
    let mut rng = Rng::with_seed(9);
    for i in 0..DELAY_PROBES {
        // At random moments, so as not to fall in step with the load or with anyone's timer.
        std::thread::sleep(Duration::from_micros(rng.u64(500..3500)));
        let started = Instant::now();
        writer.call(&cmd!["SET", "probe", i]);
        events.next();
        delays.push(started.elapsed().as_secs_f64() * 1e3);
    }
    halt.store(true, Ordering::Relaxed);
    load.join().expect("the load ends");
    delays.sort_by(f64::total_cmp);
    delays
}

/// Writes at an even pace: one command at a time, ten a step of two milliseconds.
fn steady_load(mut client: Client, halt: &AtomicBool) {
    let mut rng = Rng::with_seed(8);
    let started = Instant::now();
    let mut sent = 0;
    while !halt.load(Ordering::Relaxed) {
        let batch: Vec<Cmd> =
            (0..10).map(|_| cmd!["SET", format!("load:{}", rng.u32(0..100_000)), "v".repeat(100)]).collect();
        client.load(&batch);
        sent += batch.len() as u64;
        let due = Duration::from_secs_f64(sent as f64 / DELAY_WRITES_PER_SECOND as f64);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
    }
}
