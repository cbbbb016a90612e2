//! Settling. While it lasts nothing is applied, so its rules are about one that was broken off.

use super::{Stage, differs, equal, needs, text};
use crate::compare::Rules;
use crate::wait::{HALF_MINUTE, until};

/// What was settled must be late again before anything is applied: the next end passes over it.
#[test]
fn settling_broken_off_is_taken_back_before_the_stream() {
    needs("unsettled-first", "expiry 0:'k'", |out| {
        let stage = Stage::with("1", &[], &[cmd!["SET", "k", 5, "EX", 5000]]);
        stage.dies("finish", "settle-batch:1", "");
        stage.a.client().call(&cmd!["EXPIRE", "k", 7000]);
        let tool = stage.run("sync", out, &[]);
        stage.end(tool)?;
        stage.run("finish", "", &[]).must_end(HALF_MINUTE, 0);
        equal(&stage.a, &stage.b, &Rules::default())
    });
}

/// A key with its true time expires on the target before the source's renewal is applied.
#[test]
fn what_settling_leaves_near_its_end_is_noted_and_copied_again() {
    needs("soon-noted", differs!("k", "6", "1"), |out| {
        let stage = Stage::with("1", &[], &[cmd!["SET", "k", 5, "PX", 3000]]);
        stage.dies("finish", "settle-batch:1", out);
        let (mut source, mut target) = (stage.a.client(), stage.b.client());
        source.load(&[cmd!["INCR", "k"], cmd!["EXPIRE", "k", 5000]]);
        assert_eq!(text(&mut source, "k"), "6", "the machine was too slow for a key of 3 s");
        until(HALF_MINUTE, "the target's clock", || text(&mut target, "k").is_empty());
        let tool = stage.run("sync", out, &[]);
        stage.end(tool)
    });
}
