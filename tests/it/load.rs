//! Data of every type and encoding, and a random load whose end shows any lost, repeated or reordered write.

use crate::client::{Client, Cmd};
use crate::compare::now_ms;
use crate::server::Server;
use crate::wait::until;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const DAY_MS: i64 = 86_400_000;

/// Values of every core type in every encoding, small, big, binary, with and without expiry, below `prefix`,
/// in the database that `client` has chosen.
pub fn load_types(server: &Server, client: &mut Client, seed: u64, prefix: &str) {
    client.load(&type_commands(server, seed, prefix));
}

/// The commands that make them, as servers since 6.0 know them; fields of hashes expire only where they can.
pub fn type_commands(server: &Server, seed: u64, prefix: &str) -> Vec<Cmd> {
    let mut rng = Rng::with_seed(seed);
    let far = now_ms() + 7 * DAY_MS;
    let mut commands = Vec::new();
    load_strings(&mut commands, &mut rng, prefix, far);
    load_collections(&mut commands, &mut rng, prefix, far);
    load_long(&mut commands, &mut rng, prefix);
    load_streams(&mut commands, prefix, server.version() >= (6, 2));
    if server.has_field_expiry() {
        for i in (0..20).step_by(2) {
            let key = format!("{prefix}hash:{i}");
            commands.push(cmd!["HPEXPIREAT", key, far + 5000 + i, "FIELDS", 1, "f0"]);
        }
        for j in (0..5000).step_by(500) {
            let (key, field) = (format!("{prefix}hash:big"), format!("field-{j}"));
            commands.push(cmd!["HPEXPIREAT", key, far + j, "FIELDS", 1, field]);
        }
    }
    commands
}

/// A function library, where the server has functions.
pub fn load_function(server: &Server, client: &mut Client) {
    if server.version() >= (7, 0) {
        let code = "#!lua name=ferrylib\nredis.register_function('ferry', function(keys, args) \
                    return redis.call('INCRBY', keys[1], args[1]) end)";
        client.call(&cmd!["FUNCTION", "LOAD", "REPLACE", code]);
    }
}

fn load_strings(out: &mut Vec<Cmd>, rng: &mut Rng, p: &str, far: i64) {
    const NUMBERS: [i64; 11] =
        [0, -1, 127, 128, -129, 32_767, 65_536, 2_147_483_648, -2_147_483_649, i64::MAX, i64::MIN];
    for i in 0..200 {
        let text = format!("value-{i}").repeat(rng.usize(1..5));
        out.push(cmd!["SET", format!("{p}str:{i}"), text]);
        out.push(cmd!["SET", format!("{p}int:{i}"), NUMBERS[i % NUMBERS.len()]]);
        let key = format!("{p}ttl:{i}");
        out.push(cmd!["SET", key, "x".repeat(rng.usize(0..300))]);
        out.push(cmd!["PEXPIREAT", key, far + rng.i64(0..1_000_000_000)]);
        let mut key = p.as_bytes().to_vec();
        key.extend_from_slice(b"bin:\x00\xff\r\n");
        key.extend_from_slice(i.to_string().as_bytes());
        let len = rng.usize(0..100);
        out.push(cmd!["SET", key, random_bytes(rng, len)]);
    }
    out.push(cmd!["SET", p, "the empty key, where there is no prefix"]);
    out.push(cmd!["SET", format!("{p}str:empty"), ""]);
    out.push(cmd!["SET", format!("{p}str:lzf"), "abc".repeat(5000)]);
    out.push(cmd!["SET", format!("{p}str:big"), random_bytes(rng, 3_000_000)]);
}

