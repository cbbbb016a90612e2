//! The shortest break of each rule, as a schedule: with the rule it ends well, without it doesn't.
//!
//! Lane 1 of two has the keys `a`, `k2` and `k4`, lane 0 has `b`, `k1` and `k9`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ops::{Op, REFUSALS};
use super::server::JOB;
use super::source::Source;
use super::world::{Around, World};
use crate::delivery::Standalone;
use crate::delivery::record::{JobState, Phase, Record};
use crate::delivery::rules::Rules;
use crate::delivery::standalone::{Event, Lost, SELECT};
use crate::offset::ReplOffset;
use crate::resp::reply::Scanner;
use crate::route::Router;

const ALL: usize = usize::MAX;
const OOM: &str = REFUSALS[0];

type Checked = Result<(), String>;

/// Runs the steps behind a complete copy, then drains.
fn run(source: Source, rules: Rules, around: Around, steps: impl Fn(&mut World) -> Checked) -> Checked {
    let mut world = World::new(source, rules, around);
    world.warm_up()?;
    steps(&mut world)?;
    world.drain()
}

/// Asserts that the steps end well by all rules, checked at each step, and badly without one, judged by the end alone.
fn needs(make: impl Fn() -> Source, remove: impl Fn(&mut Rules, &mut Around), steps: impl Fn(&mut World) -> Checked) {
    needs_by(make, Around { strict: false, ..Around::default() }, Rules::default(), remove, steps);
}

fn needs_by(
    make: impl Fn() -> Source,
    mut around: Around,
    mut rules: Rules,
    remove: impl Fn(&mut Rules, &mut Around),
    steps: impl Fn(&mut World) -> Checked,
) {
    assert_eq!(run(make(), rules, Around::default(), &steps), Ok(()), "by all rules");
    remove(&mut rules, &mut around);
    let without = catch_unwind(AssertUnwindSafe(|| run(make(), rules, around, &steps)));
    assert_breaks(without);
}

/// A wrong end, or an assertion of the machine.
fn assert_breaks(without: std::thread::Result<Checked>) {
    match without {
        Ok(Ok(())) => panic!("without the rule it ends well too"),
        Ok(Err(why)) => println!("without the rule: {why}"),
        Err(_) => println!("without the rule: an assertion"),
    }
}

fn ops(list: &'static [Op]) -> impl Fn(&mut World) -> Checked {
    move |world| list.iter().try_for_each(|op| world.step(*op))
}

fn source(build: impl Fn(&mut Source)) -> impl Fn() -> Source {
    move || {
        let mut source = Source::empty(2);
        build(&mut source);
        source
    }
}

/// The end of a chain of units.
fn chain(_: &mut Source) {}

#[test]
fn flush_cut_before_its_reply_runs_once_by_the_record_in_its_transaction() {
    let cut = [Op::Push(1), Op::Send(1), Op::Serve(1, ALL), Op::Cut(1), Op::Connect];
    let steps = move |world: &mut World| cut.iter().try_for_each(|op| world.step(*op));
    let stream = source(|s| chain(s.one("INCR a")));
    needs(&stream, |rules, _| rules.record_in_flush = false, steps);
    needs(&stream, |rules, _| rules.record_read_back = false, steps);
}

#[test]
fn flush_behind_one_that_is_refused_waits_for_it() {
    let stream = source(|s| chain(s.one("SET a 1").one("INCR a")));
    const STEPS: [Op; 7] = [
        Op::Push(1),
        Op::Send(1),
        Op::Push(1),
        Op::Send(1),
        Op::Refuse(0, OOM),
        Op::Serve(1, ALL),
        Op::Deliver(1, ALL),
    ];
    needs(stream, |rules, _| rules.one_in_flight = false, ops(&STEPS));
}

