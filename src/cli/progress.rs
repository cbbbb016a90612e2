//! Shows how far a job is: a bar on a terminal, else a line every 5 s, and every new reason for a wait at once.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::{numbers, output};
use crate::config::words::Progress;
use crate::status::{Phase, Snapshot, Status};

/// A line is due so long after the last.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// The bar is drawn anew so often.
const BAR_INTERVAL: Duration = Duration::from_millis(100);
/// Rates are taken over at least so long.
const RATE_INTERVAL: Duration = Duration::from_secs(1);
const BAR: &str = "[{bar:24}] {msg}";
const NO_BAR: &str = "{spinner} {msg}";

/// What shows progress, on a thread of its own, `progress`.
pub struct Display {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Display {
    /// Starts to show `status`, in the way that `mode` says.
    pub fn start(status: Arc<Status>, mode: Progress) -> Display {
        let end = Arc::new(AtomicBool::new(false));
        let seen_end = Arc::clone(&end);
        let terminal = output::is_terminal();
        let run: fn(&Status, &AtomicBool) = match mode {
            Progress::None => return Display { end, thread: None },
            Progress::Bar => show_bar,
            Progress::Auto if terminal && !output::is_log_only() => show_bar,
            Progress::Auto | Progress::Log => show_lines,
        };
        let named = std::thread::Builder::new().name("progress".to_owned());
        let thread: io::Result<_> = named.spawn(move || run(&status, &seen_end));
        if let Err(error) = &thread {
            tracing::warn!(%error, "no thread to show progress with");
        }
        Display { end, thread: thread.ok() }
    }

    /// Takes the bar away and waits for the thread.
    pub fn end(self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread {
            // A display that died has nothing more to show.
            let _ = thread.join();
        }
    }
}

fn show_lines(status: &Status, end: &AtomicBool) {
    let mut news = 0;
    let mut lines = Lines::new(Instant::now());
    while !end.load(Ordering::Relaxed) {
        news = status.wait_for_news(news, BAR_INTERVAL);
        if let Some(text) = lines.next(status.snapshot(), Instant::now()) {
            output::line(&text);
        }
    }
}

fn show_bar(status: &Status, end: &AtomicBool) {
    let bar = output::show_bar();
    let mut news = 0;
    let mut previous = Previous::default();
    let mut rates = Rates::default();
    while !end.load(Ordering::Relaxed) {
        news = status.wait_for_news(news, BAR_INTERVAL);
        let now = status.snapshot();
        if now.elapsed.saturating_sub(previous.elapsed) >= RATE_INTERVAL {
            rates = Rates::between(&previous, &now);
            previous = Previous::of(&now);
        }
        draw(&bar, &now, &rates);
    }
    output::hide_bar();
}

fn draw(bar: &ProgressBar, now: &Snapshot, rates: &Rates) {
    let (done, total) = share(now);
    let template = if total > 0 { BAR } else { NO_BAR };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_length(total);
    bar.set_position(done.min(total));
    bar.set_message(words(now, rates));
    bar.tick();
}

/// When which line is due.
struct Lines {
    previous: Previous,
    printed: Instant,
    stage: Phase,
    /// Reasons that were printed lately, so that one that comes and goes isn't printed each time.
    told: BTreeMap<String, Instant>,
}

impl Lines {
    fn new(now: Instant) -> Lines {
        Lines { previous: Previous::default(), printed: now, stage: Phase::Connecting, told: BTreeMap::new() }
    }

