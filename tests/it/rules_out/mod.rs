//! The rules of the delivery protocol, row by row of its list of shortest breaks, and what shows that each is needed.
//!
//! *By switch*: a test runs a scenario by all rules, which must end well, and without the one, which must end in the wrong
//! way that the row tells. Rules of the pure machine are switched by `rule!` and tested in `src/delivery/tests/cases.rs`
//! (and `random.rs`); those around it by `holds!`, which `KEYFERRY_RULES_OUT` takes out of the program with failpoints, on
//! real servers, here ([`needs`]). *By hand*: the rule was taken out of the source once, and the test failed. What a
//! scenario needs to happen is held until it has: by what the source did while keyferry was down, by a failpoint, by a
//! frozen process, or by what stands between (`wire`).
//!
//! | row | test | its removal |
//! |---|---|---|
//! | record in the flush's own transaction; read after a break | `flush_cut_before_its_reply_runs_once_…` | `rule!` |
//! | one flush in flight | `flush_behind_one_that_is_refused_waits_for_it` | `rule!` |
//! | whole flush in one transaction | `flush_refused_in_part_is_not_applied_in_part` | `rule!` |
//! | a record names only what was acknowledged | `record_of_a_refused_flush_is_not_written_…` | `rule!` |
//! | records may fall back | `record_that_fell_back_is_believed` | `rule!` |
//! | drain replies after a passing error | `flush_behind_an_idle_record_that_is_refused_…` | `rule!`: an assertion stops it |
//! | READONLY closes and rereads | `server_that_answers_readonly_is_left_…` | `rule!` |
//! | break on one lane breaks all of that server | `break_on_one_lane_has_all_lanes_read_their_records` | `rule!` |
//! | compare run id and replid | `owners::lanes_on_two_servers_write_nothing` | `one-server` |
//! | joined lanes drain; joint moves all records | `joint_flush_waits_for_…`, `joint_flush_moves_…` | `rule!` |
//! | no idle record in a joined lane | `joined_lane_writes_no_record_behind_the_joint_flush` | `rule!` |
//! | FLUSHALL joins all lanes | `flushall_joins_all_lanes` | the case itself, with one lane |
//! | SELECT awaited, pieces counted (copy) | `value_behind_a_refused_select_…`, `piece_cut_before_…` | `rule!` |
//! | MULTI awaited where it may be refused | `refused_multi_keeps_what_follows_from_running_bare` | `rule!` |
//! | leftovers deleted before the stream | `leftovers_of_an_earlier_copy_are_gone_before_the_stream` | `rule!` |
//! | kill own former connections | `late_bytes_of_a_cut_connection_…`; `owners::late_bytes_of_an_own_…` | `rule!`, `own-killed` |
//! | kill the other owner's | `late_bytes_of_another_owner_…`; `owners::late_bytes_of_another_run_…` | `rule!`, `others-killed` |
//! | kill on every connect, check the lease first | the two above; `owners::run_that_lost_its_lease_…` | `lease-looked-at` |
//! | lease at all | `owners::second_run_finds_the_lease_…` | `lease` |
//! | copied key and guard in one transaction | `guards::copied_key_comes_with_its_guard_…` | `guard-with-value` |
//! | units under the guard are skipped | `guards::units_under_a_guard_are_left_out` | `guarded-units-left-out` |
//! | guard removed behind every lane's record | `guards::guards_stay_until_…` | `guards-until-recorded` |
//! | all keys of a partly guarded unit | `guards::unit_on_a_guarded_key_and_another_…` | `partly-guarded-copied` |
//! | FLUSHALL drops guards | `guards::flush_drops_the_guards_of_what_it_flushes` | `flush-drops-guards` |
//! | units wait from the copy's request on | `guards::copied_key_comes_behind_its_earlier_units` | `copy-in-order` |
//! | guards per database | `guards::flush_of_a_database_keeps_…`, `…writes_the_guards_…again` | `guards-by-database`, `guards-written-again` |
//! | guards move with the lane count | `guards::guards_move_with_the_lane_count` | `guards-move` |
//! | an answer waits for the offset, same replid | `history::answer_of_another_history_…` | `answer-of-this-history` |
//! | recopy of what depends on it | `guards::what_builds_on_a_command_that_failed_…` | `recopy-what-follows` |
//! | `WAIT` only behind a write (here: INFO of the same server, same history) | `target::replicas` | by hand |
//! | partial resync along one replid chain | `history::records_on_both_sides_of_a_fork_…` | `one-history` |
//! | lateness: none | `history::expiries_are_later_than_any_delay` | `--expiry-grace 0` |
//! | lateness shorter than the delay | `history::job_that_stood_still_for_longer_than_…` | `old-copied-again` |
//! | settle answers behind their offset | doesn't arise: nothing is applied while settling; `settling::settling_broken_off_…` | `unsettled-first` |
//! | near expiries stay late while settling | `settling::what_settling_leaves_near_its_end_…` | `soon-noted` |
//! | follow past the last answer | doesn't arise: no answers; `settle::expiries_in_the_past_are_gone_…` | |
//!
//! And what was once wrong:
//!
//! | fault | test | its removal |
//! |---|---|---|
//! | guards of an earlier full sync outlived the next | `guards::guards_of_an_earlier_full_sync_are_gone` | `old-guards-removed` |
//! | fewer lanes than the records tell of | `lanes::records_of_more_lanes_are_all_read` | `lane-count-read` |
//! | `finish --flush-target` without records | `lanes::finish_of_an_unknown_job_…` | `finish-needs-records`, `finish-never-flushes` |
//! | distrust lost with another lane count | `lanes::keys_that_cannot_be_trusted_move_…` | `suspects-move` |
//! | distrust hidden by an old guard | `lanes::guard_of_an_earlier_copy_hides_no_distrust` | `distrust-over-guards` |
//! | the end didn't wait for keys to be copied again | `lanes::finish_waits_for_keys_…` | `suspects-awaited` |
//! | a former primary that lags answered for a copy | `history::answer_of_a_former_primary_…` | `answer-not-before-unit` |
//! | first ACKs a second apart | `history::first_acks_follow_soon_on_each_other` | `first-acks-often` |
//! | a SELECT that fails inside EXEC | `select_that_fails_inside_exec_is_told_as_such_…` | by hand |

