//! Real servers, and the values that they are told to make.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use keyferry::rdb::{Project, Version, verify};
use redis::Value as Reply;

const START_MAX: Duration = Duration::from_secs(15);

pub struct Server {
    pub name: String,
    child: Child,
    connection: redis::Connection,
    pub dir: tempfile::TempDir,
    pub project: Project,
    pub version: Version,
    pub footer: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn servers_dir() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/keyferry/servers");
    std::env::var_os("KEYFERRY_SERVERS").map_or_else(home, PathBuf::from)
}

/// The names of all servers that are there, without those with modules.
pub fn names() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(servers_dir()) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with("stack") && !name.starts_with('.')).collect();
    names.sort();
    names
}

fn free_port() -> u16 {
    (20_000..21_000).rev().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

pub fn start(name: &str) -> Option<Server> {
    let binary = servers_dir().join(name).join("bin/redis-server");
    if !binary.exists() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let child = Command::new(binary)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let client = redis::Client::open(("127.0.0.1", port)).unwrap();
    let began = Instant::now();
    let mut connection = loop {
        match client.get_connection() {
            Ok(connection) => break connection,
            Err(error) if began.elapsed() > START_MAX => panic!("{name} does not start: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let info: String = redis::cmd("INFO").arg("server").query(&mut connection).unwrap();
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let (project, version) = match field("valkey_version") {
        Some(version) => (Project::Valkey, version),
        None => (Project::Redis, field("redis_version").unwrap()),
    };
    let numbers: Vec<u16> = version.split('.').map(|n| n.parse().unwrap_or(0)).collect();
    let version = (numbers[0], numbers[1], numbers[2]);
    let _: Reply = redis::cmd("SET").arg("scratch").arg("x").query(&mut connection).unwrap();
    let scratch: Vec<u8> = redis::cmd("DUMP").arg("scratch").query(&mut connection).unwrap();
    let footer = verify(&scratch, false).unwrap().footer_version;
    let _: Reply = redis::cmd("FLUSHALL").query(&mut connection).unwrap();
    Some(Server { name: name.into(), child, connection, dir, project, version, footer })
}

impl Server {
    pub fn call(&mut self, args: &[&[u8]]) -> Result<Reply, String> {
        let mut cmd = redis::Cmd::new();
        args.iter().for_each(|arg| _ = cmd.arg(*arg));
        cmd.query::<Reply>(&mut self.connection).map_err(|error| error.to_string())
    }

    pub fn line(&mut self, line: &str) -> Result<Reply, String> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.call(&args)
    }

    pub fn dump(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.call(&[b"DUMP", key]).unwrap() {
            Reply::BulkString(payload) => Some(payload),
            _ => None,
        }
    }

    pub fn keys(&mut self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut self.connection).unwrap();
        keys.sort();
        keys
    }
}

/// One command each; what a server doesn't know it refuses.
const LINES: &[&str] = &[
    "SET s hello",
    "SET due v",
    "PEXPIREAT due 33177117420123",
    "RPUSH due-list a b",
    "PEXPIREAT due-list 33177117420999",
    "SET i 1000",
    "SET i8 -5",
    "SET i32 -100000",
    "PFADD hll a b c",
    "RPUSH l a 1 -300 12 13 70000 10000000 12345678901 x",
    "RPUSH l1 one",
    "SADD ints 1 2 70000",
    "SADD ints16 1 2 3",
    "SADD ints64 1 12345678901",
    "SADD words a bc 7",
    "ZADD z 1 a 2.5 b 1e-300 c 5e-324 d inf e -inf f -0.0 g 0.1 h 1e17 i 3 j 1.7976931348623157e308 k",
    "HMSET h f v n 12 neg -7",
    "HMSET ht a 1 b 2 c 3",
    "HPEXPIREAT ht 33177117420000 FIELDS 1 a",
    "HPEXPIREAT ht 33177117420500 FIELDS 1 b",
    "XADD x 1-1 f v",
    "XADD x 1-2 f w",
    "XADD x 2-0 g 1 h x",
    "XDEL x 1-2",
    "XADD xg 1-1 f v",
    "XADD xg 1-2 f w",
    "XADD xg 5-0 f x",
    "XADD xg 6-0 f y",
    "XGROUP CREATE xg g 0",
    "XREADGROUP GROUP g c1 COUNT 2 STREAMS xg >",
    "XREADGROUP GROUP g c2 COUNT 1 STREAMS xg >",
    "XGROUP CREATECONSUMER xg g idle",
    "XGROUP CREATE xg other 1-2",
    "XDEL xg 1-1",
    "XDEL xg 6-0",
    "XADD xe 3-3 a b",
    "XDEL xe 3-3",
    "XGROUP CREATE xz g 0 MKSTREAM",
    "XREADGROUP GROUP g c STREAMS xz >",
    "XADD xt 1-0 a b",
    "XADD xt 2-0 a b",
    "XADD xt 3-0 a b",
    "XGROUP CREATE xt g 0",
    "XREADGROUP GROUP g c STREAMS xt >",
    "XTRIM xt MAXLEN 1",
    "XADD xr 1-1 a b",
    "XGROUP CREATE xr g 0 ENTRIESREAD 99",
    "XADD xn 1-1 f v",
    "XADD xn 2-1 f v",
    "XGROUP CREATE xn g 0",
    "XREADGROUP GROUP g c STREAMS xn >",
    "XNACK xn g FAIL IDS 1 2-1 RETRYCOUNT 5",
    "XADD xi IDMP p1 i1 * a 1",
    "XADD xi IDMP p1 i2 * a 2",
    "XADD xi IDMP p2 i1 * a 3",
    "XADD xd IDMP p1 i1 9-9 a 1",
    "ARSET a 3 x 5 2.5 0.1",
    "ARSET a 100000 y",
    "ARINSERT a z",
    "ARSET a2 18446744073709551000 q",
    "HIMPORT PREPARE p id n",
    "HIMPORT SET tmpl p 7 bob",
    "HIMPORT SET tmpl2 p 8 elisabeth-the-second-who-was-a-queen-of-a-united-kingdom-for-seventy-years",
    "VADD vec VALUES 3 1 2 3 el",
    "XADD xim IDMP p1 i1 * a 1",
    "XTRIM xim MAXLEN 0",
    "XADD xnd 1-1 f v",
    "XADD xnd 2-1 f v",
    "XGROUP CREATE xnd g 0",
    "XREADGROUP GROUP g c STREAMS xnd >",
    "XNACK xnd FAIL IDS 1 1-1",
    "XNACK xnd g FAIL IDS 1 1-1 RETRYCOUNT 2",
    "XDEL xnd 1-1",
];

/// How large the large values are.
pub struct Size {
    pub elements: u32,
    /// Elements are filled up by fewer bytes than this.
    pub pad_max: usize,
    /// Of a string that can't be packed.
    pub odd_bytes: usize,
}

/// Makes every kind of value that the server knows.
pub fn populate(server: &mut Server, size: &Size) {
    for line in LINES {
        let _ = server.line(line);
    }
    let long = vec![b'z'; 20_000];
    let odd: Vec<u8> = (0..=255).cycle().take(size.odd_bytes).collect();
    for args in [
        &[&b"SET"[..], b"lzf", &long][..],
        &[b"SET", b"", b""],
        &[b"SET", b"\xac\xed\x00\x05t\r\n {}", &odd],
        &[b"RPUSH", b"llong", &long, b"a", &odd, b"b", &long],
    ] {
        server.call(args).unwrap();
    }
    for i in 0..size.elements {
        let text = format!("member:{i}:{}", "y".repeat(i as usize % size.pad_max));
        let number = format!("{}", f64::from(i) / 7.0);
        let id = format!("{}-{}", 100 + i / 3, i % 3 + 1);
        server.call(&[b"RPUSH", b"lbig", text.as_bytes()]).unwrap();
        server.call(&[b"SADD", b"sbig", text.as_bytes()]).unwrap();
        server.call(&[b"ZADD", b"zbig", number.as_bytes(), text.as_bytes()]).unwrap();
        server.call(&[b"HSET", b"hbig", text.as_bytes(), number.as_bytes()]).unwrap();
        let _ = server.call(&[b"XADD", b"xbig", id.as_bytes(), b"same", text.as_bytes(), b"n", number.as_bytes()]);
    }
    let _ = server.line("HPEXPIREAT hbig 33177117420000 FIELDS 1 member:0:");
}
