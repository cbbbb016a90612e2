//! The shortest break of each rule, as a schedule: with the rule it ends well, without it doesn't.
//!
//! Slot 0 begins at shard 0 with key 0, slot 1 at shard 1 with key 0. A [`Op::Write`] of kind 0 appends to the first key,
//! one of kind 5 deletes it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::held::{HeldWorld, Parts};
use super::ops::Op;
use super::source::Kind::{Classic, Commands, Values};
use super::source::SHARDS;
use super::world::World;
use crate::delivery::rules::MotionRules;

const APPEND: usize = 0;
const DELETE: usize = 5;

/// Runs a schedule in which all servers hear at once of moves that are whole.
fn run(ops: &[Op], rules: MotionRules) -> Result<(), String> {
    let mut world = World::new(rules, 1 << 20);
    for op in ops {
        world.step(*op)?;
        if matches!(op, Op::Move(..)) {
            (0..SHARDS).try_for_each(|node| world.step(Op::Gossip(node)))?;
        }
    }
    world.drain()
}

/// Asserts that the schedule ends well by all rules, and badly without one.
fn needs(remove: impl Fn(&mut MotionRules), ops: &[Op]) {
    assert_eq!(run(ops, MotionRules::default()), Ok(()), "by all rules");
    let mut rules = MotionRules::default();
    remove(&mut rules);
    match catch_unwind(AssertUnwindSafe(|| run(ops, rules))) {
        Ok(Ok(())) => panic!("without the rule it ends well too"),
        Ok(Err(why)) => println!("without the rule: {why}"),
        Err(_) => println!("without the rule: an assertion"),
    }
}

#[test]
fn unit_noted_of_a_third_shard_is_noted_again_by_a_later_process() {
    // The third shard has a key that nobody else's stream names.
    let ops = [
        Op::Move(0, 1, Classic),
        Op::JudgeAll,
        Op::Move(0, 2, Classic),
        Op::Write(0, APPEND, 1, 1),
        Op::JudgeAll,
        Op::Pump,
        Op::Tick(4),
        Op::Tick(5),
        Op::Pump,
        Op::Restart,
    ];
    needs(|rules| rules.starts_of_all = false, &ops);
}

#[test]
fn unit_noted_is_known_to_a_later_process_whose_record_has_passed_it() {
    let ops = [
        Op::Move(0, 1, Classic),
        Op::Write(0, APPEND, 0, 0),
        Op::JudgeAll,
        Op::Pump,
        Op::Tick(2),
        Op::Pump,
        Op::Restart,
    ];
    needs(|rules| rules.state_stored = false, &ops);
}

#[test]
fn copies_that_a_failover_of_the_target_lost_are_made_again() {
    let ops = [
        Op::Move(0, 1, Classic),
        Op::Write(0, APPEND, 0, 0),
        Op::JudgeAll,
        Op::Pump,
        Op::Tick(2),
        Op::Pump,
        Op::Rest,
        Op::WorkOn(1, 2),
        Op::Pump,
        Op::Report(1),
        Op::WorkOn(1, 2),
        Op::Pump,
        Op::RollBack(2),
    ];
    needs(|rules| rules.states_reread = false, &ops);
}

#[test]
fn journal_reaches_back_to_the_starts_of_what_is_in_motion() {
    let ops = [
        Op::Write(0, APPEND, 0, 0),
        Op::Begin(1, 0, Classic),
        Op::Write(1, APPEND, 1, 0),
        Op::JudgeAll,
        Op::Pump,
        Op::Replicate,
        Op::Release(0),
        Op::Restart,
    ];
    needs(|rules| rules.journals_kept = false, &ops);
}

#[test]
fn later_process_begins_at_the_starts() {
    let ops = [
        Op::Move(0, 1, Classic),
        Op::Write(0, APPEND, 0, 0),
        Op::JudgeAll,
        Op::Pump,
        Op::Tick(0),
        Op::Tick(1),
        Op::Tick(2),
        Op::Tick(3),
        Op::Pump,
        Op::Restart,
    ];
    needs(|rules| rules.resumes_at_starts = false, &ops);
}

#[test]
fn removal_of_the_loser_just_before_the_hand_over_is_received() {
    // Its other key is the sign; of the one that is deleted only the loser tells.
    let ops = [
        Op::Write(0, APPEND, 1, 1),
        Op::JudgeAll,
        Op::Pump,
        Op::Write(0, DELETE, 1, 1),
        Op::Move(0, 1, Classic),
        Op::Judge(1, 9),
        Op::Report(1),
        Op::LookAll,
        Op::Report(0),
        Op::LookAll,
        Op::Pump,
        Op::WorkOn(1, 2),
        Op::Pump,
        Op::Report(1),
        Op::WorkOn(1, 2),
        Op::Pump,
    ];
    needs(|rules| rules.received_of_all = false, &ops);
    needs(|rules| rules.received = false, &ops);
}

