//! The true time of a key, where the source streams how long keys have left rather than when they expire (before 7.0).
//!
//! What such a source's stream says became a time when it was received, and is as late as that was. When the target
//! stands still at one offset the source is asked, and what it says is weighed here.

/// When a key expires, by the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// The key isn't there, or not any more.
    Gone,
    /// It is there and doesn't expire.
    Never,
    /// At a Unix time in ms that is neither before `from_ms` nor behind `to_ms`.
    At { from_ms: i64, to_ms: i64 },
}

/// What the source says of a key in one of its databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    pub expiry: Expiry,
    /// Its stream stood at the very offset at which the target stands: what it says is true of the target's key.
    /// Otherwise the key may have become another one since.
    pub level: bool,
}

/// A source that has gone on is believed within this, at least: so long ago a relative time may have been received late.
const NEAR_MS_MIN: u64 = 30 * 60 * 1000;

/// The time that a key is to have which would expire at `own_ms` on the target, without the lateness of `late_ms`.
///
/// `told`: one answer for each source database that goes to the key's. Without any the key keeps its own.
pub fn true_ms(own_ms: i64, told: &[Told], late_ms: i64, now_ms: i64) -> i64 {
    let nearest = told.iter().filter_map(|told| Some((told.nearest_ms(own_ms)?, told.level)));
    match nearest.min_by_key(|(at_ms, _)| at_ms.abs_diff(own_ms)) {
        // Of several databases nobody knows which of them wrote the key last.
        Some((at_ms, true)) if told.len() == 1 => at_ms,
        Some((at_ms, _)) if at_ms.abs_diff(own_ms) <= (late_ms.unsigned_abs() / 2).max(NEAR_MS_MIN) => at_ms,
        Some(_) => own_ms,
        // It has expired there, and nobody had noticed.
        None if !told.is_empty() && told.iter().all(|told| told.level && told.expiry == Expiry::Gone) => {
            own_ms.min(now_ms)
        }
        None => own_ms,
    }
}

impl Told {
    /// The time nearest to `own_ms` that the answer leaves open.
    fn nearest_ms(self, own_ms: i64) -> Option<i64> {
        match self.expiry {
            Expiry::At { from_ms, to_ms } => Some(own_ms.min(to_ms).max(from_ms)),
            Expiry::Gone | Expiry::Never => None,
        }
    }

    /// Whether asking again may tell more exactly.
    pub fn is_wide(self) -> bool {
        matches!(self.expiry, Expiry::At { from_ms, to_ms } if from_ms < to_ms)
    }

    /// What is known when the source was asked `again`.
    pub fn narrowed(self, again: Told) -> Told {
        match (self.expiry, again.expiry) {
            (Expiry::At { from_ms, to_ms }, Expiry::At { from_ms: again_from, to_ms: again_to }) => {
                let (from_ms, to_ms) = (from_ms.max(again_from), to_ms.min(again_to));
                match from_ms <= to_ms {
                    true => Told { expiry: Expiry::At { from_ms, to_ms }, level: self.level || again.level },
                    // It was changed in between.
                    false if self.level => self,
                    false => again,
                }
            }
            _ if self.level => self,
            _ => again,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: i64 = 3_600_000;
    const NOW: i64 = 1_800_000_000_000;
    const T: i64 = NOW + 600_000;
    const MINUTES_30: i64 = 1_800_000;

    fn at(ms: i64, level: bool) -> Told {
        Told { expiry: Expiry::At { from_ms: ms, to_ms: ms }, level }
    }

    fn other(expiry: Expiry, level: bool) -> Told {
        Told { expiry, level }
    }

    #[test]
    fn source_at_the_targets_offset_is_right_however_far_it_is() {
        for x in [T, T - 5000, T + 5000, T - 10 * H, T + 10 * H, 1] {
            assert_eq!(true_ms(T, &[at(x, true)], H, NOW), x);
            assert_eq!(true_ms(T, &[at(x, true)], 0, NOW), x);
        }
    }

    #[test]
    fn source_that_has_gone_on_is_right_within_half_the_lateness_or_half_an_hour() {
        for (late, bound) in [(0, MINUTES_30), (H / 4, MINUTES_30), (H, H / 2), (10 * H, 5 * H)] {
            for sign in [-1, 1] {
                let (last, past) = (T + sign * bound, T + sign * (bound + 1));
                assert_eq!(true_ms(T, &[at(last, false)], late, NOW), last, "{late}");
                assert_eq!(true_ms(T, &[at(past, false)], late, NOW), T, "{late}");
            }
        }
    }

    #[test]
    fn key_that_expired_at_the_targets_offset_is_gone_now() {
        assert_eq!(true_ms(T, &[other(Expiry::Gone, true)], H, NOW), NOW);
        assert_eq!(true_ms(NOW - 7, &[other(Expiry::Gone, true)], H, NOW), NOW - 7);
    }

    #[test]
    fn key_without_a_time_or_gone_further_on_keeps_its_own() {
        for told in [other(Expiry::Gone, false), other(Expiry::Never, false), other(Expiry::Never, true)] {
            assert_eq!(true_ms(T, &[told], H, NOW), T, "{told:?}");
        }
        assert_eq!(true_ms(T, &[], H, NOW), T);
    }

    #[test]
    fn of_several_databases_the_nearest_within_bounds_counts() {
        let (near, far) = (at(T - 2000, true), at(T + 9000, true));
        assert_eq!(true_ms(T, &[far, near], H, NOW), T - 2000);
        assert_eq!(true_ms(T, &[near, far], H, NOW), T - 2000);
        assert_eq!(true_ms(T, &[other(Expiry::Gone, true), near], H, NOW), T - 2000);
        assert_eq!(true_ms(T, &[at(T + 2 * H, true), other(Expiry::Gone, true)], H, NOW), T);
        assert_eq!(true_ms(T, &[other(Expiry::Gone, true); 2], H, NOW), NOW);
        assert_eq!(true_ms(T, &[other(Expiry::Gone, true), other(Expiry::Gone, false)], H, NOW), T);
        assert_eq!(true_ms(T, &[other(Expiry::Gone, true), other(Expiry::Never, true)], H, NOW), T);
    }

    #[test]
    fn own_time_within_what_the_source_leaves_open_stays() {
        let told = |from_ms, to_ms| [Told { expiry: Expiry::At { from_ms, to_ms }, level: true }];
        assert_eq!(true_ms(T, &told(T - 3, T + 4), H, NOW), T);
        assert_eq!(true_ms(T, &told(T + 2, T + 4), H, NOW), T + 2);
        assert_eq!(true_ms(T, &told(T - 9, T - 4), H, NOW), T - 4);
    }

    #[test]
    fn asking_again_narrows_and_a_key_changed_meanwhile_stays_as_it_was_at_the_offset() {
        let told = |from_ms, to_ms, level| Told { expiry: Expiry::At { from_ms, to_ms }, level };
        let wide = told(100, 110, true);
        assert!(wide.is_wide() && !told(5, 5, true).is_wide() && !other(Expiry::Gone, true).is_wide());
        assert_eq!(wide.narrowed(told(104, 130, false)), told(104, 110, true));
        assert_eq!(wide.narrowed(told(500, 500, false)), wide);
        assert_eq!(wide.narrowed(other(Expiry::Gone, false)), wide);
        let further_on = told(100, 110, false);
        assert_eq!(further_on.narrowed(told(500, 500, false)), told(500, 500, false));
        assert_eq!(further_on.narrowed(other(Expiry::Gone, false)), other(Expiry::Gone, false));
    }
}
