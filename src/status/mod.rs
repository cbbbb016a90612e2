//! What a running job knows of itself: the pipeline counts, people read.
//!
//! Counters are atomics of their own, so that counting costs nothing and never waits. A `Snapshot` reads them one by one:
//! each is true at its moment, and `applied` is read before `received`, so that a lag is never too small.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::offset::{ReplId, ReplOffset};

mod copied;
mod shard;
mod snapshot;
mod summary;

pub use copied::Copied;
pub use shard::Shard;
pub use snapshot::{Keys, Lag, ShardSnapshot, Snapshot, Wait};
pub use summary::{Ending, Summary};

/// How many kinds of errors are told apart; more are counted as `other`.
pub const ERROR_KINDS_MAX: usize = 64;
/// How many places can wait at once; reasons for more are dropped.
pub const WAITS_MAX: usize = 1024;

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    #[default]
    Connecting,
    Copying,
    Following,
    Settling,
    /// Never set: what a snapshot says while something is being waited for.
    Waiting,
    Stopped,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Connecting => "connecting",
            Phase::Copying => "copying",
            Phase::Following => "following",
            Phase::Settling => "settling",
            Phase::Waiting => "waiting",
            Phase::Stopped => "stopped",
        }
    }

    fn from_u8(number: u8) -> Phase {
        [Phase::Connecting, Phase::Copying, Phase::Following, Phase::Settling, Phase::Waiting]
            .into_iter()
            .find(|phase| *phase as u8 == number)
            .unwrap_or(Phase::Stopped)
    }
}

/// A number that one side writes and the other reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Keys by database and type, counted by one thread and merged into the status now and then.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally(BTreeMap<(u32, &'static str), u64>);

impl Tally {
    /// Counts one key; `kind` as TYPE says it.
    pub fn add(&mut self, database: u32, kind: &'static str) {
        *self.0.entry((database, kind)).or_default() += 1;
    }

    /// Adds what another has counted, and empties it.
    fn take(&mut self, other: &mut Tally) {
        for (place, count) in std::mem::take(&mut other.0) {
            *self.0.entry(place).or_default() += count;
        }
    }

    /// Takes back one key; false if there is none such.
    fn remove(&mut self, database: u32, kind: &'static str) -> bool {
        let Some(count) = self.0.get_mut(&(database, kind)).filter(|count| **count > 0) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&(database, kind));
        }
        true
    }
}

/// The counters of one job.
#[derive(Debug)]
pub struct Status {
    job: String,
    started: Instant,
    phase: AtomicU8,
    pub units_applied: Counter,
    pub commands_applied: Counter,
    /// Commands of the stream that the filter left out.
    pub commands_filtered: Counter,
    /// Commands that `--on-error skip` or `--existing keep` left out.
    pub commands_skipped: Counter,
    /// Transactions of the source whose keys lie in several slots of a cluster: atomic in each of them only.
    pub transactions_split: Counter,
    pub bytes_to_target: Counter,
    /// Units that were applied, but whose replies were lost with a connection.
    pub replies_unseen: Counter,
    /// Keys, and fields of hashes, whose expiry was late and is true now.
    pub keys_settled: Counter,
    pub fields_settled: Counter,
    pub lanes: Counter,
    errors: Mutex<BTreeMap<String, u64>>,
    /// What `--lossy` left out of values, by what it was.
    losses: Mutex<BTreeMap<&'static str, u64>>,
    shards: Mutex<Vec<Arc<Shard>>>,
    news: Mutex<News>,
    news_came: Condvar,
}

/// What a reader wants to hear of at once.
#[derive(Debug, Default)]
struct News {
    version: u64,
    waits: BTreeMap<String, (String, Instant)>,
}

