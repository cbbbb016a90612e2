//! `keyferry finish`: ends a job.

use super::options::JobOptions;
use super::{Exit, sync};
use crate::pipeline;

const AFTER_HELP: &str = "\
Give the job as sync got it: the same ends or job file, the same filters, the same --job.
It can be interrupted and run again: it goes on from where it was.
Exit codes: 0 done, 1 failed, 2 usage, 5 stopped and resumable.";

/// End a job: give every key its true expiry, remove keyferry's records from the target
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "keyferry finish [JOB.toml] [SOURCE TARGET] [--source-gone] [options of sync]",
    after_help = AFTER_HELP
)]
pub struct Arguments {
    /// Only remove the records: expiries stay late [default: off]
    #[arg(long)]
    source_gone: bool,
    #[command(flatten)]
    job: JobOptions,
}

pub fn run(arguments: Arguments) -> Exit {
    let source_gone = arguments.source_gone;
    let finish = |job, scope, status| pipeline::finish(job, scope, status, source_gone);
    sync::run_job(arguments.job, |_| true, finish)
}
