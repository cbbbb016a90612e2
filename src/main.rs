//! The program: reads the command line, runs what it says, ends with an exit code of the contract.

use std::process::ExitCode;

fn main() -> ExitCode {
    keyferry::cli::run(std::env::args_os()).into()
}
