//! The shortest break of each rule of the cluster, as a schedule: with the rule it ends well, without it doesn't.
//!
//! Of `delivery-cases.md`, what is said there of replayable commands that go bare has nothing to hold on to: here every unit
//! goes in a transaction with its slot's record. So there is no re-run zone, no held error and no `sent_to`, and which
//! commands are replayable doesn't matter.
//!
//! Of two nodes the first has the slots of `{b}` and `{d}`, the second those of `{a}` and `{c}`. As numbers, `{b}` is slot
//! 0, `{c}` 1, `{d}` 2 and `{a}` 3.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ops::Op;
use super::source::Source;
use super::world::{Around, World};
use crate::delivery::rules::SlotRules;
use crate::delivery::tests::ops::REFUSALS;

const ALL: usize = usize::MAX;
const OOM: &str = REFUSALS[0];

/// The number of `{a}`'s slot.
const A: usize = 3;

type Checked = Result<(), String>;

/// What is delivered, to how many nodes, from where on.
struct Case<F> {
    source: F,
    nodes: usize,
    /// Behind a complete copy.
    warm: bool,
    rules: SlotRules,
}

impl<F: Fn(&mut Source)> Case<F> {
    fn run(&self, rules: SlotRules, around: Around, steps: &[Op]) -> Checked {
        let mut source = Source::empty();
        (self.source)(&mut source);
        let mut world = World::new(source, self.nodes, 1, rules, around);
        if self.warm {
            world.warm_up()?;
        }
        steps.iter().try_for_each(|op| world.step(*op))?;
        // A demoted server is a primary again, and what it lost nobody wrote.
        world.nodes.nodes.iter_mut().for_each(|node| node.readonly = false);
        world.drain()
    }

    /// Asserts that the steps end well by all rules, checked at each step, and badly without one, judged by the end alone.
    fn needs(&self, remove: impl Fn(&mut SlotRules, &mut Around), steps: &[Op]) {
        assert_eq!(self.run(self.rules, Around::default(), steps), Ok(()), "by all rules");
        let (mut rules, mut around) = (self.rules, Around { strict: false, ..Around::default() });
        remove(&mut rules, &mut around);
        match catch_unwind(AssertUnwindSafe(|| self.run(rules, around, steps))) {
            Ok(Ok(())) => panic!("without the rule it ends well too"),
            Ok(Err(why)) => println!("without the rule: {why}"),
            Err(_) => println!("without the rule: an assertion"),
        }
    }
}

/// Behind a complete copy.
fn following<F: Fn(&mut Source)>(nodes: usize, source: F) -> Case<F> {
    Case { source, nodes, warm: true, rules: SlotRules::default() }
}

fn copying<F: Fn(&mut Source)>(nodes: usize, source: F) -> Case<F> {
    Case { source, nodes, warm: false, rules: SlotRules::default() }
}

fn incr(source: &mut Source) {
    source.one("INCR {a}1");
}

#[test]
fn transaction_cut_before_its_reply_runs_once_by_the_record_in_it() {
    let case = following(1, incr);
    let steps = [Op::Push(1), Op::Send(0), Op::Serve(0, ALL), Op::Cut(0), Op::Connect];
    case.needs(|rules, _| rules.record_read_back = false, &steps);
    case.needs(|rules, _| rules.record_in_flush = false, &steps);
}

#[test]
fn transaction_behind_one_of_its_slot_that_is_refused_waits_for_it() {
    let mut case = following(1, |s| _ = s.one("SET {a}1 1").one("INCR {a}1"));
    case.rules.flush_commands_max = 1;
    let steps = [Op::Push(2), Op::Send(0), Op::Refuse(0, OOM), Op::Serve(0, ALL), Op::Deliver(0, ALL)];
    case.needs(|rules, _| rules.one_in_flight = false, &steps);
}

#[test]
fn record_of_a_refused_transaction_is_not_renewed() {
    let case = following(1, incr);
    let steps = [Op::Push(1), Op::Refuse(0, OOM), Op::Pump(0), Op::Refresh(A), Op::Resume(0), Op::Pump(0)];
    case.needs(|rules, _| rules.record_acknowledged = false, &steps);
}

#[test]
fn record_that_fell_back_is_believed() {
    let case = following(1, incr);
    let steps = [Op::Push(1), Op::Pump(0), Op::RollBack(0, 1), Op::Connect];
    case.needs(|rules, _| rules.record_falls_back = false, &steps);
}

#[test]
fn node_that_answers_readonly_is_left_and_its_records_are_read() {
    let case = following(1, incr);
    let steps = [Op::Push(1), Op::Pump(0), Op::Demote(0, 1), Op::Floor(0), Op::Pump(0)];
    case.needs(|rules, _| rules.elsewhere_closes = false, &steps);
}

#[test]
fn slot_that_moved_is_looked_for() {
    let case = following(2, incr);
    let steps = [Op::Move(A, 0), Op::MoveEnd, Op::Push(1), Op::Pump(1)];
    case.needs(|rules, _| rules.moved_settles = false, &steps);
}

#[test]
fn floor_says_no_more_than_what_is_acknowledged() {
    let case = following(1, incr);
    let steps = [Op::Push(1), Op::Floor(0), Op::Serve(0, ALL), Op::Restart];
    case.needs(|rules, _| rules.floor_acknowledged = false, &steps);
}