impl Status {
    pub fn new(job: impl Into<String>) -> Self {
        Status {
            job: job.into(),
            started: Instant::now(),
            phase: AtomicU8::new(Phase::Connecting as u8),
            units_applied: Counter::default(),
            commands_applied: Counter::default(),
            commands_filtered: Counter::default(),
            commands_skipped: Counter::default(),
            transactions_split: Counter::default(),
            bytes_to_target: Counter::default(),
            replies_unseen: Counter::default(),
            keys_settled: Counter::default(),
            fields_settled: Counter::default(),
            lanes: Counter::default(),
            errors: Mutex::default(),
            losses: Mutex::default(),
            shards: Mutex::default(),
            news: Mutex::default(),
            news_came: Condvar::new(),
        }
    }

    /// Enters a phase, with all shards; readers hear of a change at once.
    pub fn set_phase(&self, phase: Phase) {
        assert!(phase != Phase::Waiting, "a wait is set with its reason");
        if self.phase.swap(phase as u8, Ordering::Relaxed) != phase as u8 {
            self.announce(&mut lock(&self.news));
        }
    }

    /// A shard enters a phase. Until the job settles or stops, it is as far as the shard that is least far.
    pub fn set_shard_phase(&self, shard: &Shard, phase: Phase) {
        shard.set_phase(phase);
        self.take_least_phase();
    }

    /// A shard's primary has left: it is counted no more, and the job no longer waits for it.
    pub fn set_shard_gone(&self, shard: &Shard) {
        shard.set_gone();
        self.take_least_phase();
    }

    fn take_least_phase(&self) {
        if self.phase() < Phase::Settling {
            let least = lock(&self.shards).iter().filter(|s| !s.is_gone()).map(|s| s.phase()).min();
            least.into_iter().for_each(|phase| self.set_phase(phase));
        }
    }

    pub fn phase(&self) -> Phase {
        Phase::from_u8(self.phase.load(Ordering::Relaxed))
    }

    /// Says that `place` (`source`, `target`, `lane 3`) waits, and why; a new reason is told at once.
    ///
    /// `reason` is a whole phrase without a time (`target answers OOM: waiting`): since when is kept here.
    pub fn waiting(&self, place: &str, reason: &str) {
        let mut news = lock(&self.news);
        match news.waits.get(place) {
            Some((old, _)) if old == reason => return,
            None if news.waits.len() >= WAITS_MAX => return,
            _ => {}
        }
        let wait = (reason.to_owned(), Instant::now());
        news.waits.insert(place.to_owned(), wait);
        self.announce(&mut news);
    }

    /// Says that `place` waits no longer.
    pub fn clear(&self, place: &str) {
        let mut news = lock(&self.news);
        if news.waits.remove(place).is_some() {
            self.announce(&mut news);
        }
    }

    /// Waits until something new is to be told (another version than `seen`), or for `timeout`; returns the version.
    ///
    /// Blocks its thread: not for async code.
    pub fn wait_for_news(&self, seen: u64, timeout: Duration) -> u64 {
        let news = lock(&self.news);
        let waited = self.news_came.wait_timeout_while(news, timeout, |news| news.version == seen);
        let (news, _) = waited.unwrap_or_else(PoisonError::into_inner);
        news.version
    }

    /// Counts an error of a kind, such as `OOM` or `connection`.
    pub fn error(&self, kind: &str) {
        let mut errors = lock(&self.errors);
        if let Some(count) = errors.get_mut(kind) {
            *count += 1;
            return;
        }
        let kind = if errors.len() < ERROR_KINDS_MAX { kind } else { "other" };
        *errors.entry(kind.to_owned()).or_default() += 1;
    }

    /// Counts a value that was written without `what`; true if it is the first.
    pub fn lost(&self, what: &'static str) -> bool {
        let mut losses = lock(&self.losses);
        let count = losses.entry(what).or_default();
        *count += 1;
        *count == 1
    }

    /// Adds a source primary; `source` is its address. Its reader and its lanes count through what is returned.
    pub fn add_shard(&self, number: u32, source: impl Into<String>) -> Arc<Shard> {
        let shard = Arc::new(Shard::new(number, source.into()));
        lock(&self.shards).push(Arc::clone(&shard));
        shard
    }

