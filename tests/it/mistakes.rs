//! What a user gets wrong is answered with `error:`, `hint:` and the right exit code, before anything is touched.

use crate::server::{Server, free_port};
use crate::tool::Tool;
use crate::wait::HALF_MINUTE;

/// Runs to its end; returns the exit code and the text.
fn ends(args: &[&str]) -> (i32, String) {
    let mut tool = Tool::run(args);
    let code = tool.wait(HALF_MINUTE);
    (code, tool.text())
}

fn is_usage_error(args: &[&str], words: &[&str]) {
    let (code, text) = ends(args);
    assert_eq!(code, 2, "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?} says nothing of {word:?}: {text}");
    }
}

const HERE: &str = "redis://127.0.0.1:1";
const THERE: &str = "redis://127.0.0.1:2";

#[test]
fn unknown_options_and_bad_values_are_usage_errors() {
    is_usage_error(&["sync", HERE, THERE, "--onse"], &["--onse", "--once"]);
    is_usage_error(&["sync", HERE, THERE, "--db", "two"], &["two"]);
    is_usage_error(&["sync", HERE, THERE, "--existing", "maybe"], &["maybe", "refuse"]);
    is_usage_error(&["sync", HERE, THERE, "--memory", "256"], &["256"]);
    is_usage_error(&["sync", HERE, THERE, "--retry-for", "5"], &["5"]);
    is_usage_error(&["sync", HERE, THERE, "--key-regex", "("], &["key-regex"]);
    is_usage_error(&["sync", HERE, THERE, "--db-map", "2-0"], &["2-0"]);
    is_usage_error(&["sync", HERE, THERE, "--type", "strng"], &["strng", "string"]);
    is_usage_error(&["sync", HERE, THERE, "--lanes", "0"], &["lanes"]);
}

#[test]
fn missing_and_malformed_endpoints_are_usage_errors() {
    is_usage_error(&["sync"], &["source"]);
    is_usage_error(&["sync", "--source", HERE], &["target"]);
    is_usage_error(&["sync", "http://127.0.0.1:1", THERE], &["http"]);
    is_usage_error(&["sync", "redis://127.0.0.1:port", THERE], &["port"]);
}

#[test]
fn existing_keep_without_once_is_a_usage_error() {
    is_usage_error(&["sync", HERE, THERE, "--existing", "keep"], &["--once"]);
}

#[test]
fn one_server_at_both_ends_is_a_usage_error() {
    let a = Server::start("redis-7.0");
    a.client().call(&cmd!["SET", "k", "v"]);
    let same = a.url();
    is_usage_error(&["sync", &same, &same], &["same server"]);
    // The same server by another name is found out from the server itself.
    let other_name = format!("redis://localhost:{}", a.port);
    is_usage_error(&["sync", &same, &other_name], &["same server"]);
    assert_eq!(a.client().dbsize(), 1);
}

fn job_file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("job.toml");
    std::fs::write(&path, text).expect("the job file is written");
    let name = path.display().to_string();
    (dir, name)
}

#[test]
fn a_job_files_unknown_key_is_told_with_its_line_and_the_nearest_name() {
    let (_dir, path) =
        job_file(&format!("[source]\nurl = \"{HERE}\"\n[target]\nurl = \"{THERE}\"\nexistng = \"keep\"\n"));
    is_usage_error(&["sync", &path], &["existng", "existing", "5"]);
    let (_dir, path) =
        job_file(&format!("[source]\nurl = \"{HERE}\"\n[target]\nurl = \"{THERE}\"\n[filter]\ndatabases = \"two\"\n"));
    is_usage_error(&["sync", &path], &["line 6"]);
    is_usage_error(&["sync", "/nowhere/job.toml"], &["/nowhere/job.toml"]);
}

#[test]
fn a_job_file_is_taken_and_options_beat_it() {
    let (a, b) = (Server::start("redis-7.0"), Server::start("redis-7.0"));
    let mut source = a.client();
    for db in [0, 2, 5] {
        source.select(db);
        source.load(&[cmd!["SET", "user:1", db], cmd!["SET", "other:1", db]]);
    }
    let (_dir, path) = job_file(&format!(
        "once = true\n[source]\nurl = \"{}\"\n[target]\nurl = \"{}\"\n[filter]\ndatabases = [2]\nkeys = [\"user:*\"]\n",
        a.url(),
        b.url()
    ));
    let (code, text) = ends(&["sync", &path, "--db", "5"]);
    assert_eq!(code, 0, "{text}");
    let found = crate::compare::snapshot(&b);
    assert_eq!(found.keys().collect::<Vec<_>>(), [&(5, b"user:1".to_vec())]);
}

#[test]
fn an_unreachable_end_is_retried_and_then_told() {
    let b = Server::start("redis-7.0");
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    for (from, to) in [(&nobody, &b.url()), (&b.url(), &nobody)] {
        let (code, text) = ends(&["sync", from, to, "--once", "--retry-for", "2s"]);
        assert_eq!(code, 5, "{text}");
        assert!(text.contains("error:") && text.contains("127.0.0.1"), "{text}");
    }
}

#[test]
fn a_target_that_is_a_replica_is_refused() {
    let (a, b, c) = (Server::start("redis-7.0"), Server::start("redis-7.0"), Server::start("redis-7.0"));
    a.client().call(&cmd!["SET", "k", "v"]);
    crate::server::replicate_natively(&c, &b);
    let (code, text) = ends(&["sync", &a.url(), &b.url(), "--once", "--retry-for", "2s"]);
    assert_ne!(code, 0, "{text}");
    assert!(text.contains("replica") || text.contains("READONLY"), "{text}");
}

#[test]
fn a_target_that_may_evict_is_refused_unless_allowed() {
    let a = Server::start("redis-7.0");
    let b = Server::with("redis-7.0", &["maxmemory 100mb", "maxmemory-policy allkeys-lru"]);
    a.client().call(&cmd!["SET", "k", "v"]);
    let (code, text) = ends(&["sync", &a.url(), &b.url(), "--once"]);
    assert!(code == 1 || code == 3, "exit {code}: {text}");
    assert!(text.contains("--allow-eviction"), "{text}");
    assert_eq!(b.client().dbsize(), 0);
    let (code, text) = ends(&["sync", &a.url(), &b.url(), "--once", "--allow-eviction"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(b.client().get("k").text(), "v");
}

#[test]
fn help_is_grouped_and_short() {
    let (code, text) = ends(&["sync", "--help"]);
    assert_eq!(code, 0);
    for word in ["--source", "--target", "--once", "--db", "--existing", "--lanes"] {
        assert!(text.contains(word), "no {word} in: {text}");
    }
    let (code, text) = ends(&["--version"]);
    assert_eq!(code, 0);
    assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
}