#[test]
fn flush_behind_an_idle_record_that_is_refused_waits_for_it() {
    let stream = source(|s| chain(s.one("INCR b")));
    const STEPS: [Op; 10] = [
        Op::Tick(0),
        Op::Push(1),
        Op::Send(0),
        Op::Refuse(0, OOM),
        Op::Serve(0, ALL),
        Op::Deliver(0, ALL),
        Op::Resume(0),
        Op::Send(0),
        Op::Serve(0, ALL),
        Op::Restart,
    ];
    needs(stream, |rules, _| rules.one_in_flight = false, ops(&STEPS));
}

#[test]
fn flush_refused_in_part_is_not_applied_in_part() {
    let stream = source(|s| chain(s.one("INCR a").one("INCR k2")));
    const STEPS: [Op; 3] = [Op::Push(2), Op::Refuse(0, OOM), Op::Pump(1)];
    needs(stream, |rules, _| rules.one_transaction = false, ops(&STEPS));
}

#[test]
fn record_of_a_refused_flush_is_not_written_by_the_idle_lane() {
    let stream = source(|s| chain(s.one("INCR a")));
    const STEPS: [Op; 6] = [Op::Push(1), Op::Refuse(0, OOM), Op::Pump(1), Op::Tick(1), Op::Serve(1, ALL), Op::Restart];
    needs(stream, |rules, _| rules.record_acknowledged = false, ops(&STEPS));
}

#[test]
fn record_that_fell_back_is_believed() {
    let stream = source(|s| chain(s.one("INCR a")));
    const STEPS: [Op; 4] = [Op::Push(1), Op::Pump(1), Op::RollBack(1), Op::Connect];
    needs(stream, |rules, _| rules.record_falls_back = false, ops(&STEPS));
}

#[test]
fn server_that_answers_readonly_is_left_and_its_records_are_read() {
    let stream = source(|s| chain(s.one("INCR a")));
    let steps = |world: &mut World| {
        [Op::Push(1), Op::Pump(1), Op::Demote(1), Op::Tick(1), Op::Pump(1)]
            .iter()
            .try_for_each(|op| world.step(*op))?;
        // It is a primary again, and what it lost nobody wrote.
        world.server.readonly = false;
        Ok(())
    };
    needs(stream, |rules, _| rules.elsewhere_closes = false, steps);
}

#[test]
fn break_on_one_lane_has_all_lanes_read_their_records() {
    let stream = source(|s| chain(s.together(0, &["a", "b"], &["MSET a 2 b 2"])));
    const STEPS: [Op; 4] = [Op::Push(1), Op::Pump(0), Op::RollBack(1), Op::Connect];
    needs(stream, |_, around| around.break_all = false, ops(&STEPS));
}

#[test]
fn late_bytes_of_a_cut_connection_are_killed_on_connect() {
    let stream = source(|s| chain(s.one("INCR a")));
    const STEPS: [Op; 6] = [Op::Push(1), Op::Send(1), Op::Cut(1), Op::Connect, Op::Pump(1), Op::Late(0)];
    needs(stream, |_, around| around.kill_own = false, ops(&STEPS));
}

#[test]
fn late_bytes_of_another_owner_are_killed_on_connect() {
    let stream = source(|s| chain(s.one("INCR a")));
    const ALIVE: [Op; 6] = [Op::Push(1), Op::Send(1), Op::SecondOwner, Op::Push(1), Op::Pump(1), Op::Late(1)];
    needs(&stream, |_, around| around.kill_others = false, ops(&ALIVE));
    const DEAD: [Op; 6] = [Op::Push(1), Op::Send(1), Op::Restart, Op::Push(1), Op::Pump(1), Op::Late(0)];
    needs(&stream, |_, around| around.kill_others = false, ops(&DEAD));
}

#[test]
fn refused_multi_keeps_what_follows_from_running_bare() {
    let stream = source(|s| chain(s.one("INCR a")));
    let steps = |world: &mut World| {
        world.refuse_multi();
        // Whatever follows MULTI is served up to the record, and then the connection breaks.
        let upto = b"*1\r\n$5\r\nMULTI\r\n*3\r\n$4\r\nINCR\r\n$1\r\na\r\n$5\r\n#0:0:\r\n".len() + 10;
        let cut = [Op::Push(1), Op::Send(1), Op::Serve(1, upto), Op::Deliver(1, ALL), Op::Cut(1), Op::Connect];
        cut.iter().try_for_each(|op| world.step(*op))
    };
    needs(stream, |rules, _| rules.multi_awaited = false, steps);
}

