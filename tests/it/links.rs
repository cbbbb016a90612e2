//! Lost and slow connections: said, retried, and never a wrong value. Passwords, ACL users and TLS.

use crate::compare::{Rules, must_be_same, until_same};
use crate::load::{Mix, Workload, load_bulk, load_types};
use crate::server::{FAST, Paused, Server};
use crate::tls::{Certificates, tls_url};
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, until};

/// Cuts connections `cuts` times under load, each time a while after the last; both sides must end equal.
fn cut_under_load(cuts: u32, cut: impl Fn(&Server, &Server, u32)) {
    let config = [FAST, &["repl-backlog-size 64mb"]].concat();
    let a = Server::with("redis-7.0", &config);
    let b = Server::start("redis-7.0");
    load_bulk(&mut a.client(), "bulk:", 20_000, 100);
    let mix = Mix { databases: vec![0, 2], ..Mix::of(&a) };
    let load = Workload::start(&a, fastrand::u64(..), 6000, mix);
    let mut tool = Tool::sync(&a, &b, &[]);
    until(HALF_MINUTE, "the copy", || b.client().dbsize() > 20_000);
    for i in 0..cuts {
        load.until_sent(2000, HALF_MINUTE);
        cut(&a, &b, i);
    }
    load.until_sent(2000, HALF_MINUTE);
    load.stop();
    until_same(&a, &b, MINUTE, "after the cuts", &Rules::following(&a));
    tool.stop();
}

fn cut_source(a: &Server) {
    a.client().call(&cmd!["CLIENT", "KILL", "TYPE", "replica"]);
}

fn cut_target(b: &Server) {
    b.client().call(&cmd!["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
}

#[test]
fn lost_source_connections_end_equal() {
    cut_under_load(6, |a, _, _| cut_source(a));
}

#[test]
fn lost_target_connections_end_equal() {
    cut_under_load(6, |_, b, _| cut_target(b));
}

#[test]
fn losses_on_both_sides_end_equal() {
    cut_under_load(8, |a, b, i| if i % 2 == 0 { cut_source(a) } else { cut_target(b) });
}

#[test]
fn a_source_connection_lost_in_the_copy_ends_equal() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 30_000, 1000);
    let mut tool = Tool::sync(&a, &b, &["--rate", "8MiB"]);
    until(HALF_MINUTE, "part of the copy", || b.client().dbsize() > 2000);
    cut_source(&a);
    a.client().call(&cmd!["SET", "after", 1]);
    until_same(&a, &b, MINUTE, "a copy begun twice", &Rules::following(&a));
    tool.stop();
}

#[test]
fn a_target_connection_lost_in_the_copy_ends_equal() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    load_bulk(&mut a.client(), "bulk:", 30_000, 1000);
    let mut tool = Tool::sync(&a, &b, &["--rate", "8MiB"]);
    for part in [2000, 8000, 15_000] {
        until(HALF_MINUTE, "part of the copy", || b.client().dbsize() > part);
        cut_target(&b);
    }
    until_same(&a, &b, MINUTE, "a copy with lost replies", &Rules::following(&a));
    tool.stop();
}

#[test]
fn a_paused_target_is_waited_for() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "first", 1]);
    let mut tool = Tool::sync(&a, &b, &[]);
    until(HALF_MINUTE, "the copy", || b.client().call(&cmd!["EXISTS", "first"]).int() == 1);
    let load = Workload::start(&a, 3, 5000, Mix::of(&a));
    let paused = Paused::new(&b);
    load.until_sent(15_000, HALF_MINUTE);
    drop(paused);
    load.stop();
    until_same(&a, &b, HALF_MINUTE, "after the pause", &Rules::following(&a));
    tool.stop();
}

