//! Talking to servers: where they are, and how to reach them safely.

use std::fmt;

pub mod backoff;
mod certificate;
pub mod cluster;
pub mod conn;
pub mod endpoint;
pub mod info;
pub mod locate;
pub mod permission;
pub mod secret;
pub mod tls;
pub mod topology;

/// Which of the two ends something belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    Source,
    Target,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Target => "target",
        })
    }
}
