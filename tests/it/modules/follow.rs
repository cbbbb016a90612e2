//! Values of modules copied and followed.

use super::{BLOOM, JSON, SEARCH, SERIES, fill, path, until_equal, with_modules, write};
use crate::client::Reply;
use crate::cluster::Cluster;
use crate::compare::GRACE_MS;
use crate::server::FAST;
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, MINUTE, until};

const ALL: &[&str] = &[JSON, BLOOM, SERIES];

#[test]
fn modules_values_are_copied_followed_and_finished_equal() {
    for (from, to) in [("stack-7.4", "stack-7.4"), ("stack-7.2", "stack-7.4"), ("stack-7.2", "stack-7.2")] {
        let (a, b) = (with_modules(from, ALL, &[]), with_modules(to, ALL, &[]));
        let mut source = a.client();
        fill(&mut source, "");
        let mut tool = Tool::sync(&a, &b, &["--job", "m"]);
        let mut target = b.client();
        until(HALF_MINUTE, "the copy", || is_following(&mut target, "m"));
        for nth in 0..300 {
            write(&mut source, "", nth);
        }
        if from == to {
            until_equal(&a, &b, GRACE_MS);
        } else {
            // Newer modules say more of themselves.
            until(HALF_MINUTE, "the last write", || {
                target.ask(&cmd!["TS.GET", "series"]).is_ok_and(|got| got == a.client().call(&cmd!["TS.GET", "series"]))
            });
        }
        tool.stop();
        let (url_a, url_b) = (a.url(), b.url());
        Tool::run(&["finish", &url_a, &url_b, "--job", "m"]).must_end(HALF_MINUTE, 0);
        if from == to {
            until_equal(&a, &b, 0);
        }
    }
}

#[test]
fn kills_lose_and_double_no_command_of_a_module() {
    let (a, b) = (with_modules("stack-7.4", ALL, &[]), with_modules("stack-7.4", ALL, &[]));
    let mut source = a.client();
    fill(&mut source, "");
    let mut target = b.client();
    let mut tool = Tool::sync(&a, &b, &["--job", "m"]);
    until(HALF_MINUTE, "the copy", || is_following(&mut target, "m"));
    for nth in 0..600 {
        write(&mut source, "", nth);
        if nth % 100 == 50 {
            tool.kill();
            tool = Tool::sync(&a, &b, &["--job", "m"]);
        }
    }
    until_equal(&a, &b, GRACE_MS);
    assert!(a.client().info("stats")["sync_full"] == "1", "one copy");
    tool.stop();
}

#[test]
fn filter_on_keys_holds_for_commands_of_modules() {
    let (a, b) = (with_modules("stack-7.4", ALL, &[]), with_modules("stack-7.4", ALL, &[]));
    let mut source = a.client();
    fill(&mut source, "in:");
    fill(&mut source, "out:");
    let mut tool = Tool::sync(&a, &b, &["--job", "m", "--key", "in:*"]);
    let mut target = b.client();
    until(HALF_MINUTE, "the copy", || is_following(&mut target, "m"));
    for nth in 0..50 {
        write(&mut source, "in:", nth);
        write(&mut source, "out:", nth);
    }
    source.load(&[
        cmd!["JSON.MSET", "in:json:c", "$", 1, "out:json:c", "$", 2],
        cmd!["CMS.MERGE", "in:cms:sum", 1, "out:cms"],
        cmd!["RENAME", "out:json", "in:renamed"],
        cmd!["TDIGEST.MERGE", "in:digest:two", 2, "in:digest", "out:digest"],
    ]);
    let gone: Vec<_> = crate::compare::scan(&mut source).into_iter().filter(|key| key.starts_with(b"out:")).collect();
    gone.iter().for_each(|key| _ = source.call(&cmd!["DEL", key]));
    until_equal(&a, &b, GRACE_MS);
    tool.stop();
}

#[test]
fn cluster_is_given_commands_of_modules_by_their_keys() {
    let a = with_modules("stack-7.4", ALL, &[]);
    let lines: Vec<String> = ALL.iter().map(|module| format!("loadmodule {}", path("stack-7.4", module))).collect();
    let config: Vec<&str> = FAST.iter().copied().chain(lines.iter().map(String::as_str)).collect();
    let b = Cluster::with("stack-7.4", 3, 0, &config);
    let mut source = a.client();
    ["{a}", "{b}", "{c}"].iter().for_each(|prefix| fill(&mut source, prefix));
    let (from, to) = (a.url(), b.url());
    let mut tool = Tool::run(&["sync", &from, &to, "--job", "m"]);
    tool.until_text("following", HALF_MINUTE);
    for nth in 0..100 {
        ["{a}", "{b}", "{c}"].iter().for_each(|prefix| write(&mut source, prefix, nth));
        if nth == 50 {
            tool.kill();
            tool = Tool::run(&["sync", &from, &to, "--job", "m"]);
        }
    }
    let mut target = b.client();
    let asks = |prefix: &str| {
        let key = |name: &str| format!("{prefix}{name}");
        [
            cmd!["JSON.GET", key("json")],
            cmd!["BF.SCANDUMP", key("bloom"), 0],
            cmd!["CMS.QUERY", key("cms"), "item:1"],
            cmd!["CMS.QUERY", key("cms:sum"), "item:1"],
            cmd!["TOPK.LIST", key("top"), "WITHCOUNT"],
            cmd!["TS.RANGE", key("series"), "-", "+"],
            cmd!["TS.RANGE", key("series:sum"), "-", "+"],
            cmd!["TS.RANGE", key("series:twa"), "-", "+"],
            cmd!["TS.RANGE", key("counter"), "-", "+"],
            cmd!["TS.RANGE", key("counter:at"), "-", "+"],
        ]
    };
    for ask in ["{a}", "{b}", "{c}"].iter().flat_map(|prefix| asks(prefix)) {
        let want = source.call(&ask);
        let what = format!("{:?}", ask.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>());
        until(MINUTE, &what, || target.call(&ask) == want);
    }
    tool.stop();
}