#[test]
fn joint_flush_waits_for_what_its_lanes_have_in_flight() {
    let stream = source(|s| chain(s.one("INCR b").together(0, &["a", "b"], &["RENAME b a"])));
    const STEPS: [Op; 5] = [Op::Push(2), Op::Send(0), Op::Send(1), Op::Serve(1, ALL), Op::Deliver(1, ALL)];
    needs(stream, |rules, _| rules.joined_drain = false, ops(&STEPS));
}

#[test]
fn joint_flush_moves_the_records_of_all_its_lanes() {
    let stream = source(|s| chain(s.together(0, &["a", "b"], &["INCR a", "INCR b"])));
    const STEPS: [Op; 4] = [Op::Push(1), Op::Send(0), Op::Serve(0, ALL), Op::Restart];
    needs(stream, |rules, _| rules.joint_moves_all = false, ops(&STEPS));
}

#[test]
fn joined_lane_writes_no_record_behind_the_joint_flush() {
    let stream = source(|s| chain(s.together(0, &["a", "b"], &["INCR a", "INCR b"])));
    const STEPS: [Op; 6] = [Op::Push(1), Op::Send(0), Op::Serve(0, ALL), Op::Tick(1), Op::Serve(1, ALL), Op::Restart];
    needs(stream, |rules, _| rules.joined_writes_no_record = false, ops(&STEPS));
}

#[test]
fn flushall_joins_all_lanes() {
    const STEPS: [Op; 6] =
        [Op::Push(2), Op::Send(0), Op::Send(1), Op::Serve(1, ALL), Op::Serve(0, ALL), Op::Deliver(0, ALL)];
    let all = source(|s| chain(s.one("INCR b").together(0, &[], &["FLUSHALL"])));
    assert_eq!(run(all(), Rules::default(), Around::default(), ops(&STEPS)), Ok(()));
    let one = source(|s| chain(s.one("INCR b").together(0, &["a"], &["FLUSHALL"])));
    assert!(run(one(), Rules::default(), Around { strict: false, ..Around::default() }, ops(&STEPS)).is_err());
}

#[test]
fn swapdb_with_the_records_database_keeps_them_readable() {
    let stream = source(|s| chain(s.one("INCR a").swap(1).one("INCR a").swap(1).one("INCR a")));
    const STEPS: [Op; 9] = [
        Op::Push(2),
        Op::Pump(1),
        Op::Pump(1),
        Op::Restart,
        Op::Push(9),
        Op::Send(0),
        Op::Serve(0, ALL),
        Op::Cut(0),
        Op::Connect,
    ];
    assert_eq!(run(stream(), Rules::default(), Around::default(), ops(&STEPS)), Ok(()));
}

#[test]
fn joint_flush_with_earlier_units_waiting_lets_no_record_fall() {
    let joint = |s: &mut Source| chain(s.one("INCR a").one("INCR b").together(0, &["a", "b"], &["INCR a", "INCR b"]));
    let rules = Rules { flush_commands_max: 1, ..Rules::default() };
    let around = Around { strict: false, ..Around::default() };
    const STEPS: [Op; 5] = [Op::Push(3), Op::Pump(0), Op::Send(0), Op::Serve(0, ALL), Op::Restart];
    needs_by(source(joint), around, rules, |rules, _| rules.joint_starts_drained = false, ops(&STEPS));
}

#[test]
fn group_that_loses_a_lane_to_another_flows_apart() {
    // Of three lanes: a and b on 0, k1 and k4 on 1, k2 and k9 on 2.
    let make = || {
        let mut source = Source::empty(3);
        source.together(0, &["k1", "k2"], &["INCR k1"]).one("INCR k2").together(0, &["a", "k1"], &["INCR a"]);
        source
    };
    let rules = Rules { flush_commands_max: 1, ..Rules::default() };
    let around = Around { strict: false, ..Around::default() };
    const STEPS: [Op; 4] = [Op::Push(3), Op::Pump(1), Op::Pump(0), Op::Pump(2)];
    needs_by(make, around, rules, |rules, _| rules.groups_apart = false, ops(&STEPS));
}