#[test]
fn a_source_that_comes_back_is_followed_again() {
    let (mut a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut source = a.client();
    source.load(&[cmd!["SET", "first", 1], cmd!["SAVE"]]);
    let mut tool = Tool::sync(&a, &b, &[]);
    until_same(&a, &b, HALF_MINUTE, "the copy", &Rules::following(&a));
    a.kill();
    tool.until_text("connect", HALF_MINUTE);
    a.restart();
    a.client().call(&cmd!["SET", "second", 2]);
    until_same(&a, &b, MINUTE, "after the source's restart", &Rules::following(&a));
    tool.stop();
}

#[test]
fn a_source_that_takes_its_time_is_explained() {
    let a = Server::with("redis-7.0", &["repl-diskless-sync yes", "repl-diskless-sync-delay 6"]);
    let b = Server::start("redis-7.0");
    a.client().call(&cmd!["SET", "k", "v"]);
    let mut tool = Tool::sync(&a, &b, &["--once", "--progress", "log"]);
    tool.until_text("snapshot", HALF_MINUTE);
    assert_eq!(b.client().call(&cmd!["EXISTS", "k"]).int(), 0, "the reason came after the wait");
    tool.must_end(HALF_MINUTE, 0);
}

#[test]
fn a_source_without_psync_but_with_sync_is_copied() {
    let config = [FAST, &["rename-command PSYNC \"\""]].concat();
    let (a, b) = (Server::with("redis-7.0", &config), Server::start("redis-7.0"));
    load_types(&a, &mut a.client(), 6, "");
    Tool::once(&a, &b, &[], MINUTE);
    must_be_same(&a, &b, "by SYNC", &Rules::default());
}

#[test]
fn a_source_that_hides_replication_is_explained() {
    let config = [FAST, &["rename-command PSYNC \"\"", "rename-command SYNC \"\""]].concat();
    let (a, b) = (Server::with("redis-7.0", &config), Server::start("redis-7.0"));
    let mut tool = Tool::sync(&a, &b, &["--once"]);
    let code = tool.wait(HALF_MINUTE);
    assert!(code == 1 || code == 3, "exit {code}: {}", tool.tail());
    let text = tool.text();
    assert!(text.contains("PSYNC") && text.contains("hint:"), "{text}");
}

const WORD: &str = "p@ss:w/rd";
const WORD_IN_URL: &str = "p%40ss%3Aw%2Frd";

fn with_password(name: &str) -> Server {
    let line = format!("requirepass \"{WORD}\"");
    Server::with(name, &[FAST, &[&line]].concat())
}

fn url(server: &Server, user: &str, word: &str) -> String {
    format!("redis://{user}:{word}@127.0.0.1:{}", server.port)
}

#[test]
fn passwords_are_taken_from_the_url_and_never_shown() {
    let (a, b) = (with_password("redis-7.0"), with_password("redis-7.0"));
    load_types(&a, &mut a.client(), 1, "");
    let (from, to) = (url(&a, "", WORD_IN_URL), url(&b, "", WORD_IN_URL));
    let mut tool = Tool::run(&["sync", &from, &to, "--once", "--log-level", "trace"]);
    tool.must_end(MINUTE, 0);
    must_be_same(&a, &b, "with passwords", &Rules::default());
    let text = tool.text();
    assert!(!text.contains(WORD) && !text.contains(WORD_IN_URL), "a password is shown");
}

#[test]
fn passwords_are_taken_from_environment_and_file() {
    let (a, b) = (with_password("redis-7.0"), with_password("valkey-8.1"));
    a.client().call(&cmd!["SET", "k", "v"]);
    let file = a.dir().join("word");
    std::fs::write(&file, format!("{WORD}\n")).expect("the file is written");
    let (from, to) = (format!("redis://127.0.0.1:{}", a.port), format!("redis://127.0.0.1:{}", b.port));
    let file = file.display().to_string();
    let args = ["sync", &from, &to, "--once", "--target-password-file", &file];
    let mut tool = Tool::run_with(&args, &[("KEYFERRY_SOURCE_PASSWORD", WORD)]);
    tool.must_end(HALF_MINUTE, 0);
    must_be_same(&a, &b, "with passwords", &Rules::default());
}

#[test]
fn a_wrong_password_ends_at_once_without_showing_it() {
    let (a, b) = (with_password("redis-7.0"), Server::start("redis-7.0"));
    for (from, to) in [
        (url(&a, "", "not-the-word"), b.url()),
        (b.url(), url(&a, "", "not-the-word")),
        (format!("redis://127.0.0.1:{}", a.port), b.url()),
    ] {
        let mut tool = Tool::run(&["sync", &from, &to, "--once"]);
        let code = tool.wait(HALF_MINUTE);
        assert!(code == 1 || code == 3, "exit {code}: {}", tool.tail());
        let text = tool.text();
        assert!(text.contains("error:") && text.contains("hint:"), "{text}");
        assert!(!text.contains("not-the-word"), "{text}");
    }
}

#[test]
fn acl_users_with_the_least_rights_do() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    load_types(&a, &mut a.client(), 2, "");
    let reader = "+psync +replconf +ping +info ~* +dump +exists +pttl +pexpiretime +time +multi +exec";
    let mut acl = cmd!["ACL", "SETUSER", "mover", "on", format!(">{WORD}")];
    acl.extend(reader.split(' ').map(|w| w.as_bytes().to_vec()));
    a.client().call(&acl);
    let writer = "~* &* +@all -@admin -@dangerous +restore +info +client|list +client|kill";
    let mut acl = cmd!["ACL", "SETUSER", "writer", "on", format!(">{WORD}")];
    acl.extend(writer.split(' ').map(|w| w.as_bytes().to_vec()));
    b.client().call(&acl);
    let (from, to) = (url(&a, "mover", WORD_IN_URL), url(&b, "writer", WORD_IN_URL));
    let mut tool = Tool::run(&["sync", &from, &to]);
    until_same(&a, &b, HALF_MINUTE, "the copy with least rights", &Rules::following(&a));
    a.client().call(&cmd!["SET", "more", 1]);
    until_same(&a, &b, HALF_MINUTE, "the stream with least rights", &Rules::following(&a));
    tool.stop();
}

