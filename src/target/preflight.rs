//! What is asked of a target before anything is written to it.

use std::collections::BTreeMap;

use super::connect::Identity;
use super::nodes::{Node, Open, Target};
use super::{Error, escape_key, owner, scan};
use crate::commands::Lacking;
use crate::delivery::refusal::{Refusal, refusal};
use crate::net::conn::Conn;
use crate::net::info::Info;
use crate::resp::reply::Reply;
use crate::slot::{Slot, tag};

/// A target as it was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// What the server says; of a cluster, the primary with the oldest version.
    pub info: Info,
    /// Run id and replication id of each primary.
    pub servers: Vec<(String, String)>,
    /// The modules that every primary has, each with its lowest version.
    pub modules: BTreeMap<String, u64>,
    /// The databases that hold keys.
    pub filled: Vec<u32>,
}

/// Asks who the target is, and whether it is fit to be written to. Writes nothing.
///
/// # Errors
/// When it can't be reached, is no primary, evicts keys, or is a cluster with slots that nobody owns.
pub async fn ask(target: &Target, allow_eviction: bool) -> Result<Found, Error> {
    let mut all = Vec::new();
    for node in target.nodes().await? {
        all.push(ask_node(&node, allow_eviction).await?);
    }
    let field = |info: &Info, name: &str| info.get(name).unwrap_or_default().to_owned();
    let servers = all.iter().map(|info| (field(info, "run_id"), field(info, "master_replid"))).collect();
    let mut filled: Vec<u32> = all.iter().flat_map(|info| info.keyspace()).map(|(db, _)| db).collect();
    filled.sort_unstable();
    filled.dedup();
    let modules = modules_of_all(&all);
    // Redis knows less than Valkey of the same number, which began with 7.2.
    let oldest = all.into_iter().min_by_key(|info| (info.is_valkey(), info.version()));
    let info = oldest.ok_or_else(|| Error::OutOfStep { address: target.to_string() })?;
    Ok(Found { info, servers, modules, filled })
}

fn modules_of_all(all: &[Info]) -> BTreeMap<String, u64> {
    let mut each = all.iter().map(Info::modules);
    let mut common = each.next().unwrap_or_default();
    for other in each {
        common.retain(|name, _| other.contains_key(name));
        common.iter_mut().for_each(|(name, version)| *version = other.get(name).map_or(0, |of| *of.min(version)));
    }
    common
}

/// What INFO tells since 6.0 only, and MODULE LIST since there are modules.
async fn list_modules(conn: &mut Conn, info: &mut Info) -> Result<(), Error> {
    if !((4, 0, 0)..(6, 0, 0)).contains(&info.version()) {
        return Ok(());
    }
    // Who may not ask finds out when a value is refused.
    let reply = conn.call(&[&b"MODULE"[..], b"LIST"]).await?;
    for row in reply.array().unwrap_or_default().iter().filter_map(Reply::array) {
        if let [_, name, _, version, ..] = row {
            let name = String::from_utf8_lossy(name.bytes().unwrap_or_default()).into_owned();
            info.add_module(&name, version.integer().unwrap_or(0));
        }
    }
    Ok(())
}

async fn ask_node(node: &Node, allow_eviction: bool) -> Result<Info, Error> {
    let address = || node.server.to_string();
    let mut conn = node.server.connect().await?;
    let mut info = Info::parse(conn.ask(&[b"INFO"]).await?.bytes().unwrap_or_default());
    list_modules(&mut conn, &mut info).await?;
    match info.get("role") {
        None | Some("master") => {}
        Some(role) => return Err(Error::NotPrimary { address: address(), role: role.replace("slave", "replica") }),
    }
    let policy = info.get("maxmemory_policy").unwrap_or_default();
    if policy.starts_with("allkeys-") && !allow_eviction {
        return Err(Error::Evicts { address: address(), policy: policy.to_owned() });
    }
    Ok(info)
}

/// Which commands of the table the target says it doesn't know; of a cluster, those that some primary doesn't.
///
/// A server that can't be asked is taken at its version.
/// # Errors
/// When it can't be reached.
pub async fn lacking(target: &Target) -> Result<Lacking, Error> {
    let mut question = vec!["COMMAND", "INFO"];
    question.extend(Lacking::asked());
    let mut lacking = Lacking::default();
    for node in target.nodes().await? {
        let mut conn = node.server.connect().await?;
        if let Reply::Array(rows) = conn.call(&question).await?
            && rows.len() == question.len() - 2
        {
            lacking = lacking.with(Lacking::told(rows.iter().map(|row| row.array().is_some())));
        }
    }
    Ok(lacking)
}

