//! Targets that lack a module of the source, or have an older one.

use super::{BLOOM, JSON, SERIES, fill, with_modules, write};
use crate::client::Reply;
use crate::compare::scan;
use crate::server::Server;
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, until};

const ALL: &[&str] = &[JSON, BLOOM, SERIES];

#[test]
fn lacking_module_stops_the_copy_with_key_and_module() {
    for to in ["redis-6.0", "redis-7.0", "valkey-9.1"] {
        let (a, b) = (with_modules("stack-7.2", &[SERIES], &[]), Server::start(to));
        a.client().load(&[cmd!["SET", "plain", 1], cmd!["TS.ADD", "series", 1, 1]]);
        let mut tool = Tool::sync(&a, &b, &["--once"]);
        tool.must_end(HALF_MINUTE, 1);
        let text = tool.text();
        let told = ["values and commands of module timeseries", "key \"series\"", "TSDB-TYPE (module timeseries"];
        told.iter().for_each(|part| assert!(text.contains(part), "{to}: no {part:?} in {text}"));
        let mut tool = Tool::sync(&a, &b, &["--once", "--on-error", "skip", "--restart"]);
        tool.must_end(HALF_MINUTE, 0);
        assert!(tool.text().contains("skipped: 1"), "{to}: {}", tool.tail());
        assert_eq!(scan(&mut b.client()), [b"plain".to_vec()], "{to}");
    }
}

#[test]
fn lacking_module_stops_the_stream_with_command_and_key() {
    let (a, b) = (with_modules("stack-7.4", ALL, &[]), with_modules("stack-7.4", &[BLOOM], &[]));
    let mut tool = Tool::sync(&a, &b, &["--job", "m"]);
    let (mut source, mut target) = (a.client(), b.client());
    until(HALF_MINUTE, "the copy", || is_following(&mut target, "m"));
    source.load(&[cmd!["BF.ADD", "bloom", 1], cmd!["SET", "k", 1], cmd!["JSON.SET", "json", "$", 1]]);
    tool.must_end(HALF_MINUTE, 1);
    let text = tool.text();
    assert!(text.contains("no module that knows JSON.SET") && text.contains("key \"json\""), "{text}");
    // Once it is left out the rest goes on, from where it stood.
    let mut tool = Tool::sync(&a, &b, &["--job", "m", "--on-error", "skip"]);
    source.load(&[cmd!["JSON.NUMINCRBY", "json", "$", 1], cmd!["INCR", "k"], cmd!["RENAME", "json", "k2"]]);
    source.load(&[cmd!["INCR", "k"]]);
    until(HALF_MINUTE, "the last write", || target.ask(&cmd!["GET", "k"]) == Ok(Reply::Bytes(b"3".to_vec())));
    assert_eq!(target.call(&cmd!["BF.EXISTS", "bloom", 1]).int(), 1);
    tool.stop();
    assert!(tool.text().contains("skipped: "), "{}", tool.tail());
}

#[test]
fn lacking_module_is_no_matter_for_keys_out_of_scope() {
    let (a, b) = (with_modules("stack-7.4", ALL, &[]), Server::start("redis-7.0"));
    let (mut source, mut target) = (a.client(), b.client());
    fill(&mut source, "out:");
    let mut tool = Tool::sync(&a, &b, &["--job", "m", "--key", "in:*"]);
    until(HALF_MINUTE, "the copy", || is_following(&mut target, "m"));
    (0..10).for_each(|nth| write(&mut source, "out:", nth));
    source.call(&cmd!["SET", "in:k", 1]);
    until(HALF_MINUTE, "the write in scope", || target.ask(&cmd!["GET", "in:k"]) == Ok(Reply::Bytes(b"1".to_vec())));
    tool.stop();
}

/// The encoding of series went from 7 to 8 between these.
#[test]
fn older_module_refuses_a_value_which_is_named() {
    let (a, b) = (with_modules("stack-7.4", &[SERIES], &[]), with_modules("stack-7.2", &[SERIES], &[]));
    a.client().load(&[cmd!["TS.ADD", "series", 1, 1], cmd!["SET", "plain", 1]]);
    let mut tool = Tool::sync(&a, &b, &["--once"]);
    tool.must_end(HALF_MINUTE, 1);
    let text = tool.text();
    for part in ["all of module timeseries perhaps", "RESTORE series", "TSDB-TYPE (module timeseries, encoding 8)"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let mut tool = Tool::sync(&a, &b, &["--once", "--on-error", "skip", "--restart"]);
    tool.must_end(HALF_MINUTE, 0);
    assert_eq!(b.client().get("plain").text(), "1");
}
