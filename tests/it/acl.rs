//! Users that may do just what the README says they need, and what is said of a rule that is missing.

use crate::client::{Cmd, Reply};
use crate::compare::{Rules, must_be_same, until_same};
use crate::load::{Mix, Workload, load_types};
use crate::server::Server;
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, MINUTE, until};

/// The README's `ACL SETUSER` lines for a user, in order.
fn readme_rules(user: &str) -> Vec<String> {
    let text = include_str!("../../README.md");
    let start = format!("ACL SETUSER {user} ");
    let rules = text.lines().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned);
    rules.collect()
}

/// What the README says of a rule before Redis 7.0.
fn before_7(rule: &str) -> Vec<&str> {
    match rule {
        "+pexpiretime" => vec!["+pttl", "+time", "+role"],
        "&*" => vec![],
        _ if rule.starts_with("+client|") => vec!["+client"],
        _ => vec![rule],
    }
}

/// Gives a user the README's first `lines` lines, and `more` rules.
pub fn set_user(server: &Server, user: &str, lines: usize, more: &[&str]) {
    let rules = readme_rules(user);
    assert_eq!(rules.len(), 2, "the README's rules for {user}");
    let mut acl = cmd!["ACL", "SETUSER", user, "reset"];
    let words = rules.iter().take(lines).flat_map(|line| line.split(' '));
    let words = words.flat_map(|word| if server.version() < (7, 0) { before_7(word) } else { vec![word] });
    acl.extend(words.chain(more.iter().copied()).map(|word| word.as_bytes().to_vec()));
    server.client().call(&acl);
}

fn url(server: &Server, user: &str) -> String {
    format!("redis://{user}:password@127.0.0.1:{}", server.port)
}

#[test]
fn readme_users_copy_and_follow_without_a_filter() {
    for (name, lines) in [("redis-6.0", 2), ("redis-7.0", 1), ("redis-8.6", 1), ("valkey-9.1", 1)] {
        let (a, b) = (Server::start(name), Server::start(name));
        load_types(&a, &mut a.client(), 2, "");
        set_user(&a, "reader", lines, &[]);
        set_user(&b, "writer", 2, &[]);
        let load = Workload::start(&a, 5, 3000, Mix { databases: vec![0, 3], ..Mix::of(&a) });
        let mut tool = Tool::run(&["sync", &url(&a, "reader"), &url(&b, "writer"), "--job", "j"]);
        until(HALF_MINUTE, "the copy", || is_following(&mut b.client(), "j"));
        load.until_sent(3000, HALF_MINUTE);
        load.stop();
        until_same(&a, &b, MINUTE, name, &Rules::following(&a));
        tool.stop();
        let mut tool = Tool::run(&["finish", &url(&a, "reader"), &url(&b, "writer"), "--job", "j"]);
        tool.must_end(MINUTE, 0);
        must_be_same(&a, &b, "finished", &Rules { group_hints: false, ..Rules::default() });
    }
}

#[test]
fn readme_users_serve_a_filter_and_a_flushed_target() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    load_types(&a, &mut a.client(), 3, "user:");
    b.client().call(&cmd!["SET", "old", "value"]);
    set_user(&a, "reader", 2, &[]);
    set_user(&b, "writer", 2, &[]);
    let (from, to) = (url(&a, "reader"), url(&b, "writer"));
    let more = ["--key", "user:*", "--db", "0,1", "--job", "j", "--flush-target", "--yes"];
    let mut tool = Tool::run(&[&["sync", &from, &to][..], &more].concat());
    until(HALF_MINUTE, "the copy", || is_following(&mut b.client(), "j"));
    let mut source = a.client();
    source.load(&[
        cmd!["SET", "other:1", "v"],
        cmd!["RENAME", "other:1", "user:renamed"],
        cmd!["SUNIONSTORE", "user:union", "user:set:0"],
        cmd!["SWAPDB", 0, 1],
        cmd!["SET", "user:behind", "the swap"],
        cmd!["SELECT", 2],
        cmd!["SET", "user:outside", "v"],
        cmd!["SWAPDB", 1, 2],
    ]);
    let in_scope = |db: u32, key: &[u8]| db < 2 && key.starts_with(b"user:");
    until_same(&a, &b, MINUTE, "the filtered stream", &Rules { in_scope: &in_scope, ..Rules::following(&a) });
    source.call(&cmd!["FLUSHALL"]);
    until_same(&a, &b, MINUTE, "emptied", &Rules { in_scope: &in_scope, ..Rules::following(&a) });
    tool.stop();
}

