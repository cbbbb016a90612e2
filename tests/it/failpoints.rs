//! keyferry ends at each place that writes a record or moves a position; the next run must go on from what it left.
//!
//! The places are compiled into the program that cargo builds with these tests where the feature `failpoints` is on; else
//! into one of the tests' own. `KEYFERRY_FAILPOINT_ONLY` takes the places whose names hold it.

use crate::compare::{Rules, databases, is_own_record, scan, until_same};
use crate::load::{Mix, Workload, load_bulk};
use crate::server::{FAST, Server};
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, MINUTE, until};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What a place's passing needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// A first run, under load.
    First,
    /// A run that goes on, under load.
    Again,
    /// A run with another lane count.
    Lanes,
    /// The end of the job.
    Finish,
    /// A run behind a `finish` that was killed while it settled.
    Unsettle,
    /// A target that came back from an older file.
    RollBack,
    /// A copy behind one that was killed.
    SecondCopy,
    /// A command that the target refuses.
    Refused(&'static str),
}

use Scene::{Again, Finish, First, Lanes, Refused, RollBack, SecondCopy, Unsettle};

/// Places, and at which of their passes the process ends.
type Places = &'static [(&'static str, &'static [u32])];

#[test]
fn killed_at_every_place_of_a_first_run_the_next_ends_equal() {
    killed_at_each(
        First,
        &[
            ("lease-taken", &[1]),
            ("first-record", &[1, 3]),
            ("copy-end", &[1, 4]),
            ("written", &[2, 30]),
            ("record-launched", &[1, 3]),
            ("record-answered", &[1, 4, 6]),
        ],
    );
}

#[test]
fn killed_at_every_place_of_a_flush_the_next_run_ends_equal() {
    killed_at_each(
        Again,
        &[("lease-taken", &[1]), ("written", &[1, 9, 60]), ("flush-launched", &[1, 20]), ("flush-answered", &[1, 20])],
    );
}

#[test]
fn killed_at_every_place_of_a_joint_flush_the_next_run_ends_equal() {
    killed_at_each(Again, &[("joint-launched", &[1, 7, 40]), ("joint-answered", &[1, 7, 40])]);
}

#[test]
fn killed_at_every_place_of_guards_and_lanes_the_next_run_ends_equal() {
    killed_at_each(Again, &[("guard-stored", &[1, 9]), ("guards-dropped", &[1]), ("scope-removed", &[1])]);
    killed_at_each(Lanes, &[("lanes-to-change", &[1]), ("lanes-sent", &[1]), ("lanes-changed", &[1])]);
}

#[test]
fn killed_at_every_place_of_the_end_the_next_run_ends_equal() {
    killed_at_each(
        Finish,
        &[
            ("lease-given-back", &[1]),
            ("settle-sent", &[1, 2]),
            ("settle-batch", &[1, 2]),
            ("settle-marker", &[1]),
            ("records-to-remove", &[1]),
            ("records-removed", &[1]),
        ],
    );
    killed_at_each(Unsettle, &[("settle-sent", &[1]), ("settle-batch", &[1]), ("unsettled", &[1])]);
}

#[test]
fn killed_at_every_place_of_a_way_back_the_next_run_ends_equal() {
    killed_at_each(RollBack, &[("rewind", &[1]), ("lease-taken-back", &[1])]);
    killed_at_each(SecondCopy, &[("leftovers-removed", &[1])]);
    killed_at_each(Refused("recopy"), &[("suspect-noted", &[1])]);
    killed_at_each(Refused("stop"), &[("suspect-noted", &[1]), ("stopped-noted", &[1])]);
}

fn killed_at_each(scene: Scene, places: Places) {
    let only = std::env::var("KEYFERRY_FAILPOINT_ONLY").unwrap_or_default();
    for (name, passes) in places.iter().filter(|(name, _)| name.contains(&only)) {
        for n in *passes {
            println!("{name}:{n} {scene:?}");
            killed_at(name, *n, scene);
        }
    }
}

/// The program that has the places, and whose rules can be taken out.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if cfg!(feature = "failpoints") {
            return env!("CARGO_BIN_EXE_keyferry").into();
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let target = root.join("target/failpoints");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--features", "failpoints", "--bin", "keyferry"])
            .arg("--target-dir")
            .arg(&target)
            .current_dir(root)
            .status()
            .expect("cargo starts");
        assert!(built.success(), "the program with failpoints isn't built");
        target.join("debug/keyferry")
    })
}

struct Stage {
    a: Server,
    b: Server,
    load: Option<Workload>,
}

impl Stage {
    fn args(&self, command: &str, more: &[&str]) -> Vec<String> {
        let spool = self.a.dir().join("spool").display().to_string();
        let (from, to) = (self.a.url(), self.b.url());
        let mut args: Vec<String> =
            [command, "--source", &from, "--target", &to, "--job", "places"].map(String::from).to_vec();
        args.extend(["--spool-dir", &spool, "--not-key", "tmp:*"].map(String::from));
        args.extend(more.iter().map(|word| word.to_string()));
        args
    }

