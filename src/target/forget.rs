//! The end of a job: nothing of it stays in the target.

use std::collections::BTreeSet;

use super::connect::{self, Identity};
use super::nodes::{Open, Target};
use super::{Error, checkpoint, scan};
use crate::delivery::record;

/// The key that says that a job's other keys are being removed: on a cluster that can't be done all at once, and a part
/// of them would tell something else.
pub fn ending_key(job: &str) -> Vec<u8> {
    format!("keyferry:{job}:ending").into_bytes()
}

/// Removes every key of the job but its lease, which is the owner's to give back. Returns how many there were.
///
/// # Errors
/// When the target can't be reached or refuses, another has the job, or slots are on the move; another attempt goes on.
pub async fn forget(target: &Target, id: &Identity) -> Result<u64, Error> {
    match target {
        Target::Standalone(server) => {
            let mut conn = connect::side(server, id).await?;
            checkpoint::remove(&mut conn, id).await
        }
        Target::Cluster(_) => {
            mark(target, id).await?;
            let removed = remove_all(target, id).await?;
            unmark(target, id).await?;
            Ok(removed)
        }
    }
}

/// Ends what a run was killed in: a job whose keys were being removed has none any more. True if there was such a one.
///
/// # Errors
/// As for [`forget`].
pub async fn end_ended(target: &Target, id: &Identity) -> Result<bool, Error> {
    if !target.is_cluster() {
        return Ok(false);
    }
    let key = ending_key(&id.job);
    let mut conn = target.holder(&key).await?.server.connect().await?;
    if super::ask(&mut conn, &[&b"EXISTS"[..], &key]).await?.integer() == Some(0) {
        return Ok(false);
    }
    tracing::info!(job = id.job, "an earlier run was removing the job's records: going on with that");
    remove_all(target, id).await?;
    unmark(target, id).await?;
    Ok(true)
}

async fn mark(target: &Target, id: &Identity) -> Result<(), Error> {
    let key = ending_key(&id.job);
    let mut conn = connect::named(&target.holder(&key).await?.server, id, "side").await?;
    super::owner::check_in(target, id).await?;
    super::ask(&mut conn, &[&b"SET"[..], &key, b"1"]).await?;
    failpoint!("ending-marked");
    Ok(())
}

async fn unmark(target: &Target, id: &Identity) -> Result<(), Error> {
    let key = ending_key(&id.job);
    let mut conn = connect::named(&target.holder(&key).await?.server, id, "side").await?;
    super::owner::check_in(target, id).await?;
    super::ask(&mut conn, &[&b"DEL"[..], &key]).await?;
    Ok(())
}

/// Removes all keys of the job but its lease and the mark.
async fn remove_all(target: &Target, id: &Identity) -> Result<u64, Error> {
    let kept = [id.lease_key(), ending_key(&id.job)];
    let mut removed = 0;
    let remove = async |open: &mut Open| {
        let (mut cursor, mut names) = (b"0".to_vec(), BTreeSet::new());
        loop {
            names.extend(open.conn.scan_matching(&mut cursor, &record::key_pattern(&id.job)).await?);
            if cursor == b"0" {
                break;
            }
        }
        let slots = &open.node.slots;
        let own = |name: &Vec<u8>| !kept.contains(name) && slots.contains(crate::slot::Slot::of(name));
        let names: Vec<Vec<u8>> = names.into_iter().filter(own).collect();
        for names in names.chunks(NAMES_MAX) {
            removed += scan::unlink(&mut open.conn, names.to_vec(), true).await?;
            failpoint!("records-part-removed");
        }
        Ok(())
    };
    target.each(Some(id), remove).await?;
    Ok(removed)
}

/// Keys that are removed with one round trip.
const NAMES_MAX: usize = 1000;
