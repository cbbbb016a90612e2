//! What a target can't hold stops a job that isn't told otherwise: the key is named, and not written.

use crate::client::Cmd;
use crate::server::Server;
use crate::tool::Tool;
use crate::wait::HALF_MINUTE;

/// A source, a target that lacks something, the write that needs it (and one before), and the words of the error.
fn cases() -> Vec<(&'static str, &'static str, Vec<Cmd>, &'static str)> {
    let library = "#!lua name=mylib\nredis.register_function('f', function(k,a) return 1 end)";
    vec![
        (
            "redis-8.0",
            "redis-7.0",
            vec![cmd!["HSET", "it", "f", "v"], cmd!["HPEXPIRE", "it", 1_000_000, "FIELDS", 1, "f"]],
            "key \"it\"",
        ),
        ("redis-8.0", "valkey-8.1", vec![cmd!["VADD", "it", "VALUES", 2, 1, 2, "e"]], "key \"it\""),
        ("redis-8.6", "redis-8.0", vec![cmd!["XADD", "it", "IDMP", "p", "i", "*", "f", "v"]], "key \"it\""),
        ("valkey-9.1", "valkey-8.1", vec![cmd!["HSETEX", "it", "EX", 1000, "FIELDS", 1, "f", "v"]], "key \"it\""),
        ("redis-7.0", "redis-6.0", vec![cmd!["FUNCTION", "LOAD", library]], "function"),
    ]
}

#[test]
fn copy_of_what_the_target_lacks_stops_and_names_it() {
    for (source, target, writes, words) in cases() {
        let (a, b) = (Server::start(source), Server::start(target));
        a.client().load(&writes);
        let mut tool = Tool::sync(&a, &b, &["--once"]);
        tool.must_end(HALF_MINUTE, 1);
        let text = tool.text();
        assert!(text.contains(words) && text.contains("hint:"), "{source} -> {target}: {text}");
        assert!(text.contains("can't hold what the source has") || source == "redis-8.6", "told at the start: {text}");
        assert_eq!(b.client().call(&cmd!["EXISTS", "it"]).int(), 0, "{source} -> {target}");
    }
}

#[test]
fn stream_of_what_the_target_lacks_stops_and_names_it() {
    for (source, target, writes, words) in cases() {
        let (a, b) = (Server::start(source), Server::start(target));
        let mut tool = Tool::sync(&a, &b, &["--job", "lacks"]);
        let mut found = b.client();
        crate::wait::until(HALF_MINUTE, "the stream", || crate::tool::is_following(&mut found, "lacks"));
        a.client().load(&writes);
        tool.must_end(HALF_MINUTE, 1);
        let text = tool.text();
        assert!(text.contains(words) && text.contains("hint:"), "{source} -> {target}: {text}");
        let before = usize::from(writes.len() > 1) as i64;
        assert!(found.call(&cmd!["EXISTS", "it"]).int() <= before, "{source} -> {target}");
    }
}

#[test]
fn lossy_writes_the_nearest_and_counts_it() {
    let (a, b) = (Server::start("redis-8.0"), Server::start("redis-7.0"));
    let mut source = a.client();
    source.load(&[cmd!["HSET", "h", "f", "v", "g", "w"], cmd!["HPEXPIRE", "h", 1_000_000, "FIELDS", 1, "f"]]);
    let tool = Tool::once(&a, &b, &["--lossy"], HALF_MINUTE);
    assert!(tool.text().contains("lossy: 1 (1 without expiry of hash fields)"), "{}", tool.text());
    let mut target = b.client();
    assert_eq!(target.call(&cmd!["HGET", "h", "f"]).text(), "v");
    // A type that is missing altogether has no nearest value.
    source.call(&cmd!["VADD", "vec", "VALUES", 2, 1, 2, "e"]);
    let mut tool = Tool::sync(&a, &b, &["--once", "--lossy", "--existing", "replace", "--job", "types"]);
    tool.must_end(HALF_MINUTE, 1);
    assert!(tool.text().contains("\"vec\""), "{}", tool.text());
}