mod guards;
mod history;
mod lanes;
mod owners;
mod settling;
mod wire;

use crate::client::{Client, Cmd, Reply};
use crate::compare::{Holds, Rules, differences, snapshot};
use crate::failpoints::{ABORTED, program};
use crate::server::{FAST, Server};
use crate::tool::{Tool, is_following};
use crate::wait::{HALF_MINUTE, until};

/// How a scenario ended: well, or why not.
type Verdict = Result<(), String>;

/// Fails unless the scenario ends well by all rules, and without this one with words that hold `wrong`.
fn needs(rule: &str, wrong: &str, scenario: impl Fn(&str) -> Verdict) {
    needs_beside("", rule, wrong, scenario);
}

/// The same where another rule would hide the want of this one: that is out in both.
fn needs_beside(beside: &str, rule: &str, wrong: &str, scenario: impl Fn(&str) -> Verdict) {
    assert_eq!(scenario(beside), Ok(()), "with {rule}");
    let out = [beside, rule].join(",");
    match scenario(out.trim_start_matches(',')) {
        Ok(()) => panic!("{rule} is taken out, and it ends well all the same"),
        Err(why) => assert!(why.contains(wrong), "without {rule} it ends otherwise than in {wrong:?}: {why}"),
    }
}

/// How a string differs.
macro_rules! differs {
    ($key:literal, $want:literal, $found:literal) => {
        concat!("value 0:'", $key, "' Plain('", $want, "') != Plain('", $found, "')")
    };
}
use differs;

/// Two servers and a job that has copied and was stopped.
struct Stage {
    a: Server,
    b: Server,
    lanes: &'static str,
    more: Vec<&'static str>,
}

const JOB: &str = "rules";

fn in_scope(_: u32, key: &[u8]) -> bool {
    !key.starts_with(b"tmp:")
}

