//! The task that reads the source's link: the snapshot, then the stream, through every cut that leaves them whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::feed::Feed;
use crate::net::backoff::Backoff;
use crate::net::conn::Server;
use crate::net::info::Info;
use crate::offset::{ReplId, ReplOffset};
use crate::repl::resync::Framing;
use crate::source::link::{Link, Start};
use crate::source::origin::{Chosen, Origin};
use crate::source::{Ack, Error};
use crate::status::{Shard, Status};

/// The place in the status line where reasons to wait for the source stand.
const PLACE: &str = "source";

/// How receiving ended.
pub enum End {
    /// It was told to.
    Stopped,
    /// The source can't go on with the stream and begins a full sync on this link.
    FullSync {
        why: String,
        begun: Box<Joined>,
    },
    /// The source's history has forked behind what the target has: it may go on from the target's records.
    Forked,
    Failed(Error),
}

/// A link, and what the source agreed to send on it.
pub struct Joined {
    pub link: Link,
    pub chosen: Chosen,
    pub replid: Option<ReplId>,
    /// Where the stream begins.
    pub offset: ReplOffset,
    /// True if a snapshot comes first.
    pub full: bool,
}

/// Where the source should go on: behind `offset` of this history. `highest`: the target may have units up to there.
#[derive(Debug, Clone, Copy)]
pub struct Resume {
    pub replid: ReplId,
    pub offset: ReplOffset,
    pub highest: ReplOffset,
}

/// A source primary as it is joined: where it is, and where its waits are told.
#[derive(Clone)]
pub struct Upstream {
    pub origin: Origin,
    pub status: Arc<Status>,
    pub shard: Arc<Shard>,
}

impl Upstream {
    /// Joins the source, again and again while it can't be reached or isn't ready. With `resume` it goes on there if it
    /// can; else it begins a full sync.
    ///
    /// # Errors
    /// When the source refuses for good, or can't be reached for too long.
    pub async fn join(&self, backoff: &mut Backoff, resume: Option<Resume>) -> Result<Joined, Error> {
        loop {
            let error = match self.try_join(resume).await {
                Ok(joined) => {
                    self.clear();
                    return Ok(joined);
                }
                Err(error) => error,
            };
            self.wait(error, backoff).await?;
        }
    }

    async fn try_join(&self, resume: Option<Resume>) -> Result<Joined, Error> {
        // Once for both: what one server says of its history is nothing to another's.
        let chosen = self.origin.choose().await?;
        let resume = match resume {
            Some(resume) if is_of_this_history(&chosen.server, resume).await? => Some(resume),
            Some(resume) => {
                tracing::warn!(offset = %resume.highest, "the source's history forked before what the target has");
                None
            }
            None => None,
        };
        self.open(chosen, resume).await
    }

    async fn open(&self, chosen: Chosen, resume: Option<Resume>) -> Result<Joined, Error> {
        // The answer to PSYNC comes when the source has forked, which may wait for another fork to end.
        let asked = resume.map(|r| (r.replid, r.offset));
        let (link, start) =
            self.noting("source is about to save its snapshot", Link::open(&chosen.server, asked)).await?;
        self.shard.set_source(chosen.server.address.to_string(), chosen.replica);
        Ok(match start {
            Start::Full { replid, offset } => Joined { link, chosen, replid, offset, full: true },
            Start::Partial { replid } => {
                let offset = resume.map_or(ReplOffset(0), |r| r.offset);
                Joined { link, chosen, replid: Some(replid), offset, full: false }
            }
        })
    }

    /// Waits for the snapshot that was agreed on.
    ///
    /// # Errors
    /// When the source fails to save, or is lost.
    pub async fn framing(&self, joined: &mut Joined) -> Result<Framing, Error> {
        self.noting("source is saving its snapshot", joined.link.framing()).await
    }

    /// Says why it waits if `work` takes longer than a moment.
    async fn noting<T>(&self, reason: &str, work: impl Future<Output = T>) -> T {
        const MOMENT: Duration = Duration::from_millis(500);
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(MOMENT) => self.waiting(reason),
        }
        let done = work.await;
        self.clear();
        done
    }

    /// Waits before the next attempt, or gives up.
    async fn wait(&self, error: Error, backoff: &mut Backoff) -> Result<(), Error> {
        if !error.is_passing() {
            return Err(error);
        }
        let Some(pause) = backoff.failed(Instant::now()) else { return Err(error) };
        self.status.error("source connection");
        self.waiting(&error.to_string());
        tracing::warn!(source = self.shard.source(), error = %error, "source lost");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Waiting longer is of no use. A replica is another server anyway.
            () = self.origin.moved(), if !self.origin.prefers_replica() => {}
        }
        Ok(())
    }

    pub fn waiting(&self, reason: &str) {
        self.status.waiting(&self.shard.place(PLACE), reason);
    }

    fn clear(&self) {
        self.status.clear(&self.shard.place(PLACE));
    }
}

