//! Where the data goes: connections to a server or the nodes of a cluster, and the work that plain commands can't do.

pub mod checkpoint;
pub mod cluster;
pub mod connect;
pub mod driver;
pub mod forget;
pub mod lease;
pub mod nodes;
pub mod owner;
pub mod preflight;
pub mod replicas;
pub mod scan;
pub mod settle;
pub mod states;
pub mod wire;

use std::sync::Arc;

use crate::delivery::record;
use crate::delivery::refusal::{Refusal, refusal};
use crate::delivery::standalone::{Fault, Lost, SELECT};
use crate::journal;
use crate::net::{self, Side, conn, permission};
use crate::offset::ReplOffset;
use crate::rdb::ModuleType;
use crate::resp::reply::Reply;

/// Whether a key of a target database is one that the job writes.
pub type InScope = Arc<dyn Fn(u32, &[u8]) -> bool + Send + Sync>;

/// Why a target can't be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Net(#[from] conn::Error),
    #[error("the target refuses {} {:?} (database {}, offset {}){} for good: {}", .0.what.command, EscapedKey(&.0.what.key), .0.what.db, .0.what.offset, OfModule(.0), .0.words)]
    Fault(Box<Fault>),
    #[error("target {address} is a {role}, not a primary")]
    NotPrimary { address: String, role: String },
    #[error("two connections to target {address} reached different servers")]
    TwoServers { address: String },
    #[error("target {address} may not be asked who is connected: {words}")]
    Unfenced { address: String, words: String },
    #[error("job {job} already has an owner on target {address}: {}", Process(.by))]
    Owned { address: String, job: String, by: Arc<lease::Lease> },
    #[error("another owner took job {job}, {}: this run ends and writes no more", Process(.by))]
    OwnerLost { job: String, by: Arc<lease::Lease> },
    #[error("target {address} has {keys} keys in scope already, such as {example:?} in database {db}")]
    ExistingKeys { address: String, keys: u64, db: u32, example: String },
    #[error("target {address} has no database {db}: {words}")]
    NoDatabase { address: String, db: u32, words: String },
    #[error("target {address} evicts keys when its memory is full (maxmemory-policy {policy})")]
    Evicts { address: String, policy: String },
    #[error("target {address} is a cluster, which keyferry can't write to yet")]
    Cluster { address: String },
    #[error("the target's cluster can't be asked: {0}")]
    Topology(#[from] net::cluster::Error),
    #[error("no node of the target's cluster {address} owns slots {slots}")]
    NotWhole { address: String, slots: String },
    #[error("slot {slot} of the target's cluster {address} is on the move")]
    Moving { address: String, slot: u16 },
    #[error("the answers of target {address} don't match what was sent")]
    OutOfStep { address: String },
    #[error("target {address} answers {words}")]
    Elsewhere { address: String, words: String },
    #[error("target {address} did not answer for {seconds} s")]
    Silent { address: String, seconds: u64 },
    #[error("what key {key:?} of the target says of a broken-off settling can't be read")]
    BadMarker { key: String },
    #[error("target {address} lost what was written: {lost}")]
    Lost { address: String, lost: Lost },
    #[error("what is to be sent can't be read back: {0}")]
    Journal(#[from] journal::Error),
    #[error("target {address} fell back to offset {offset}, which is no longer buffered here")]
    FellBack { address: String, offset: ReplOffset },
    #[error("the record of job {job} in target {address} can't be read: {error}")]
    Record { address: String, job: String, error: record::Error },
}

impl Error {
    /// True when trying again later can help.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Net(error) => error.is_passing(),
            Error::Topology(error) => error.is_passing(),
            Error::NotPrimary { .. }
            | Error::TwoServers { .. }
            | Error::OutOfStep { .. }
            | Error::Elsewhere { .. }
            | Error::NotWhole { .. }
            | Error::Moving { .. }
            | Error::Silent { .. } => true,
            Error::Fault(_)
            | Error::Unfenced { .. }
            | Error::Owned { .. }
            | Error::OwnerLost { .. }
            | Error::ExistingKeys { .. }
            | Error::NoDatabase { .. }
            | Error::Evicts { .. }
            | Error::Journal(_)
            | Error::Cluster { .. }
            | Error::BadMarker { .. }
            | Error::Lost { .. }
            | Error::FellBack { .. }
            | Error::Record { .. } => false,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::Net(error) => return error.hint(),
            Error::Topology(error) => return error.hint(),
            Error::Fault(fault) if permission::hint(&fault.words, Side::Target).is_some() => {
                return permission::hint(&fault.words, Side::Target);
            }
            Error::Fault(fault) if fault.what.command == SELECT => {
                "raise `databases` in the target's configuration, then copy again with --restart: what followed in that \
                 transaction was done to another database"
                    .into()
            }
            Error::Fault(_) => "--on-error skip leaves such commands out and counts them".into(),
            Error::NotPrimary { .. } => "give the address of its primary".into(),
            Error::Unfenced { .. } => {
                "allow it: ACL SETUSER <user> +client|list +client|kill +client|setname; or go on without: --unfenced"
                    .into()
            }
            Error::Owned { .. } => {
                "stop that process, or take the job from it with --takeover; one that has died is noticed within 10 s; \
                 a different job needs a name of its own (--job)"
                    .into()
            }
            Error::OwnerLost { .. } => "a different job needs a name of its own (--job)".into(),
            Error::ExistingKeys { .. } => {
                "choose: --existing replace (the source's values win), --existing keep with --once (the target's win), \
                 or --flush-target"
                    .into()
            }
            Error::NoDatabase { words, .. } if words.contains("cluster mode") => {
                "a cluster has database 0 only (Valkey 9: raise cluster-databases): map all of them to it with \
                 --db-map, as in --db-map 1:0,2:0"
                    .into()
            }
            Error::NotWhole { .. } => {
                "CLUSTER NODES shows which nodes are there; CLUSTER ADDSLOTS gives slots away".into()
            }
            Error::NoDatabase { .. } => {
                "raise `databases` in the target's configuration, or map the database with --db-map".into()
            }
            Error::Evicts { .. } => "CONFIG SET maxmemory-policy noeviction, or accept it: --allow-eviction".into(),
            Error::BadMarker { .. } => {
                "the keyferry that wrote it was another version: finish the job with that one".into()
            }
            Error::Record { .. } => {
                "use the version of keyferry that wrote it, another --job, or --restart to copy again".into()
            }
            Error::Cluster { .. }
            | Error::Journal(_)
            | Error::Moving { .. }
            | Error::FellBack { .. }
            | Error::TwoServers { .. }
            | Error::OutOfStep { .. }
            | Error::Elsewhere { .. }
            | Error::Silent { .. }
            | Error::Lost { .. } => return None,
        })
    }
}

