//! How long to wait before trying again, and when to give up.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Waits that double from 100 ms to 5 s. Only progress starts them, and the clock of giving up, again.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
    since: Option<Instant>,
    /// `None`: never give up.
    give_up_after: Option<Duration>,
}

impl Backoff {
    pub fn new(give_up_after: Option<Duration>) -> Self {
        Backoff { next: FIRST, since: None, give_up_after }
    }

    /// Something got further than ever before.
    pub fn progress(&mut self) {
        self.next = FIRST;
        self.since = None;
    }

    /// How long to wait before the next attempt; `None` when the time for attempts is over.
    pub fn failed(&mut self, now: Instant) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        if self.give_up_after.is_some_and(|limit| now.duration_since(since) >= limit) {
            return None;
        }
        let wait = self.next;
        self.next = (self.next * 2).min(LONGEST);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_its_longest_and_gives_up_in_time() {
        let start = Instant::now();
        let mut backoff = Backoff::new(Some(Duration::from_secs(60)));
        let waits: Vec<u64> = (0..8).map(|_| backoff.failed(start).map_or(0, |w| w.as_millis() as u64)).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.failed(start + Duration::from_secs(60)), None);
        backoff.progress();
        assert_eq!(backoff.failed(start + Duration::from_secs(99)), Some(FIRST));
    }

    #[test]
    fn backoff_without_a_limit_never_gives_up() {
        let start = Instant::now();
        let mut backoff = Backoff::new(None);
        assert!(backoff.failed(start).is_some());
        assert!(backoff.failed(start + Duration::from_secs(1_000_000)).is_some());
    }
}
