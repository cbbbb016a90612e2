//! keyferry as the torture runs it: killed, stopped and started again, with its full syncs counted over all its lives.

use crate::tool::Tool;
use crate::wait::{MINUTE, until};

/// The job's name.
pub const JOB: &str = "torture";

/// What becomes of keys with this in their names in a run whose seed chooses a filter.
pub const FILTERED: &str = "tmp:";

/// How the job is run.
pub struct Ferry {
    /// `--source … --target …` and what else doesn't change.
    words: Vec<String>,
    pub lanes: Option<u32>,
    pub tool: Tool,
    /// What the former processes said.
    said: String,
}

impl Ferry {
    /// Starts to follow. `more`: further arguments of every run.
    pub fn start(source: &str, target: &str, more: &[&str]) -> Ferry {
        let words = ["--source", source, "--target", target, "--job", JOB];
        let words: Vec<String> = words.iter().chain(more).map(|word| word.to_string()).collect();
        let tool = run("sync", &words, None);
        Ferry { words, lanes: None, tool, said: String::new() }
    }

    pub fn filter(filtered: bool) -> Vec<&'static str> {
        if filtered { vec!["--not-key", "*tmp:*"] } else { Vec::new() }
    }

    /// Whether a key must be on the target.
    pub fn is_in_scope(filtered: bool, key: &[u8]) -> bool {
        let name = FILTERED.as_bytes();
        !(filtered && key.windows(name.len()).any(|part| part == name))
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.tool.must_live();
        self.tool.kill();
    }

    /// SIGTERM, and a good end.
    pub fn stop(&mut self) {
        self.tool.stop();
    }

    pub fn start_again(&mut self) {
        self.said += &self.tool.text();
        self.tool = run("sync", &self.words, self.lanes);
    }

    /// `keyferry finish` behind a `sync` that was stopped.
    pub fn finish(&mut self) {
        self.said += &self.tool.text();
        self.tool = run("finish", &self.words, self.lanes);
        self.tool.must_end(MINUTE, 0);
    }

    /// How many full syncs began, of all shards and in all lives.
    pub fn full_syncs(&self) -> u32 {
        count_full_syncs(&self.said) + count_full_syncs(&self.tool.text())
    }

    /// Why full syncs began anew, so far.
    pub fn reasons(&self) -> Vec<String> {
        let all = format!("{}{}", self.said, self.tool.text());
        let told = all.lines().filter(|line| line.contains("WARN a new full sync begins"));
        told.filter_map(|line| line.split_once("reason="))
            .map(|(_, reason)| reason.trim_matches('"').to_owned())
            .collect()
    }

    /// Whether the copy of every shard is whole, by the last word of the process that runs.
    pub fn is_following(&self) -> bool {
        let text = self.tool.text();
        let stage = text.lines().rev().find_map(|line| {
            ["connecting", "waiting", "copying:", "following:"].into_iter().find(|stage| line.starts_with(stage))
        });
        stage == Some("following:")
    }

    pub fn until_following(&mut self) {
        until(MINUTE, "the copy's end", || {
            self.tool.must_live();
            self.is_following()
        });
    }
}

impl Drop for Ferry {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = std::env::temp_dir().join(format!("keyferry-torture-{}.log", std::process::id()));
            let all = format!("{}{}", self.said, self.tool.text());
            match std::fs::write(&path, all) {
                Ok(()) => eprintln!("all that keyferry said: {}", path.display()),
                Err(error) => eprintln!("what keyferry said can't be kept: {error}"),
            }
        }
    }
}

fn run(command: &str, words: &[String], lanes: Option<u32>) -> Tool {
    let lanes = lanes.map(|lanes| lanes.to_string());
    let mut args = vec![command];
    args.extend(words.iter().map(String::as_str));
    args.extend(lanes.iter().flat_map(|lanes| ["--lanes", lanes]));
    Tool::run(&args)
}

/// Each is told when it begins, and why it must before that.
fn count_full_syncs(text: &str) -> u32 {
    let count = |words: &str| text.matches(words).count();
    (count("full sync begins") - count("new full sync begins")) as u32
}
