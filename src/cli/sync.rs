//! `keyferry sync`: copies everything in scope, then follows the source.

use std::sync::Arc;

use super::options::JobOptions;
use super::progress::Display;
use super::{Exit, logging, output, summary};
use crate::config::valid::Job;
use crate::filter::Scope;
use crate::pipeline::{self, Severity};
use crate::status::{Status, Summary};

const AFTER_HELP: &str = "\
Options beat the job file, and the job file beats the environment. Sizes and times have units.
Passwords on the command line show in `ps`: rather use KEYFERRY_SOURCE_PASSWORD and
KEYFERRY_TARGET_PASSWORD, or the password files. Ctrl-C ends cleanly, a second one at once.
Exit codes: 0 done, 1 failed, 2 usage, 3 refused before the start, 5 stopped and resumable.";

/// Copy everything in scope, then follow the source until stopped
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "keyferry sync [JOB.toml] [SOURCE TARGET] [options]",
    after_help = AFTER_HELP
)]
pub struct Arguments {
    #[command(flatten)]
    job: JobOptions,
}

pub fn run(arguments: Arguments) -> Exit {
    let may_start = |job: &Job| !job.flush_target || job.yes || confirm_flush(job);
    run_job(arguments.job, may_start, pipeline::run)
}

/// Runs a job in the way that `start` does, from its options to its exit code.
///
/// `may_start` says so itself when it says no.
pub(super) fn run_job(
    options: JobOptions,
    may_start: impl FnOnce(&Job) -> bool,
    start: impl FnOnce(Job, Scope, Arc<Status>) -> Result<Summary, pipeline::Error>,
) -> Exit {
    let said = options.log_said();
    let job = match options.into_job() {
        Ok(job) => job,
        Err(error) => {
            // In the form that was asked for; a log that can't be started is the smaller mistake.
            let _ = logging::start(&said);
            output::error(&error.to_string(), error.hint());
            return Exit::Usage;
        }
    };
    if let Err(error) = logging::start(&job.log) {
        output::error(&format!("{error:#}"), None);
        return Exit::Usage;
    }
    for note in &job.notes {
        output::warning(note);
    }
    if !may_start(&job) {
        return Exit::Usage;
    }
    let scope = match Scope::new(job.scope.clone()) {
        Ok(scope) => scope,
        Err(error) => {
            output::error(&error.to_string(), None);
            return Exit::Usage;
        }
    };
    let status = Arc::new(Status::new(&job.name));
    let display = Display::start(Arc::clone(&status), job.progress);
    let result = start(job, scope, status);
    display.end();
    match result {
        Ok(done) => {
            output::data(&summary::text(&done));
            Exit::Done
        }
        Err(error) => {
            output::error(&error.to_string(), error.hint().as_deref());
            match error.severity() {
                Severity::Failed => Exit::Failed,
                Severity::Usage => Exit::Usage,
                Severity::NoGo => Exit::NoGo,
                Severity::Resumable => Exit::Resumable,
            }
        }
    }
}

/// Asks whether the target may be emptied; says why not, if not.
fn confirm_flush(job: &Job) -> bool {
    let target = &job.target.endpoint;
    if !output::can_ask() {
        output::error(
            &format!("--flush-target would delete every key of {target}, and nobody is here to be asked"),
            Some("add --yes if that is meant"),
        );
        return false;
    }
    let confirmed = output::ask(&format!("Delete every key of the target {target} first?"));
    if !confirmed {
        output::error("not confirmed: nothing was changed", None);
    }
    confirmed
}
