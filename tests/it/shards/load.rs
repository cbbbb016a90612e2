//! A random load on a cluster, which goes on through failovers: what a node refuses meanwhile was never written.

use crate::client::{Cmd, Reply};
use crate::cluster::{Cluster, is_passing, slot_of};
use crate::load::{EXPECTED_ERRORS, Mix, random_command};
use crate::wait::until;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many hash tags the keys have: each is one slot, and every shard has some.
pub const TAGS: usize = 24;

/// Units of one tag that go to its node at a time.
const UNITS: usize = 20;

/// Writes random commands to a cluster until it is stopped; says its seed.
pub struct ClusterLoad {
    halt: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<BTreeMap<String, u64>>>,
}

impl ClusterLoad {
    /// `rate` in commands a second.
    pub fn start(cluster: &Cluster, rate: u64) -> ClusterLoad {
        ClusterLoad::with(cluster, fastrand::u64(..1_000_000), rate, &[""])
    }

    /// The same with what stands in the keys' names behind the tag.
    pub fn with(cluster: &Cluster, seed: u64, rate: u64, names: &[&str]) -> ClusterLoad {
        println!("load on a cluster of {}: seed {seed}, {rate}/s", cluster.nodes[0].name);
        let (halt, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mixes: Vec<Mix> = (0..TAGS)
            .map(|i| {
                let prefixes = names.iter().map(|name| format!("{{tag{i}}}{name}")).collect();
                Mix { prefixes, keys: 12, ..Mix::of(&cluster.nodes[0]) }
            })
            .collect();
        let client = cluster.client();
        let (stop, count) = (Arc::clone(&halt), Arc::clone(&sent));
        let thread = std::thread::spawn(move || write_until(client, seed, rate, &mixes, &stop, &count));
        ClusterLoad { halt, sent, thread: Some(thread) }
    }

    /// Waits until `n` more commands have been sent.
    pub fn until_sent(&self, n: u64, limit: Duration) {
        let goal = self.sent.load(Ordering::Relaxed) + n;
        until(limit, &format!("{n} more writes of the load"), || {
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!ended, "the load's thread ended by itself");
            self.sent.load(Ordering::Relaxed) >= goal
        });
    }

    /// Ends the load; returns how many commands it sent. Fails if the source refused some for a reason of its own.
    pub fn stop(mut self) -> u64 {
        self.halt.store(true, Ordering::Relaxed);
        let errors = self.thread.take().map(|t| t.join().expect("the load ends")).unwrap_or_default();
        assert!(errors.is_empty(), "the load itself is wrong: {errors:?}");
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for ClusterLoad {
    fn drop(&mut self) {
        self.halt.store(true, Ordering::Relaxed);
    }
}

fn write_until(
    mut client: crate::cluster::ClusterClient,
    seed: u64,
    rate: u64,
    mixes: &[Mix],
    halt: &AtomicBool,
    sent: &AtomicU64,
) -> BTreeMap<String, u64> {
    let mut rng = Rng::with_seed(seed);
    let mut errors = BTreeMap::new();
    let started = Instant::now();
    while !halt.load(Ordering::Relaxed) {
        let mix = &mixes[rng.usize(0..mixes.len())];
        let batch: Vec<Cmd> = (0..UNITS).flat_map(|_| random_command(&mut rng, mix)).collect();
        let slot = slot_of(mix.prefixes[0].as_bytes());
        match client.try_pipe_on(slot, &batch) {
            Some(replies) => note_errors(&batch, replies, &mut errors),
            // Its node is gone or has just lost its slots: somebody takes over.
            None => std::thread::sleep(Duration::from_millis(20)),
        }
        let count = sent.fetch_add(batch.len() as u64, Ordering::Relaxed) + batch.len() as u64;
        let due = Duration::from_secs_f64(count as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
    }
    errors
}

fn note_errors(batch: &[Cmd], replies: Vec<Reply>, errors: &mut BTreeMap<String, u64>) {
    for (command, reply) in batch.iter().zip(replies) {
        if let Reply::Error(words) = reply
            && !EXPECTED_ERRORS.iter().any(|e| words.starts_with(e))
            && !is_passing(&words)
            && !words.starts_with("EXECABORT")
            && !words.starts_with("UNBLOCKED")
        {
            *errors.entry(format!("{}: {words}", command[0].escape_ascii())).or_default() += 1;
        }
    }
}
