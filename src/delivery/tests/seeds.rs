//! Running a random schedule from a seed, and making it small when it fails.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

thread_local! {
    static TRYING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A panic of the machine under test is a failure like any other, told once at the end.
pub fn quietly() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !TRYING.get() {
                hook(info);
            }
        }));
    });
}

/// The same, with a panic as a failure.
fn caught<S>(scenario: &S, run: impl Fn(&S) -> Result<(), String>) -> Result<(), String> {
    TRYING.set(true);
    let caught = catch_unwind(AssertUnwindSafe(|| run(scenario)));
    TRYING.set(false);
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
    })
}

/// Runs the schedule of a seed; if it fails, returns the smallest found that does, and why.
pub fn try_seed<S: Debug + Clone>(
    seed: u64,
    scenarios: impl Strategy<Value = S>,
    run: impl Fn(&S) -> Result<(), String>,
) -> Option<(S, String)> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut tree = scenarios.new_tree(&mut runner).ok()?;
    let mut smallest = tree.current();
    let mut why = caught(&smallest, &run).err()?;
    for _ in 0..2000 {
        if !tree.simplify() {
            break;
        }
        loop {
            let scenario = tree.current();
            match caught(&scenario, &run) {
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

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}
