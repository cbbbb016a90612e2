//! A target whose administrator has taken commands away: what it knows is asked at the start.

use super::must_be_equal;
use crate::compare::Rules;
use crate::server::{FAST, Server};
use crate::tool::{Tool, is_following};
use crate::wait::{MINUTE, until};

fn without(name: &str, commands: &[&str]) -> Server {
    let lines: Vec<String> = commands.iter().map(|command| format!("rename-command {command} \"\"")).collect();
    let config: Vec<&str> = FAST.iter().copied().chain(lines.iter().map(String::as_str)).collect();
    Server::with(name, &config)
}

#[test]
fn target_without_some_commands_is_equal() {
    let a = Server::start("redis-7.0");
    super::data::load(&a);
    let b = without("redis-7.0", &["UNLINK", "COPY", "SWAPDB", "FLUSHDB", "LMOVE", "SETRANGE", "XSETID", "PUBLISH"]);
    let mut tool = Tool::sync(&a, &b, &["--job", "renamed"]);
    let mut target = b.client();
    until(MINUTE, "the copy", || {
        tool.must_live();
        is_following(&mut target, "renamed")
    });
    super::data::write(&a, 300);
    must_be_equal(&mut tool, (&a, &b), &[], &Rules::following(&a), "without some commands");
    tool.stop();
}

#[test]
fn target_without_restore_gets_every_value_by_commands() {
    let a = Server::start("redis-7.0");
    super::data::load(&a);
    let b = without("redis-7.0", &["RESTORE"]);
    Tool::once(&a, &b, &[], MINUTE);
    // A placeholder stands in for a pending entry that was deleted, and leaves its id as the greatest deleted one.
    let mut source = a.client();
    source.call(&cmd!["DEL", "xtrim"]);
    b.client().call(&cmd!["DEL", "xtrim"]);
    super::until_equal(&mut || {}, (&a, &b), &[], &Rules::default(), "without RESTORE");
}
