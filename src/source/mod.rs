//! Where the data comes from: a server that takes us for its replica.

pub mod link;
pub mod origin;
pub mod side;
pub mod times;

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::journal;
use crate::net::{cluster, conn, permission};
use crate::offset::ReplOffset;

/// What a source's user must be allowed, a filter or not; the README has the same.
const RULES: &str = "+psync +replconf +ping +info +multi +exec +select +scan +dump +pexpiretime ~* (before Redis 7.0 \
                     +pttl +time +role in the place of +pexpiretime)";

/// Why a source can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Net(#[from] conn::Error),
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    #[error("source {address} can't replicate now: {words}")]
    Later { address: String, words: String },
    #[error("source {address} doesn't let us replicate: {words}")]
    NoPermission { address: String, words: String },
    #[error("source {address} knows neither PSYNC nor SYNC: {words}")]
    NoReplication { address: String, words: String },
    #[error("source {address} wants a password: {words}")]
    NoAuth { address: String, words: String },
    #[error("source {address} answers PSYNC with what keyferry doesn't know: {words}")]
    Unknown { address: String, words: String },
    #[error("source {address} broke the snapshot off after {bytes} bytes")]
    SnapshotCut { address: String, bytes: u64 },
    #[error("{address} is not the primary of its shard any more")]
    NotPrimary { address: String },
    #[error("source {address} was silent for {seconds} s")]
    Silent { address: String, seconds: u64 },
    #[error(transparent)]
    Journal(#[from] journal::Error),
}

impl Error {
    /// True when trying again later can help.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Net(error) => error.is_passing(),
            Error::Cluster(error) => error.is_passing(),
            Error::Later { .. } | Error::SnapshotCut { .. } | Error::Silent { .. } | Error::NotPrimary { .. } => true,
            Error::Journal(_)
            | Error::NoPermission { .. }
            | Error::NoReplication { .. }
            | Error::NoAuth { .. }
            | Error::Unknown { .. } => false,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Net(error) => error.hint(),
            Error::Cluster(error) => error.hint(),
            Error::NoPermission { words, .. } => {
                let rule = permission::missing_rule(words).unwrap_or_else(|| "+psync".into());
                Some(format!(
                    "the source's user lacks a permission: ACL SETUSER <user> {rule}; in all it needs {RULES}"
                ))
            }
            Error::NoReplication { .. } => Some(
                "managed services block or rename these commands; ask the provider to open replication for this \
                 user, or copy from a replica you run yourself"
                    .into(),
            ),
            Error::Unknown { words, .. } if words.starts_with('-') => Some(
                "if this is a managed service, it doesn't let replicas join: ask the provider to open replication, or \
                 copy from a replica you run yourself"
                    .into(),
            ),
            Error::NoAuth { .. } => {
                Some("give the source's user and password in its URL or in KEYFERRY_SOURCE_PASSWORD".into())
            }
            Error::SnapshotCut { .. } => {
                Some("look into the source's log: a failed save or its replica output buffer limit".into())
            }
            Error::Journal(_) => Some(
                "make room there, or give another folder and limit with --spool-dir and --spool; the next run goes on \
                 from where this one was"
                    .into(),
            ),
            Error::Later { .. } | Error::Unknown { .. } | Error::Silent { .. } | Error::NotPrimary { .. } => None,
        }
    }
}

/// What the source is told of our progress.
#[derive(Debug, Default)]
pub struct Ack {
    applied: AtomicU64,
    /// The source asked for an ACK behind this offset.
    wanted: AtomicU64,
    due: Notify,
    /// Tell the source what was received instead of what the target has applied.
    received: bool,
}

impl Ack {
    /// `received`: the source is told what was received rather than what the target has applied.
    pub fn new(received: bool) -> Self {
        Ack { received, ..Ack::default() }
    }

    /// What the source is told now, of which so much was received.
    pub fn offset(&self, received: u64) -> ReplOffset {
        if self.received { ReplOffset(received) } else { self.applied() }
    }

    /// The target has applied everything up to `offset`.
    pub fn set_applied(&self, offset: ReplOffset) {
        let before = self.applied.swap(offset.0, Ordering::Relaxed);
        let wanted = self.wanted.load(Ordering::Relaxed);
        if before < wanted && wanted <= offset.0 {
            self.due.notify_one();
        }
    }

    pub fn applied(&self) -> ReplOffset {
        ReplOffset(self.applied.load(Ordering::Relaxed))
    }

    /// The source asks how far we are, with a `REPLCONF GETACK` that ends at `offset`: it is told at once, and again
    /// when the target has come to there, so that its clients' WAIT ends as early as it may.
    pub fn ask(&self, offset: ReplOffset) {
        self.wanted.store(offset.0, Ordering::Relaxed);
        self.due.notify_one();
    }

    /// Waits until an ACK is due before its time.
    pub async fn due(&self) {
        self.due.notified().await;
    }
}
