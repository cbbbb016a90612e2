//! The task that reads the source's link: the snapshot, then the stream, through every cut that leaves them whole.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::feed::Feed;
use crate::net::backoff::Backoff;
use crate::net::conn::Server;
use crate::offset::{ReplId, ReplOffset};
use crate::repl::resync::Framing;
use crate::source::link::{Link, Start};
use crate::source::{Ack, Error};
use crate::status::{Shard, Status};

/// The place in the status line where reasons to wait for the source stand.
const PLACE: &str = "source";

/// How receiving ended.
#[derive(Debug)]
pub enum End {
    /// It was told to.
    Stopped,
    /// The source can't go on with the stream: it begins a new full sync.
    FullSync(String),
    Failed(Error),
}

/// A link on which a full sync has begun.
pub struct Begun {
    pub link: Link,
    pub replid: Option<ReplId>,
    pub offset: ReplOffset,
    pub framing: Framing,
}

/// Joins the source and asks for a full sync, again and again while it can't give one.
///
/// # Errors
/// When the source refuses for good, or can't be reached for too long.
pub async fn begin(server: &Server, status: &Status, backoff: &mut Backoff) -> Result<Begun, Error> {
    loop {
        let error = match try_begin(server, status).await {
            Ok(begun) => {
                status.clear(PLACE);
                return Ok(begun);
            }
            Err(error) => error,
        };
        wait(error, status, backoff).await?;
    }
}

async fn try_begin(server: &Server, status: &Status) -> Result<Begun, Error> {
    // The answer to PSYNC comes when the source has forked, which may wait for another fork to end.
    let opened = noting(status, "source is about to save its snapshot", Link::open(server, None)).await?;
    match opened {
        (mut link, Start::Full { replid, offset }) => {
            let framing = noting(status, "source is saving its snapshot", link.framing()).await?;
            Ok(Begun { link, replid, offset, framing })
        }
        (_, Start::Partial { .. }) => {
            let words = "+CONTINUE to a first PSYNC".to_owned();
            Err(Error::Unknown { address: server.address.to_string(), words })
        }
    }
}

/// Says why it waits if `work` takes longer than a moment.
async fn noting<T>(status: &Status, reason: &str, work: impl Future<Output = T>) -> T {
    const MOMENT: Duration = Duration::from_millis(500);
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = tokio::time::sleep(MOMENT) => status.waiting(PLACE, reason),
    }
    let done = work.await;
    status.clear(PLACE);
    done
}

/// Waits before the next attempt, or gives up.
async fn wait(error: Error, status: &Status, backoff: &mut Backoff) -> Result<(), Error> {
    if !error.is_passing() {
        return Err(error);
    }
    let Some(pause) = backoff.failed(Instant::now()) else { return Err(error) };
    status.error("source connection");
    status.waiting(PLACE, &error.to_string());
    tracing::warn!(error = %error, "source lost");
    tokio::time::sleep(pause).await;
    Ok(())
}

/// Reads a full sync and what follows it.
pub struct Receive {
    pub server: Server,
    pub feed: Arc<Feed>,
    pub ack: Arc<Ack>,
    pub status: Arc<Status>,
    pub shard: Arc<Shard>,
    pub retry_for: Option<Duration>,
}

impl Receive {
    /// Receives until told to stop; the journals are ended then, whatever the reason.
    pub async fn run(self, link: Link, mut stop: watch::Receiver<bool>) -> End {
        let end = tokio::select! {
            end = self.receive(link) => end,
            _ = stop.wait_for(|stop| *stop) => End::Stopped,
        };
        self.feed.snapshot.end();
        self.feed.stream.end();
        end
    }

    async fn receive(&self, mut link: Link) -> End {
        let status = &self.status;
        if let Framing::Length(bytes) = self.feed.framing {
            status.rdb_bytes_total.set(bytes);
        }
        let received = link.snapshot(self.feed.framing, &self.feed.snapshot, |bytes, _| {
            status.rdb_bytes_read.set(bytes);
        });
        if let Err(error) = received.await {
            return End::Failed(error);
        }
        tracing::info!(bytes = status.rdb_bytes_read.get(), "snapshot received");
        loop {
            let error = link.follow(&self.feed.stream, &self.ack, |position, full| self.note(position, full)).await;
            tracing::warn!(error = %error, offset = %self.received(), "the replication link broke");
            link = match self.reconnect(error).await {
                Ok(link) => link,
                Err(end) => return end,
            };
            status.clear(PLACE);
        }
    }

    fn note(&self, position: u64, full: bool) {
        if full {
            self.status.waiting("memory", "the memory budget is used up: waiting for the target");
        } else {
            self.status.clear("memory");
            self.shard.set_received(self.offset_at(position));
        }
    }

    fn offset_at(&self, position: u64) -> ReplOffset {
        ReplOffset(position - self.feed.newlines.load(Ordering::Relaxed))
    }

    fn received(&self) -> ReplOffset {
        self.offset_at(self.feed.stream.written())
    }

    /// Joins the source again behind what was received.
    async fn reconnect(&self, lost: Error) -> Result<Link, End> {
        let mut backoff = Backoff::new(self.retry_for);
        let Some(replid) = self.feed.replid() else {
            return Err(End::FullSync("the source can't resume: it only knows SYNC".into()));
        };
        let mut error = lost;
        loop {
            if let Err(error) = wait(error, &self.status, &mut backoff).await {
                return Err(End::Failed(error));
            }
            match Link::open(&self.server, Some((replid, self.received()))).await {
                Ok((link, Start::Partial { replid })) => {
                    self.feed.set_replid(replid);
                    self.shard.set_replid(replid);
                    tracing::info!(%replid, offset = %self.received(), "partial resync");
                    return Ok(link);
                }
                Ok((_, Start::Full { .. })) => {
                    return Err(End::FullSync(format!(
                        "the source can't go on behind offset {}: its backlog is too short, or it has another history",
                        self.received()
                    )));
                }
                Err(again) => error = again,
            }
        }
    }
}
