//! Random schedules, each from a seed that is printed when it fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::source::{Source, Spec, any_spec};
use super::world::{Around, Op, World, any_op};
use crate::delivery::rules::Rules;

/// A stream and what the adversary does while it is delivered.
#[derive(Debug, Clone)]
pub struct Scenario {
    lanes: usize,
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
    (1usize..4, limit, 0usize..8, units, ops).prop_map(|(lanes, commands_max, before, units, ops)| Scenario {
        lanes,
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
    for op in &scenario.ops {
        world.step(*op)?;
    }
    world.drain()
}

/// The same, with a panic of the machine as a failure.
fn run_caught(scenario: &Scenario, rules: Rules, around: Around) -> Result<(), String> {
    let caught = catch_unwind(AssertUnwindSafe(|| run(scenario, rules, around)));
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
    })
}

/// Runs the schedule of a seed; if it fails, returns the smallest found that does, and why.
fn try_seed(seed: u64, rules: Rules, around: Around) -> Option<(Scenario, String)> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut tree = any_scenario().new_tree(&mut runner).ok()?;
    let mut smallest = tree.current();
    let mut why = run_caught(&smallest, rules, around).err()?;
    for _ in 0..2000 {
        if !tree.simplify() {
            break;
        }
        loop {
            let scenario = tree.current();
            match run_caught(&scenario, rules, around) {
                Err(error) => {
                    (smallest, why) = (scenario, error);
                    break;
                }
                Ok(()) if !tree.complicate() => return Some((smallest, why)),
                Ok(()) => {}
            }
        }
    }
    Some((smallest, why))
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn delivery_under_an_adversary_ends_equal_to_the_source() {
    let (first, cases) = (number("KEYFERRY_PROOF_SEED", 0), number("KEYFERRY_PROOF_CASES", 3000));
    for seed in first..first + cases {
        if let Some((scenario, why)) = try_seed(seed, Rules::default(), Around::default()) {
            panic!("seed {seed}: {why}\n{scenario:?}");
        }
    }
}