#[test]
fn a_rule_that_the_sources_user_lacks_is_named() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "user:k", "v"]);
    for rule in ["psync", "replconf", "info"] {
        set_user(&a, "reader", 2, &[&format!("-{rule}")]);
        let mut tool = Tool::run(&["sync", &url(&a, "reader"), &b.url(), "--once"]);
        tool.must_end(HALF_MINUTE, 1);
        let text = tool.text();
        assert!(text.contains(&format!("ACL SETUSER <user> +{rule}")) && text.contains("source"), "{rule}: {text}");
    }
    for rule in ["dump", "multi", "pexpiretime", "~*"] {
        let lacks = if rule == "~*" { "resetkeys".to_string() } else { format!("-{rule}") };
        set_user(&a, "reader", 2, &[&lacks]);
        a.client().call(&cmd!["DEL", "user:copied"]);
        b.client().call(&cmd!["FLUSHALL"]);
        let more = ["--key", "user:*"];
        let mut tool = Tool::run(&[&["sync", &url(&a, "reader"), &b.url()][..], &more].concat());
        tool.until_text("following", HALF_MINUTE);
        a.client().load(&[cmd!["SET", "other", "v"], cmd!["RENAME", "other", "user:copied"]]);
        tool.must_end(HALF_MINUTE, 1);
        let shown = if rule == "~*" { rule.to_string() } else { format!("+{rule}") };
        let text = tool.text();
        assert!(text.contains(&format!("ACL SETUSER <user> {shown}")) && text.contains("source"), "{rule}: {text}");
    }
}

#[test]
fn a_rule_that_the_targets_user_lacks_is_named() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    load_types(&a, &mut a.client(), 4, "");
    let lacking = [
        ("-restore", "+restore"),
        ("-info", "+info"),
        ("-multi", "+multi"),
        ("-get", "+get"),
        ("-set", "+set"),
        ("-scan", "+scan"),
        ("-client|list", "+client|list"),
        ("resetkeys", "~*"),
    ];
    for (lacks, rule) in lacking {
        set_user(&b, "writer", 1, &[lacks]);
        b.client().load(&[cmd!["FLUSHALL"], cmd!["SELECT", 3], cmd!["SET", "old", "value"]]);
        let mut tool = Tool::run(&["sync", &a.url(), &url(&b, "writer"), "--once", "--db", "0"]);
        let code = tool.wait(HALF_MINUTE);
        let text = tool.text();
        assert!(matches!(code, 1 | 3) && text.contains("target") && text.contains(rule), "{lacks}: {code}: {text}");
        assert!(text.contains("ACL SETUSER <user>"), "{lacks}: {text}");
    }
}

#[test]
fn a_channel_that_the_targets_user_may_not_use_is_named() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    set_user(&b, "writer", 1, &["resetchannels"]);
    let mut tool = Tool::run(&["sync", &a.url(), &url(&b, "writer"), "--job", "j"]);
    until(HALF_MINUTE, "the copy", || is_following(&mut b.client(), "j"));
    a.client().call(&cmd!["PUBLISH", "news", "x"]);
    tool.must_end(HALF_MINUTE, 1);
    assert!(tool.text().contains("ACL SETUSER <user> &*"), "{}", tool.text());
}

#[test]
fn a_hidden_psync_is_said_in_plain_words() {
    let hidden: [&[&str]; 2] = [
        &["rename-command PSYNC \"\"", "rename-command SYNC \"\""],
        &["rename-command PSYNC hidden-psync", "rename-command SYNC hidden-sync"],
    ];
    for lines in hidden {
        let (a, b) = (Server::with("redis-7.0", lines), Server::start("redis-7.0"));
        let mut tool = Tool::sync(&a, &b, &["--once"]);
        tool.must_end(HALF_MINUTE, 1);
        let text = tool.text();
        assert!(text.contains("knows neither PSYNC nor SYNC") && text.contains("managed services"), "{text}");
    }
}

#[test]
fn a_target_without_client_and_config_is_written_where_that_is_told() {
    let lines = ["rename-command CLIENT \"\"", "rename-command CONFIG \"\""];
    let (a, b) = (Server::with("redis-7.0", &lines), Server::with("redis-7.0", &lines));
    load_types(&a, &mut a.client(), 8, "");
    let mut tool = Tool::sync(&a, &b, &["--once"]);
    tool.must_end(HALF_MINUTE, 3);
    assert!(tool.text().contains("--unfenced"), "{}", tool.text());
    Tool::once(&a, &b, &["--unfenced"], MINUTE);
    must_be_same(&a, &b, "without CLIENT and CONFIG", &Rules::default());
    let records: Vec<Cmd> = vec![cmd!["KEYS", "keyferry:*"]];
    assert_eq!(b.client().pipe(&records), [Reply::List(vec![])]);
}