#[test]
fn write_at_a_third_shard_while_a_slot_is_copied_is_noted() {
    let ops = [
        Op::Move(0, 1, Classic),
        Op::JudgeAll,
        Op::Pump,
        Op::Rest,
        Op::Move(0, 2, Classic),
        Op::Write(0, APPEND, 1, 1),
        Op::Judge(2, 9),
        Op::Report(2),
    ];
    needs(|rules| rules.others_dirty = false, &ops);
}

#[test]
fn import_that_begins_while_a_slot_is_copied_moves_it_again() {
    // Everything that the gainer says of the key comes before the switch; then the loser removes it.
    let ops = [
        Op::Flush(0, false),
        Op::Write(0, APPEND, 0, 0),
        Op::JudgeAll,
        Op::Pump,
        Op::Rest,
        Op::WorkOn(0, 4),
        Op::Pump,
        Op::Begin(0, 1, Commands),
        Op::MoveKey(0),
        Op::Judge(1, 9),
        Op::Report(1),
        Op::WorkOn(0, 2),
        Op::Pump,
        Op::Report(0),
        Op::WorkOn(0, 2),
        Op::Pump,
        Op::Finish(0),
        Op::CleanUp(0),
    ];
    needs(|rules| rules.moves_again = false, &ops);
}

#[test]
fn unit_that_a_copy_has_already_is_left_out() {
    let ops = [
        Op::Move(0, 1, Classic),
        Op::JudgeAll,
        Op::Pump,
        Op::Rest,
        Op::Write(0, APPEND, 0, 0),
        Op::WorkOn(1, 2),
        Op::Judge(1, 9),
    ];
    needs(|rules| rules.guarded = false, &ops);
}

#[test]
fn slot_emptied_without_names_is_copied_whole() {
    needs(|rules| rules.whole_when_emptied = false, &[Op::Flush(0, false)]);
}

#[test]
fn nothing_overtakes_what_the_old_feeders_lanes_hold() {
    // The loser's lane still has the key's removal when its new owner writes it again.
    let ops = [
        Op::Write(0, DELETE, 0, 0),
        Op::Move(0, 1, Values),
        Op::Judge(0, 9),
        Op::Report(0),
        Op::Report(1),
        Op::LookAll,
        Op::LookAll,
        Op::Write(0, APPEND, 0, 0),
        Op::Judge(1, 9),
        Op::Send(2, 9),
        Op::Serve(2),
        Op::Deliver(2),
    ];
    needs(|rules| rules.feeder_drained = false, &ops);
}

#[test]
fn import_that_begins_during_the_first_look_is_seen_by_the_second() {
    // All views are read before it begins, and the offsets are asked for behind what the gainer says of the key.
    let mut ops = vec![Op::Flush(0, false), Op::Write(0, APPEND, 0, 0), Op::JudgeAll, Op::Pump];
    ops.extend([Op::Look; 1 + SHARDS]);
    ops.extend([Op::Begin(0, 1, Commands), Op::MoveKey(0)]);
    ops.extend([Op::Look; 1 + SHARDS]);
    ops.extend([Op::JudgeAll, Op::WorkOn(0, 3), Op::Pump, Op::Report(0), Op::WorkOn(0, 2), Op::Pump]);
    ops.extend([Op::Report(0), Op::WorkOn(0, 2), Op::Pump, Op::Finish(0), Op::CleanUp(0)]);
    needs(|rules| rules.looked_twice = false, &ops);
}

#[test]
fn import_that_begins_during_the_second_look_moves_the_slot_again() {
    let mut ops =
        vec![Op::Flush(0, false), Op::Write(0, APPEND, 0, 0), Op::JudgeAll, Op::Pump, Op::LookAll, Op::JudgeAll];
    ops.extend([Op::Look; 1 + SHARDS]);
    ops.extend([Op::Begin(0, 1, Commands), Op::MoveKey(0), Op::JudgeAll]);
    ops.extend([Op::Look; 1 + SHARDS]);
    ops.extend([Op::WorkOn(0, 3), Op::Pump, Op::Report(0), Op::WorkOn(0, 2), Op::Pump]);
    ops.extend([Op::Report(0), Op::WorkOn(0, 2), Op::Pump, Op::Finish(0), Op::CleanUp(0)]);
    needs(|rules| rules.moves_again = false, &ops);
}