fn load_collections(out: &mut Vec<Cmd>, rng: &mut Rng, p: &str, far: i64) {
    const SCORES: [&str; 7] = ["inf", "-inf", "0", "-0.0", "3.141592653589793", "1e300", "5e-324"];
    for i in 0..20_usize {
        let size = [1, 5, 100, 128, 129, 600][i % 6];
        let mut list = cmd!["RPUSH", format!("{p}list:{i}")];
        let mut ints = cmd!["SADD", format!("{p}set:int:{i}")];
        let mut set = cmd!["SADD", format!("{p}set:str:{i}")];
        let mut zset = cmd!["ZADD", format!("{p}zset:{i}")];
        let mut hash = cmd!["HSET", format!("{p}hash:{i}")];
        let mut hll = cmd!["PFADD", format!("{p}hll:{i}")];
        for j in 0..size {
            list.push(match rng.u8(0..3) {
                0 => format!("e{j}").into_bytes(),
                1 => j.to_string().into_bytes(),
                _ => vec![b'y'; rng.usize(0..90)],
            });
            let number = if i % 2 == 1 { rng.i64(..) } else { rng.i64(-100..30_000) };
            ints.push(number.to_string().into_bytes());
            set.push(format!("m{}", rng.u32(0..1_000_000)).into_bytes());
            let score = match rng.usize(0..8) {
                7 => j.to_string(),
                n => SCORES[n].to_string(),
            };
            zset.extend(cmd![score, format!("z{j}")]);
            let value = match rng.u8(0..3) {
                0 => j.to_string(),
                1 => "v".repeat(rng.usize(0..80)),
                _ => String::new(),
            };
            hash.extend(cmd![format!("f{j}"), value]);
            hll.push(format!("u{}", rng.u32(0..1_000_000)).into_bytes());
        }
        out.extend([list, ints, set, zset, hash, hll]);
        out.push(cmd!["PEXPIREAT", format!("{p}hash:{i}"), far + i as i64]);
        out.push(cmd!["SETBIT", format!("{p}bit:{i}"), rng.u32(0..10_000), 1]);
        let geo = format!("{p}geo:{i}");
        out.push(cmd!["GEOADD", geo, "13.361389", "38.115556", "a", "15.087269", "37.502669", "b"]);
    }
}

fn load_long(out: &mut Vec<Cmd>, rng: &mut Rng, p: &str) {
    let big = random_bytes(rng, 200_000);
    out.push(cmd!["RPUSH", format!("{p}list:bigitem"), "q".repeat(70_000), "small", big]);
    let mut list = cmd!["RPUSH", format!("{p}list:long")];
    let mut set = cmd!["SADD", format!("{p}set:big")];
    let mut zset = cmd!["ZADD", format!("{p}zset:big")];
    let mut hash = cmd!["HSET", format!("{p}hash:big")];
    for j in 0..5000 {
        list.extend(cmd![format!("item-{j}")]);
        set.extend(cmd![format!("member-{j}")]);
        zset.extend(cmd![f64::from(j) * 0.5, format!("member-{j}")]);
        hash.extend(cmd![format!("field-{j}"), format!("val-{j}")]);
    }
    out.extend([list, set, zset, hash]);
}

/// Same and differing fields, deleted entries, groups with pending entries of several consumers.
fn load_streams(out: &mut Vec<Cmd>, p: &str, has_createconsumer: bool) {
    let (a, b) = (format!("{p}stream:a"), format!("{p}stream:b"));
    for j in 0..300 {
        let id = format!("{}-{}", 1000 + j, j % 3);
        out.push(cmd!["XADD", a, id, "temp", j, "hum", j * 2]);
        let id = format!("{}-0", 2000 + j);
        out.push(match j % 2 {
            0 => cmd!["XADD", b, id, "a", 1, "b", 2],
            _ => cmd!["XADD", b, id, format!("k{j}"), "v"],
        });
    }
    for j in (0..300).step_by(7) {
        out.push(cmd!["XDEL", a, format!("{}-{}", 1000 + j, j % 3)]);
    }
    for (group, from) in [("g1", "0"), ("g2", "$"), ("g3", "1100-0")] {
        out.push(cmd!["XGROUP", "CREATE", a, group, from]);
    }
    for (who, count, from) in [("alice", 50, ">"), ("bob", 20, ">"), ("alice", 5, "0")] {
        out.push(cmd!["XREADGROUP", "GROUP", "g1", who, "COUNT", count, "STREAMS", a, from]);
    }
    out.push(cmd!["XACK", a, "g1", "1001-1", "1002-2"]);
    if has_createconsumer {
        out.push(cmd!["XGROUP", "CREATECONSUMER", a, "g1", "idle-consumer"]);
    }
    out.push(cmd!["XGROUP", "CREATE", format!("{p}stream:empty"), "g", "$", "MKSTREAM"]);
    out.push(cmd!["XADD", format!("{p}stream:gone"), "5-5", "a", "b"]);
    out.push(cmd!["XDEL", format!("{p}stream:gone"), "5-5"]);
}

