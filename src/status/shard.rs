//! How far one source primary's stream has come.

use super::*;

/// At most so many moments are remembered to tell the age of what isn't applied yet.
const ARRIVALS_MAX: usize = 1024;
/// Arrivals nearer to each other than this are one.
const ARRIVAL_INTERVAL: Duration = Duration::from_millis(5);

/// One source primary: what was received of its stream, and what the target has applied.
#[derive(Debug)]
pub struct Shard {
    number: u32,
    /// The address of the server that is read, and whether it is a replica.
    source: Mutex<(String, bool)>,
    phase: AtomicU8,
    gone: AtomicBool,
    pub copied: Copied,
    /// Bytes that wait on disk.
    pub spool_bytes: Counter,
    started: Instant,
    received: AtomicU64,
    applied: AtomicU64,
    /// Microseconds since `started` of the latest remembered arrival, so that most arrivals need no lock.
    last_arrival_us: AtomicU64,
    arrivals: Mutex<Arrivals>,
    replid: Mutex<Option<ReplId>>,
}

/// When the stream stood where: offset `o` had been received at `t`; both rise.
#[derive(Debug, Default)]
struct Arrivals(VecDeque<(Instant, u64)>);

impl Shard {
    pub(super) fn new(number: u32, source: String) -> Self {
        Shard {
            number,
            source: Mutex::new((source, false)),
            phase: AtomicU8::new(Phase::Connecting as u8),
            gone: AtomicBool::new(false),
            copied: Copied::default(),
            spool_bytes: Counter::default(),
            started: Instant::now(),
            received: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            last_arrival_us: AtomicU64::new(0),
            arrivals: Mutex::default(),
            replid: Mutex::default(),
        }
    }

    /// The address of the server that is read.
    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn source(&self) -> String {
        lock(&self.source).0.clone()
    }

    /// Another server is read from now on.
    pub fn set_source(&self, source: String, replica: bool) {
        *lock(&self.source) = (source, replica);
    }

    /// The name of a place where this shard waits: each has its own, `place` for the first.
    pub fn place(&self, place: &str) -> String {
        match self.number {
            0 => place.to_owned(),
            number => format!("shard {number} {place}"),
        }
    }

    pub fn phase(&self) -> Phase {
        Phase::from_u8(self.phase.load(Ordering::Relaxed))
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// The primary has left its cluster: what was copied from it still counts, and there is nothing to be behind of.
    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// A history begins, or begins again: all before `offset` is in the snapshot.
    pub fn start(&self, replid: ReplId, offset: ReplOffset) {
        *lock(&self.replid) = Some(replid);
        lock(&self.arrivals).0.clear();
        self.applied.store(offset.0, Ordering::Release);
        self.received.store(offset.0, Ordering::Release);
    }

    /// The history goes on under another id (a failover of the source).
    pub fn set_replid(&self, replid: ReplId) {
        *lock(&self.replid) = Some(replid);
    }

    /// The history's name; `None` before one has begun, or where the source can't tell.
    pub fn replid(&self) -> Option<ReplId> {
        *lock(&self.replid)
    }

    /// The stream was read up to `offset`.
    pub fn set_received(&self, offset: ReplOffset) {
        self.set_received_at(offset, Instant::now());
    }

    fn set_received_at(&self, offset: ReplOffset, now: Instant) {
        let before = self.received.swap(offset.0, Ordering::AcqRel);
        let now_us = now.saturating_duration_since(self.started).as_micros() as u64;
        let last_us = self.last_arrival_us.load(Ordering::Relaxed);
        let was_idle = self.applied.load(Ordering::Acquire) >= before;
        if !was_idle && now_us.saturating_sub(last_us) < ARRIVAL_INTERVAL.as_micros() as u64 {
            return;
        }
        self.last_arrival_us.store(now_us, Ordering::Relaxed);
        let applied = self.applied.load(Ordering::Acquire);
        lock(&self.arrivals).add(now, before, offset.0, applied);
    }

    /// The target has applied everything up to `offset`.
    pub fn set_applied(&self, offset: ReplOffset) {
        self.applied.store(offset.0, Ordering::Release);
    }

    pub fn received(&self) -> ReplOffset {
        ReplOffset(self.received.load(Ordering::Acquire))
    }

    pub fn applied(&self) -> ReplOffset {
        ReplOffset(self.applied.load(Ordering::Acquire))
    }

    pub(super) fn read(&self, now: Instant) -> ShardSnapshot {
        let applied = self.applied();
        let received = self.received();
        let lag_bytes = received.since(applied);
        let oldest = lock(&self.arrivals).oldest_after(applied.0);
        let age = oldest.map(|t| now.saturating_duration_since(t).as_secs_f64());
        let (source, replica) = lock(&self.source).clone();
        ShardSnapshot {
            number: self.number,
            source,
            replica,
            replid: *lock(&self.replid),
            received,
            applied,
            lag_bytes,
            lag_seconds: if lag_bytes == 0 { 0.0 } else { age.unwrap_or(0.0) },
        }
    }
}

impl Arrivals {
    /// Notes that bytes from `before` on have arrived by `now`, up to `offset`; forgets what is applied.
    fn add(&mut self, now: Instant, before: u64, offset: u64, applied: u64) {
        while self.0.front().is_some_and(|(_, o)| *o <= applied) {
            self.0.pop_front();
        }
        // Between two notes bytes came unnoted: they count as arrived with the note before them.
        if let Some(last) = self.0.back_mut() {
            last.1 = last.1.max(before);
        }
        if self.0.len() >= ARRIVALS_MAX {
            self.halve();
        }
        self.0.push_back((now, offset));
    }

