//! `keyferry man`: the manual pages, in roff.

use super::{Exit, output};

/// Print the manual page of keyferry or of a command
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Arguments {
    /// The command whose page to print
    command: Option<String>,
}

pub fn run(arguments: Arguments) -> Exit {
    let mut root = super::description();
    root.build();
    let page = match &arguments.command {
        None => root,
        Some(name) => match root.find_subcommand(name) {
            Some(command) => command.clone(),
            None => {
                output::error(&format!("there is no command '{name}'"), Some("keyferry --help lists them"));
                return Exit::Usage;
            }
        },
    };
    let mut text = Vec::new();
    if let Err(error) = clap_mangen::Man::new(page).render(&mut text) {
        output::error(&format!("can't write the page: {error}"), None);
        return Exit::Failed;
    }
    output::data(&String::from_utf8_lossy(&text));
    Exit::Done
}
