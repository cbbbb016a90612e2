//! Going through the keys of a target.

use super::Error;
use super::connect::Identity;
use super::nodes::{Open, Target};
use crate::delivery::record;
use crate::net::conn::Conn;
use crate::resp::encode;
use crate::resp::reply::Reply;
use crate::slot::Slot;

/// Calls `each` with every key of database `db` but keyferry's own, some of them more than once.
///
/// Leaves the database selected.
/// # Errors
/// When the target can't be reached or refuses.
pub async fn each_key(conn: &mut Conn, db: u32, mut each: impl FnMut(&[u8])) -> Result<(), Error> {
    let mut cursor = b"0".to_vec();
    conn.ask(&[b"SELECT", db.to_string().as_bytes()]).await?;
    loop {
        let page = conn.scan(&mut cursor).await?;
        page.iter().filter(|key| !record::is_own_key(key)).for_each(|key| each(key));
        if cursor == b"0" {
            return Ok(());
        }
    }
}

/// Calls `each` with every key of these databases but keyferry's own, on every primary with the keys of its slots; with
/// some of them more than once.
///
/// # Errors
/// When the target can't be reached or refuses, or slots are on the move.
pub async fn each_key_in(target: &Target, databases: &[u32], mut each: impl FnMut(u32, &[u8])) -> Result<(), Error> {
    let scan = async |open: &mut Open| {
        for &db in databases {
            let slots = &open.node.slots;
            let own = |key: &[u8]| !target.is_cluster() || slots.contains(Slot::of(key));
            each_key(&mut open.conn, db, |key| {
                if own(key) {
                    each(db, key);
                }
            })
            .await?;
        }
        Ok(())
    };
    target.each(None, scan).await.map(|_| ())
}

/// Removes every key of database `db` for which `doomed` says so, but keyferry's own; returns how many.
///
/// # Errors
/// When the target can't be reached or refuses.
pub async fn remove(conn: &mut Conn, db: u32, doomed: impl Fn(&[u8]) -> bool) -> Result<u64, Error> {
    remove_keys(conn, db, false, doomed).await
}

/// Removes every key of these databases for which `doomed` says so, but keyferry's own, on every primary; returns how
/// many.
///
/// # Errors
/// When the target can't be reached or refuses, another has the job, or slots are on the move.
pub async fn remove_in(
    target: &Target,
    id: &Identity,
    databases: &[u32],
    doomed: impl Fn(u32, &[u8]) -> bool,
) -> Result<u64, Error> {
    let mut removed = 0;
    let remove = async |open: &mut Open| {
        for &db in databases {
            let slots = &open.node.slots;
            let doomed = |key: &[u8]| slots.contains(Slot::of(key)) && doomed(db, key);
            removed += remove_keys(&mut open.conn, db, target.is_cluster(), doomed).await?;
        }
        Ok(())
    };
    target.each(Some(id), remove).await?;
    Ok(removed)
}

async fn remove_keys(conn: &mut Conn, db: u32, by_slot: bool, doomed: impl Fn(&[u8]) -> bool) -> Result<u64, Error> {
    let mut cursor = b"0".to_vec();
    let mut removed = 0;
    conn.ask(&[b"SELECT", db.to_string().as_bytes()]).await?;
    loop {
        let mut keys = conn.scan(&mut cursor).await?;
        keys.retain(|key| !record::is_own_key(key) && doomed(key));
        removed += unlink(conn, keys, by_slot).await?;
        if cursor == b"0" {
            return Ok(removed);
        }
    }
}

/// Removes keys, off the server's main thread where it can (4.0); `by_slot`: with a command for each slot, as a cluster
/// wants it.
///
/// # Errors
/// When the target can't be reached or refuses; passing where a slot has moved.
pub(super) async fn unlink(conn: &mut Conn, mut keys: Vec<Vec<u8>>, by_slot: bool) -> Result<u64, Error> {
    let slot = |key: &Vec<u8>| if by_slot { Some(Slot::of(key)) } else { None };
    keys.sort_by_cached_key(slot);
    for name in [&b"UNLINK"[..], b"DEL"] {
        let (mut out, mut groups) = (Vec::new(), 0);
        for group in keys.chunk_by(|a, b| slot(a) == slot(b)) {
            encode::array_header(&mut out, group.len() + 1);
            encode::bulk(&mut out, name);
            group.iter().for_each(|key| encode::bulk(&mut out, key));
            groups += 1;
        }
        conn.send(&out).await?;
        let (mut removed, mut failed) = (0, None);
        for _ in 0..groups {
            match conn.reply().await? {
                Reply::Error(words) => _ = failed.get_or_insert(words),
                reply => removed += reply.integer().and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
            }
        }
        match failed {
            Some(words) if name == b"UNLINK" && words.starts_with("ERR unknown command") => {}
            Some(words) => return Err(super::refused(conn, name, words)),
            None => return Ok(removed),
        }
    }
    Ok(0)
}
