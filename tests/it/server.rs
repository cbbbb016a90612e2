//! A real server of a named version on a free loopback port, killed when it goes out of scope.

use crate::client::Client;
use crate::wait::{HALF_MINUTE, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often another port is tried when someone else took the one that was free a moment ago.
const PORT_TRIES_MAX: usize = 20;

/// Settings that make a source start its transfer at once.
pub const FAST: &[&str] = &["repl-diskless-sync yes", "repl-diskless-sync-delay 0"];

/// A running server. Its folder, port and settings stay the same over [`Server::restart`].
pub struct Server {
    pub name: String,
    pub port: u16,
    /// The second port, for config lines that say `{port2}` (TLS).
    pub port2: u16,
    dir: tempfile::TempDir,
    config: Vec<String>,
    child: Child,
    password: Option<String>,
}

impl Server {
    /// A server of version `name` (a folder of `tests/servers.sh`, such as `redis-7.0`) that starts transfers at once.
    pub fn start(name: &str) -> Server {
        Server::with(name, FAST)
    }

    /// The same with config lines of its own; `{port2}` and `{dir}` in them are filled in. One with a line that begins
    /// with `sentinel` is a sentinel.
    pub fn with(name: &str, config: &[&str]) -> Server {
        let config: Vec<String> = config.iter().map(|line| line.to_string()).collect();
        let mut dir = tempfile::Builder::new().prefix("keyferry-it-").tempdir().expect("a temporary folder");
        let password = config
            .iter()
            .find_map(|line| line.strip_prefix("requirepass "))
            .map(|word| word.trim_matches('"').to_string());
        for _ in 0..PORT_TRIES_MAX {
            let (port, port2) = (free_port(), free_port());
            let child = spawn(name, port, port2, dir.path(), &config);
            let mut server = Server {
                name: name.to_string(),
                port,
                port2,
                dir,
                config: config.clone(),
                child,
                password: password.clone(),
            };
            match server.wait_ready() {
                Ok(()) => return server,
                Err(words) if words.contains("already in use") => {
                    let _ = server.child.kill();
                    let _ = server.child.wait();
                    dir = std::mem::replace(&mut server.dir, tempfile::tempdir().expect("a temporary folder"));
                }
                Err(words) => panic!("{name} on port {port} did not start: {words}"),
            }
        }
        panic!("no free port for {name} in {PORT_TRIES_MAX} tries");
    }

    pub fn url(&self) -> String {
        match &self.password {
            Some(word) => format!("redis://:{word}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// A new connection, as the default user. Waits while the server loads a snapshot. One that is ended before it has
    /// said anything is made again: a failover ends those of all clients.
    pub fn client(&self) -> Client {
        let started = Instant::now();
        loop {
            match Client::connect(self.port, None, self.password.as_deref()) {
                Ok(client) => return client,
                Err(e) if passes(&e) && started.elapsed() < HALF_MINUTE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e) => panic!("{} on port {}: {e}", self.name, self.port),
            }
        }
    }

    /// Major and minor version, of Redis or Valkey alike, from the name.
    pub fn version(&self) -> (u32, u32) {
        let numbers = self.name.rsplit('-').next().unwrap_or_default();
        let mut parts = numbers.split('.').map(|n| n.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    pub fn is_valkey(&self) -> bool {
        self.name.starts_with("valkey")
    }

    /// Whether expiries of single hash fields are known here.
    pub fn has_field_expiry(&self) -> bool {
        let least = if self.is_valkey() { (9, 0) } else { (7, 4) };
        self.version() >= least
    }

    /// Whether it was started with this config line.
    #[allow(dead_code, reason = "the benchmark has no clusters")]
    pub fn has_line(&self, line: &str) -> bool {
        self.config.iter().any(|known| known == line)
    }

    #[allow(dead_code, reason = "the benchmark asks")]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What the server wrote to its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// SIGSTOP: the server's connections stay open, and nothing is answered.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT: the server goes on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts again after [`Server::kill`], on the same port and folder (whatever was saved there is loaded).
    pub fn restart(&mut self) {
        self.kill();
        let started = Instant::now();
        loop {
            self.child = spawn(&self.name, self.port, self.port2, self.dir.path(), &self.config);
            match self.wait_ready() {
                Ok(()) => return,
                Err(words) if words.contains("already in use") => self.kill(),
                Err(words) => panic!("{} did not start again: {words}", self.name),
            }
            assert!(started.elapsed() < HALF_MINUTE, "port {} stays taken", self.port);
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process id");
        let _ = kill_process(pid, signal);
    }

    /// Waits until this very process (not another on the same port) answers.
    fn wait_ready(&mut self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                let log = self.log();
                let from = log.len().saturating_sub(600);
                return Err(format!("{status}: {}", log.get(from..).unwrap_or_default()));
            }
            if let Ok(mut client) = Client::connect(self.port, None, self.password.as_deref()) {
                let info = client.info("server");
                if info.get("process_id") == Some(&self.child.id().to_string()) {
                    return Ok(());
                }
            }
            if started.elapsed() > HALF_MINUTE {
                return Err("no answer in 30 s".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.resume();
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(5).collect();
            for line in tail.iter().rev() {
                eprintln!("{}:{}: {line}", self.name, self.port);
            }
        }
    }
}

/// Pauses a server for as long as this lives.
pub struct Paused<'a>(&'a Server);

impl<'a> Paused<'a> {
    pub fn new(server: &'a Server) -> Paused<'a> {
        server.pause();
        Paused(server)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// Makes `replica` a native replica of `source` and waits for the link: what keyferry is measured against.
pub fn replicate_natively(source: &Server, replica: &Server) {
    replica.client().call(&cmd!["REPLICAOF", "127.0.0.1", source.port]);
    until(HALF_MINUTE, "native replication", || {
        let info = replica.client().info("replication");
        info.get("master_link_status").map(String::as_str) == Some("up")
    });
}

/// Whether a new connection is worth another try: the server is there.
fn passes(words: &str) -> bool {
    ["LOADING", "reset by peer", "Broken pipe", "end of file"].iter().any(|part| words.contains(part))
}

/// A port that was free just now, below those that the kernel hands out by itself.
pub fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(12_000..29_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The program `prog` (`redis-server`, `redis-cli`) of the server version `name`.
pub fn binary(name: &str, prog: &str) -> PathBuf {
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
    let root = std::env::var("KEYFERRY_SERVERS").unwrap_or_else(|_| format!("{home}/.cache/keyferry/servers"));
    let path = Path::new(&root).join(name).join("bin").join(prog);
    assert!(path.exists(), "no server {name} under {root}: run tests/servers.sh {name}");
    path
}

fn spawn(name: &str, port: u16, port2: u16, dir: &Path, config: &[String]) -> Child {
    let mut text =
        format!("port {port}\nbind 127.0.0.1\ndir {}\nsave \"\"\nappendonly no\ndaemonize no\n", dir.display());
    for line in config {
        let line = line.replace("{port2}", &port2.to_string()).replace("{dir}", &dir.display().to_string());
        text += &line;
        text.push('\n');
    }
    let path = dir.join("server.conf");
    std::fs::write(&path, text).expect("the server's config is written");
    let log = File::options().create(true).append(true).open(dir.join("log")).expect("the server's log opens");
    let is_sentinel = config.iter().any(|line| line.starts_with("sentinel "));
    Command::new(binary(name, "redis-server"))
        .arg(&path)
        .args(is_sentinel.then_some("--sentinel"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle of the log"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|e| panic!("{name} does not start: {e}"))
}