#[test]
fn idle_lane_of_a_group_keeps_its_place_while_others_wait() {
    let make = || {
        let mut source = Source::empty(3);
        source.together(0, &["k1", "k2"], &["INCR k1"]).one("INCR k2").nothing(0).nothing(0);
        source.together(0, &["k2", "a"], &["INCR k2"]).nothing(0);
        source
    };
    let rules = Rules { flush_commands_max: 1, ..Rules::default() };
    const STEPS: [Op; 6] = [Op::Push(2), Op::Push(3), Op::Pump(1), Op::Push(1), Op::Tick(1), Op::Pump(2)];
    assert_eq!(run(make(), rules, Around::default(), ops(&STEPS)), Ok(()));
}

#[test]
fn command_cut_over_joined_lanes_is_whole_in_one_flush() {
    let stream = |s: &mut Source| {
        s.together(0, &["a", "b"], &["INCR a", "INCR b"]).list(0, "MSET", 2, &["a", "7", "b", "7"]);
    };
    let rules = Rules { flush_commands_max: 3, ..Rules::default() };
    let around = Around { strict: false, ..Around::default() };
    const STEPS: [Op; 4] = [Op::Push(2), Op::Send(0), Op::Serve(0, ALL), Op::Restart];
    needs_by(source(stream), around, rules, |rules, _| rules.offset_whole = false, ops(&STEPS));
}

#[test]
fn task_broken_off_is_done_again() {
    let stream = source(|s| chain(s.one("INCR a").task(&["SET b 1"])));
    const STEPS: [Op; 5] = [Op::Push(2), Op::Pump(1), Op::TaskFails, Op::Send(0), Op::Connect];
    needs(stream, |rules, _| rules.task_again = false, ops(&STEPS));
}

#[test]
fn task_of_a_unit_refused_for_good_is_done_again_after_a_loss() {
    let stream = source(|s| chain(s.one("INCR a").task(&["SET b 1"])));
    // What is lost is the task, and the records know of nothing.
    const STEPS: [Op; 6] =
        [Op::Push(2), Op::Pump(1), Op::Refuse(0, REFUSALS[5]), Op::Send(0), Op::Pump(0), Op::RollBack(1)];
    assert_eq!(run(stream(), Rules::default(), Around::default(), ops(&STEPS)), Ok(()));
}

#[test]
fn task_done_holds_the_other_lanes_until_its_flush() {
    let stream = source(|s| chain(s.task(&["INCR b"])));
    const STEPS: [Op; 7] =
        [Op::Push(1), Op::Send(0), Op::Tick(1), Op::Send(0), Op::Serve(0, ALL), Op::Serve(1, ALL), Op::Restart];
    needs(stream, |rules, _| rules.task_holds = false, ops(&STEPS));
}

#[test]
fn leftovers_of_an_earlier_copy_are_gone_before_the_stream() {
    let stream = source(|s| chain(s.one("INCR leftover")));
    needs(stream, |_, around| around.leftovers = false, ops(&[]));
}

fn snapshot() -> Source {
    let mut source = Source::empty(2);
    source.one("RPUSH a x").one("RPUSH a y").together(1, &["b"], &["SET b 1"]).snapshot();
    source.together(0, &["a", "b"], &["RPUSH a z", "INCR b"]);
    source
}

/// Steps from the very beginning; `warm_up` then does the rest.
fn needs_in_the_copy(remove: impl Fn(&mut Rules, &mut Around), list: &[Op]) {
    let run = |rules, around| {
        let mut world = World::new(snapshot(), rules, around);
        list.iter().try_for_each(|op| world.step(*op))?;
        world.drain()
    };
    assert_eq!(run(Rules::default(), Around::default()), Ok(()), "by all rules");
    let (mut rules, mut around) = (Rules::default(), Around { strict: false, ..Around::default() });
    remove(&mut rules, &mut around);
    let without = catch_unwind(AssertUnwindSafe(|| run(rules, around)));
    assert_breaks(without);
}

