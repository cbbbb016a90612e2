//! Going through the keys of a target.

use super::Error;
use crate::delivery::record;
use crate::net::conn::Conn;
use crate::resp::encode;
use crate::resp::reply::Reply;

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

/// Removes every key of database `db` for which `doomed` says so, but keyferry's own; returns how many.
///
/// # Errors
/// When the target can't be reached or refuses.
pub async fn remove(conn: &mut Conn, db: u32, doomed: impl Fn(&[u8]) -> bool) -> Result<u64, Error> {
    let mut cursor = b"0".to_vec();
    let mut removed = 0;
    conn.ask(&[b"SELECT", db.to_string().as_bytes()]).await?;
    loop {
        let mut keys = conn.scan(&mut cursor).await?;
        keys.retain(|key| !record::is_own_key(key) && doomed(key));
        if !keys.is_empty() {
            removed += unlink(conn, &keys).await?;
        }
        if cursor == b"0" {
            return Ok(removed);
        }
    }
}

/// Removes keys, off the server's main thread where it can (4.0).
async fn unlink(conn: &mut Conn, keys: &[Vec<u8>]) -> Result<u64, Error> {
    let mut out = Vec::new();
    for name in [&b"UNLINK"[..], b"DEL"] {
        out.clear();
        encode::array_header(&mut out, keys.len() + 1);
        encode::bulk(&mut out, name);
        keys.iter().for_each(|key| encode::bulk(&mut out, key));
        conn.send(&out).await?;
        match conn.reply().await? {
            Reply::Error(words) if name == b"UNLINK" && words.starts_with("ERR unknown command") => {}
            Reply::Error(words) => return Err(conn.refused(name, words).into()),
            reply => return Ok(reply.integer().and_then(|n| u64::try_from(n).ok()).unwrap_or(0)),
        }
    }
    Ok(0)
}