#[test]
fn a_user_without_psync_is_explained() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut acl = cmd!["ACL", "SETUSER", "nosync", "on", ">pw"];
    acl.extend(["~*", "&*", "+@all", "-psync", "-sync"].map(|w| w.as_bytes().to_vec()));
    a.client().call(&acl);
    let mut tool = Tool::run(&["sync", &url(&a, "nosync", "pw"), &b.url(), "--once"]);
    let code = tool.wait(HALF_MINUTE);
    assert!(code == 1 || code == 3, "exit {code}: {}", tool.tail());
    let text = tool.text().to_lowercase();
    assert!(text.contains("psync") && text.contains("hint:"), "{text}");
}

#[test]
fn tls_with_client_certificates_on_both_sides_ends_equal() {
    let certs = Certificates::new();
    let a = certs.server("redis-7.0", "server", true);
    let b = certs.server("valkey-8.1", "server", true);
    load_types(&a, &mut a.client(), 1, "");
    let (ca, cert, key) = (certs.text("ca.crt"), certs.text("client.crt"), certs.text("client.key"));
    let (from, to) = (tls_url(&a), tls_url(&b));
    let mut args = vec!["sync", &from, &to];
    for side in
        [["--source-cacert", "--source-cert", "--source-key"], ["--target-cacert", "--target-cert", "--target-key"]]
    {
        args.extend([side[0], &ca, side[1], &cert, side[2], &key]);
    }
    let load = Workload::start(&a, 8, 3000, Mix::of(&a));
    let mut tool = Tool::run(&args);
    load.until_sent(10_000, HALF_MINUTE);
    load.stop();
    until_same(&a, &b, HALF_MINUTE, "over TLS", &Rules::following(&a));
    tool.stop();
}

#[test]
fn tls_mistakes_are_refused_in_clear_words() {
    let certs = Certificates::new();
    let a = certs.server("redis-7.0", "server", false);
    let strict = certs.server("redis-7.0", "server", true);
    let elsewhere = certs.server("redis-7.0", "elsewhere", false);
    let b = Server::start("redis-7.0");
    let (ca, other) = (certs.text("ca.crt"), certs.text("other-ca.crt"));
    let cases = [
        ("another CA", tls_url(&a), vec!["--source-cacert", &other], "certificate"),
        ("no CA", tls_url(&a), vec![], "certificate"),
        ("another name", tls_url(&elsewhere), vec!["--source-cacert", &ca], "certificate"),
        ("no client certificate", tls_url(&strict), vec!["--source-cacert", &ca], "certificate"),
        ("no such file", tls_url(&a), vec!["--source-cacert", "/nowhere.crt"], "nowhere.crt"),
        (
            "no TLS on a TLS port",
            tls_url(&a).replace("rediss:", "redis:"),
            vec!["--retry-for", "1s"],
            "write rediss://",
        ),
    ];
    for (label, from, more, word) in cases {
        let to = b.url();
        let mut args = vec!["sync", &from, &to, "--once"];
        args.extend(more);
        let mut tool = Tool::run(&args);
        let code = tool.wait(HALF_MINUTE);
        assert!(matches!(code, 1 | 2 | 5), "{label}: exit {code}: {}", tool.tail());
        let text = tool.text();
        assert!(text.contains(word) && text.contains("error:"), "{label}: {text}");
    }
}

#[test]
fn tls_without_verification_and_with_another_name_works_where_told() {
    let certs = Certificates::new();
    let a = certs.server("redis-8.0", "elsewhere", false);
    let b = Server::start("redis-8.0");
    a.client().call(&cmd!["SET", "k", "v"]);
    let ca = certs.text("ca.crt");
    for (options, warns) in
        [(vec!["--source-insecure"], true), (vec!["--source-cacert", &ca, "--source-sni", "other.example"], false)]
    {
        let (from, to) = (tls_url(&a), b.url());
        let mut args = vec!["sync", &from, &to, "--once", "--existing", "replace"];
        args.extend(options);
        let mut tool = Tool::run(&args);
        tool.must_end(HALF_MINUTE, 0);
        must_be_same(&a, &b, "over TLS", &Rules::default());
        assert_eq!(tool.text().contains("insecure"), warns, "{}", tool.tail());
    }
}

#[test]
fn tls_to_a_plain_port_is_told() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let from = a.url().replace("redis:", "rediss:");
    let mut tool = Tool::run(&["sync", &from, &b.url(), "--once", "--source-insecure", "--retry-for", "1s"]);
    let code = tool.wait(HALF_MINUTE);
    let text = tool.text();
    assert!(
        matches!(code, 1 | 5) && text.contains("TLS on this port") && text.contains("write redis://"),
        "{code}: {text}"
    );
}
