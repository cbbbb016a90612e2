//! Primaries of a cluster that are replaced by their replicas.

use super::ends::Load;
use crate::cluster::Cluster;
use fastrand::Rng;

/// How a primary is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// CLUSTER FAILOVER: nothing is lost, connections live on.
    InOrder,
    /// The primary is killed.
    Killed,
    /// It is killed when its replica lacks what it acknowledged last.
    Lagging,
}

impl How {
    pub fn some(rng: &mut Rng) -> How {
        [How::InOrder, How::Killed, How::Lagging][rng.usize(0..3)]
    }
}

/// Has a random primary replaced by its replica; it then follows that one.
pub fn take_over(cluster: &mut Cluster, load: &Load, rng: &mut Rng, how: How) {
    let owners = cluster.owners();
    let primary = owners[rng.usize(0..owners.len())];
    let replica = *cluster.replicas_of(primary).first().expect("a replica of every primary");
    match how {
        How::InOrder => cluster.promote(replica, ""),
        How::Killed => cluster.kill_and_promote(primary, replica),
        How::Lagging => {
            cluster.nodes[replica].pause();
            cluster.nodes[primary].client().call(&cmd!["CLIENT", "KILL", "TYPE", "replica"]);
            load.until_some(rng, 2000);
            cluster.nodes[primary].kill();
            cluster.nodes[replica].resume();
            cluster.promote(replica, "TAKEOVER");
        }
    }
    if how != How::InOrder {
        load.until_some(rng, 2000);
        cluster.rejoin(primary);
    }
    cluster.until_whole();
}
