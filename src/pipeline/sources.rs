//! The source's primaries: which there are, where each is, and which of the job's records are whose.

use std::collections::{BTreeMap, BTreeSet};

use super::Error;
use super::prepare::{locator, retrying};
use crate::config::valid::Job;
use crate::net::cluster::Cluster;
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::net::topology::{self, Health};
use crate::net::{self};
use crate::offset::ReplId;
use crate::source;
use crate::source::origin::Origin;
use crate::source::side::Side;
use crate::status::Status;

/// The source as it was found.
pub struct Sources {
    /// In the order of their lowest slots.
    pub primaries: Vec<Primary>,
    /// `None` for a standalone server.
    pub cluster: Option<Cluster>,
}

/// A primary, the source of one shard.
pub struct Primary {
    pub info: Info,
    pub origin: Origin,
    /// What its cluster says of it.
    pub node: Option<topology::Primary>,
}

impl Primary {
    /// The id of its history now, and of the one that it went on from.
    fn histories(&self) -> [Option<ReplId>; 2] {
        ["master_replid", "master_replid2"].map(|field| ReplId::parse(self.info.get(field)?.as_bytes()))
    }
}

/// Finds out whether the source is a cluster, and asks each of its primaries who it is.
///
/// # Errors
/// When they can't be reached for too long.
pub async fn find(job: &Job, status: &Status) -> Result<Sources, Error> {
    let place = locator(net::Side::Source, &job.source)?;
    let find = async || Ok(try_find(job, &place).await?);
    retrying(status, "source", job.retry_for, find).await
}

async fn try_find(job: &Job, place: &Locator) -> Result<Sources, source::Error> {
    let end = &job.source;
    let told = end.endpoint.cluster.filter(|_| end.endpoint.sentinel.is_none());
    let info = Side::new(place.clone()).info().await?;
    let server = place.locate().await?;
    if !told.unwrap_or(info.get("cluster_enabled") == Some("1")) {
        let origin = Origin::standalone(place.clone(), server, job.prefer_replica, end.address_map.0.clone());
        return Ok(Sources { primaries: vec![Primary { info, origin, node: None }], cluster: None });
    }
    let cluster = Cluster::new(server, &end.endpoint.hosts, end.address_map.0.clone());
    let primaries = shards(&cluster, job.prefer_replica).await?;
    Ok(Sources { primaries, cluster: Some(cluster) })
}

async fn shards(cluster: &Cluster, prefer_replica: bool) -> Result<Vec<Primary>, source::Error> {
    let topology = cluster.look().await?;
    if !topology.is_whole() {
        tracing::warn!(slots = %topology.unowned(), "slots of the source cluster that no primary, or several, own");
    }
    let mut primaries = Vec::new();
    for node in topology.primaries() {
        let failed = node.health == Health::Failed;
        if failed && node.slots.is_empty() {
            continue;
        }
        let later = |words: &str| source::Error::Later { address: node.address.to_string(), words: words.into() };
        if failed {
            return Err(later("it has failed, and no replica has taken its place yet"));
        }
        let origin = Origin::shard(cluster, node.address.clone(), prefer_replica);
        let info = origin.primary_side().info().await?;
        if info.get("role") == Some("slave") {
            return Err(later("it has become a replica"));
        }
        primaries.push(Primary { info, origin, node: Some(node.clone()) });
    }
    let lowest = |primary: &Primary| primary.node.as_ref().and_then(|node| node.slots.lowest());
    primaries.sort_by_key(|primary| (lowest(primary).is_none(), lowest(primary)));
    Ok(primaries)
}

/// Which number each primary has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    /// In the order of the primaries.
    pub numbers: Vec<u32>,
    /// Shards of the records that no primary is left for.
    pub lost: Vec<u32>,
}

/// Gives each primary the number of the records that speak of its history.
///
/// A primary that no record speaks of takes the place of one whose history is gone, so that its units are counted on from
/// there; or it's new. `records`: the id of each recorded shard's history.
pub fn assign(records: &BTreeMap<u32, Option<ReplId>>, primaries: &[Primary]) -> Assigned {
    let histories: Vec<[Option<ReplId>; 2]> = primaries.iter().map(Primary::histories).collect();
    assign_histories(records, &histories)
}

fn assign_histories(records: &BTreeMap<u32, Option<ReplId>>, primaries: &[[Option<ReplId>; 2]]) -> Assigned {
    let mut numbers: Vec<Option<u32>> = vec![None; primaries.len()];
    let mut left: BTreeSet<u32> = records.keys().copied().collect();
    for age in 0..2 {
        for (number, histories) in numbers.iter_mut().zip(primaries).filter(|(number, _)| number.is_none()) {
            let Some(history) = histories.get(age).copied().flatten() else { continue };
            *number = left.iter().copied().find(|n| records.get(n) == Some(&Some(history)));
            number.iter().for_each(|n| _ = left.remove(n));
        }
    }
    let mut new = (0..).filter(|n| !records.contains_key(n));
    for number in numbers.iter_mut().filter(|number| number.is_none()) {
        *number = left.pop_first().or_else(|| new.next());
    }
    Assigned { numbers: numbers.into_iter().flatten().collect(), lost: left.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> Option<ReplId> {
        ReplId::parse(&[byte; 40])
    }

    fn assigned(numbers: &[u32], lost: &[u32]) -> Assigned {
        Assigned { numbers: numbers.to_vec(), lost: lost.to_vec() }
    }

    #[test]
    fn primaries_are_known_by_their_history_or_the_one_before() {
        let records = BTreeMap::from([(0, id(b'a')), (1, id(b'b')), (2, id(b'c'))]);
        let same = [[id(b'b'), None], [id(b'c'), id(b'd')], [id(b'e'), id(b'a')]];
        assert_eq!(assign_histories(&records, &same), assigned(&[1, 2, 0], &[]));
        // What a node is now counts before what it was.
        let both = [[id(b'x'), id(b'a')], [id(b'a'), id(b'b')]];
        assert_eq!(assign_histories(&records, &both), assigned(&[1, 0], &[2]));
    }

    #[test]
    fn unknown_primaries_take_the_places_of_lost_shards_and_then_new_ones() {
        let records = BTreeMap::from([(0, id(b'a')), (3, id(b'b'))]);
        let more = [[id(b'x'), None], [id(b'b'), None], [id(b'y'), None], [None, None]];
        assert_eq!(assign_histories(&records, &more), assigned(&[0, 3, 1, 2], &[]));
        assert_eq!(assign_histories(&records, &[[id(b'b'), None]]), assigned(&[3], &[0]));
        assert_eq!(assign_histories(&BTreeMap::new(), &more[..2]), assigned(&[0, 1], &[]));
        // A server that has no history's id to tell (before 4.0).
        assert_eq!(assign_histories(&BTreeMap::from([(0, None)]), &[[None, None]]), assigned(&[0], &[]));
    }
}
