//! Servers that sentinels watch: found, followed over failovers of either side, and told apart from other mistakes.

use crate::client::{Client, Reply, Subscriber};
use crate::compare::{Rules, must_be_same, until_same};
use crate::load::{Mix, load_types, random_command};
use crate::server::{FAST, Server, free_port, replicate_natively};
use crate::tls::Certificates;
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, MINUTE, until};
use fastrand::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The name that the sentinels here know their primary by.
const NAME: &str = "main";

/// What the sentinels' own login is.
const SENTINEL_WORD: &str = "sentinels-own";

/// A primary and its replica, watched by one sentinel.
struct Watched {
    nodes: [Server; 2],
    sentinel: Server,
}

impl Watched {
    fn start(version: &str) -> Watched {
        Watched::filled(version, |_| ())
    }

    /// The same with what the replica gets with its snapshot: a native replica of streams has other hints than its primary.
    fn filled(version: &str, fill: impl FnOnce(&Server)) -> Watched {
        let nodes = [Server::start(version), Server::start(version)];
        let sentinel = watch(&nodes[0], nodes[0].port, &[]);
        fill(&nodes[0]);
        replicate_natively(&nodes[0], &nodes[1]);
        until(HALF_MINUTE, "the sentinel to know the replica", || {
            let primary = sentinel.client().call(&cmd!["SENTINEL", "MASTER", NAME]);
            primary.field("num-slaves").is_some_and(|n| n.text() == "1")
        });
        Watched { nodes, sentinel }
    }

    fn url(&self) -> String {
        sentinel_url(&self.sentinel)
    }

