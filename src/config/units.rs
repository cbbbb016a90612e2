//! Sizes and durations as people write them, with units.

use std::str::FromStr;
use std::time::Duration;

/// A number of bytes: `1024`, `256MiB`, `50MB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A time span: `20s`, `5m`, `1h30m`, `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Bytes a second: `50MiB`, `50MiB/s`; never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(pub u64);

/// Why a word is no size, duration or rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("'{0}' is not a size: write a whole number and KiB, MiB, GiB, TiB, KB, MB, GB or TB")]
    NotASize(String),
    #[error("'{0}' is not a size: write {1}iB (of 1024) or {1}B (of 1000)")]
    HalfUnit(String, String),
    #[error("'{0}' is too large")]
    TooLarge(String),
    #[error("'{0}' has no unit: write {0}s, {0}m or {0}h")]
    NoUnit(String),
    #[error("'{0}' is not a duration: write it as 500ms, 20s, 5m, 1h or 1h30m")]
    NotADuration(String),
    #[error("a rate of 0 would never end: leave it out for no limit")]
    ZeroRate,
}

const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

impl FromStr for Bytes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || Error::NotASize(text.to_owned());
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(bad());
        }
        let unit = unit.trim_start().to_ascii_lowercase();
        if let "k" | "m" | "g" | "t" = unit.as_str() {
            let letter = unit.to_ascii_uppercase();
            return Err(Error::HalfUnit(text.to_owned(), number.to_owned() + &letter));
        }
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*factor))
            .map(Bytes)
            .ok_or_else(|| Error::TooLarge(text.to_owned()))
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.trim().trim_end_matches("/s").parse()? {
            Bytes(0) => Err(Error::ZeroRate),
            Bytes(bytes) => Ok(Rate(bytes)),
        }
    }
}

impl FromStr for Span {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return match text.parse() {
                Ok(0u64) => Ok(Span(Duration::ZERO)),
                _ => Err(Error::NoUnit(text.to_owned())),
            };
        }
        humantime::parse_duration(text).map(Span).map_err(|_| Error::NotADuration(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("7B", 7),
            ("256MiB", 256 << 20),
            ("256 mib", 256 << 20),
            ("20GiB", 20 << 30),
            ("50MB", 50_000_000),
            ("1kb", 1000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn bytes_of_wrong_words_say_what_to_write() {
        for (text, error) in [
            ("", "'' is not a size: write a whole number and KiB, MiB, GiB, TiB, KB, MB, GB or TB"),
            ("256M", "'256M' is not a size: write 256MiB (of 1024) or 256MB (of 1000)"),
            ("99999999TiB", "'99999999TiB' is too large"),
            ("18446744073709551616", "'18446744073709551616' is too large"),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap_err().to_string(), error);
        }
        for text in ["MiB", "-1", "1.5GiB", "1 2", "1XiB", "é"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!("18446744073709551615".parse(), Ok(Bytes(u64::MAX)));
    }

    #[test]
    fn rate_is_bytes_and_never_zero() {
        assert_eq!("50MiB/s".parse(), Ok(Rate(50 << 20)));
        assert_eq!("50MiB".parse(), Ok(Rate(50 << 20)));
        assert_eq!("0".parse::<Rate>(), Err(Error::ZeroRate));
    }

    #[test]
    fn span_needs_a_unit_but_for_zero() {
        let s = Duration::from_secs;
        for (text, span) in [
            ("0", s(0)),
            ("0s", s(0)),
            ("20s", s(20)),
            ("5m", s(300)),
            ("1h", s(3600)),
            ("1h30m", s(5400)),
            ("250ms", Duration::from_millis(250)),
        ] {
            assert_eq!(text.parse(), Ok(Span(span)), "{text}");
        }
        let error = "20".parse::<Span>().unwrap_err();
        assert_eq!(error.to_string(), "'20' has no unit: write 20s, 20m or 20h");
        for text in ["", "x", "-1s", "1y2", "99999999999999999999s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