#[test]
fn switch_waits_until_every_shard_knows_that_the_target_fell_back() {
    // The target loses a removal of the old feeder's, which its thread hasn't heard of.
    let ops = [
        Op::Write(0, APPEND, 1, 1),
        Op::JudgeAll,
        Op::Pump,
        Op::Replicate,
        Op::Write(0, DELETE, 1, 1),
        Op::JudgeAll,
        Op::Pump,
        Op::Move(0, 1, Classic),
        Op::JudgeAll,
        Op::Pump,
        Op::Report(0),
        Op::RollBack(9),
        Op::Connect(1),
        Op::Judge(1, 1),
        Op::Judge(1, 9),
        Op::Report(1),
        Op::LookAll,
        Op::LookAll,
        Op::WorkOn(1, 2),
        Op::Pump,
        Op::Report(1),
        Op::WorkOn(1, 1),
        Op::Pump,
        Op::WorkOn(1, 1),
        Op::Pump,
    ];
    needs(|rules| rules.switch_on_one_target = false, &ops);
}

#[test]
fn unit_of_another_shard_waits_for_the_switch() {
    let ops = [
        Op::Move(1, 0, Classic),
        Op::Move(0, 2, Classic),
        Op::Rest,
        Op::LookAll,
        Op::Pump,
        Op::WorkOn(0, 3),
        Op::Flush(1, false),
    ];
    needs(|rules| rules.switch_awaited = false, &ops);
}

#[test]
fn switch_waits_until_the_owners_stream_has_passed_the_copies() {
    let ops = [
        Op::Move(0, 1, Classic),
        Op::JudgeAll,
        Op::Pump,
        Op::Rest,
        Op::Write(0, APPEND, 0, 0),
        Op::WorkOn(1, 2),
        Op::Pump,
        Op::WorkOn(1, 1),
        Op::Pump,
    ];
    needs(|rules| rules.switch_behind_copies = false, &ops);
}

#[test]
fn switch_waits_for_what_all_lanes_were_given_of_the_motion() {
    // A third shard's lane says "moving" behind the switch, and a later process believes it.
    let lane = |lane: usize| [Op::Send(lane, 9), Op::Serve(lane), Op::Deliver(lane)];
    let mut ops = vec![Op::Move(0, 2, Classic), Op::Move(0, 1, Classic)];
    for shard in [1, 0, 2] {
        ops.extend([Op::Judge(shard, 9), Op::Report(shard)]);
    }
    ops.extend([lane(0), lane(2)].concat());
    ops.extend([Op::LookAll, Op::LookAll, Op::WorkOn(1, 2)]);
    ops.extend([&lane(2)[..], &[Op::Report(1), Op::WorkOn(1, 1)], &lane(2)].concat());
    ops.extend([Op::Write(0, APPEND, 0, 0), Op::Judge(1, 9), Op::Report(1), Op::Tick(3)]);
    ops.extend([Op::Pump, Op::Replicate, Op::Release(1), Op::Restart]);
    needs(|rules| rules.switch_behind_all = false, &ops);
}

/// The same of what the lanes to a cluster do.
fn needs_part(remove: impl Fn(&mut Parts), ops: &[Op]) {
    let run = |parts: Parts| {
        let mut world = HeldWorld::new(MotionRules::default(), parts, 1 << 20);
        for op in ops {
            world.step(*op)?;
            if matches!(op, Op::Move(..)) {
                (0..SHARDS).try_for_each(|node| world.step(Op::Gossip(node)))?;
            }
        }
        world.drain()
    };
    assert_eq!(run(Parts::default()), Ok(()), "with all parts");
    let mut parts = Parts::default();
    remove(&mut parts);
    assert!(run(parts).is_err(), "without the part it ends well too");
}

#[test]
fn server_that_was_lost_before_the_lanes_gave_the_slot_up_is_noticed() {
    // Slot 0 falls back between what its former feeder wrote and what the sign has it told.
    let ops = [
        Op::Flush(0, true),
        Op::Rest,
        Op::Begin(0, 1, Classic),
        Op::Write(0, APPEND, 1, 0),
        Op::Pump,
        Op::RollBack(2),
        Op::JudgeAll,
        Op::JudgeAll,
    ];
    needs_part(|parts| parts.left_at = false, &ops);
}

#[test]
fn slot_that_began_to_move_before_the_streams_are_followed_is_looked_for() {
    needs_part(|parts| parts.checked = false, &[Op::Begin(1, 2, Classic), Op::Write(1, APPEND, 1, 0), Op::Restart]);
}