impl Stage {
    /// `tmp:*` is left out.
    fn new(lanes: &'static str) -> Stage {
        Stage::with(lanes, &["--not-key", "tmp:*"], &[cmd!["SET", "first", 1]])
    }

    /// With other options, and what the source holds at first.
    fn with(lanes: &'static str, more: &[&'static str], keys: &[Cmd]) -> Stage {
        let a = Server::with("redis-7.0", &[FAST, &["repl-backlog-size 64mb"]].concat());
        let stage = Stage { a, b: Server::start("redis-7.0"), lanes, more: more.to_vec() };
        stage.a.client().load(keys);
        let mut tool = stage.run("sync", "", &[]);
        stage.until_following(&mut tool);
        tool.stop();
        stage
    }

    /// keyferry without the rules `out`.
    fn run(&self, command: &str, out: &str, more: &[&str]) -> Tool {
        self.run_between(command, self.a.port, self.b.port, &[("KEYFERRY_RULES_OUT", out)], more)
    }

    fn run_between(&self, command: &str, from: u16, to: u16, env: &[(&str, &str)], more: &[&str]) -> Tool {
        let (from, to) = (format!("redis://127.0.0.1:{from}"), format!("redis://127.0.0.1:{to}"));
        let mut args = vec![command, "--source", &from, "--target", &to, "--job", JOB];
        if !more.contains(&"--lanes") {
            args.extend(["--lanes", self.lanes]);
        }
        args.extend(self.more.iter().copied().chain(more.iter().copied()));
        Tool::run_program(program(), &args, env)
    }

    /// A run that dies at a place.
    fn dies(&self, command: &str, place: &str, out: &str) {
        let env = [("KEYFERRY_FAILPOINT", place), ("KEYFERRY_RULES_OUT", out)];
        let mut tool = self.run_between(command, self.a.port, self.b.port, &env, &[]);
        tool.must_end(HALF_MINUTE, ABORTED);
    }

    fn until_following(&self, tool: &mut Tool) {
        let mut target = self.b.client();
        until(HALF_MINUTE, "the copy's end", || {
            tool.must_live();
            is_following(&mut target, JOB)
        });
    }

    /// Stops a job when the target has all, and compares.
    fn end(&self, tool: Tool) -> Verdict {
        ends_equal(&self.a, &self.b, tool)
    }
}

fn ends_equal(source: &Server, target: &Server, tool: Tool) -> Verdict {
    ends_equal_by(source, target, tool, &Rules::following(source))
}

fn ends_equal_by(source: &Server, target: &Server, mut tool: Tool, rules: &Rules) -> Verdict {
    let mut client = target.client();
    // The first may come with a copy, of which something is still to be done; the second then comes behind it.
    for _ in 0..2 {
        let last = fastrand::u32(..).to_string();
        source.client().call(&cmd!["SET", "last", last]);
        until(HALF_MINUTE, "the last write", || !tool.alive() || text(&mut client, "last") == last);
    }
    if tool.alive() {
        tool.terminate();
    }
    match tool.wait(HALF_MINUTE) {
        0 => equal(source, target, rules),
        code => Err(format!("exit {code}: {}", tool.tail())),
    }
}

fn equal(source: &Server, target: &Server, rules: &Rules) -> Verdict {
    let rules = Rules { in_scope: &in_scope, ..*rules };
    let found = differences(&source.snapshot_where(rules.in_scope), &snapshot(target), &rules);
    if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
}

/// A string's value, empty if there is none.
fn text(client: &mut Client, key: &str) -> String {
    match client.get(key) {
        Reply::Nil => String::new(),
        value => value.text(),
    }
}

fn record(target: &mut Client, lane: usize) -> String {
    text(target, &format!("keyferry:{JOB}:lane:{lane}"))
}

/// What a field of a record says.
fn field(record: &str, name: &str) -> String {
    let value = record.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {record:?}")).to_owned()
}

/// The source's offset.
fn offset(source: &Server) -> u64 {
    source.client().info("replication")["master_repl_offset"].parse().expect("a number")
}