/// False if the source is known to have another history than the target's units up to `resume.highest`.
///
/// A promoted replica has the history of its former primary up to `second_repl_offset`; it would go on from a lower
/// offset although the target has more than that.
/// # Errors
/// When the server can't be asked, or is a replica that hasn't come to where the stream is to go on.
async fn is_of_this_history(server: &Server, resume: Resume) -> Result<bool, Error> {
    let mut conn = server.connect().await?;
    let info = Info::parse(conn.ask(&[b"INFO"]).await?.bytes().unwrap_or_default());
    let id = |field: &str| info.get(field).and_then(|id| ReplId::parse(id.as_bytes()));
    if id("master_replid") == Some(resume.replid) || !holds!("one-history") {
        let here = info.number("master_repl_offset").unwrap_or(u64::MAX);
        if info.get("role") == Some("slave") && here < resume.offset.0 {
            let words = format!("this replica is at offset {here}, and the stream at {}", resume.offset);
            return Err(Error::Later { address: server.address.to_string(), words });
        }
        return Ok(true);
    }
    // The offset of the first byte that isn't of the former history any more.
    let fork = info.number("second_repl_offset").unwrap_or(0);
    Ok(id("master_replid2") != Some(resume.replid) || resume.highest.0 < fork)
}

/// Reads a full sync and what follows it.
pub struct Receive {
    pub upstream: Upstream,
    pub feed: Arc<Feed>,
    pub ack: Arc<Ack>,
    pub retry_for: Option<Duration>,
    /// Memory has no room for what comes: it waits, or goes to disk.
    pub full: AtomicBool,
}

/// Waits to be told to stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The session that would tell is gone: that is told, too.
    let _ = stop.wait_for(|stop| *stop).await;
}

impl Receive {
    /// Receives until told to stop; the journals are ended then, whatever the reason.
    pub async fn run(self, link: Link, chosen: Chosen, mut stop: watch::Receiver<bool>) -> End {
        let end = tokio::select! {
            end = self.receive(link, chosen) => end,
            () = stopped(&mut stop) => End::Stopped,
        };
        self.feed.end();
        end
    }

    async fn receive(&self, mut link: Link, mut chosen: Chosen) -> End {
        if let Some(snapshot) = &self.feed.snapshot {
            let shard = &self.upstream.shard;
            if let Framing::Length(bytes) = snapshot.framing {
                shard.copied.rdb_bytes_total.set(bytes);
            }
            let received = link.snapshot(snapshot.framing, &snapshot.journal, |bytes| {
                shard.copied.rdb_bytes_read.set(bytes);
                shard.spool_bytes.set(self.feed.spool_bytes());
            });
            if let Err(error) = received.await {
                return End::Failed(error);
            }
            tracing::info!(source = %chosen.server.address, bytes = shard.copied.rdb_bytes_read.get(), "snapshot received");
        }
        let mut backoff = Backoff::new(self.retry_for);
        let mut best = self.received();
        loop {
            let error = tokio::select! {
                error = link.follow(&self.feed.stream, &self.ack, |position, full| self.note(position, full)) => error,
                () = self.upstream.origin.outdated(&chosen) => {
                    Error::NotPrimary { address: chosen.server.address.to_string() }
                }
            };
            if !error.is_passing() {
                return End::Failed(error);
            }
            tracing::warn!(
                source = %chosen.server.address, error = %error, offset = %self.received(), "the replication link broke"
            );
            // A mere connection is no progress: one that breaks again at once must not be tried for ever.
            if self.received() > best {
                best = self.received();
                backoff.progress();
            }
            (link, chosen) = match self.reconnect(error, &mut backoff).await {
                Ok(joined) => joined,
                Err(end) => return end,
            };
            self.upstream.clear();
        }
    }

    fn note(&self, position: u64, full: bool) {
        let Upstream { status, shard, .. } = &self.upstream;
        if full != self.full.swap(full, Ordering::Relaxed) {
            let place = shard.place("memory");
            match full {
                true => status.waiting(&place, "the memory budget is used up: the target is slower than the source"),
                false => status.clear(&place),
            }
        }
        if !full {
            shard.set_received(self.offset_at(position));
        }
        shard.spool_bytes.set(self.feed.spool_bytes());
    }

    fn offset_at(&self, position: u64) -> ReplOffset {
        ReplOffset(position - self.feed.newlines.load(Ordering::Relaxed))
    }

    fn received(&self) -> ReplOffset {
        self.offset_at(self.feed.stream.written())
    }

    /// Joins the source again behind what was received.
    async fn reconnect(&self, lost: Error, backoff: &mut Backoff) -> Result<(Link, Chosen), End> {
        let upstream = &self.upstream;
        let mut error = lost;
        loop {
            if let Err(error) = upstream.wait(error, backoff).await {
                return Err(End::Failed(error));
            }
            let received = self.received();
            // Without an id (SYNC) the source can't resume, and sends everything again.
            let resume = self.feed.replid().map(|replid| Resume { replid, offset: received, highest: received });
            let chosen = match upstream.origin.choose().await {
                Ok(chosen) => chosen,
                Err(again) => {
                    error = again;
                    continue;
                }
            };
            match resume {
                Some(resume) => match is_of_this_history(&chosen.server, resume).await {
                    Ok(true) => {}
                    Ok(false) => return Err(End::Forked),
                    Err(again) => {
                        error = again;
                        continue;
                    }
                },
                None => tracing::warn!("the source only knows SYNC: it can't resume"),
            }
            match upstream.open(chosen, resume).await {
                Ok(Joined { link, chosen, replid: Some(replid), full: false, .. }) => {
                    self.feed.set_replid(replid);
                    upstream.shard.set_replid(replid);
                    tracing::info!(source = %chosen.server.address, %replid, offset = %received, "partial resync");
                    return Ok((link, chosen));
                }
                Ok(begun) => {
                    let why = format!(
                        "the source can't go on behind offset {received}: its backlog is too short, or it has another history"
                    );
                    return Err(End::FullSync { why, begun: Box::new(begun) });
                }
                Err(again) => error = again,
            }
        }
    }
}