/// `n` strings `<prefix><i>` of `size` bytes.
pub fn load_bulk(client: &mut Client, prefix: &str, n: usize, size: usize) {
    let mut rng = Rng::with_seed(3);
    let text: Vec<u8> = (0..size + 1000).map(|_| rng.alphanumeric() as u8).collect();
    for from in (0..n).step_by(5000) {
        let part: Vec<Cmd> = (from..n.min(from + 5000))
            .map(|i| cmd!["SET", format!("{prefix}{i}"), text[i % 1000..i % 1000 + size]])
            .collect();
        client.load(&part);
    }
}

fn random_bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// Which writes a random load makes.
#[derive(Clone)]
pub struct Mix {
    /// Before every key's name.
    pub prefixes: Vec<String>,
    /// How many keys of each type.
    pub keys: u32,
    pub databases: Vec<u32>,
    /// The source's version: newer commands need newer servers.
    pub version: (u32, u32),
    pub field_expiry: bool,
    /// SWAPDB, MOVE, COPY DB and FLUSHDB between the databases, too.
    pub across_databases: bool,
}

impl Mix {
    pub fn of(server: &Server) -> Mix {
        Mix {
            prefixes: vec![String::new()],
            keys: 60,
            databases: vec![0],
            version: server.version(),
            field_expiry: server.has_field_expiry(),
            across_databases: false,
        }
    }
}

/// How many kinds of writes [`random_command`] knows besides those across databases and of newer servers.
const KINDS: u32 = 72;
const KINDS_6_2: u32 = 6;
const KINDS_7_0: u32 = 3;
const KINDS_FIELD_EXPIRY: u32 = 4;

/// One write, or a whole MULTI..EXEC.
pub fn random_command(rng: &mut Rng, mix: &Mix) -> Vec<Cmd> {
    if mix.across_databases && rng.u32(0..60) == 0 {
        return across_databases(rng, mix);
    }
    let mut kinds = KINDS;
    if mix.version >= (6, 2) {
        kinds += KINDS_6_2;
    }
    if mix.version >= (7, 0) {
        kinds += KINDS_7_0;
    }
    if mix.field_expiry {
        kinds += KINDS_FIELD_EXPIRY;
    }
    let names = Names::pick(rng, mix);
    let kind = rng.u32(0..kinds);
    match kind {
        0..=23 => strings(kind, &names, rng),
        24..=47 => collections(kind, &names, rng),
        48..=KINDS => several_keys(kind, &names, rng),
        _ => newer(kind, &names, rng),
    }
}

/// The numbers that one command's keys and values are made of.
struct Names {
    n: u32,
    a: (String, u32),
    b: (String, u32),
    v: String,
}

impl Names {
    fn pick(rng: &mut Rng, mix: &Mix) -> Names {
        let mut name = || {
            let prefix = mix.prefixes[rng.usize(0..mix.prefixes.len())].clone();
            (prefix, rng.u32(0..mix.keys))
        };
        let (a, b) = (name(), name());
        let n = a.1;
        let v = format!("v{:03}", rng.u32(0..1_000_000));
        Names { n, a, b, v }
    }

    /// The command's own key of a type.
    fn k(&self, kind: &str) -> String {
        format!("{}{kind}:{}", self.a.0, self.a.1)
    }

    /// Another key of a type, possibly of another prefix.
    fn o(&self, kind: &str) -> String {
        format!("{}{kind}:{}", self.b.0, self.b.1)
    }
}

fn strings(kind: u32, x: &Names, rng: &mut Rng) -> Vec<Cmd> {
    let v = &x.v;
    vec![match kind {
        0 => cmd!["INCR", x.k("cnt")],
        1 => cmd!["INCRBY", x.k("cnt"), rng.i32(-9..9)],
        2 => cmd!["DECRBY", x.k("cnt"), 3],
        3 => cmd!["INCRBYFLOAT", x.k("flt"), "0.5"],
        4 => cmd!["APPEND", x.k("app"), v[..2]],
        5 | 6 => cmd!["SET", x.k("str"), v],
        7 => cmd!["SET", x.k("str"), v, "PX", rng.u32(200..5000)],
        8 => cmd!["SET", x.k("str"), v, "KEEPTTL"],
        9 => cmd!["SET", x.k("snx"), v, "EX", 100, "NX"],
        10 => cmd!["SETNX", x.k("snx"), v],
        11 => cmd!["SETEX", x.k("sex"), 2, v],
        12 => cmd!["PSETEX", x.k("sex"), 1500, v],
        13 => cmd!["GETSET", x.k("str"), v],
        14 => cmd!["DEL", x.k("str")],
        15 => cmd!["UNLINK", x.k("snx")],
        16 => cmd!["PEXPIRE", x.k("cnt"), rng.u32(300..4000)],
        17 => cmd!["EXPIREAT", x.k("app"), now_ms() / 1000 + 2],
        18 => cmd!["PERSIST", x.k("cnt")],
        19 => cmd!["SETRANGE", x.k("rng"), x.n % 40, v],
        20 => cmd!["SETBIT", x.k("bit"), x.n, 1],
        21 => cmd!["BITFIELD", x.k("bit"), "SET", "u8", x.n % 60, 7, "INCRBY", "i5", 9, 1],
        22 => cmd!["PFADD", x.k("hll"), v],
        _ => cmd!["EXPIRE", x.k("hsh"), 3],
    }]
}

