//! keyferry moves Redis and Valkey data between servers while they are in use.

/// A place that writes a record or moves a position: a test may end the process there (`failpoint`).
macro_rules! failpoint {
    ($name:expr) => {
        #[cfg(feature = "failpoints")]
        crate::failpoint::pass($name);
    };
}

/// Whether a rule of the protocol is kept: a constant, but for tests that take it out by its name (`failpoint`).
///
/// For what the delivery machine decides there is `rule!`, which tests switch within their own process.
macro_rules! holds {
    ($name:literal) => {{
        #[cfg(feature = "failpoints")]
        let holds = crate::failpoint::holds($name);
        #[cfg(not(feature = "failpoints"))]
        let holds = true;
        holds
    }};
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