    /// The line to print now: because it is time, because the job has come further, or for a new reason to wait.
    fn next(&mut self, now: Snapshot, time: Instant) -> Option<String> {
        self.told.retain(|_, told| time.saturating_duration_since(*told) < LINE_INTERVAL);
        let mut due = time.saturating_duration_since(self.printed) >= LINE_INTERVAL;
        due |= std::mem::replace(&mut self.stage, now.stage) != now.stage;
        due |= now.waits.iter().any(|w| !self.told.contains_key(&w.reason));
        if !due {
            return None;
        }
        for wait in &now.waits {
            self.told.insert(wait.reason.clone(), time);
        }
        let text = line(&now, &self.previous);
        self.previous = Previous::of(&now);
        self.printed = time;
        Some(text)
    }
}

/// What the rates are measured from.
#[derive(Debug, Clone, Copy, Default)]
struct Previous {
    elapsed: Duration,
    keys: u64,
    rdb_bytes: u64,
    commands: u64,
    bytes_to_target: u64,
}

impl Previous {
    fn of(snapshot: &Snapshot) -> Previous {
        Previous {
            elapsed: snapshot.elapsed,
            keys: snapshot.keys_seen(),
            rdb_bytes: snapshot.rdb_bytes_read,
            commands: snapshot.commands_applied,
            bytes_to_target: snapshot.bytes_to_target,
        }
    }
}

/// All a second.
#[derive(Debug, Clone, Copy, Default)]
struct Rates {
    keys: u64,
    rdb_bytes: u64,
    commands: u64,
    bytes_to_target: u64,
}

impl Rates {
    fn between(previous: &Previous, now: &Snapshot) -> Rates {
        let time = now.elapsed.saturating_sub(previous.elapsed);
        let rate = |now: u64, before: u64| numbers::per_second(now.saturating_sub(before), time);
        Rates {
            keys: rate(now.keys_seen(), previous.keys),
            rdb_bytes: rate(now.rdb_bytes_read, previous.rdb_bytes),
            commands: rate(now.commands_applied, previous.commands),
            bytes_to_target: rate(now.bytes_to_target, previous.bytes_to_target),
        }
    }
}

/// One line that says everything.
fn line(now: &Snapshot, previous: &Previous) -> String {
    words(now, &Rates::between(previous, now))
}

fn words(now: &Snapshot, rates: &Rates) -> String {
    let mut text = now.stage.as_str().to_owned();
    match now.stage {
        Phase::Copying => text += &format!(": {}", copy_words(now, rates)),
        Phase::Following | Phase::Settling => {
            text += &format!(": {}", follow_words(now, rates));
        }
        Phase::Connecting | Phase::Waiting | Phase::Stopped => {}
    }
    match now.shards.iter().filter(|shard| shard.replica).count() {
        0 => {}
        _ if now.shards.len() == 1 => text += ", read from a replica",
        replicas => text += &format!(", {replicas} of them read from replicas"),
    }
    if now.spool_bytes > 0 {
        text += &format!(", {} in the spool", numbers::bytes(now.spool_bytes));
    }
    if let Some(reasons) = now.waiting_for() {
        text += &format!("; {reasons}");
    }
    text
}

fn copy_words(now: &Snapshot, rates: &Rates) -> String {
    let keys = match now.keys.total {
        0 => format!("{} keys", now.keys_seen()),
        // Keys may be added while the source counts them: more done than there are would look wrong.
        total => format!("{} of {} keys", now.keys_seen(), total.max(now.keys_seen())),
    };
    let bytes = match now.rdb_bytes_total {
        0 => numbers::bytes(now.rdb_bytes_read),
        total => format!("{} of {}", numbers::bytes(now.rdb_bytes_read), numbers::bytes(total)),
    };
    let mut text = format!("{keys}, {bytes}, {} keys/s, {}/s", rates.keys, numbers::bytes(rates.bytes_to_target));
    if let Some(left) = time_left(now, rates) {
        text += &format!(", {} left", numbers::duration(left));
    }
    text
}

fn follow_words(now: &Snapshot, rates: &Rates) -> String {
    let place = match now.shards.as_slice() {
        [] => "offset 0".to_owned(),
        [shard] => format!("offset {}", shard.applied),
        shards => format!("{} shards", shards.len()),
    };
    let seconds = Duration::try_from_secs_f64(now.lag.seconds).unwrap_or_default();
    format!(
        "lag {}, {}; {} commands/s, {}/s; {place}",
        numbers::bytes(now.lag.bytes),
        numbers::duration(seconds),
        rates.commands,
        numbers::bytes(rates.bytes_to_target),
    )
}

/// How much of the copy is done, of how much: keys where their number is known, for they count what the target has; else bytes.
fn share(now: &Snapshot) -> (u64, u64) {
    if now.stage != Phase::Copying {
        return (0, 0);
    }
    match now.keys.total {
        0 => (now.rdb_bytes_read, now.rdb_bytes_total),
        total => (now.keys_seen(), total),
    }
}

fn time_left(now: &Snapshot, rates: &Rates) -> Option<Duration> {
    let (done, total) = share(now);
    let rate = match now.keys.total {
        0 => rates.rdb_bytes,
        _ => rates.keys,
    };
    let left = total.checked_sub(done).filter(|left| *left > 0)?;
    (rate > 0).then(|| Duration::try_from_secs_f64(left as f64 / rate as f64).ok())?
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