fn collections(kind: u32, x: &Names, rng: &mut Rng) -> Vec<Cmd> {
    let (v, n) = (&x.v, x.n);
    vec![match kind {
        24 => cmd!["LPUSH", x.k("lst"), v],
        25 => cmd!["RPUSH", x.k("lst"), v, format!("{v}b")],
        26 => cmd!["LPOP", x.k("lst")],
        27 => cmd!["RPOP", x.k("lst")],
        28 => cmd!["LTRIM", x.k("lst"), 0, 50],
        29 => cmd!["LINSERT", x.k("txl"), "BEFORE", "mark", v],
        30 => cmd!["LSET", x.k("lst"), 0, v],
        31 => cmd!["LREM", x.k("lst"), 1, v],
        32 => cmd!["HINCRBY", x.k("hsh"), format!("f{}", n % 5), 1],
        33 => cmd!["HSET", x.k("hsh"), format!("s{}", n % 9), v, "t", n],
        34 => cmd!["HSETNX", x.k("hsh"), format!("s{}", rng.u8(0..20)), v],
        35 => cmd!["HDEL", x.k("hsh"), format!("s{}", rng.u8(0..9)), "t"],
        36 => cmd!["HINCRBYFLOAT", x.k("hsh"), "fl", "1.25"],
        37 => cmd!["ZINCRBY", x.k("zst"), 1, format!("m{}", n % 9)],
        38 => cmd!["ZADD", x.k("zst"), rng.u32(0..99), v[..3]],
        39 => cmd!["ZADD", x.k("zst"), "GT", "CH", rng.u32(0..99), v[..3]],
        40 => cmd!["ZREM", x.k("zst"), v[..3]],
        41 => cmd!["ZPOPMIN", x.k("zst")],
        42 => cmd!["ZREMRANGEBYRANK", x.k("zst"), 30, -1],
        43 => cmd!["SADD", x.k("set"), v, v[..3]],
        44 => cmd!["SPOP", x.k("set")],
        45 => cmd!["SREM", x.k("set"), v[..3]],
        46 => cmd!["XADD", x.k("stm"), "MAXLEN", "~", 100, "*", "a", v],
        _ => cmd!["GEOADD", x.k("geo"), f64::from(n) * 0.5, 38.1, v[..3]],
    }]
}