    /// When the first byte after `applied` arrived, to within what is remembered.
    fn oldest_after(&mut self, applied: u64) -> Option<Instant> {
        while self.0.len() > 1 && self.0.front().is_some_and(|(_, o)| *o <= applied) {
            self.0.pop_front();
        }
        self.0.front().map(|(t, _)| *t)
    }

    /// Joins neighbours in pairs: the earlier time, the later offset, so that no age is told too small.
    fn halve(&mut self) {
        let all = std::mem::take(&mut self.0);
        let mut all = all.into_iter();
        while let Some((time, offset)) = all.next() {
            let offset = all.next().map_or(offset, |(_, later)| later);
            self.0.push_back((time, offset));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &[u8] = b"0123456789012345678901234567890123456789";

    fn shard() -> (Shard, Instant) {
        let shard = Shard::new(0, "h:1".into());
        shard.start(ReplId::parse(ID).unwrap(), ReplOffset(100));
        let start = shard.started;
        (shard, start)
    }

    #[test]
    fn lag_of_an_idle_shard_is_zero_however_long_ago() {
        let (shard, start) = shard();
        let read = shard.read(start + Duration::from_secs(9));
        assert_eq!((read.lag_bytes, read.lag_seconds), (0, 0.0));
    }

    #[test]
    fn lag_seconds_are_the_age_of_the_oldest_byte_not_applied() {
        let (shard, start) = shard();
        let at = |s: u64| start + Duration::from_secs(s);
        for s in 1..=5 {
            shard.set_received_at(ReplOffset(100 + s), at(s));
        }
        assert_eq!(shard.read(at(6)).lag_seconds, 5.0);
        shard.set_applied(ReplOffset(103));
        let read = shard.read(at(6));
        assert_eq!((read.lag_bytes, read.lag_seconds), (2, 2.0));
        // A stream that never rests and is 1 s behind is 1 s behind, not as old as the job.
        for s in 6..=100 {
            shard.set_received_at(ReplOffset(100 + s), at(s));
            shard.set_applied(ReplOffset(100 + s - 1));
            assert!(shard.read(at(s)).lag_seconds <= 1.0);
        }
    }

    #[test]
    fn lag_seconds_start_when_an_idle_stream_goes_on() {
        let (shard, start) = shard();
        shard.set_received_at(ReplOffset(200), start);
        shard.set_applied(ReplOffset(200));
        shard.set_received_at(ReplOffset(201), start + Duration::from_millis(1));
        assert_eq!(shard.read(start + Duration::from_millis(3)).lag_seconds, 0.002);
    }

    #[test]
    fn arrivals_past_their_limit_are_halved_and_no_age_gets_smaller() {
        let (shard, start) = shard();
        for i in 1..=(ARRIVALS_MAX as u64 + 1) {
            shard.set_received_at(ReplOffset(100 + i), start + ARRIVAL_INTERVAL * i as u32);
        }
        assert_eq!(lock(&shard.arrivals).0.len(), ARRIVALS_MAX / 2 + 1);
        shard.set_applied(ReplOffset(100 + 10));
        let read = shard.read(start + ARRIVAL_INTERVAL * 20);
        let real = (ARRIVAL_INTERVAL * 9).as_secs_f64();
        assert!((real..real + 0.01).contains(&read.lag_seconds), "{read:?}");
    }
}
