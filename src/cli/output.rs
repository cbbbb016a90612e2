//! The only place that prints: data to standard output, everything else to standard error, above the bar if there is one.

use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::error::ErrorKind;
use indicatif::{ProgressBar, ProgressDrawTarget};
use tracing_subscriber::fmt::MakeWriter;

use super::Exit;

/// The bar that is on the screen, if one is.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Whether standard error is a log of JSON objects: then all that would be printed there is said through the log.
static JSON: AtomicBool = AtomicBool::new(false);

/// From now on standard error gets nothing but what the log writes.
pub fn log_only() {
    JSON.store(true, Ordering::Relaxed);
}

/// Whether standard error is a log of JSON objects.
pub fn is_log_only() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Prints what was asked for. A reader who has had enough (`| head`) is no error.
pub fn data(text: &str) {
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

/// Prints `error: ...` and, if there is something to be done about it, `hint: ...`.
pub fn error(message: &str, hint: Option<&str>) {
    if is_log_only() {
        tracing::error!(hint, "{message}");
        return;
    }
    labelled("error", "31", message);
    if let Some(hint) = hint {
        labelled("hint", "36", hint);
    }
}

/// Prints `warning: ...`.
pub fn warning(message: &str) {
    if is_log_only() {
        tracing::warn!("{message}");
        return;
    }
    labelled("warning", "33", message);
}

/// Prints a line for people.
pub fn line(text: &str) {
    if is_log_only() {
        tracing::info!("{text}");
        return;
    }
    write_above_bar(format!("{}\n", printable(text)).as_bytes());
}

/// Prints what clap says: help to standard output, mistakes to standard error in our form and without passwords.
pub fn command_line_error(error: &clap::Error, arguments: &[OsString]) -> Exit {
    let text = error.render();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = match may_colour(io::stdout().is_terminal()) {
                true => text.ansi().to_string(),
                false => text.to_string(),
            };
            data(&format!("{}\n", text.trim_end()));
            Exit::Done
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            write_above_bar(text.to_string().as_bytes());
            Exit::Usage
        }
        _ => {
            let text = hide_arguments_credentials(text.to_string(), arguments);
            report_mistake(&text);
            Exit::Usage
        }
    }
}

/// clap's `error: ...`, details, `  tip: ...`, usage and advice, as an error and a hint.
fn report_mistake(text: &str) {
    let (first, more) = text.split_once('\n').unwrap_or((text, ""));
    labelled("error", "31", first.trim_start_matches("error: "));
    let mut hint = None;
    for detail in more.lines().map(str::trim) {
        match detail.strip_prefix("tip: ") {
            Some(tip) => hint = Some(tip),
            None if detail.is_empty() || detail.starts_with("For more information") => {}
            None => line(&format!("  {detail}")),
        }
    }
    labelled("hint", "36", hint.unwrap_or("--help tells more"));
}

/// Whether somebody is there to answer.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && is_terminal()
}

/// Asks a question that only `y` or `yes` answers with yes.
pub fn ask(question: &str) -> bool {
    write_above_bar(format!("{question} [y/N] ").as_bytes());
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes" | "YES" | "Yes")
}

/// Whether standard error is a terminal, where a bar can be drawn.
pub fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether text for standard error may have colours.
pub fn colour() -> bool {
    may_colour(is_terminal())
}

/// Puts a bar on the screen, below all lines that come.
pub fn show_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
    bar
}

/// Takes the bar off the screen.
pub fn hide_bar() {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

/// Writes the log to standard error, line by line, above the bar.
#[derive(Debug, Clone, Copy)]
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_above_bar(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = LogLines;

    fn make_writer(&'a self) -> LogLines {
        LogLines
    }
}

fn labelled(label: &str, colour_code: &str, text: &str) {
    let text = printable(text);
    let line =
        if colour() { format!("\x1b[1;{colour_code}m{label}:\x1b[0m {text}\n") } else { format!("{label}: {text}\n") };
    write_above_bar(line.as_bytes());
}

fn write_above_bar(bytes: &[u8]) {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner);
    let write = || {
        let _ = io::stderr().lock().write_all(bytes);
    };
    match bar.as_ref() {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

fn may_colour(terminal: bool) -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    terminal && !forbidden
}

/// Servers' and users' words can hold anything; a terminal obeys control characters.
fn printable(text: &str) -> String {
    let plain = |c: char| {
        if c.is_control() && c != '\n' { '\u{fffd}' } else { c }
    };
    text.chars().map(plain).collect()
}

/// Hides the credentials of every argument that is a URL, wherever clap quotes it.
fn hide_arguments_credentials(mut text: String, arguments: &[OsString]) -> String {
    for argument in arguments {
        let argument = argument.to_string_lossy();
        let credentials = argument.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
        if let Some((credentials, _)) = credentials.filter(|(text, _)| !text.is_empty()) {
            text = text.replace(&format!("://{credentials}@"), "://***@");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hide_arguments_credentials_wherever_quoted() {
        let arguments = ["--db=redis://:p@ss'w rd@h".into(), "redis://h".into()];
        let text = "invalid value 'redis://:p@ss'w rd@h' for redis://h".to_owned();
        let hidden = hide_arguments_credentials(text, &arguments);
        assert_eq!(hidden, "invalid value 'redis://***@h' for redis://h");
    }

    #[test]
    fn printable_of_control_characters_disarms_them() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\u{fffd}[2Jb\nc");
    }
}