fn several_keys(kind: u32, x: &Names, rng: &mut Rng) -> Vec<Cmd> {
    let v = &x.v;
    let script = "redis.call('INCR',KEYS[1]); redis.call('RPUSH',KEYS[2],redis.call('GET',KEYS[1])); return 1";
    let group = ["g1", "g2"][rng.usize(0..2)];
    vec![match kind {
        48 => cmd!["RENAME", x.k("str"), x.o("ren")],
        49 => cmd!["RENAMENX", x.k("snx"), x.o("ren")],
        50 => cmd!["SUNIONSTORE", x.o("uni"), x.k("set"), x.o("set")],
        51 => cmd!["SDIFFSTORE", x.o("uni"), x.k("set"), x.o("set")],
        52 => cmd!["SINTERSTORE", x.o("uni"), x.k("set"), x.o("set")],
        53 => cmd!["RPOPLPUSH", x.k("lst"), x.o("lst")],
        // Never waits: what it pops is there.
        54 => {
            let pop = cmd!["BRPOPLPUSH", x.k("lst"), x.o("lst"), 1];
            return vec![cmd!["RPUSH", x.k("lst"), v], pop];
        }
        55 => cmd!["SMOVE", x.k("set"), x.o("set"), v[..3]],
        56 => cmd!["ZUNIONSTORE", x.o("zun"), 2, x.k("zst"), x.o("zst")],
        57 => cmd!["ZINTERSTORE", x.o("zun"), 2, x.k("zst"), x.o("zst"), "WEIGHTS", 2, 3],
        58 => cmd!["BITOP", "OR", x.o("bop"), x.k("bit"), x.o("bit")],
        59 => cmd!["PFMERGE", x.o("hll"), x.k("hll")],
        60 => cmd!["SORT", x.k("set"), "ALPHA", "STORE", x.o("srt")],
        61 => cmd!["MSET", x.k("msa"), v, x.o("msb"), v],
        62 => cmd!["MSETNX", x.k("msa"), v, x.o("msn"), v],
        63 => cmd!["DEL", x.k("msa"), x.o("msb"), x.k("uni"), x.o("msn")],
        64 => cmd!["GEORADIUS", x.k("geo"), 10, 38, 900, "km", "STORE", x.o("geo")],
        65 => cmd!["EVAL", script, 2, x.k("cnt"), x.k("scr")],
        66 => {
            return transaction(&[
                cmd!["INCR", x.k("cnt")],
                cmd!["RPUSH", x.k("txl"), v, "mark"],
                cmd!["HINCRBY", x.k("hsh"), "tx", 1],
            ]);
        }
        67 => {
            return transaction(&[cmd!["SET", x.k("str"), v], cmd!["DEL", x.k("lst")], cmd!["INCR", x.o("cnt")]]);
        }
        68 => cmd!["XGROUP", "CREATE", x.k("stm"), group, "0", "MKSTREAM"],
        69 => cmd!["XREADGROUP", "GROUP", group, "c1", "COUNT", 3, "STREAMS", x.k("stm"), ">"],
        70 => cmd!["XREADGROUP", "GROUP", group, "c2", "NOACK", "STREAMS", x.k("stm"), ">"],
        71 => cmd!["XTRIM", x.k("stm"), "MAXLEN", 40],
        _ => cmd!["LPUSH", x.k("lst"), v],
    }]
}

fn newer(kind: u32, x: &Names, rng: &mut Rng) -> Vec<Cmd> {
    let (v, field) = (&x.v, format!("s{}", x.n % 9));
    vec![match kind - KINDS {
        0 | 1 => cmd!["COPY", x.k("str"), x.o("cpy"), "REPLACE"],
        2 => cmd!["LMOVE", x.k("lst"), x.o("lst"), "LEFT", "RIGHT"],
        3 => cmd!["GETEX", x.k("str"), "PX", rng.u32(500..3000)],
        4 => cmd!["GETDEL", x.k("str")],
        5 => cmd!["XAUTOCLAIM", x.k("stm"), "g1", "c2", 0, "0-0", "COUNT", 2],
        6 => cmd!["LMPOP", 2, x.k("lst"), x.o("lst"), "LEFT", "COUNT", 2],
        7 => cmd!["ZMPOP", 2, x.k("zst"), x.o("zst"), "MIN"],
        8 => cmd!["PEXPIRE", x.k("cnt"), 5000, "NX"],
        9 => cmd!["HPEXPIRE", x.k("hsh"), rng.u32(300..4000), "FIELDS", 1, field],
        10 => cmd!["HPERSIST", x.k("hsh"), "FIELDS", 1, field],
        11 => cmd!["HEXPIRE", x.k("hsh"), 1000, "FIELDS", 2, field, "t"],
        _ => cmd!["HSET", x.k("hsh"), field, v],
    }]
}

fn transaction(inner: &[Cmd]) -> Vec<Cmd> {
    let mut all = vec![cmd!["MULTI"]];
    all.extend_from_slice(inner);
    all.push(cmd!["EXEC"]);
    all
}

fn across_databases(rng: &mut Rng, mix: &Mix) -> Vec<Cmd> {
    let names = Names::pick(rng, mix);
    let db = |rng: &mut Rng| mix.databases[rng.usize(0..mix.databases.len())];
    let (one, two) = (db(rng), db(rng));
    vec![match rng.u32(0..40) {
        0 => cmd!["FLUSHDB"],
        1..4 => cmd!["SWAPDB", one, two],
        4..22 if mix.version >= (6, 2) => {
            cmd!["COPY", names.k("str"), names.k("cpy"), "DB", one, "REPLACE"]
        }
        _ => cmd!["MOVE", names.k("lst"), two],
    }]
}

