use super::*;
use crate::offset::{ReplId, ReplOffset};
use crate::status::Shard;

const MIB: u64 = 1 << 20;

fn copying() -> (Status, Arc<Shard>) {
    let status = Status::new("j");
    status.set_phase(Phase::Copying);
    let shard = status.add_shard(0, "h:1");
    let copied = &shard.copied;
    copied.keys_total.set(1_000_000);
    copied.keys_done.set(110_000);
    copied.keys_filtered.set(10_000);
    copied.rdb_bytes_total.set(204 * MIB);
    copied.rdb_bytes_read.set(24 * MIB);
    status.bytes_to_target.set(30 * MIB);
    (status, shard)
}

/// The snapshot as of two seconds after the start.
fn after_2s(status: &Status) -> Snapshot {
    Snapshot { elapsed: Duration::from_secs(2), ..status.snapshot() }
}

fn said(status: &Status) -> String {
    line(&after_2s(status), &Previous::default())
}

#[test]
fn line_while_copying_tells_done_total_rate_and_time_left() {
    let (status, _) = copying();
    let text = "copying: 120000 of 1000000 keys, 24.0 MiB of 204.0 MiB, 60000 keys/s, 15.0 MiB/s, 14 s left";
    assert_eq!(said(&status), text);
}

/// 16 TiB in as many keys as fit, after a year at an offset near the last.
#[test]
fn line_tells_the_largest_counts_as_they_are() {
    let (status, shard) = copying();
    let (copied, keys) = (&shard.copied, 16_u64 << 40);
    copied.keys_total.set(3 * keys);
    copied.keys_done.set(keys);
    copied.keys_filtered.set(keys - 1);
    copied.rdb_bytes_total.set(16 << 40);
    copied.rdb_bytes_read.set(8 << 40);
    status.bytes_to_target.set(16 << 40);
    let text = "copying: 35184372088831 of 52776558133248 keys, 8.0 TiB of 16.0 TiB, 17592186044416 keys/s, 8.0 TiB/s, 1.0 s left";
    assert_eq!(said(&status), text);
    let year = Duration::from_secs(366 * 86_400);
    status.set_phase(Phase::Following);
    shard.start(ReplId::parse(&[b'a'; 40]).unwrap(), ReplOffset(i64::MAX as u64 - (16 << 40)));
    shard.set_received(ReplOffset(i64::MAX as u64));
    status.commands_applied.set(u64::MAX);
    let snapshot = Snapshot { elapsed: year, ..status.snapshot() };
    let told = line(&snapshot, &Previous { elapsed: year - Duration::from_secs(5), ..Previous::default() });
    assert!(told.starts_with("following: lag 16.0 TiB, "), "{told}");
    assert!(told.ends_with("offset 9223354444668731391"), "{told}");
}

#[test]
fn line_while_copying_an_unknown_amount_tells_what_is_known() {
    let (status, shard) = copying();
    shard.copied.keys_total.set(0);
    shard.copied.rdb_bytes_total.set(0);
    assert_eq!(said(&status), "copying: 120000 keys, 24.0 MiB, 60000 keys/s, 15.0 MiB/s");
    shard.copied.rdb_bytes_total.set(48 * MIB);
    let text = "copying: 120000 keys, 24.0 MiB of 48.0 MiB, 60000 keys/s, 15.0 MiB/s, 2.0 s left";
    assert_eq!(said(&status), text);
}

#[test]
fn line_while_following_tells_lag_rate_and_offset() {
    let status = Status::new("j");
    status.set_phase(Phase::Following);
    let id = ReplId::parse(&[b'a'; 40]).unwrap();
    let shard = status.add_shard(0, "h:1");
    shard.start(id, ReplOffset(100));
    status.commands_applied.set(10_000);
    assert_eq!(said(&status), "following: lag 0 B, 0.0 s; 5000 commands/s, 0 B/s; offset 100");
    shard.set_received(ReplOffset(1636));
    let snapshot = Snapshot { lag: crate::status::Lag { bytes: 1536, seconds: 61.2 }, ..after_2s(&status) };
    let text = "following: lag 1.5 KiB, 1 min 1 s; 5000 commands/s, 0 B/s; offset 100";
    assert_eq!(line(&snapshot, &Previous::default()), text);
    shard.set_source("h:9".into(), true);
    shard.set_received(ReplOffset(100));
    let one = "following: lag 0 B, 0.0 s; 5000 commands/s, 0 B/s; offset 100, read from a replica";
    assert_eq!(said(&status), one);
    status.add_shard(1, "h:2");
    let two = "following: lag 0 B, 0.0 s; 5000 commands/s, 0 B/s; 2 shards, 1 of them read from replicas";
    assert_eq!(said(&status), two);
}

