//! Vector sets, which Redis 8 has built in as a module.

use crate::client::{Client, Reply};
use crate::server::Server;
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, until};

/// All that can be asked of a vector set but for the shape of its graph, which is drawn by lot.
fn read(client: &mut Client, key: &str) -> Vec<Reply> {
    let Ok(Reply::List(mut elements)) = client.ask(&cmd!["VRANDMEMBER", key, 100_000]) else { return Vec::new() };
    elements.sort_unstable();
    let info = client.call(&cmd!["VINFO", key]);
    let told = ["quant-type", "vector-dim", "size", "hnsw-m", "projection-input-dim", "attributes-count"];
    let mut all: Vec<Reply> = told.iter().map(|name| info.field(name).cloned().unwrap_or(Reply::Nil)).collect();
    for element in elements {
        let name = element.bytes().to_vec();
        all.extend(client.pipe(&[cmd!["VEMB", key, name], cmd!["VGETATTR", key, name]]));
        // With so many tries the graph is searched whole.
        all.push(client.call(&cmd!["VSIM", key, "ELE", name, "COUNT", 5, "WITHSCORES", "TRUTH"]));
        all.push(element);
    }
    all
}

#[test]
fn vector_sets_are_copied_and_followed_equal_through_a_kill() {
    for (from, to) in [("redis-8.0", "redis-8.0"), ("redis-8.0", "redis-8.6"), ("redis-8.6", "redis-8.10")] {
        let (a, b) = (Server::start(from), Server::start(to));
        let (mut source, mut target) = (a.client(), b.client());
        let number = |i: i32, part: i32| format!("{}", f64::from((i * 31 + part * 17) % 101) / 101.0 + 0.01);
        let vector = |i: i32| (0..8).map(|part| number(i, part).into_bytes()).collect::<Vec<_>>();
        let add = |key: &str, i: i32, reduce: bool, rest: &[&str]| {
            let head =
                if reduce { cmd!["VADD", key, "REDUCE", 4, "VALUES", 8] } else { cmd!["VADD", key, "VALUES", 8] };
            let rest: Vec<Vec<u8>> = rest.iter().map(|word| word.as_bytes().to_vec()).collect();
            [head, vector(i), cmd![format!("e{i}")], rest].concat()
        };
        let both = |i: i32| {
            [
                add("plain", i, false, &["NOQUANT", "SETATTR", &format!("{{\"n\":{i}}}")]),
                add("q8", i, false, &["Q8", "M", "8"]),
                add("bin", i, false, &["BIN"]),
                add("reduced", i, true, &["NOQUANT"]),
            ]
        };
        (0..100).for_each(|i| source.load(&both(i)));
        let mut tool = Tool::sync(&a, &b, &["--job", "v"]);
        until(HALF_MINUTE, "the copy", || is_following(&mut target, "v"));
        for i in 100..200 {
            source.load(&both(i));
            source.load(&[
                cmd!["VREM", "q8", format!("e{}", i - 100)],
                cmd!["VSETATTR", "plain", format!("e{}", i - 50), format!("{{\"again\":{i}}}")],
                cmd!["VSETATTR", "plain", format!("e{}", i - 60), ""],
            ]);
            if i % 40 == 20 {
                tool.kill();
                tool = Tool::sync(&a, &b, &["--job", "v"]);
            }
        }
        source.load(&[add("new", 5, false, &["Q8"]), cmd!["VREM", "bin", "e7"]]);
        for key in ["plain", "q8", "bin", "reduced", "new"] {
            let want = read(&mut source, key);
            assert!(want.len() >= 10, "{key}: {want:?}");
            until(HALF_MINUTE, &format!("{from} to {to}: {key}"), || read(&mut target, key) == want);
        }
        assert_eq!(a.client().info("stats")["sync_full"], "1");
        tool.stop();
    }
}