/// The RDB version in the footer of the target's own payloads: what it writes it surely takes, whatever its version
/// string says. Of a cluster, the lowest. Writes and deletes a key of the job's own on every primary.
///
/// # Errors
/// When the target can't be reached or refuses, or another has the job.
pub async fn footer_version(target: &Target, id: &Identity) -> Result<u16, Error> {
    let versions = target.each(Some(id), async |open: &mut Open| footer_of(open, id).await).await?;
    Ok(versions.into_iter().min().unwrap_or(0))
}

async fn footer_of(open: &mut Open, id: &Identity) -> Result<u16, Error> {
    let conn = &mut open.conn;
    let place = match (open.node.id.as_str(), open.node.slots.lowest()) {
        ("", _) | (_, None) => String::new(),
        (_, Some(slot)) => format!("{{{}}}:", tag(slot)),
    };
    let key = format!("keyferry:{}:{place}scratch", id.job).into_bytes();
    if let Reply::Error(words) = conn.call(&[&b"SET"[..], &key, b"1"]).await? {
        return Err(super::refused(conn, b"SET", words));
    }
    let dump = super::ask(conn, &[&b"DUMP"[..], &key]).await;
    super::ask(conn, &[&b"DEL"[..], &key]).await?;
    let dump = dump?;
    let payload = dump.bytes().unwrap_or_default();
    let footer = payload.len().checked_sub(10).and_then(|at| payload.get(at..at + 2));
    Ok(footer.and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes))
}

/// Looks whether every database that is written to exists.
///
/// # Errors
/// `NoDatabase` for the first that doesn't.
pub async fn databases(target: &Target, databases: impl Iterator<Item = u32>) -> Result<(), Error> {
    let databases: Vec<u32> = databases.collect();
    for node in target.nodes().await? {
        let mut conn = node.server.connect().await?;
        for &db in &databases {
            if let Reply::Error(words) = conn.call(&[b"SELECT", db.to_string().as_bytes()]).await? {
                return Err(match refusal(&words) {
                    Refusal::ForGood => Error::NoDatabase { address: target.to_string(), db, words },
                    // BUSY, LOADING and the like say nothing of the database.
                    _ => super::refused(&conn, b"SELECT", words),
                });
            }
        }
    }
    Ok(())
}

/// Looks whether the target holds a key in scope.
///
/// # Errors
/// `ExistingKeys` if so.
pub async fn no_existing_keys(
    target: &Target,
    databases: &[u32],
    in_scope: impl Fn(u32, &[u8]) -> bool,
) -> Result<(), Error> {
    let mut example = None;
    // What a pass found counts once, though another may follow because slots moved.
    let count = async |open: &mut Open| {
        let (mut keys, slots) = (0, &open.node.slots);
        for &db in databases {
            let own = |key: &[u8]| !target.is_cluster() || slots.contains(Slot::of(key));
            scan::each_key(&mut open.conn, db, |key| {
                if own(key) && in_scope(db, key) {
                    keys += 1;
                    example.get_or_insert_with(|| (db, escape_key(key)));
                }
            })
            .await?;
        }
        Ok(keys)
    };
    let keys = target.each(None, count).await?.into_iter().sum();
    match example {
        None => Ok(()),
        Some((db, example)) => Err(Error::ExistingKeys { address: target.to_string(), keys, db, example }),
    }
}

/// Empties the whole target, but for the job's lease.
///
/// # Errors
/// When it can't be reached or refuses, or another has the job.
pub async fn flush(target: &Target, id: &Identity, version: (u16, u16, u16)) -> Result<(), Error> {
    let command: &[&[u8]] = if version >= (4, 0, 0) { &[b"FLUSHALL", b"ASYNC"] } else { &[b"FLUSHALL"] };
    let lease = Slot::of(&id.lease_key());
    let flush = async |open: &mut Open| match open.node.slots.contains(lease) {
        true => owner::flush(&mut open.conn, id, command).await,
        false => super::ask(&mut open.conn, command).await.map(|_| ()),
    };
    target.each(Some(id), flush).await.map(|_| ())
}
