//! Large commands of the stream with little memory. `KEYFERRY_LARGE_MB=200` makes them as large as that; 24 by default.

use crate::client::{Client, Reply};
use crate::cluster::Cluster;
use crate::server::{FAST, Server};
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, MINUTE, until};

const MEMORY: &[&str] = &["--job", "l", "--memory", "16MiB"];

fn large_bytes() -> usize {
    std::env::var("KEYFERRY_LARGE_MB").ok().and_then(|mb| mb.parse().ok()).unwrap_or(24) << 20
}

/// Random letters, the same for each seed.
fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(b'a'..=b'z')).take(bytes).collect()
}

/// The most memory that keyferry had, in MiB.
fn peak_mib(tool: &Tool) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", tool.pid())).expect("a running process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

/// A digest that servers make of a value, so that it needn't be read.
fn digest(client: &mut Client, key: &str) -> Reply {
    client.call(&cmd!["DEBUG", "DIGEST-VALUE", key])
}

fn server() -> Server {
    Server::with("redis-7.0", &[FAST, &["enable-debug-command yes", "proto-max-bulk-len 1gb"]].concat())
}

#[test]
fn large_commands_of_the_stream_take_little_memory_and_stay_in_order() {
    let (a, b) = (server(), server());
    let (mut source, mut target) = (a.client(), b.client());
    let mut tool = Tool::sync(&a, &b, MEMORY);
    until(HALF_MINUTE, "the copy", || is_following(&mut target, "l"));
    let bytes = large_bytes();
    let limit = MINUTE * (1 + (bytes >> 25) as u32);
    let small = text(1, 1 << 20);
    source.load(&[
        cmd!["SET", "k", "before"],
        cmd!["SET", "k", text(2, bytes), "EX", 10_000],
        cmd!["APPEND", "k", "behind"],
        cmd!["APPEND", "k", small],
        cmd!["APPEND", "k", text(3, (1 << 20) - 1)],
        cmd!["INCR", "n"],
        cmd!["MULTI"],
        cmd!["INCR", "n"],
        cmd!["HSET", "h", "f", text(4, bytes), "g", 1],
        cmd!["RPUSH", "l", "first", text(5, 2 << 20), "last"],
        cmd!["EXEC"],
        cmd!["MSET", "m1", text(6, 3 << 20), "m2", "short", "m3", text(7, 2 << 20)],
        cmd!["SET", "binary", [b"\r\n$32\r\n".to_vec(), vec![0; 2 << 20]].concat()],
        cmd!["INCR", "n"],
    ]);
    until(limit, "the last write", || target.ask(&cmd!["GET", "n"]) == Ok(Reply::Bytes(b"3".to_vec())));
    for key in ["k", "h", "l", "m1", "m2", "m3", "binary"] {
        until(limit, key, || digest(&mut target, key) == digest(&mut source, key));
    }
    let peak = peak_mib(&tool);
    assert!(peak < 96, "{bytes} bytes took {peak} MiB");
    tool.stop();
}

/// A sorted set and a list that go in pieces are written to while they are copied.
#[test]
fn commands_on_a_value_that_comes_in_pieces_wait_for_its_end() {
    let (a, b) = (server(), server());
    let (mut source, mut target) = (a.client(), b.client());
    let fill = "for i=0,ARGV[1]-1,1000 do local t={} for j=i,i+999 do %s end redis.call('%c',KEYS[1],unpack(t)) end";
    let with = |each: &str, command: &str| fill.replace("%s", each).replace("%c", command);
    source.call(&cmd!["EVAL", with("t[#t+1]=j t[#t+1]='member:'..j", "ZADD"), 1, "z", 1_000_000]);
    source.call(&cmd!["EVAL", with("t[#t+1]='element number '..j", "RPUSH"), 1, "l", 1_200_000]);
    let mut tool = Tool::sync(&a, &b, &[MEMORY, &["--rate", "16MiB"]].concat());
    until(HALF_MINUTE, "a part of a value", || target.call(&cmd!["EXISTS", "z", "l"]).int() > 0);
    let mut nth = 0;
    while !is_following(&mut target, "l") {
        tool.must_live();
        source.load(&[
            cmd!["ZINCRBY", "z", 1, format!("member:{}", nth * 7919 % 1_000_000)],
            cmd!["RPUSH", "l", nth],
            cmd!["LPOP", "l"],
            cmd!["RENAME", "z", "other"],
            cmd!["RENAME", "other", "z"],
        ]);
        nth += 1;
    }
    assert!(nth > 10, "the copy was over after {nth} rounds");
    source.call(&cmd!["SET", "n", 1]);
    until(MINUTE, "the last write", || target.ask(&cmd!["GET", "n"]) == Ok(Reply::Bytes(b"1".to_vec())));
    for key in ["z", "l"] {
        until(MINUTE, key, || digest(&mut target, key) == digest(&mut source, key));
    }
    tool.stop();
}

#[test]
fn kills_and_breaks_within_large_commands_lose_and_double_nothing() {
    let (a, b) = (server(), server());
    let (mut source, mut target) = (a.client(), b.client());
    source.call(&cmd!["CONFIG", "SET", "repl-backlog-size", 1 << 30]);
    let mut tool = Tool::sync(&a, &b, &[MEMORY, &["--rate", "32MiB"]].concat());
    until(HALF_MINUTE, "the copy", || is_following(&mut target, "l"));
    for nth in 0..6u64 {
        source.load(&[cmd!["APPEND", "k", text(nth, 8 << 20)], cmd!["INCR", "n"]]);
        std::thread::sleep(std::time::Duration::from_millis(fastrand::u64(0..200)));
        if nth % 2 == 0 {
            tool.kill();
            tool = Tool::sync(&a, &b, &[MEMORY, &["--rate", "32MiB"]].concat());
        } else {
            target.call(&cmd!["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
    }
    until(MINUTE, "the last write", || target.ask(&cmd!["GET", "n"]) == Ok(Reply::Bytes(b"6".to_vec())));
    until(MINUTE, "its length", || target.call(&cmd!["STRLEN", "k"]).int() == 6 * (8 << 20));
    until(MINUTE, "equal values", || digest(&mut target, "k") == digest(&mut source, "k"));
    tool.stop();
}

#[test]
fn large_commands_reach_a_cluster() {
    let a = server();
    let b = Cluster::start("redis-7.0", 3);
    let (mut source, mut target) = (a.client(), b.client());
    let (from, to) = (a.url(), b.url());
    let mut tool = Tool::run(&[&["sync", &from, &to], MEMORY].concat());
    tool.until_text("following", HALF_MINUTE);
    source.load(&[
        cmd!["SET", "a", text(1, 8 << 20)],
        cmd!["APPEND", "a", text(2, 8 << 20)],
        cmd!["MSET", "b", text(3, 4 << 20), "c", "short", "d", text(4, 4 << 20)],
        cmd!["INCR", "n"],
    ]);
    until(MINUTE, "the last write", || target.call(&cmd!["GET", "n"]) == Reply::Bytes(b"1".to_vec()));
    for key in ["a", "b", "c", "d"] {
        let same = || target.call(&cmd!["GET", key]) == source.call(&cmd!["GET", key]);
        until(MINUTE, key, same);
    }
    tool.stop();
}
