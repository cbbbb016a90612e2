//! What is asked of a target before anything is written to it.

use super::connect::{self, Identity};
use super::{Error, escape_key, owner, scan};
use crate::delivery::refusal::{Refusal, refusal};
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::resp::reply::Reply;

/// A target as it was found.
#[derive(Debug, Clone)]
pub struct Found {
    pub info: Info,
    pub run_id: String,
}

/// Asks who the target is, and whether it is fit to be written to. Writes nothing.
///
/// # Errors
/// When it can't be reached, is no primary, is a cluster, or evicts keys.
pub async fn ask(server: &Locator, allow_eviction: bool) -> Result<Found, Error> {
    let address = || server.to_string();
    let mut conn = server.connect().await?;
    let info = Info::parse(conn.ask(&[b"INFO"]).await?.bytes().unwrap_or_default());
    if info.get("cluster_enabled") == Some("1") {
        return Err(Error::Cluster { address: address() });
    }
    match info.get("role") {
        None | Some("master") => {}
        Some(role) => return Err(Error::NotPrimary { address: address(), role: role.replace("slave", "replica") }),
    }
    let policy = info.get("maxmemory_policy").unwrap_or_default();
    if policy.starts_with("allkeys-") && !allow_eviction {
        return Err(Error::Evicts { address: address(), policy: policy.to_owned() });
    }
    Ok(Found { run_id: info.get("run_id").unwrap_or_default().to_owned(), info })
}

/// The RDB version in the footer of the target's own payloads: what it writes it surely takes, whatever its version
/// string says. Writes and deletes a key of the job's own.
///
/// # Errors
/// When the target can't be reached or refuses, or another has the job.
pub async fn footer_version(server: &Locator, id: &Identity) -> Result<u16, Error> {
    let mut conn = connect::side(server, id).await?;
    let key = format!("keyferry:{}:scratch", id.job).into_bytes();
    if let Reply::Error(words) = conn.call(&[&b"SET"[..], &key, b"1"]).await? {
        return Err(super::refused(&conn, b"SET", words));
    }
    let dump = conn.ask(&[&b"DUMP"[..], &key]).await;
    conn.ask(&[&b"DEL"[..], &key]).await?;
    let dump = dump?;
    let payload = dump.bytes().unwrap_or_default();
    let footer = payload.len().checked_sub(10).and_then(|at| payload.get(at..at + 2));
    Ok(footer.and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes))
}

/// Looks whether every database that is written to exists.
///
/// # Errors
/// `NoDatabase` for the first that doesn't.
pub async fn databases(server: &Locator, databases: impl Iterator<Item = u32>) -> Result<(), Error> {
    let mut conn = server.connect().await?;
    for db in databases {
        if let Reply::Error(words) = conn.call(&[b"SELECT", db.to_string().as_bytes()]).await? {
            return Err(match refusal(&words) {
                Refusal::ForGood => Error::NoDatabase { address: server.to_string(), db, words },
                // BUSY, LOADING and the like say nothing of the database.
                _ => super::refused(&conn, b"SELECT", words),
            });
        }
    }
    Ok(())
}

/// Looks whether the target holds a key in scope.
///
/// # Errors
/// `ExistingKeys` if so.
pub async fn no_existing_keys(
    server: &Locator,
    databases: &[u32],
    in_scope: impl Fn(u32, &[u8]) -> bool,
) -> Result<(), Error> {
    let mut conn = server.connect().await?;
    let (mut keys, mut example) = (0, None);
    for &db in databases {
        scan::each_key(&mut conn, db, |key| {
            if in_scope(db, key) {
                keys += 1;
                example.get_or_insert_with(|| (db, escape_key(key)));
            }
        })
        .await?;
    }
    match example {
        None => Ok(()),
        Some((db, example)) => Err(Error::ExistingKeys { address: server.to_string(), keys, db, example }),
    }
}

/// Empties the whole target, but for the job's lease.
///
/// # Errors
/// When it can't be reached or refuses, or another has the job.
pub async fn flush(server: &Locator, id: &Identity, version: (u16, u16, u16)) -> Result<(), Error> {
    let mut conn = connect::side(server, id).await?;
    let command: &[&[u8]] = if version >= (4, 0, 0) { &[b"FLUSHALL", b"ASYNC"] } else { &[b"FLUSHALL"] };
    owner::flush(&mut conn, id, command).await
}
