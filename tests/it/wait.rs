//! Waiting for a state, never for a time: every wait has a limit and says what it waited for.

use std::time::{Duration, Instant};

/// For what happens at once unless something is wrong.
pub const HALF_MINUTE: Duration = Duration::from_secs(30);
/// For copies and loads on a busy machine.
pub const MINUTE: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `reached`, or panics after `limit` with the name of what never came.
pub fn until(limit: Duration, what: &str, mut reached: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !reached() {
        assert!(started.elapsed() < limit, "waited {limit:?} in vain for {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
    started.elapsed()
}

/// Panics unless `holds` is true all the time for `span`.
pub fn holds_for(span: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while started.elapsed() < span {
        assert!(holds(), "{what} no longer holds after {:?}", started.elapsed());
        std::thread::sleep(POLL_INTERVAL);
    }
}
