//! How the program ends.

use std::process::ExitCode;

/// The exit codes of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done, or stopped cleanly.
    Done = 0,
    Failed = 1,
    /// The command line or the job file is wrong.
    Usage = 2,
    /// A check before the start says no.
    NoGo = 3,
    /// Source and target differ.
    Differences = 4,
    /// Stopped, and the next run goes on from where it was.
    Resumable = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
