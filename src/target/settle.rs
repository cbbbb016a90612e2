//! Settling: expiries that were written late get their true times.

use super::connect::{self, Identity};
use super::{Error, scan};
use crate::net::conn::{Conn, Server};
use crate::net::info::Info;
use crate::resp::encode;
use crate::resp::reply::Reply;

/// Keys asked for and set at a time.
const KEYS_MAX: usize = 1000;

/// Takes `late_ms` off the expiry of every key for which `in_scope` says so.
///
/// For a target that nothing writes to any more: whatever expires there was written late. What has expired on the
/// source by now expires here with it.
/// # Errors
/// When the target can't be reached or refuses.
pub async fn settle(
    server: &Server,
    id: &Identity,
    late_ms: i64,
    in_scope: &(dyn Fn(u32, &[u8]) -> bool + Send + Sync),
) -> Result<u64, Error> {
    let mut conn = connect::side(server, id).await?;
    let info = Info::parse(conn.ask(&[&b"INFO"[..], b"keyspace"]).await?.bytes().unwrap_or_default());
    let mut settled = 0;
    for (db, _) in info.keyspace() {
        if info.expires(db) == 0 {
            continue;
        }
        let mut keys = Vec::new();
        scan::each_key(&mut conn, db, |key| {
            if in_scope(db, key) {
                keys.push(key.to_vec());
            }
        })
        .await?;
        // A key listed twice must not be settled twice.
        keys.sort_unstable();
        keys.dedup();
        for keys in keys.chunks(KEYS_MAX) {
            settled += settle_keys(&mut conn, keys, late_ms).await?;
        }
    }
    tracing::info!(keys = settled, "expiries settled");
    Ok(settled)
}

async fn settle_keys(conn: &mut Conn, keys: &[Vec<u8>], late_ms: i64) -> Result<u64, Error> {
    let mut out = Vec::new();
    keys.iter().for_each(|key| encode::command(&mut out, &[b"PTTL", &key[..]]));
    let left = answers(conn, &out, keys.len(), b"PTTL").await?;
    out.clear();
    let mut late = 0;
    for (key, left) in keys.iter().zip(left) {
        if left.integer().is_some_and(|ms| ms >= 0) {
            late += 1;
            encode::command(&mut out, &[&b"EVAL"[..], SETTLE, b"1", key, late_ms.to_string().as_bytes()]);
        }
    }
    answers(conn, &out, late, b"EVAL").await?;
    Ok(late as u64)
}

/// Takes ARGV[1] ms off a key's expiry, to the millisecond where the server can tell it (7.0).
const SETTLE: &[u8] = b"local t = redis.pcall('PEXPIRETIME', KEYS[1]) \
    if type(t) ~= 'number' then \
      local now = redis.call('TIME') \
      t = now[1] * 1000 + math.floor(now[2] / 1000) + redis.call('PTTL', KEYS[1]) \
    end \
    if t > 0 then redis.call('PEXPIREAT', KEYS[1], string.format('%d', t - ARGV[1])) end";

async fn answers(conn: &mut Conn, commands: &[u8], count: usize, name: &[u8]) -> Result<Vec<Reply>, Error> {
    conn.send(commands).await?;
    let mut replies = Vec::with_capacity(count);
    let mut refused = None;
    for _ in 0..count {
        match conn.reply().await? {
            Reply::Error(words) => refused = Some(words),
            reply => replies.push(reply),
        }
    }
    match refused {
        Some(words) => Err(conn.refused(name, words).into()),
        None => Ok(replies),
    }
}
