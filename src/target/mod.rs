//! Where the data goes: connections to a standalone target, and the work that plain commands can't do.

pub mod connect;
pub mod driver;
pub mod preflight;
pub mod records;
pub mod scan;
pub mod settle;

use crate::delivery::standalone::{Fault, Lost};
use crate::net::conn;

/// Why a target can't be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Net(#[from] conn::Error),
    #[error("the target refuses {} {:?} (database {}, offset {}) for good: {}", .0.what.command, EscapedKey(&.0.what.key), .0.what.db, .0.what.offset, .0.words)]
    Fault(Box<Fault>),
    #[error("target {address} is a {role}, not a primary")]
    NotPrimary { address: String, role: String },
    #[error("two connections to target {address} reached different servers")]
    TwoServers { address: String },
    #[error("target {address} may not be asked who is connected: {words}")]
    Unfenced { address: String, words: String },
    #[error("target {address} has {keys} keys in scope already, such as {example:?} in database {db}")]
    ExistingKeys { address: String, keys: u64, db: u32, example: String },
    #[error("target {address} has no database {db}: {words}")]
    NoDatabase { address: String, db: u32, words: String },
    #[error("target {address} evicts keys when its memory is full (maxmemory-policy {policy})")]
    Evicts { address: String, policy: String },
    #[error("target {address} is a cluster, which keyferry can't write to yet")]
    Cluster { address: String },
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
}

impl Error {
    /// True when trying again later can help.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Net(error) => error.is_passing(),
            Error::NotPrimary { .. }
            | Error::TwoServers { .. }
            | Error::OutOfStep { .. }
            | Error::Elsewhere { .. }
            | Error::Silent { .. } => true,
            Error::Fault(_)
            | Error::Unfenced { .. }
            | Error::ExistingKeys { .. }
            | Error::NoDatabase { .. }
            | Error::Evicts { .. }
            | Error::Cluster { .. }
            | Error::BadMarker { .. }
            | Error::Lost { .. } => false,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::Net(error) => return error.hint(),
            Error::Fault(fault) if fault.words.starts_with("NOPERM") => {
                "the target's user needs the write commands, RESTORE, SELECT, MULTI, EXEC, CLIENT, SCAN and ~*".into()
            }
            Error::Fault(_) => "--on-error skip leaves such commands out and counts them".into(),
            Error::NotPrimary { .. } => "give the address of its primary".into(),
            Error::Unfenced { .. } => {
                "allow it: ACL SETUSER <user> +client|list +client|kill +client|setname; or go on without: --unfenced"
                    .into()
            }
            Error::ExistingKeys { .. } => {
                "choose: --existing replace (the source's values win), --existing keep with --once (the target's win), \
                 or --flush-target"
                    .into()
            }
            Error::NoDatabase { .. } => {
                "raise `databases` in the target's configuration, or map the database with --db-map".into()
            }
            Error::Evicts { .. } => "CONFIG SET maxmemory-policy noeviction, or accept it: --allow-eviction".into(),
            Error::BadMarker { .. } => "the keyferry that wrote it was another version: finish the job with that one".into(),
            Error::Cluster { .. }
            | Error::TwoServers { .. }
            | Error::OutOfStep { .. }
            | Error::Elsewhere { .. }
            | Error::Silent { .. }
            | Error::Lost { .. } => return None,
        })
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
