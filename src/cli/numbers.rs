//! Bytes and times as people read them.

use std::time::Duration;

/// `512 B`, `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"");
    // What would be rounded up to 1024.0 takes the next unit.
    while value >= 1023.95 {
        let Some(next) = units.next() else { break };
        unit = next;
        value /= 1024.0;
    }
    format!("{value:.1} {unit}")
}

/// `0.3 s`, `42 s`, `3 min 20 s`, `2 h 5 min`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// How much of `amount` a second; 0 for no time at all.
pub fn per_second(amount: u64, time: Duration) -> u64 {
    if time.is_zero() {
        return 0;
    }
    (amount as f64 / time.as_secs_f64()).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_at_each_unit_and_its_edge() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (213_909_504, "204.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn duration_in_the_two_largest_units() {
        for (millis, text) in [
            (0, "0.0 s"),
            (340, "0.3 s"),
            (9_999, "10.0 s"),
            (42_900, "42 s"),
            (200_000, "3 min 20 s"),
            (7_500_000, "2 h 5 min"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn per_second_of_no_time_is_zero() {
        assert_eq!(per_second(5, Duration::ZERO), 0);
        assert_eq!(per_second(5, Duration::from_millis(500)), 10);
    }
}