#[test]
fn piece_cut_before_its_reply_runs_once_by_its_number() {
    let list = [Op::Push(1), Op::Send(1), Op::Cut(1), Op::Connect];
    needs_in_the_copy(|rules, _| rules.pieces_counted = false, &list);
}

#[test]
fn value_behind_a_refused_select_waits_for_it() {
    let list = [Op::Push(1), Op::Refuse(0, OOM), Op::Send(0), Op::Serve(0, ALL), Op::Deliver(0, ALL)];
    needs_in_the_copy(|rules, _| rules.select_awaited = false, &list);
}

#[test]
fn record_of_a_joint_flush_counts_the_pieces_of_all_lanes() {
    let pump = |world: &mut World, lanes: &[usize]| lanes.iter().try_for_each(|lane| world.step(Op::Pump(*lane)));
    let run = |rules| {
        let mut world = World::new(snapshot(), rules, Around { strict: false, ..Around::default() });
        world.step(Op::Push(1))?;
        pump(&mut world, &[1, 1, 0, 0])?;
        // The leftovers' joint flush, led by a lane without pieces.
        let cut = [Op::Send(0), Op::Send(0), Op::Serve(0, ALL), Op::Cut(0), Op::Connect];
        cut.iter().try_for_each(|op| world.step(*op))?;
        world.drain()
    };
    assert_eq!(run(Rules::default()), Ok(()));
    assert!(run(Rules { joint_counts_pieces: false, ..Rules::default() }).is_err());
}

fn record_of(lanes: usize, offset: u64) -> Record {
    let job = JobState { shard: 0, replid: None, generation: 1, lanes, late_ms: 0, scope: 0 };
    let offset = ReplOffset(offset);
    Record { job, phase: Phase::Following, offset, stream_db: 0, pieces: 0, time_ms: 0 }
}

#[test]
fn select_that_fails_inside_exec_is_told_as_such_with_what_follows() {
    let record = record_of(1, 10);
    let mut machine = Standalone::resume(JOB, record.job.clone(), &[record]);
    let mut router = Router::new(1);
    let set = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";
    router.single(0, 3, 3, ReplOffset(20), set);
    machine.push(router.take(ReplOffset(20), 3));
    assert!(machine.send(0, &mut Vec::new()).is_none());
    // SELECT 3, SET, SELECT 0 and the record.
    let answers = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n-ERR DB index is out of range\r\n+OK\r\n+OK\r\n+OK\r\n";
    let (mut scanner, mut input, mut events) = (Scanner::new(), answers.as_bytes(), Vec::new());
    while !input.is_empty() {
        let (used, scanned) = scanner.scan(input).unwrap();
        input = &input[used..];
        events.extend(scanned.and_then(|scanned| machine.answer(0, scanned).unwrap()));
    }
    let [Event::Faults(faults)] = &events[..] else { panic!("{events:?}") };
    let what = &faults[0].what;
    assert_eq!((&*what.command, &what.key[..], what.db, what.offset), (SELECT, &b"3"[..], 3, ReplOffset(20)));
    assert!(faults[0].applied && faults[0].suspects == [(3, set.to_vec())], "{faults:?}");
}

#[test]
fn records_of_another_lane_count_are_no_place_to_go_on_from() {
    for (before, now) in [(4, 2), (2, 4)] {
        let records: Vec<Record> = (0..now).map(|_| record_of(now, 30)).collect();
        let mut machine = Standalone::resume(JOB, records[0].job.clone(), &records);
        let found: Vec<Option<Record>> = (0..now).map(|lane| (lane < before).then(|| record_of(before, 10))).collect();
        assert_eq!(machine.reread(&found), Err(Lost::Lanes { lanes: before }));
    }
}