#[test]
fn job_is_as_far_as_the_shard_that_is_least_far_until_it_settles() {
    let status = Status::new("j");
    let (one, two) = (status.add_shard(0, "h:1"), status.add_shard(1, "h:2"));
    status.set_shard_phase(&one, Phase::Following);
    assert_eq!(status.phase(), Phase::Connecting);
    status.set_shard_phase(&two, Phase::Copying);
    assert_eq!(status.phase(), Phase::Copying);
    status.set_shard_phase(&two, Phase::Following);
    assert_eq!(status.phase(), Phase::Following);
    let new = status.add_shard(2, "h:3");
    status.set_shard_phase(&new, Phase::Connecting);
    assert_eq!(status.phase(), Phase::Connecting);
    status.set_shard_gone(&new);
    assert_eq!(status.phase(), Phase::Following);
    status.set_shard_phase(&one, Phase::Copying);
    assert_eq!((status.phase(), status.snapshot().shards.len()), (Phase::Copying, 2));
    status.set_phase(Phase::Settling);
    status.set_shard_phase(&one, Phase::Connecting);
    assert_eq!(status.phase(), Phase::Settling);
}

#[test]
fn line_while_waiting_tells_every_reason_and_for_how_long() {
    let status = Status::new("j");
    status.waiting("target", "target answers OOM: waiting");
    status.waiting("source", "source is saving its snapshot");
    status.add_shard(0, "h:1").spool_bytes.set(3 * MIB);
    let mut snapshot = after_2s(&status);
    assert_eq!(snapshot.phase, Phase::Waiting);
    snapshot.waits[0].elapsed = Duration::from_secs(12);
    let text = "connecting, 3.0 MiB in the spool; source is saving its snapshot (12 s); target answers OOM: waiting";
    assert_eq!(line(&snapshot, &Previous::default()), text);
    status.clear("target");
    status.clear("source");
    assert_eq!(status.snapshot().phase, Phase::Connecting);
}

#[test]
fn lines_come_when_due_and_at_once_for_a_new_reason_or_phase() {
    let status = Status::new("j");
    let start = Instant::now();
    let mut lines = Lines::new(start);
    let mut at = |ms: u64| lines.next(status.snapshot(), start + Duration::from_millis(ms));
    assert_eq!(at(100), None);
    status.waiting("source", "source is loading its data");
    assert_eq!(at(200).as_deref(), Some("connecting; source is loading its data"));
    assert_eq!(at(300), None);
    // A reason that goes and comes isn't told each time.
    status.clear("source");
    status.waiting("source", "source is loading its data");
    assert_eq!(at(400), None);
    status.waiting("source", "source is saving its snapshot");
    assert!(at(500).is_some());
    status.clear("source");
    assert_eq!(at(600), None);
    status.set_phase(Phase::Copying);
    assert!(at(700).is_some());
    assert_eq!(at(5699), None);
    assert!(at(5700).is_some());
}

#[test]
fn news_wake_a_waiting_reader() {
    let status = Arc::new(Status::new("j"));
    let seen = status.wait_for_news(0, Duration::ZERO);
    let writer = Arc::clone(&status);
    let thread = std::thread::spawn(move || writer.waiting("target", "why"));
    assert!(status.wait_for_news(seen, Duration::from_secs(10)) > seen);
    thread.join().unwrap();
    let seen = status.wait_for_news(0, Duration::ZERO);
    status.waiting("target", "why");
    assert_eq!(status.wait_for_news(seen, Duration::ZERO), seen, "nothing new");
}