    fn run(&self, command: &str, more: &[&str]) -> Tool {
        let args = self.args(command, more);
        Tool::run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// A run that ends at a place.
    fn armed(&self, command: &str, more: &[&str], place: &str) -> Tool {
        let args = self.args(command, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Tool::run_program(program(), &args, &[("KEYFERRY_FAILPOINT", place)])
    }

    fn until_following(&self, tool: &mut Tool) {
        let mut target = self.b.client();
        until(MINUTE, "the copy's end", || {
            tool.must_live();
            is_following(&mut target, "places")
        });
    }

    fn until_same(&self, what: &str, rules: Rules) {
        let in_scope = |_: u32, key: &[u8]| !key.starts_with(b"tmp:");
        until_same(&self.a, &self.b, MINUTE, what, &Rules { in_scope: &in_scope, group_hints: false, ..rules });
    }
}

/// SIGABRT, as a shell counts it.
pub const ABORTED: i32 = 134;

fn killed_at(name: &str, n: u32, scene: Scene) {
    let place = format!("{name}:{n}");
    let what = format!("killed at {place} in {scene:?}");
    let a = Server::with("redis-7.0", &[FAST, &["repl-backlog-size 64mb"]].concat());
    let b = Server::start("redis-7.0");
    load_bulk(&mut a.client(), "bulk:", 2000, 50);
    // Expiries that are far enough for any settling.
    let expiring: Vec<_> = (0..3000).map(|i| cmd!["SET", format!("ttl:{i}"), i, "EX", 5000 + i]).collect();
    a.client().load(&expiring);
    let mix = Mix {
        prefixes: vec![String::new(), "tmp:".into()],
        databases: vec![0, 2],
        across_databases: name == "scope-removed",
        ..Mix::of(&a)
    };
    let quiet = matches!(scene, Finish | Unsettle | Refused(_));
    let load = (!quiet).then(|| Workload::start(&a, fastrand::u64(..), 3000, mix));
    let mut stage = Stage { a, b, load };
    let mut copies = 1;
    let mut dies = match scene {
        First => {
            // A copy that wasn't whole is begun again.
            copies = 2;
            stage.armed("sync", &[], &place)
        }
        Again => {
            let mut tool = stage.run("sync", &[]);
            stage.until_following(&mut tool);
            tool.kill();
            stage.armed("sync", &[], &place)
        }
        Lanes => {
            let mut tool = stage.run("sync", &["--lanes", "3"]);
            stage.until_following(&mut tool);
            tool.kill();
            stage.armed("sync", &["--lanes", "5"], &place)
        }
        Finish | Unsettle => {
            let mut tool = stage.run("sync", &[]);
            stage.until_following(&mut tool);
            tool.stop();
            if scene == Unsettle {
                stage.armed("finish", &[], "settle-batch:2").must_end(HALF_MINUTE, ABORTED);
                stage.armed("sync", &[], &place)
            } else {
                stage.armed("finish", &[], &place)
            }
        }
        RollBack => {
            let mut tool = stage.run("sync", &[]);
            stage.until_following(&mut tool);
            stage.b.client().call(&cmd!["SAVE"]);
            if name == "lease-taken-back" {
                tool.kill();
            } else {
                tool.stop();
            }
            let tool = stage.armed("sync", &[], &place);
            let mut target = stage.b.client();
            let own = format!(" pid={} ", tool.pid());
            until(HALF_MINUTE, "the armed run's lease", || {
                let lease = target.call(&cmd!["GET", "keyferry:places:owner"]);
                lease != crate::client::Reply::Nil && lease.text().contains(&own)
            });
            stage.load.as_ref().expect("a load").until_sent(1000, HALF_MINUTE);
            stage.b.restart();
            tool
        }
        SecondCopy => {
            copies = 3;
            let mut tool = stage.run("sync", &["--rate", "64KiB"]);
            let mut target = stage.b.client();
            until(HALF_MINUTE, "a part of the copy", || target.dbsize() > 500);
            tool.kill();
            let dels: Vec<_> = (0..2000).step_by(2).map(|i| cmd!["DEL", format!("bulk:{i}")]).collect();
            stage.a.client().load(&dels);
            stage.armed("sync", &[], &place)
        }
        Refused(on_error) => {
            stage.a.client().call(&cmd!["RPUSH", "list", 1]);
            let mut tool = stage.run("sync", &[]);
            stage.until_following(&mut tool);
            tool.stop();
            stage.b.client().load(&[cmd!["DEL", "list"], cmd!["SET", "list", "a string"]]);
            stage.a.client().load(&[cmd!["RPUSH", "list", 2], cmd!["INCR", "other"]]);
            stage.armed("sync", &["--on-error", on_error], &place)
        }
    };
    let code = dies.wait(MINUTE);
    assert_eq!(code, ABORTED, "{what}: it ended otherwise: {}", dies.tail());

    let more: &[&str] = if matches!(scene, Refused(_)) { &["--on-error", "recopy"] } else { &[] };
    if scene != Finish {
        let mut tool = stage.run("sync", more);
        if let Some(load) = stage.load.take() {
            load.until_sent(1500, HALF_MINUTE);
            load.stop();
        }
        if matches!(scene, Refused(_)) {
            stage.a.client().call(&cmd!["INCR", "other"]);
        }
        stage.until_same(&what, Rules::following(&stage.a));
        tool.must_live();
        tool.stop();
    }
    let gone = stage.b.client().call(&cmd!["KEYS", "keyferry:places:lane:*"]).list().is_empty();
    if !gone {
        stage.run("finish", more).must_end(MINUTE, 0);
    }
    stage.until_same(&format!("{what}, finished"), Rules::default());
    let mut target = stage.b.client();
    let mut left = Vec::new();
    for db in databases(&mut target) {
        target.select(db);
        left.extend(scan(&mut target).into_iter().filter(|key| is_own_record(key)));
    }
    // A lease that nobody gave back runs out.
    left.retain(|key| !(gone && key.ends_with(b":owner")));
    assert!(left.is_empty(), "{what}: left behind: {left:?}");
    let syncs: u32 = stage.a.client().info("stats")["sync_full"].parse().expect("a number");
    assert!(syncs <= copies, "{what}: {syncs} full syncs");
}