#[test]
fn floor_counts_for_no_slot_that_came_later() {
    let case = following(2, incr);
    // The node of {a} lost the unit before the slot went to where a floor speaks of the time behind it.
    let steps = [
        Op::Push(1),
        Op::Pump(1),
        Op::Floor(0),
        Op::Pump(0),
        Op::RollBack(1, 1),
        Op::Move(A, 0),
        Op::MoveEnd,
        Op::Restart,
    ];
    case.needs(|rules, _| rules.floor_names_slots = false, &steps);
}

#[test]
fn floor_of_a_node_that_had_the_slot_once_says_nothing_of_another() {
    let case = following(2, incr);
    // {a} goes, gets its unit there, comes back, and its node falls back to before it went.
    let steps = [
        Op::Move(A, 0),
        Op::MoveEnd,
        Op::Connect,
        Op::Push(1),
        Op::Pump(0),
        Op::Floor(0),
        Op::Pump(0),
        Op::Move(A, 1),
        Op::MoveEnd,
        Op::Connect,
        Op::RollBack(1, 4),
        Op::Cut(0),
        Op::Connect,
    ];
    case.needs(|rules, around| (rules.floor_at_owner, around.floors_whole) = (false, false), &steps);
}

#[test]
fn flush_waits_for_what_stands_before_it() {
    let case = following(1, |s| _ = s.one("INCR {a}1").flush(&[]));
    case.needs(|rules, _| rules.barrier_drains = false, &[Op::Push(2), Op::Send(0), Op::Pump(0)]);
}

#[test]
fn flush_that_a_node_lost_is_done_again_there() {
    let case = following(2, |s| _ = s.one("INCR {a}1").flush(&[]));
    let steps = [Op::Push(2), Op::Pump(1), Op::Send(0), Op::RollBack(1, 1), Op::Connect];
    case.needs(|rules, _| rules.barrier_remembered = false, &steps);
}

#[test]
fn flush_done_again_leaves_slots_alone_that_are_behind_it() {
    let case = following(1, |s| _ = s.one("INCR {a}1").flush(&[]).one("INCR {b}1"));
    let steps = [Op::Push(3), Op::Pump(0), Op::Pump(0), Op::Pump(0), Op::Restart];
    case.needs(|_, around| around.flush_below = false, &steps);
}

#[test]
fn task_broken_off_is_done_again() {
    let case = following(1, |s| _ = s.one("INCR {a}1").flush(&["SET {b}1 1"]).load("f1"));
    let steps = [Op::Push(3), Op::Pump(0), Op::TaskFails, Op::Send(0), Op::Connect];
    case.needs(|rules, _| rules.task_again = false, &steps);
}

#[test]
fn keys_that_came_to_a_node_before_it_fell_back_are_not_believed() {
    let case = following(2, |s| _ = s.one("INCR {a}1").one("INCR {a}2"));
    // The record and the first key are there, the second isn't.
    let steps = [Op::Push(2), Op::Pump(1), Op::Pump(1), Op::Move(A, 0), Op::MoveEnd, Op::RollBack(0, 2), Op::Connect];
    case.needs(|rules, _| rules.torn_is_lost = false, &steps);
}

fn snapshot(source: &mut Source) {
    source.one("RPUSH {a}1 x").one("RPUSH {a}1 y").unit(1, None, &[(1, "SET {b}1 1".into())]).snapshot();
    source.several(&["RPUSH {a}1 z", "INCR {b}2"]);
}

#[test]
fn another_server_in_the_copy_is_a_loss() {
    let case = copying(1, |s| _ = s.one("SET {c}1 1").snapshot_and(|s| _ = s.one("INCR {c}1")));
    let steps = [Op::Connect, Op::Push(1), Op::Send(0), Op::Serve(0, ALL), Op::Deliver(0, ALL), Op::RollBack(0, 1)];
    case.needs(|rules, _| rules.copy_is_lost = false, &steps);
}

#[test]
fn piece_cut_before_its_reply_runs_once_by_its_number() {
    // The second of two: the first begins with a DEL.
    let steps = [Op::Connect, Op::Push(1), Op::Pump(0), Op::Send(0), Op::Serve(0, ALL), Op::Cut(0), Op::Connect];
    copying(1, snapshot).needs(|rules, _| rules.pieces_counted = false, &steps);
}

#[test]
fn value_behind_a_refused_select_waits_for_it() {
    let case = copying(1, |s| _ = s.unit(1, None, &[(1, "SET {b}1 1".into())]).snapshot_and(|_| {}));
    let steps = [Op::Connect, Op::Push(1), Op::Refuse(0, OOM), Op::Send(0), Op::Serve(0, ALL), Op::Deliver(0, ALL)];
    case.needs(|rules, _| rules.select_awaited = false, &steps);
}

#[test]
fn leftovers_of_an_earlier_copy_are_gone_before_the_stream() {
    following(1, |s| _ = s.one("INCR leftover{a}")).needs(|_, around| around.leftovers = false, &[]);
}

#[test]
fn late_bytes_of_a_cut_connection_are_killed_on_connect() {
    let steps = [Op::Push(1), Op::Send(0), Op::Cut(0), Op::Connect, Op::Pump(0), Op::Late(0)];
    following(1, incr).needs(|_, around| around.kill_own = false, &steps);
}

#[test]
fn late_bytes_of_another_owner_are_killed_on_connect() {
    let case = following(1, incr);
    let alive = [Op::Push(1), Op::Send(0), Op::SecondOwner, Op::Push(1), Op::Pump(0), Op::Late(0)];
    case.needs(|_, around| around.kill_others = false, &alive);
    let dead = [Op::Push(1), Op::Send(0), Op::Restart, Op::Push(1), Op::Pump(0), Op::Late(0)];
    case.needs(|_, around| around.kill_others = false, &dead);
}
