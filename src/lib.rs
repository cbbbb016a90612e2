//! keyferry moves Redis and Valkey data between servers while they are in use.

/// A place that writes a record or moves a position: a test may end the process there (`failpoint`).
macro_rules! failpoint {
    ($name:expr) => {
        #[cfg(feature = "failpoints")]
        crate::failpoint::pass($name);
    };
}

// L0: words
pub mod args;
#[cfg(feature = "failpoints")]
mod failpoint;
pub mod offset;
pub mod slot;
// L1: pure, no sockets, threads, clock, files or logging
pub mod commands;
pub mod delivery;
pub mod filter;
pub mod rdb;
pub mod repl;
pub mod resp;
pub mod route;
// L2: the outside world
pub mod clock;
pub mod journal;
pub mod net;
pub mod source;
pub mod status;
pub mod target;
// L3: motion
pub mod pipeline;
// L4: people
pub mod cli;
pub mod config;