    /// The shard of that number that the job has now.
    pub fn shard(&self, number: u32) -> Option<Arc<Shard>> {
        lock(&self.shards).iter().find(|shard| shard.number() == number && !shard.is_gone()).cloned()
    }

    /// Everything at this moment.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_at(Instant::now())
    }

    fn snapshot_at(&self, now: Instant) -> Snapshot {
        let all = lock(&self.shards).clone();
        let shards: Vec<ShardSnapshot> = all.iter().filter(|s| !s.is_gone()).map(|s| s.read(now)).collect();
        let sum = |counter: fn(&Shard) -> &Counter| all.iter().map(|s| counter(s).get()).sum();
        let waits: Vec<Wait> = self.waits(now);
        let stage = self.phase();
        Snapshot {
            job: self.job.clone(),
            phase: if waits.is_empty() { stage } else { Phase::Waiting },
            stage,
            elapsed: now.saturating_duration_since(self.started),
            lag: Lag {
                bytes: shards.iter().map(|s| s.lag_bytes).sum(),
                seconds: shards.iter().map(|s| s.lag_seconds).fold(0.0, f64::max),
            },
            keys: Keys {
                done: sum(|s| &s.copied.keys_done),
                total: sum(|s| &s.copied.keys_total),
                filtered: sum(|s| &s.copied.keys_filtered),
                expired: sum(|s| &s.copied.keys_expired),
                kept: sum(|s| &s.copied.keys_kept),
            },
            waits,
            rdb_bytes_read: sum(|s| &s.copied.rdb_bytes_read),
            rdb_bytes_total: sum(|s| &s.copied.rdb_bytes_total),
            units_applied: self.units_applied.get(),
            commands_applied: self.commands_applied.get(),
            bytes_to_target: self.bytes_to_target.get(),
            replies_unseen: self.replies_unseen.get(),
            spool_bytes: sum(|s| &s.spool_bytes),
            lanes: self.lanes.get(),
            errors: lock(&self.errors).clone(),
            shards,
        }
    }

    /// What there is to say at the end.
    pub fn summary(&self, ending: Ending) -> Summary {
        let shards = lock(&self.shards).clone();
        let sum = |counter: fn(&Copied) -> &Counter| shards.iter().map(|s| counter(&s.copied).get()).sum();
        let mut keys = Tally::default();
        shards.iter().for_each(|shard| keys.take(&mut shard.copied.tally()));
        let reached = shards.iter().filter(|s| !s.is_gone() && s.applied() > ReplOffset(0));
        Summary {
            ending,
            job: self.job.clone(),
            keys: keys.0,
            keys_filtered: sum(|c| &c.keys_filtered),
            keys_expired: sum(|c| &c.keys_expired),
            keys_kept: sum(|c| &c.keys_kept),
            commands_applied: self.commands_applied.get(),
            commands_filtered: self.commands_filtered.get(),
            commands_skipped: self.commands_skipped.get(),
            transactions_split: self.transactions_split.get(),
            bytes_to_target: self.bytes_to_target.get(),
            replies_unseen: self.replies_unseen.get(),
            keys_settled: self.keys_settled.get(),
            fields_settled: self.fields_settled.get(),
            errors: lock(&self.errors).clone(),
            losses: lock(&self.losses).clone(),
            elapsed: self.started.elapsed(),
            offsets: reached.map(|s| (s.source(), s.applied())).collect(),
        }
    }

    fn waits(&self, now: Instant) -> Vec<Wait> {
        let news = lock(&self.news);
        news.waits
            .iter()
            .map(|(place, (reason, since))| Wait {
                place: place.clone(),
                reason: reason.clone(),
                elapsed: now.saturating_duration_since(*since),
            })
            .collect()
    }

    fn announce(&self, news: &mut News) {
        news.version += 1;
        self.news_came.notify_all();
    }
}

/// A count is never so broken that it can't be read: a thread that died elsewhere is no reason to die here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
