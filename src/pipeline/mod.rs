//! Motion: the threads and tasks between a source and a target.

pub mod copy_keys;
pub mod decode;
pub mod feed;
mod learn;
pub mod stream;
pub mod value;

use std::time::{SystemTime, UNIX_EPOCH};

/// The time in Unix milliseconds.
pub(crate) fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