#[test]
fn indexes_that_are_made_while_following_are_there() {
    let modules = &[JSON, SEARCH];
    let (a, b) = (with_modules("stack-7.4", modules, &[]), with_modules("stack-7.4", modules, &[]));
    let mut source = a.client();
    source.call(&cmd!["FT.CREATE", "before", "PREFIX", 1, "h:", "SCHEMA", "t", "TEXT"]);
    source.call(&cmd!["HSET", "h:0", "t", "copied"]);
    source.call(&cmd!["FT.SUGADD", "sug", "hello", 1]);
    let mut tool = Tool::sync(&a, &b, &["--job", "m"]);
    let mut target = b.client();
    until(HALF_MINUTE, "the copy", || is_following(&mut target, "m"));
    tool.until_text("indexes, aliases and dictionaries of Search", HALF_MINUTE);
    source.load(&[
        cmd!["FT.CREATE", "idx", "PREFIX", 1, "h:", "SCHEMA", "t", "TEXT"],
        cmd!["FT.ALIASADD", "name", "idx"],
        cmd!["HSET", "h:1", "t", "followed"],
        cmd!["FT.SUGADD", "sug", "help", 2],
    ]);
    let found = |words: &str| cmd!["FT.SEARCH", "name", words, "NOCONTENT"];
    let one = |key: &str| Reply::List(vec![Reply::Int(1), Reply::Bytes(key.into())]);
    until(HALF_MINUTE, "the index", || target.ask(&found("followed")) == Ok(one("h:1")));
    until(HALF_MINUTE, "what it finds", || target.ask(&found("copied")) == Ok(one("h:0")));
    assert_eq!(target.call(&cmd!["FT.SUGGET", "sug", "hel"]).list().len(), 2);
    source.call(&cmd!["FT.DROPINDEX", "idx"]);
    until(HALF_MINUTE, "no index", || target.ask(&found("copied")).is_err());
    tool.stop();
}

/// A value over the size from which others go in pieces.
#[test]
fn large_value_of_a_module_is_copied_whole() {
    let (a, b) = (with_modules("stack-7.4", ALL, &[]), with_modules("stack-7.4", ALL, &[]));
    let text: String = std::iter::repeat_with(fastrand::alphanumeric).take(20 << 20).collect();
    a.client().load(&[cmd!["JSON.SET", "large", "$", format!("\"{text}\"")], cmd!["SET", "after", 1]]);
    Tool::once(&a, &b, &[], MINUTE);
    assert!(b.client().call(&cmd!["JSON.GET", "large"]) == a.client().call(&cmd!["JSON.GET", "large"]));
    assert_eq!(b.client().get("after").text(), "1");
}

/// What is copied from the source by itself comes by DUMP, which has no rules.
#[test]
fn rules_of_a_series_live_on_when_it_is_copied_by_itself() {
    let (a, b) = (with_modules("stack-7.4", &[SERIES], &[]), with_modules("stack-7.4", &[SERIES], &[]));
    let mut source = a.client();
    source.load(&[
        cmd!["TS.CREATE", "count"],
        cmd!["TS.CREATE", "per:second"],
        cmd!["TS.CREATE", "most"],
        cmd!["TS.CREATERULE", "count", "per:second", "AGGREGATION", "sum", 1000, 5],
        cmd!["TS.CREATERULE", "count", "most", "AGGREGATION", "max", 10],
    ]);
    let mut tool = Tool::sync(&a, &b, &["--job", "m"]);
    let mut target = b.client();
    until(HALF_MINUTE, "the copy", || is_following(&mut target, "m"));
    source.call(&cmd!["TS.INCRBY", "count", 2]);
    let rules = |client: &mut crate::client::Client| {
        client.ask(&cmd!["TS.INFO", "count"]).ok().and_then(|info| info.field("rules").cloned())
    };
    let same = |target: &mut crate::client::Client, source: &mut crate::client::Client, key: &str| {
        let ask = cmd!["TS.RANGE", key, "-", "+"];
        target.ask(&ask) == source.ask(&ask)
    };
    until(HALF_MINUTE, "the counter", || same(&mut target, &mut source, "count"));
    assert_eq!(rules(&mut target), rules(&mut source));
    tool.until_text("its compaction rules are made again", HALF_MINUTE);
    // From the next bucket on they are the source's.
    let at = crate::compare::now_ms() + 100_000;
    let adds: Vec<_> = (0..50).map(|i| cmd!["TS.ADD", "count", at + 90 * i, i]).collect();
    source.load(&adds);
    let last = |client: &mut crate::client::Client, key: &str| client.ask(&cmd!["TS.RANGE", key, at + 1000, "+"]);
    for key in ["count", "per:second", "most"] {
        until(HALF_MINUTE, key, || last(&mut target, key) == last(&mut source, key));
    }
    assert!(last(&mut target, "per:second").is_ok_and(|range| range.list().len() >= 2));
    tool.stop();
}