/// Replies that a random load brings about by itself.
pub const EXPECTED_ERRORS: &[&str] = &[
    "ERR no such key",
    "ERR index out of range",
    "ERR source and destination objects are the same",
    "ERR source and destination DB are the same",
    "WRONGTYPE",
    "BUSYGROUP",
    "NOGROUP",
    "WRONGPASS",
    "ERR resulting",
    "ERR value is not",
    "ERR The ID specified",
    "ERR DB index",
];

/// Writes random commands to a server until it is stopped; says its seed.
pub struct Workload {
    halt: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<BTreeMap<String, u64>>>,
    popper: Option<JoinHandle<()>>,
}

impl Workload {
    /// `rate` in commands a second.
    pub fn start(server: &Server, seed: u64, rate: u64, mix: Mix) -> Workload {
        println!("load on {}: seed {seed}, {rate}/s, databases {:?}", server.name, mix.databases);
        let halt = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let popper = start_popper(server.client(), mix.databases[0], Arc::clone(&halt));
        let client = server.client();
        let (stop, count) = (Arc::clone(&halt), Arc::clone(&sent));
        let thread = std::thread::spawn(move || write_until(client, seed, rate, &mix, &stop, &count));
        Workload { halt, sent, thread: Some(thread), popper: Some(popper) }
    }

    /// How many commands were sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until `n` more commands have been sent.
    pub fn until_sent(&self, n: u64, limit: Duration) {
        let goal = self.sent() + n;
        until(limit, &format!("{n} more writes of the load"), || {
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!ended, "the load's thread ended by itself");
            self.sent() >= goal
        });
    }

    /// Ends the load; returns how many commands it sent. Fails if the source refused some for a reason of its own.
    pub fn stop(mut self) -> u64 {
        self.halt.store(true, Ordering::Relaxed);
        if let Some(popper) = self.popper.take() {
            popper.join().expect("the blocked reader ends");
        }
        let errors = self.thread.take().map(|t| t.join().expect("the load ends"));
        let errors = errors.unwrap_or_default();
        assert!(errors.is_empty(), "the load itself is wrong: {errors:?}");
        self.sent()
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.halt.store(true, Ordering::Relaxed);
    }
}

fn write_until(
    mut client: Client,
    seed: u64,
    rate: u64,
    mix: &Mix,
    halt: &AtomicBool,
    sent: &AtomicU64,
) -> BTreeMap<String, u64> {
    let mut rng = Rng::with_seed(seed);
    let mut errors = BTreeMap::new();
    let started = Instant::now();
    while !halt.load(Ordering::Relaxed) {
        let db = mix.databases[rng.usize(0..mix.databases.len())];
        let mut batch = vec![cmd!["SELECT", db]];
        for _ in 0..50 {
            batch.extend(random_command(&mut rng, mix));
        }
        // What the blocked reader of `start_popper` gets: the stream shows it as a pop.
        batch.push(cmd!["RPUSH", format!("{}blk", mix.prefixes[0]), "job", "rest"]);
        let Ok(replies) = client.try_pipe(&batch) else {
            *errors.entry("connection lost".to_string()).or_default() += 1;
            break;
        };
        for (command, reply) in batch.iter().zip(replies) {
            if let crate::client::Reply::Error(words) = reply
                && !EXPECTED_ERRORS.iter().any(|e| words.starts_with(e))
            {
                let name = String::from_utf8_lossy(&command[0]).into_owned();
                *errors.entry(format!("{name}: {words}")).or_default() += 1;
            }
        }
        let count = sent.fetch_add(batch.len() as u64, Ordering::Relaxed) + batch.len() as u64;
        let due = Duration::from_secs_f64(count as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
    }
    errors
}

/// A client that waits in BLPOP, so that the stream holds pops that nobody sent.
fn start_popper(mut client: Client, db: u32, halt: Arc<AtomicBool>) -> JoinHandle<()> {
    client.select(db);
    std::thread::spawn(move || {
        while !halt.load(Ordering::Relaxed) {
            if client.ask(&cmd!["BLPOP", "blk", "user:blk", 1]).is_err() {
                break;
            }
        }
    })
}
