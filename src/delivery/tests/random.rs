//! Random schedules, each from a seed that is printed when it fails.

use proptest::prelude::*;

use super::ops::{Op, any_op};
use super::seeds::{number, quietly, try_seed};
use super::source::{Source, Spec, any_spec};
use super::world::{Around, World};
use crate::delivery::rules::Rules;

/// A stream and what the adversary does while it is delivered.
#[derive(Debug, Clone)]
pub struct Scenario {
    lanes: usize,
    /// The adversary begins behind the copy.
    warm: bool,
    /// Most commands of a flush: small, so that the limit is met.
    commands_max: u32,
    /// How many of the units are in the snapshot.
    before: usize,
    units: Vec<Spec>,
    ops: Vec<Op>,
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let units = prop::collection::vec(any_spec(), 1..24);
    let ops = prop::collection::vec(any_op(), 1..120);
    let limit = prop_oneof![1 => Just(1u32), 1 => Just(2), 1 => Just(4), 2 => Just(1024)];
    let shape = (1usize..4, prop::bool::weighted(0.7), limit, 0usize..8);
    (shape, units, ops).prop_map(|((lanes, warm, commands_max, before), units, ops)| Scenario {
        lanes,
        warm,
        commands_max,
        before,
        units,
        ops,
    })
}

fn run(scenario: &Scenario, rules: Rules, around: Around) -> Result<(), String> {
    let source = Source::new(scenario.lanes, &scenario.units, scenario.before);
    let rules = Rules { flush_commands_max: scenario.commands_max, ..rules };
    let mut world = World::new(source, rules, around);
    if scenario.warm {
        world.warm_up()?;
    }
    for op in &scenario.ops {
        world.step(*op)?;
    }
    world.drain()
}

#[test]
fn delivery_under_an_adversary_ends_equal_to_the_source() {
    quietly();
    let (first, cases) = (number("KEYFERRY_PROOF_SEED", 0), number("KEYFERRY_PROOF_CASES", 1500));
    for seed in first..first + cases {
        let run = |scenario: &Scenario| run(scenario, Rules::default(), Around::default());
        if let Some((scenario, why)) = try_seed(seed, any_scenario(), run) {
            panic!("seed {seed}: {why}\n{scenario:?}");
        }
    }
}

/// A rule, and what takes it out.
type Removal = (&'static str, fn(&mut Rules, &mut Around));

const REMOVALS: [Removal; 22] = [
    ("record_in_flush", |r, _| r.record_in_flush = false),
    ("record_read_back", |r, _| r.record_read_back = false),
    ("one_in_flight", |r, _| r.one_in_flight = false),
    ("one_transaction", |r, _| r.one_transaction = false),
    ("record_acknowledged", |r, _| r.record_acknowledged = false),
    ("record_falls_back", |r, _| r.record_falls_back = false),
    ("elsewhere_closes", |r, _| r.elsewhere_closes = false),
    ("joined_drain", |r, _| r.joined_drain = false),
    ("joint_moves_all", |r, _| r.joint_moves_all = false),
    ("joined_writes_no_record", |r, _| r.joined_writes_no_record = false),
    ("joint_starts_drained", |r, _| r.joint_starts_drained = false),
    ("joint_counts_pieces", |r, _| r.joint_counts_pieces = false),
    ("task_holds", |r, _| r.task_holds = false),
    ("groups_apart", |r, _| r.groups_apart = false),
    ("offset_whole", |r, _| r.offset_whole = false),
    ("task_again", |r, _| r.task_again = false),
    ("pieces_counted", |r, _| r.pieces_counted = false),
    ("select_awaited", |r, _| r.select_awaited = false),
    ("kill_own", |_, a| a.kill_own = false),
    ("kill_others", |_, a| a.kill_others = false),
    ("break_all", |_, a| a.break_all = false),
    ("leftovers", |_, a| a.leftovers = false),
];

#[test]
#[ignore = "tells which seeds break without a rule"]
fn search_seeds_that_break_without_each_rule() {
    let cases = number("KEYFERRY_PROOF_CASES", 3000);
    for strict in [true, false] {
        for (name, remove) in REMOVALS {
            let (mut rules, mut around) = (Rules::default(), Around { strict, ..Around::default() });
            remove(&mut rules, &mut around);
            let run = |scenario: &Scenario| run(scenario, rules, around);
            let found = (0..cases).find_map(|seed| try_seed(seed, any_scenario(), run).map(|found| (seed, found)));
            match found {
                Some((seed, (scenario, why))) => {
                    let why: String = why.chars().take(150).collect();
                    eprintln!("{name} strict={strict}: seed {seed}: {why}\n    {scenario:?}");
                }
                None => eprintln!("{name} strict={strict}: NOT BROKEN by {cases}"),
            }
        }
    }
}
