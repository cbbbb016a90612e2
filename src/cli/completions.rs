//! `keyferry completions`: what a shell needs to complete our commands and options.

use clap_complete::Shell;

use super::{Exit, output};

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Arguments {
    /// bash, zsh, fish, elvish or powershell
    shell: Shell,
}

pub fn run(arguments: Arguments) -> Exit {
    let mut text = Vec::new();
    let mut command = super::description();
    clap_complete::generate(arguments.shell, &mut command, "keyferry", &mut text);
    output::data(&String::from_utf8_lossy(&text));
    Exit::Done
}
