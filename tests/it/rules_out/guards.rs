//! Keys that are copied from the source, and their guards.
//!
//! keyferry is down while the source writes: its next run asks for a key when it comes to the unit that needs it, and
//! gets the key as it stands behind everything.

use super::{JOB, Stage, Verdict, differs, field, needs, needs_beside, record};
use crate::client::Cmd;
use crate::server::Server;
use crate::tool::is_following;
use crate::wait::{HALF_MINUTE, until};

/// The next run sees these commands of the source.
fn catches_up(out: &str, commands: &[Cmd]) -> Verdict {
    let stage = Stage::new("1");
    stage.a.client().load(commands);
    let tool = stage.run("sync", out, &[]);
    stage.end(tool)
}

/// The next run sees them too, dies when its first flush is answered, and another goes on.
fn dies_and_goes_on(out: &str, commands: &[Cmd], lanes: &str) -> Verdict {
    let stage = Stage::new("1");
    stage.a.client().load(commands);
    stage.dies("sync", "flush-answered:1", out);
    let tool = stage.run("sync", out, &["--lanes", lanes]);
    stage.end(tool)
}

/// Brings `a` over the filter's edge, so that it's copied; `then` follows.
fn copied(then: &[Cmd]) -> Vec<Cmd> {
    let before = [cmd!["SET", "tmp:x", 5], cmd!["RENAME", "tmp:x", "a"]];
    before.into_iter().chain(then.iter().cloned()).collect()
}

#[test]
fn copied_key_comes_with_its_guard_in_one_transaction() {
    needs("guard-with-value", differs!("a", "6", "7"), |out| dies_and_goes_on(out, &copied(&[cmd!["INCR", "a"]]), "1"));
}

#[test]
fn units_under_a_guard_are_left_out() {
    needs("guarded-units-left-out", differs!("a", "6", "7"), |out| catches_up(out, &copied(&[cmd!["INCR", "a"]])));
}

#[test]
fn guards_stay_until_every_record_has_passed_them() {
    // What follows the copied key is read in another go: more than one takes lies between.
    let fill = vec![cmd!["SET", "tmp:fill", "x".repeat(200_000)]; 3];
    let commands = copied(&[&fill[..], &[cmd!["INCR", "a"]]].concat());
    needs("guards-until-recorded", differs!("a", "6", "7"), |out| dies_and_goes_on(out, &commands, "1"));
}

#[test]
fn unit_on_a_guarded_key_and_another_is_copied_whole() {
    needs("partly-guarded-copied", "refuses RENAME", |out| catches_up(out, &copied(&[cmd!["RENAME", "a", "b"]])));
}

#[test]
fn flush_drops_the_guards_of_what_it_flushes() {
    let commands = copied(&[cmd!["FLUSHALL"], cmd!["HSET", "a", 0, 3]]);
    needs("flush-drops-guards", "missing 0:'a'", |out| catches_up(out, &commands));
}

#[test]
fn flush_of_a_database_keeps_the_guards_of_others() {
    let elsewhere = [cmd!["SELECT", 2], cmd!["SET", "j", 1], cmd!["FLUSHDB"], cmd!["SELECT", 0]];
    let commands = copied(&[&elsewhere[..], &[cmd!["INCR", "a"]]].concat());
    needs("guards-by-database", differs!("a", "6", "7"), |out| catches_up(out, &commands));
}

/// They lie in database 0, whose flush takes them with it.
#[test]
fn flush_of_database_0_writes_the_guards_of_others_again() {
    let before = [cmd!["SELECT", 5], cmd!["SET", "x", 5], cmd!["MOVE", "x", 1], cmd!["SELECT", 0], cmd!["FLUSHDB"]];
    let commands = [&before[..], &[cmd!["SELECT", 1], cmd!["INCR", "x"], cmd!["SELECT", 0]]].concat();
    needs("guards-written-again", "value 1:'x' Plain('6') != Plain('7')", |out| {
        let stage = Stage::with("1", &["--db", "0", "--db", "1"], &[cmd!["SET", "first", 1]]);
        stage.a.client().load(&commands);
        stage.dies("sync", "flush-answered:1", out);
        let tool = stage.run("sync", out, &[]);
        stage.end(tool)
    });
}

#[test]
fn copied_key_comes_behind_its_earlier_units() {
    let commands = [&[cmd!["INCR", "a"]][..], &copied(&[])].concat();
    needs("copy-in-order", differs!("a", "5", "6"), |out| catches_up(out, &commands));
}

/// Lanes are only changed when the guards are passed, which is why that is out here.
#[test]
fn guards_move_with_the_lane_count() {
    let scenario = |out: &str| dies_and_goes_on(out, &copied(&[cmd!["INCR", "a"]]), "3");
    needs_beside("lanes-level-first", "guards-move", differs!("a", "6", "7"), scenario);
}

/// The source that the job goes over to counts from the beginning: an old guard lies far ahead of its stream.
#[test]
fn guards_of_an_earlier_full_sync_are_gone() {
    needs("old-guards-removed", differs!("a", "11", "10"), |out| {
        let stage = Stage::new("1");
        let fill = [cmd!["SET", "tmp:fill", "x".repeat(200_000)]];
        stage.a.client().load(&[&fill[..], &copied(&[])].concat());
        stage.dies("sync", "flush-answered:1", "");
        let other = Server::start("redis-7.0");
        other.client().call(&cmd!["SET", "a", 10]);
        let env = [("KEYFERRY_RULES_OUT", out)];
        let stage = Stage { a: other, ..stage };
        let mut tool = stage.run_between("sync", stage.a.port, stage.b.port, &env, &[]);
        let mut target = stage.b.client();
        until(HALF_MINUTE, "the other source's copy", || {
            tool.must_live();
            field(&record(&mut target, 0), "gen") == "2" && is_following(&mut target, JOB)
        });
        tool.stop();
        stage.a.client().call(&cmd!["INCR", "a"]);
        let tool = stage.run("sync", out, &[]);
        stage.end(tool)
    });
}

#[test]
fn what_builds_on_a_command_that_failed_is_copied_too() {
    needs("recopy-what-follows", "type 0:'j' list != string", |out| {
        let stage = Stage::with("1", &["--on-error", "recopy"], &[cmd!["RPUSH", "k", 1]]);
        // Someone else's write.
        stage.b.client().load(&[cmd!["DEL", "k"], cmd!["SET", "k", "a string"]]);
        stage.a.client().load(&[cmd!["RPUSH", "k", 2], cmd!["RENAME", "k", "j"]]);
        let mut tool = stage.run("sync", out, &[]);
        // They are copied with the next unit, which is that of the end.
        let mut target = stage.b.client();
        until(HALF_MINUTE, "the note of what failed", || {
            tool.must_live();
            target.call(&cmd!["HEXISTS", format!("keyferry:{JOB}:guards:0"), "0:k"]).int() == 1
        });
        stage.end(tool)
    });
}
