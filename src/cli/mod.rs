//! The command line: one file per command; `output` alone prints.

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

mod completions;
mod exit;
mod finish;
mod logging;
mod man;
mod numbers;
mod options;
mod output;
mod progress;
mod summary;
mod sync;

pub use exit::Exit;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "keyferry",
    version,
    about = "Moves Redis and Valkey data between servers while they are in use",
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Sync(Box<sync::Arguments>),
    Finish(Box<finish::Arguments>),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

/// Runs what the arguments say (the program's name first), to its end.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match CommandLine::try_parse_from(&arguments) {
        Ok(line) => match line.command {
            Command::Sync(arguments) => sync::run(*arguments),
            Command::Finish(arguments) => finish::run(*arguments),
            Command::Completions(arguments) => completions::run(arguments),
            Command::Man(arguments) => man::run(arguments),
        },
        Err(error) => output::command_line_error(&error, &arguments),
    }
}

/// The command line's own description, for completions and man pages.
fn description() -> clap::Command {
    CommandLine::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_line_description_is_sound() {
        super::description().debug_assert();
    }
}
