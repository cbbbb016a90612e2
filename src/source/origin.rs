//! Where a shard's stream comes from: its primary, wherever that is now, or a replica read in its place.

use std::collections::BTreeMap;

use super::Error;
use super::side::Side;
use crate::net::cluster::Cluster;
use crate::net::conn::Server;
use crate::net::endpoint::HostPort;
use crate::net::info::Info;
use crate::net::locate::Locator;

/// The servers of one shard.
#[derive(Debug, Clone)]
pub struct Origin {
    primary: Locator,
    /// The server that the stream comes from since [`Origin::choose`] was last asked.
    read: Locator,
    /// The cluster that it's a shard of.
    cluster: Option<Cluster>,
    prefer_replica: bool,
    /// Announced address to reachable one.
    reachable: BTreeMap<HostPort, HostPort>,
}

/// A server to join.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub server: Server,
    /// It is read in its primary's place.
    pub replica: bool,
}

impl Origin {
    /// A standalone server, which was at `server` just now.
    pub fn standalone(
        primary: Locator,
        server: Server,
        prefer_replica: bool,
        reachable: BTreeMap<HostPort, HostPort>,
    ) -> Self {
        Origin { primary, read: Locator::told(server), cluster: None, prefer_replica, reachable }
    }

    /// A shard of a cluster, whose primary is told to be at `address`. The cluster must be watched, and the locator of the
    /// primary be told of what is seen.
    pub fn shard(cluster: &Cluster, address: HostPort, prefer_replica: bool) -> Self {
        let server = cluster.server(address);
        Origin {
            primary: Locator::told(server.clone()),
            read: Locator::told(server),
            cluster: Some(cluster.clone()),
            prefer_replica,
            reachable: cluster.reachable().clone(),
        }
    }

    /// The shard's primary.
    pub fn primary(&self) -> &Locator {
        &self.primary
    }

    pub fn prefers_replica(&self) -> bool {
        self.prefer_replica
    }

    pub fn in_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Chooses the server to join: the primary, or a replica that follows it and is preferred.
    ///
    /// # Errors
    /// When the primary can't be found, or asked for its replicas.
    pub async fn choose(&self) -> Result<Chosen, Error> {
        if let Some(cluster) = &self.cluster {
            // One that was replaced and is back takes itself for the primary for a while, with old data or none.
            cluster.look_again().await;
        }
        let primary = self.primary.locate().await?;
        let replica = match self.prefer_replica {
            true => self.replica_of(&primary).await?,
            false => None,
        };
        let chosen = match replica {
            Some(server) => Chosen { server, replica: true },
            None => {
                if self.prefer_replica {
                    tracing::warn!(source = %primary.address, "no replica that can be read: the primary is read");
                }
                Chosen { server: primary, replica: false }
            }
        };
        self.read.tell(chosen.server.address.clone());
        Ok(chosen)
    }

    /// The first replica that `primary` names and that says it follows.
    async fn replica_of(&self, primary: &Server) -> Result<Option<Server>, Error> {
        let info = replication(primary).await?;
        for (host, port) in info.online_replicas() {
            let address = HostPort { host, port };
            let address = self.reachable.get(&address).cloned().unwrap_or(address);
            let server = Server { address, ..primary.clone() };
            match replication(&server).await {
                Ok(info) if info.get("master_link_status") == Some("up") => return Ok(Some(server)),
                Ok(_) => tracing::debug!(source = %server.address, "the replica doesn't follow"),
                Err(error) => tracing::warn!(source = %server.address, error = %error, "the replica can't be read"),
            }
        }
        Ok(None)
    }

    /// Questions to the server that the stream comes from.
    pub fn side(&self) -> Side {
        self.side_of(self.read.clone())
    }

    /// Questions to the primary, whichever server is read.
    pub fn primary_side(&self) -> Side {
        self.side_of(self.primary.clone())
    }

    fn side_of(&self, locator: Locator) -> Side {
        if self.in_cluster() { Side::of_cluster(locator) } else { Side::new(locator) }
    }

    /// Returns when the primary is known to be another server than the one that is read.
    ///
    /// Cancel-safe.
    pub async fn moved(&self) {
        match self.read.locate().await {
            Ok(read) => self.primary.told_elsewhere(&read.address).await,
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns when `joined`, read as the primary, is known not to be it any more.
    ///
    /// Cancel-safe.
    pub async fn outdated(&self, joined: &Chosen) {
        match joined.replica {
            // It ends the link itself when it follows another history.
            true => std::future::pending().await,
            false => self.primary.told_elsewhere(&joined.server.address).await,
        }
    }
}

async fn replication(server: &Server) -> Result<Info, Error> {
    let mut conn = server.connect().await?;
    let reply = conn.ask(&[&b"INFO"[..], b"replication"]).await?;
    Ok(Info::parse(reply.bytes().unwrap_or_default()))
}
