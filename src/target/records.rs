//! All that a job keeps in a target, found and removed.

use super::Error;
use crate::delivery::record::{self, Record};
use crate::net::conn::{Conn, Server};
use crate::resp::encode;
use crate::resp::reply::Reply;

/// Names listed by one SCAN, about.
const SCAN_COUNT: &[u8] = b"1000";

/// What a job keeps in a target.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The keys' names, each once.
    pub names: Vec<Vec<u8>>,
    /// The lanes' records among them, as far as they can be read.
    pub lanes: Vec<Record>,
}

/// Finds the keys of a job.
///
/// # Errors
/// When the target can't be reached or refuses.
pub async fn find(server: &Server, job: &str) -> Result<Found, Error> {
    let mut conn = server.connect().await?;
    let names = names(&mut conn, job).await?;
    let mut lanes = Vec::new();
    let lane = record::lane_prefix(job);
    for name in names.iter().filter(|name| name.starts_with(&lane)) {
        let reply = conn.ask(&[&b"GET"[..], name]).await?;
        lanes.extend(reply.bytes().and_then(|text| Record::parse(text).ok()));
    }
    Ok(Found { names, lanes })
}

/// Removes the keys of a job, all at once: a part of them would tell something else. Returns how many there were.
///
/// # Errors
/// When the target can't be reached or refuses.
pub async fn remove(server: &Server, job: &str) -> Result<u64, Error> {
    let mut conn = server.connect().await?;
    let names = names(&mut conn, job).await?;
    if names.is_empty() {
        return Ok(0);
    }
    let mut del = Vec::new();
    encode::array_header(&mut del, names.len() + 1);
    encode::bulk(&mut del, b"DEL");
    names.iter().for_each(|name| encode::bulk(&mut del, name));
    conn.send(&del).await?;
    match conn.reply().await? {
        Reply::Error(words) => Err(conn.refused(b"DEL", words).into()),
        reply => Ok(reply.integer().and_then(|n| u64::try_from(n).ok()).unwrap_or(0)),
    }
}

/// The names of a job's keys, in database 0, where all are.
async fn names(conn: &mut Conn, job: &str) -> Result<Vec<Vec<u8>>, Error> {
    let pattern = record::key_pattern(job);
    let mut cursor = b"0".to_vec();
    let mut names = Vec::new();
    loop {
        let reply = conn.ask(&[&b"SCAN"[..], &cursor, b"MATCH", &pattern, b"COUNT", SCAN_COUNT]).await?;
        let parts = reply.array().unwrap_or_default();
        cursor = parts.first().and_then(Reply::bytes).unwrap_or(b"0").to_vec();
        let page = parts.get(1).and_then(Reply::array).unwrap_or_default();
        names.extend(page.iter().filter_map(Reply::bytes).map(<[u8]>::to_vec));
        if cursor == b"0" {
            names.sort_unstable();
            names.dedup();
            return Ok(names);
        }
    }
}
