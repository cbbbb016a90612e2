//! Any version to any version: every pair of the table is copied and followed, and what comes out is compared with plain
//! commands. What a pair loses is listed in the table, and nothing else may differ.
//!
//! By default the pairs of the quick servers; `KEYFERRY_MATRIX=all` takes all of them (`tests/servers.sh` with every name
//! first), `KEYFERRY_MATRIX='redis-8.10 valkey-9.1'` one.

mod data;
mod extras;
mod losses;
mod pairs;
mod refused;
mod renamed;
mod table;

use crate::compare::{Content, Entry, Rules, differences, now_ms, snapshot};
use crate::server::Server;
use crate::tool::Tool;
use crate::wait::{HALF_MINUTE, MINUTE, until};
use extras::Extras;
use losses::{Loss, expected, normal};
use pairs::{PAIRS, Pair, QUICK};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Writes of the random load, behind those that are listed.
const RANDOM_WRITES: usize = 1500;

/// How long both sides may take to become equal.
const EQUAL_MAX: Duration = Duration::from_secs(30);

#[test]
fn pairs_hold_what_the_table_says() {
    let wanted = std::env::var("KEYFERRY_MATRIX").unwrap_or_default();
    let chosen = |pair: &&Pair| match wanted.as_str() {
        "" => QUICK.contains(&(pair.source, pair.target)),
        "all" => true,
        one => one == format!("{} {}", pair.source, pair.target),
    };
    let queue = Mutex::new(PAIRS.iter().filter(chosen).collect::<Vec<_>>());
    assert!(!queue.lock().expect("the queue").is_empty(), "no pair {wanted:?} in the table");
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(pair) = queue.lock().expect("the queue").pop() else { break };
                    let began = Instant::now();
                    let name = format!("{} -> {}", pair.source, pair.target);
                    match std::panic::catch_unwind(|| run(pair)) {
                        Ok(()) => println!("{name}: {:.1} s", began.elapsed().as_secs_f64()),
                        Err(_) => failed.lock().expect("the failures").push(name),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("the failures");
    assert!(failed.is_empty(), "{} pairs differ: {failed:?}", failed.len());
}

/// A server whose version may be older than the usual settings.
fn start(name: &str) -> Server {
    if name == "redis-2.8" { Server::with(name, &[]) } else { Server::start(name) }
}

/// Copies, follows and finishes one pair.
fn run(pair: &Pair) {
    let what = format!("{} -> {}", pair.source, pair.target);
    let (a, b) = (start(pair.source), start(pair.target));
    data::load(&a);
    let mut args = vec!["--job", "matrix"];
    if !pair.losses.is_empty() {
        args.extend(["--lossy", "--on-error", "skip"]);
    }
    let mut tool = Tool::sync(&a, &b, &args);
    let mut target = b.client();
    until(MINUTE, &format!("{what}: the copy"), || {
        tool.must_live();
        crate::tool::is_following(&mut target, "matrix")
    });
    let late = Rules::following(&a);
    let copied = Rules { group_hints: true, ..Rules::following(&a) };
    must_be_equal(&mut tool, (&a, &b), pair.losses, &copied, &format!("{what}, copied"));
    data::write(&a, RANDOM_WRITES);
    must_be_equal(&mut tool, (&a, &b), pair.losses, &late, &format!("{what}, followed"));
    assert_losses_are_lost((&a, &b), pair, &what);
    // What the source lets expire later reaches nobody any more.
    until(HALF_MINUTE, &format!("{what}: the fields that expire soon"), || !expires_soon(&a));
    must_be_equal(&mut tool, (&a, &b), pair.losses, &late, &format!("{what}, expired"));
    tool.stop();
    let told = tool.text();
    for words in pair.losses.iter().filter_map(|loss| loss.told()) {
        assert!(told.contains(words), "{what}: the words {words:?} are missing: {told}");
    }
    if pair.losses.is_empty() {
        assert!(!told.contains("skipped:") && !told.contains("lossy:"), "{what}: {told}");
    }
    let (from, to) = (a.url(), b.url());
    let mut finish = vec!["finish", "--source", &from, "--target", &to];
    finish.extend(args);
    Tool::run(&finish).must_end(HALF_MINUTE, 0);
    let exact = Rules { group_hints: false, ..Rules::default() };
    // They are read one after the other: what expires between both is seen again.
    until_equal(&mut || {}, (&a, &b), pair.losses, &exact, &format!("{what}, finished"));
}

/// Whether a field of a hash expires within the next minute.
fn expires_soon(server: &Server) -> bool {
    let soon = now_ms() + 60_000;
    let fields = |entry: &Entry| match &entry.value {
        Content::Hash(fields) => fields.iter().any(|field| (0..soon).contains(&field.2)),
        _ => false,
    };
    server.has_field_expiry() && snapshot(server).values().any(fields)
}

fn must_be_equal(tool: &mut Tool, ends: (&Server, &Server), losses: &[Loss], rules: &Rules, what: &str) {
    until_equal(&mut || tool.must_live(), ends, losses, rules, what);
}

fn until_equal(look: &mut dyn FnMut(), ends: (&Server, &Server), losses: &[Loss], rules: &Rules, what: &str) {
    let started = Instant::now();
    loop {
        let lines = differ(ends, losses, rules);
        if lines.is_empty() {
            return;
        }
        look();
        assert!(started.elapsed() < EQUAL_MAX, "{what}: still different:\n{}", lines.join("\n"));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What differs beyond the losses.
fn differ((a, b): (&Server, &Server), losses: &[Loss], rules: &Rules) -> Vec<String> {
    let (want, found) = (expected(snapshot(a), losses), normal(snapshot(b)));
    let mut lines = differences(&want, &found, rules);
    lines.extend(Extras::of(a).differences(&Extras::of(b), losses));
    lines
}

/// A loss that isn't one has no place in the table.
fn assert_losses_are_lost(ends: (&Server, &Server), pair: &Pair, what: &str) {
    let rules = Rules::following(ends.0);
    for loss in pair.losses {
        let others: Vec<Loss> = pair.losses.iter().filter(|other| *other != loss).copied().collect();
        let lines = differ(ends, &others, &rules);
        assert!(!lines.is_empty(), "{what}: {loss:?} is in the table, and nothing of it is lost");
    }
}
