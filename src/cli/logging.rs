//! Sets up the log: level, form and place.

use std::fs::OpenOptions;
use std::sync::Mutex;

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::output;
use crate::config::valid::Log;
use crate::config::words::{LogFormat, LogLevel, Word};

/// Names directives (`keyferry=debug,rustls=info`) that apply where no level is given.
const VARIABLE: &str = "KEYFERRY_LOG";

/// Starts logging, once for the process.
///
/// # Errors
/// A log file that can't be opened, or directives that can't be read.
pub fn start(log: &Log) -> anyhow::Result<()> {
    let filter = filter(log.level)?;
    match &log.file {
        None => {
            start_to(log.format, filter, output::colour(), output::LogLines);
            // Without a log an error would be told nowhere.
            if log.format == LogFormat::Json && log.level != Some(LogLevel::Off) {
                output::log_only();
            }
        }
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let file = file.with_context(|| format!("can't open the log file {}", path.display()))?;
            start_to(log.format, filter, false, Mutex::new(file));
        }
    }
    Ok(())
}

/// Ours at the level that was asked for; other crates' warnings only.
fn filter(level: Option<LogLevel>) -> anyhow::Result<EnvFilter> {
    let said = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let directives = match (level, said) {
        (Some(LogLevel::Off), _) => "off".to_owned(),
        (None, Some(directives)) => directives,
        (level, _) => format!("warn,keyferry={}", level.unwrap_or_default().as_str()),
    };
    EnvFilter::try_new(&directives).with_context(|| format!("{VARIABLE} '{directives}'"))
}

fn start_to<W>(format: LogFormat, filter: EnvFilter, colour: bool, writer: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colour).with_target(false);
    // Only tests start twice in one process, and the first log serves them too.
    let _ = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
