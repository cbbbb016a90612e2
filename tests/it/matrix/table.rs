//! The README's table of versions, made from the table of pairs.

use super::losses::Loss;
use super::pairs::PAIRS;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const BEGIN: &str = "<!-- versions: written by the test readme_versions_are_those_of_the_pairs -->\n";
const END: &str = "<!-- versions end -->\n";

/// `redis-7.0` as people write it. The stack servers are plain Redis here, without modules.
fn product(name: &str) -> String {
    let (kind, version) = name.split_once('-').expect("a name and a version");
    let kind = if kind == "valkey" { "Valkey" } else { "Redis" };
    format!("{kind} {version}")
}

/// Redis first, then by version.
fn order(name: &str) -> (bool, Vec<u32>) {
    let version = name.rsplit('-').next().unwrap_or_default();
    (name.starts_with("valkey"), version.split('.').map(|n| n.parse().expect("a number")).collect())
}

fn rendered() -> String {
    let mut targets: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for pair in PAIRS {
        targets.entry((order(pair.target), pair.target)).or_default().push(pair);
    }
    let mut out = String::from("| to | tried from | of that it can't hold |\n|---|---|---|\n");
    for ((_, target), mut pairs) in targets {
        pairs.sort_by_key(|pair| order(pair.source));
        let sources: Vec<String> = pairs.iter().map(|pair| product(pair.source)).collect();
        let losses: BTreeSet<Loss> = pairs.iter().flat_map(|pair| pair.losses).copied().collect();
        let losses: Vec<&str> = losses.into_iter().map(Loss::words).collect();
        let losses = if losses.is_empty() { "–".to_owned() } else { losses.join(", ") };
        out += &format!("| {} | {} | {losses} |\n", product(target), shortened(&sources));
    }
    out
}

/// `Redis 2.8, 3.0, Valkey 9.1`: the product's name once.
fn shortened(names: &[String]) -> String {
    let mut last = "";
    let mut parts = Vec::new();
    for name in names {
        let (kind, version) = name.split_once(' ').expect("a name and a version");
        parts.push(if kind == last { version.to_owned() } else { name.clone() });
        last = kind;
    }
    parts.join(", ")
}

/// With `KEYFERRY_WRITE_README=1` it writes the table.
#[test]
fn readme_versions_are_those_of_the_pairs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(&path).expect("the README is read");
    let (head, rest) = readme.split_once(BEGIN).expect("the table's beginning");
    let (table, tail) = rest.split_once(END).expect("the table's end");
    if std::env::var_os("KEYFERRY_WRITE_README").is_some() {
        std::fs::write(&path, [head, BEGIN, &rendered(), END, tail].concat()).expect("the README is written");
        return;
    }
    assert_eq!(table, rendered(), "run this test with KEYFERRY_WRITE_README=1");
}

#[test]
fn every_server_is_a_source_and_a_target() {
    let sources: BTreeSet<&str> = PAIRS.iter().map(|pair| pair.source).collect();
    let targets: BTreeSet<&str> = PAIRS.iter().map(|pair| pair.target).collect();
    assert_eq!(sources, targets);
    assert!(sources.len() >= 17 && PAIRS.len() >= 30, "{} servers, {} pairs", sources.len(), PAIRS.len());
}