    /// Which of the nodes the sentinel names.
    fn place(&self) -> usize {
        let named = self.sentinel.client().call(&cmd!["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
        let port = named.list()[1].text();
        usize::from(self.nodes[1].port.to_string() == port)
    }

    fn primary(&self) -> &Server {
        &self.nodes[self.place()]
    }

    /// Waits until the sentinel names another node than `old`, which says that it is a primary.
    fn until_switched(&self, old: usize) {
        until(MINUTE, "the sentinel's failover", || {
            let now = self.place();
            now != old && role(&self.nodes[now]) == "master"
        });
    }
}

/// A server's role, empty while it has none to tell: one that is demoted cuts its clients.
fn role(server: &Server) -> String {
    let client = Client::connect(server.port, None, None);
    client.ok().and_then(|mut client| client.info("replication").remove("role")).unwrap_or_default()
}

/// A sentinel of the server at `port`.
fn watch(server: &Server, port: u16, more: &[&str]) -> Server {
    let monitor = format!("sentinel monitor {NAME} 127.0.0.1 {port} 1");
    let down = format!("sentinel down-after-milliseconds {NAME} 1000");
    let limit = format!("sentinel failover-timeout {NAME} 4000");
    Server::with(&server.name, &[&[&*monitor, &down, &limit], more].concat())
}

fn sentinel_url(sentinel: &Server) -> String {
    format!("redis-sentinel://127.0.0.1:{}/{NAME}", sentinel.port)
}

/// Random writes to whatever node the sentinel names: a batch that a failover cuts off may be there or not.
struct Load {
    halt: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(watched: &Watched, seed: u64) -> Load {
        println!("load on the primary of {}: seed {seed}", watched.url());
        let (halt, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (mix, sentinel) = (Mix::of(&watched.nodes[0]), watched.sentinel.port);
        let (stop, count) = (Arc::clone(&halt), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let mut rng = Rng::with_seed(seed);
            while !stop.load(Ordering::Relaxed) {
                if let Ok(mut client) = connect_to_named(sentinel) {
                    write(&mut client, &mut rng, &mix, &stop, &count);
                }
            }
        });
        Load { halt, sent, thread: Some(thread) }
    }

    fn until_sent(&self, n: u64) {
        let goal = self.sent.load(Ordering::Relaxed) + n;
        until(MINUTE, "more writes of the load", || self.sent.load(Ordering::Relaxed) >= goal);
    }

    fn stop(mut self) {
        self.halt.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the load ends");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.halt.store(true, Ordering::Relaxed);
    }
}

fn connect_to_named(sentinel: u16) -> Result<Client, String> {
    let named = Client::connect(sentinel, None, None)?.ask(&cmd!["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])?;
    let port = named.list()[1].text().parse().map_err(|_| "no port")?;
    Client::connect(port, None, None)
}

/// Writes until the connection breaks, the server is no primary any more, or the load is over.
fn write(client: &mut Client, rng: &mut Rng, mix: &Mix, halt: &AtomicBool, sent: &AtomicU64) {
    while !halt.load(Ordering::Relaxed) {
        let mut batch = vec![cmd!["INCR", "count"]];
        for _ in 0..20 {
            batch.extend(random_command(rng, mix));
        }
        let Ok(replies) = client.try_pipe(&batch) else { return };
        if replies.iter().any(|reply| matches!(reply, Reply::Error(words) if words.starts_with("READONLY"))) {
            return;
        }
        sent.fetch_add(batch.len() as u64, Ordering::Relaxed);
    }
}

#[test]
fn failovers_of_both_sides_under_load_end_equal() {
    let (a, mut b) = (Watched::start("redis-7.0"), Watched::start("redis-8.0"));
    load_types(a.primary(), &mut a.primary().client(), 3, "");
    let load = Load::start(&a, fastrand::u64(..));
    let mut tool = Tool::run(&["sync", &a.url(), &b.url(), "--job", "j"]);
    until(HALF_MINUTE, "the copy", || is_following(&mut b.primary().client(), "j"));
    load.until_sent(3000);

    let old = a.place();
    a.sentinel.client().call(&cmd!["SENTINEL", "FAILOVER", NAME]);
    a.until_switched(old);
    until(MINUTE, "the old primary's demotion", || role(&a.nodes[old]) == "slave");
    load.until_sent(3000);
    tool.must_live();

    let old = b.place();
    b.nodes[old].kill();
    b.until_switched(old);
    load.until_sent(3000);
    load.stop();
    until_same(a.primary(), b.primary(), MINUTE, "after both failovers", &Rules::following(a.primary()));
    tool.stop();
}

#[test]
fn source_primary_killed_is_followed_to_the_promoted_one() {
    let mut a = Watched::filled("redis-8.6", |primary| load_types(primary, &mut primary.client(), 4, ""));
    let b = Server::start("redis-8.6");
    let mut tool = Tool::run(&["sync", &a.url(), &b.url(), "--job", "j", "--progress", "log"]);
    until(HALF_MINUTE, "the copy", || is_following(&mut b.client(), "j"));
    let old = a.place();
    a.primary().client().call(&cmd!["SET", "last", "before"]);
    until(HALF_MINUTE, "the replica to have it", || {
        a.nodes[1 - old].client().get("last") == Reply::Bytes(b"before".to_vec())
    });
    a.nodes[old].kill();
    tool.until_text("the source main has no primary that can be found", MINUTE);
    a.until_switched(old);
    a.primary().client().call(&cmd!["SET", "first", "behind"]);
    until_same(a.primary(), &b, MINUTE, "from the promoted primary", &Rules::following(a.primary()));
    let text = tool.text();
    assert!(text.contains("partial resync") && !text.contains("a new full sync"), "{text}");
    let port = a.primary().port.to_string();
    assert!(text.contains("the primary is another server now") && text.contains(&port), "{text}");
    tool.stop();
}

#[test]
fn keyferry_killed_while_either_side_fails_over_ends_equal() {
    let (a, b) = (Watched::start("redis-7.0"), Watched::start("valkey-8.1"));
    let load = Load::start(&a, fastrand::u64(..));
    let (from, to) = (a.url(), b.url());
    let args = ["sync", &from, &to, "--job", "j"];
    let mut tool = Tool::run(&args);
    until(HALF_MINUTE, "the copy", || is_following(&mut b.primary().client(), "j"));
    for (side, moment) in [(&a, 100), (&b, 400), (&a, 1500), (&b, 1)] {
        let old = side.place();
        load.until_sent(1000);
        side.sentinel.client().call(&cmd!["SENTINEL", "FAILOVER", NAME]);
        load.until_sent(moment);
        tool.must_live();
        tool.kill();
        tool = Tool::run(&args);
        side.until_switched(old);
        until(MINUTE, "the old primary's demotion", || role(&side.nodes[old]) == "slave");
        // Another failover is refused until the sentinel is done with this one.
        until(MINUTE, "the end of the failover", || {
            let primary = side.sentinel.client().call(&cmd!["SENTINEL", "MASTER", NAME]);
            primary.field("flags").is_some_and(|flags| flags.text() == "master")
        });
    }
    load.until_sent(1000);
    load.stop();
    until_same(a.primary(), b.primary(), MINUTE, "after all", &Rules::following(a.primary()));
    tool.stop();
    Tool::run(&["finish", &from, &to, "--job", "j"]).must_end(MINUTE, 0);
    let exact = Rules { group_hints: false, ..Rules::default() };
    until_same(a.primary(), b.primary(), HALF_MINUTE, "finished", &exact);
}

#[test]
fn failovers_while_keyferry_is_down_need_no_second_copy() {
    let (a, b) = (Watched::start("redis-8.0"), Watched::start("redis-7.0"));
    a.primary().client().call(&cmd!["SET", "first", 1]);
    let (from, to) = (a.url(), b.url());
    let args = ["sync", &from, &to, "--job", "j"];
    let mut tool = Tool::run(&args);
    until(HALF_MINUTE, "the copy", || is_following(&mut b.primary().client(), "j"));
    tool.stop();
    a.primary().client().call(&cmd!["SET", "second", 2]);
    until(HALF_MINUTE, "the replica to have it", || {
        a.nodes.iter().all(|node| node.client().get("second") != Reply::Nil)
    });
    for side in [&a, &b] {
        let old = side.place();
        side.sentinel.client().call(&cmd!["SENTINEL", "FAILOVER", NAME]);
        side.until_switched(old);
    }
    a.primary().client().call(&cmd!["SET", "third", 3]);
    let mut tool = Tool::run(&args);
    until_same(a.primary(), b.primary(), MINUTE, "resumed", &Rules::following(a.primary()));
    let text = tool.text();
    assert!(text.contains("resumed") && !text.contains("full sync"), "{text}");
    tool.stop();
}

#[test]
fn a_side_that_gets_no_new_primary_ends_resumable() {
    for target in [false, true] {
        let (mut a, mut b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
        let (x, y) = (watch(&a, a.port, &[]), watch(&b, b.port, &[]));
        let args = ["sync", &sentinel_url(&x), &sentinel_url(&y), "--job", "j", "--retry-for", "2s"];
        let mut tool = Tool::run(&[&args[..], &["--progress", "log"]].concat());
        until(HALF_MINUTE, "the copy", || is_following(&mut b.client(), "j"));
        if target {
            b.kill()
        } else {
            a.kill()
        }
        let side = if target { "target" } else { "source" };
        tool.until_text(&format!("the {side} main has no primary that can be found"), HALF_MINUTE);
        tool.must_end(HALF_MINUTE, 5);
    }
}

#[test]
fn hello_messages_of_the_sources_sentinel_stay_there() {
    let (a, b) = (Watched::start("redis-7.0"), Server::start("redis-7.0"));
    let channel = "__sentinel__:hello";
    let mut tool = Tool::run(&["sync", &a.url(), &b.url(), "--job", "j"]);
    until(HALF_MINUTE, "the copy", || is_following(&mut b.client(), "j"));
    let mut there = Subscriber::new(b.client(), channel);
    let mut here = Subscriber::new(a.primary().client(), channel);
    for _ in 0..2 {
        let hello = here.next();
        assert!(hello.contains(&a.sentinel.port.to_string()), "{hello}");
    }
    let mut news = Subscriber::new(b.client(), "news");
    a.primary().client().call(&cmd!["PUBLISH", "news", "passed on"]);
    a.primary().client().call(&cmd!["SET", "behind", "the hellos"]);
    until(HALF_MINUTE, "what was written behind them", || b.client().get("behind") != Reply::Nil);
    assert_eq!(news.next(), "passed on");
    b.client().call(&cmd!["PUBLISH", channel, "the first"]);
    assert_eq!(there.next(), "the first");
    tool.stop();
}

#[test]
fn sentinels_with_a_login_of_their_own_are_asked_with_it() {
    let name = "redis-7.0";
    let a = Server::with(name, &[FAST, &["requirepass servers"]].concat());
    let b = Server::start(name);
    load_types(&a, &mut a.client(), 5, "");
    let auth = format!("sentinel auth-pass {NAME} servers");
    let require = format!("requirepass {SENTINEL_WORD}");
    let sentinel = watch(&a, a.port, &[&auth, &require]);
    sentinel.client().call(&cmd!["ACL", "SETUSER", "asker", "on", ">asks", "+sentinel|get-master-addr-by-name"]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = |word: &str| {
        let path = dir.path().join(word);
        std::fs::write(&path, word).expect("the password is written");
        path.display().to_string()
    };
    let from = sentinel_url(&sentinel).replace("127.", ":servers@127.");
    let to = b.url();
    let run = |more: &[&str], env: &[(&str, &str)]| {
        let mut args = vec!["sync", &from, &to, "--once", "--existing", "replace"];
        args.extend_from_slice(more);
        let mut tool = Tool::run_with(&args, env);
        let code = tool.wait(MINUTE);
        let text = tool.text();
        assert!(!text.contains(SENTINEL_WORD) && !text.contains("servers@"), "a password is shown: {text}");
        (code, text)
    };
    let (own, asks, wrong) = (file(SENTINEL_WORD), file("asks"), file("wrong"));
    let variable = [("KEYFERRY_SOURCE_SENTINEL_PASSWORD", SENTINEL_WORD)];
    let cases = [
        (vec!["--source-sentinel-password-file", &own], vec![]),
        (vec![], variable.to_vec()),
        (vec!["--source-sentinel-user", "asker", "--source-sentinel-password-file", &asks], vec![]),
    ];
    for (more, env) in cases {
        b.client().call(&cmd!["FLUSHALL"]);
        let (code, text) = run(&more, &env);
        assert_eq!(code, 0, "{more:?}: {text}");
        must_be_same(&a, &b, "through the sentinel", &Rules::default());
    }
    for more in [vec![], vec!["--source-sentinel-password-file", &wrong]] {
        let (code, text) = run(&more, &[]);
        assert_eq!(code, 1, "{more:?}: {text}");
        assert!(text.contains("asking a sentinel") && text.contains("--source-sentinel-password-file"), "{text}");
    }
}

#[test]
fn sentinels_over_tls_name_servers_over_tls() {
    let certs = Certificates::new();
    let a = certs.server("redis-7.0", "server", false);
    let b = Server::start("redis-7.0");
    load_types(&a, &mut a.client(), 6, "");
    let sentinel = certs.sentinel(&a.name, &format!("sentinel monitor {NAME} 127.0.0.1 {} 1", a.port2));
    let from = format!("rediss-sentinel://127.0.0.1:{}/{NAME}", sentinel.port2);
    let (to, ca, other) = (b.url(), certs.text("ca.crt"), certs.text("other-ca.crt"));
    Tool::run(&["sync", &from, &to, "--once", "--source-cacert", &ca]).must_end(MINUTE, 0);
    must_be_same(&a, &b, "over TLS", &Rules::default());
    let mut tool = Tool::run(&["sync", &from, &to, "--once", "--source-cacert", &other]);
    tool.must_end(HALF_MINUTE, 1);
    let text = tool.text();
    assert!(text.contains(&format!("127.0.0.1:{}: its certificate (CN=server", sentinel.port2)), "{text}");
}

#[test]
fn sentinels_that_cannot_help_are_explained() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let sentinel = watch(&a, a.port, &[]);
    let nobody = free_port();
    let cases = [
        ("another name", sentinel_url(&sentinel).replace("/main", "/mian"), 1, "knows no primary 'mian'"),
        ("no sentinel", sentinel_url(&a), 1, "wants the address of a sentinel"),
        ("nobody", format!("redis-sentinel://127.0.0.1:{nobody}/main"), 5, "are the sentinels running"),
        ("a plain one", sentinel_url(&sentinel).replace("redis-", "rediss-"), 5, "did not answer to TLS"),
    ];
    for (label, from, want, words) in cases {
        let mut tool = Tool::run(&["sync", &from, &b.url(), "--once", "--retry-for", "1s"]);
        let code = tool.wait(HALF_MINUTE);
        let text = tool.text();
        assert!(code == want && text.contains(words) && text.contains("hint:"), "{label}: exit {code}: {text}");
    }
    // The second answers.
    let port = sentinel.port;
    let from = format!("redis-sentinel://127.0.0.1:{nobody},127.0.0.1:{port}/{NAME}");
    Tool::run(&["sync", &from, &b.url(), "--once"]).must_end(MINUTE, 0);
}

#[test]
fn addresses_that_a_sentinel_names_are_mapped() {
    let (a, b, inside) = (Server::start("redis-7.0"), Server::start("redis-7.0"), Server::start("redis-7.0"));
    let sentinel = watch(&inside, inside.port, &[]);
    load_types(&a, &mut a.client(), 9, "");
    let map = format!("127.0.0.1:{}=127.0.0.1:{}", inside.port, a.port);
    let args = ["sync", &sentinel_url(&sentinel), &b.url(), "--once", "--source-address-map", &map];
    Tool::run(&args).must_end(MINUTE, 0);
    must_be_same(&a, &b, "at the mapped address", &Rules::default());
}

#[test]
fn seeds_are_tried_until_one_is_a_primary() {
    let (a, replica, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"), Server::start("redis-7.0"));
    load_types(&a, &mut a.client(), 7, "");
    replicate_natively(&a, &replica);
    let from = format!("redis://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}", free_port(), replica.port, a.port);
    let mut tool = Tool::run(&["sync", &from, &b.url(), "--once"]);
    tool.must_end(MINUTE, 0);
    assert!(tool.text().contains(&format!("source=127.0.0.1:{}", a.port)), "{}", tool.text());
    must_be_same(&a, &b, "from the primary", &Rules::default());
}