/// The error that `command` was answered with `words`; passing where what the words say passes, such as full memory.
fn refused(conn: &conn::Conn, command: &[u8], words: String) -> Error {
    match refusal(&words) {
        Refusal::ForGood => conn.refused(command, words).into(),
        Refusal::Passing | Refusal::Elsewhere => Error::Elsewhere { address: conn.address().to_owned(), words },
    }
}

/// Reads what a transaction is answered with: `queued` replies, and EXEC's. A command in it that fails is told of as
/// `command`.
async fn read_exec(conn: &mut conn::Conn, queued: usize, command: &[u8]) -> Result<(), Error> {
    let mut failed = None;
    for _ in 0..queued {
        if let Reply::Error(words) = conn.reply().await? {
            failed.get_or_insert(words);
        }
    }
    let replies = match conn.reply().await? {
        Reply::Array(replies) => replies,
        Reply::Error(words) => return Err(refused(conn, b"EXEC", failed.unwrap_or(words))),
        _ => return Err(Error::OutOfStep { address: conn.address().to_owned() }),
    };
    let failed = replies.into_iter().find_map(|reply| match reply {
        Reply::Error(words) => Some(words),
        _ => None,
    });
    match failed {
        Some(words) => Err(refused(conn, command, words)),
        None => Ok(()),
    }
}

/// Sends one command and waits for its reply; an error reply is an error, passing where what the words say passes, as
/// when a slot has moved.
async fn ask<A: AsRef<[u8]>>(conn: &mut conn::Conn, args: &[A]) -> Result<Reply, Error> {
    match conn.call(args).await? {
        Reply::Error(words) => Err(refused(conn, args.first().map_or(&b""[..], AsRef::as_ref), words)),
        reply => Ok(reply),
    }
}

/// An owner as errors show it.
struct Process<'a>(&'a lease::Lease);

impl std::fmt::Display for Process<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0.pid, self.0.host.as_str()) {
            (0, _) => f.write_str("a process that can't be told"),
            (pid, "") => write!(f, "process {pid}"),
            (pid, host) => write!(f, "process {pid} on {host}"),
        }
    }
}

/// What a refused value of the copy is, where only a module knows it.
struct OfModule<'a>(&'a Fault);

impl std::fmt::Display for OfModule<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.copied.as_deref().and_then(ModuleType::of_head) {
            Some(of) => write!(f, ", a value of type {of},"),
            None => Ok(()),
        }
    }
}

/// A key as errors and logs show it: escaped and cut.
struct EscapedKey<'a>(&'a [u8]);

impl std::fmt::Debug for EscapedKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&escape_key(self.0))
    }
}

/// How much of a key an error shows.
const KEY_SHOWN_BYTES: usize = 80;

/// A key in printable characters, cut after [`KEY_SHOWN_BYTES`].
pub fn escape_key(key: &[u8]) -> String {
    let shown = key.get(..key.len().min(KEY_SHOWN_BYTES)).unwrap_or_default();
    let cut = if key.len() > shown.len() { "..." } else { "" };
    format!("{}{cut}", shown.escape_ascii())
}
