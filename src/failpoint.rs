//! Places at which a test ends the process, and rules that it takes out to show that each is needed. Only with the feature
//! `failpoints`, which no release has.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// `name:n`: abort at the `n`th pass of the place `name`, counted from 1.
const VARIABLE: &str = "KEYFERRY_FAILPOINT";

/// Names of rules, with commas between them: the process goes on without these.
const RULES_OUT: &str = "KEYFERRY_RULES_OUT";

/// The process passes a place.
pub fn pass(name: &str) {
    static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSES: AtomicU64 = AtomicU64::new(0);
    let armed = ARMED.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        let (name, n) = text.split_once(':')?;
        Some((name.to_owned(), n.parse().ok()?))
    });
    let Some((_, n)) = armed.as_ref().filter(|(armed, _)| armed == name) else { return };
    if PASSES.fetch_add(1, Ordering::SeqCst) + 1 == *n {
        std::process::abort();
    }
}

/// Whether the process keeps a rule.
pub fn holds(rule: &str) -> bool {
    static OUT: OnceLock<Vec<String>> = OnceLock::new();
    let out = OUT.get_or_init(|| {
        let text = std::env::var(RULES_OUT).unwrap_or_default();
        text.split(',').map(str::to_owned).collect()
    });
    !out.iter().any(|name| name == rule)
}
