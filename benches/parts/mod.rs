//! What the benchmarks on real servers share: measuring a process, and commands to send flat out.

use crate::client::{Client, Cmd, Reply, encode};
use crate::tool::Tool;
use crate::wait::until;
use fastrand::Rng;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// What both ends are set to: no delay before a transfer, no link lost for a full buffer.
pub const CONFIG: &[&str] = &[
    "repl-diskless-sync yes",
    "repl-diskless-sync-delay 0",
    "repl-diskless-load on-empty-db",
    "client-output-buffer-limit replica 4gb 4gb 0",
    "repl-backlog-size 256mb",
    "notify-keyspace-events K$",
];
pub const LIMIT: Duration = Duration::from_secs(300);
/// Kernel ticks in a second, as /proc counts CPU time.
pub const TICKS: f64 = 100.0;

/// What the command line of a benchmark says.
pub struct Options {
    pub n: usize,
    pub rounds: usize,
    pub only: Option<String>,
    pub server: String,
}

pub fn options() -> Options {
    let mut options = Options { n: 1_000_000, rounds: 3, only: None, server: "redis-7.0".into() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--n" => options.n = value().parse().expect("--n: a number"),
            "--rounds" => options.rounds = value().parse().expect("--rounds: a number"),
            "--only" => options.only = Some(value()),
            "--server" => options.server = value(),
            "--bench" => {}
            _ => panic!("unknown option {word}: --n, --rounds, --only, --server"),
        }
    }
    options
}

/// CPU seconds of a live process so far.
pub fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / TICKS
}

/// The most memory that a program has had, MiB.
pub fn peak_mib(tool: &Tool) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", tool.pid())).unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

/// Commands, ready to be sent flat out.
pub struct Blast {
    pub bytes: Vec<u8>,
    /// Replies that they bring.
    pub replies: usize,
    /// Writes among them.
    pub writes: usize,
}

/// Half strings of 100 bytes, a fifth hashes, the rest sorted sets and lists, handed to `load` part by part.
pub fn mixed_keys(n: usize, mut load: impl FnMut(&[Cmd])) {
    let mut rng = Rng::with_seed(3);
    let text: String = (0..2000).map(|_| rng.alphanumeric()).collect();
    for from in (0..n).step_by(5000) {
        let part: Vec<Cmd> = (from..n.min(from + 5000))
            .map(|i| {
                let at = i % 1000;
                match i % 20 {
                    0..10 => cmd!["SET", format!("s:{i}"), text[at..at + 100]],
                    10..14 => {
                        let (x, y) = (&text[at..at + 50], &text[at + 50..at + 100]);
                        cmd!["HSET", format!("h:{i}"), "name", x, "age", i, "addr", y]
                    }
                    14..17 => {
                        let mut zadd = cmd!["ZADD", format!("z:{i}")];
                        for j in 0..8 {
                            zadd.extend(cmd![i + j, text[at + j * 4..at + j * 4 + 8]]);
                        }
                        zadd
                    }
                    _ => {
                        let mut push = cmd!["RPUSH", format!("l:{i}")];
                        push.extend((0..10).map(|j| text.as_bytes()[at + j * 10..][..10].to_vec()));
                        push
                    }
                }
            })
            .collect();
        load(&part);
    }
}

/// 60 % SET, 20 % HSET, 10 % INCR, 10 % ZADD.
pub fn plain_blast(n: usize) -> Blast {
    let mut rng = Rng::with_seed(5);
    let mut bytes = Vec::new();
    for i in 0..n {
        let k = rng.usize(0..=n / 4);
        let command = match i % 10 {
            0..6 => cmd!["SET", format!("s:{k}"), "v".repeat(100)],
            6..8 => cmd!["HSET", format!("h:{k}"), format!("f{}", i % 7), "w".repeat(40)],
            8 => cmd!["INCR", format!("c:{k}")],
            _ => cmd!["ZADD", format!("z:{k}"), i, format!("m{}", i % 13)],
        };
        encode(&command, &mut bytes);
    }
    Blast { bytes, replies: n, writes: n }
}

/// The same number of writes, in transactions over three random keys each.
pub fn transaction_blast(n: usize) -> Blast {
    let mut rng = Rng::with_seed(6);
    let mut bytes = Vec::new();
    let transactions = n / 3;
    for i in 0..transactions {
        let mut key = |kind: &str| format!("{kind}:{}", rng.usize(0..=n / 4));
        let batch = [
            cmd!["MULTI"],
            cmd!["SET", key("s"), "v".repeat(100)],
            cmd!["INCR", key("c")],
            cmd!["HSET", key("h"), format!("f{}", i % 7), "w".repeat(40)],
            cmd!["EXEC"],
        ];
        batch.iter().for_each(|command| encode(command, &mut bytes));
    }
    // EXEC answers with a header line and one line for each of its three integers or statuses.
    Blast { bytes, replies: transactions * 8, writes: transactions * 3 }
}

impl Blast {
    /// Sends everything and reads the replies meanwhile.
    pub fn send(&self, port: u16) {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the source is there");
        let mut reader = socket.try_clone().expect("a second handle of the socket");
        let want = self.replies;
        let drain = std::thread::spawn(move || {
            let (mut lines, mut buf) = (0, vec![0; 1 << 20]);
            while lines < want {
                let n = reader.read(&mut buf).expect("replies");
                assert!(n > 0, "the source closed the connection");
                lines += buf[..n].iter().filter(|b| **b == b'\n').count();
            }
        });
        for part in self.bytes.chunks(1 << 18) {
            socket.write_all(part).expect("the source takes the load");
        }
        drain.join().expect("all replies came");
    }
}

pub fn until_following(source: &mut Client, target: &mut Client) {
    until(LIMIT, "the stream to flow", || {
        source.call(&cmd!["INCR", "mark"]);
        std::thread::sleep(Duration::from_millis(50));
        // LOADING and the like: not yet.
        let seen = target.ask(&cmd!["GET", "mark"]).unwrap_or(Reply::Nil);
        seen == source.get("mark")
    });
}
