//! The servers of a target: one, or the primaries of a cluster, wherever they are now.

use std::fmt;
use std::sync::Arc;

use super::Error;
use super::connect::{self, Identity};
use super::owner;
use crate::net::cluster::Cluster;
use crate::net::conn::Conn;
use crate::net::endpoint::HostPort;
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::net::topology::{Primary, Topology};
use crate::slot::{Slot, Slots};

/// How often work on all primaries begins again because slots moved meanwhile, before its caller is told.
const PASSES_MAX: usize = 5;

/// Where the data goes. A clone shares what is known.
#[derive(Debug, Clone)]
pub enum Target {
    /// One primary, wherever it is now.
    Standalone(Locator),
    Cluster(Cluster),
}

/// A primary, as it was seen just now.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its id; empty for a standalone server.
    pub id: String,
    pub server: Locator,
    /// The slots that it owns: all of a standalone server.
    pub slots: Slots,
    address: Option<HostPort>,
}

/// A primary and a connection to it.
#[derive(Debug)]
pub struct Open {
    pub node: Node,
    pub conn: Conn,
}

impl Target {
    /// Asks the server whether it's of a cluster, unless that was `told`.
    ///
    /// # Errors
    /// When it isn't told and the server can't be asked.
    pub async fn find(server: Locator, cluster: Cluster, told: Option<bool>) -> Result<Target, Error> {
        let in_cluster = match told {
            Some(told) => told,
            None => is_in_cluster(&server).await?,
        };
        Ok(if in_cluster { Target::Cluster(cluster) } else { Target::Standalone(server) })
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self, Target::Cluster(_))
    }

    /// The server of a standalone target.
    ///
    /// # Errors
    /// `Cluster` when it is one.
    pub fn standalone(&self) -> Result<&Locator, Error> {
        match self {
            Target::Standalone(server) => Ok(server),
            Target::Cluster(_) => Err(Error::Cluster { address: self.to_string() }),
        }
    }

    /// A connection to a node that answers, for questions that all answer alike.
    ///
    /// # Errors
    /// When none can be reached.
    pub async fn any(&self) -> Result<Conn, Error> {
        let cluster = match self {
            Target::Standalone(server) => return Ok(server.connect().await?),
            Target::Cluster(cluster) => cluster,
        };
        let topology = cluster.look().await?;
        let mut failed = None;
        for primary in topology.owners() {
            match cluster.server(primary.address.clone()).connect().await {
                Ok(conn) => return Ok(conn),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or_else(|| self.not_whole(&topology), Error::Net))
    }

    /// The primary that owns the slot of `key`: that whose keys it stands among.
    ///
    /// # Errors
    /// When the cluster can't be asked, or nobody owns it.
    pub async fn holder(&self, key: &[u8]) -> Result<Node, Error> {
        match self {
            Target::Standalone(server) => Ok(Node::standalone(server)),
            Target::Cluster(cluster) => {
                let topology = cluster.look().await?;
                let owner = topology.owner(Slot::of(key)).ok_or_else(|| self.not_whole(&topology))?;
                Ok(Node::of(cluster, owner))
            }
        }
    }

    /// Every primary that owns slots, in the order of their ids.
    ///
    /// # Errors
    /// When the cluster can't be asked, or a slot has no owner.
    pub async fn nodes(&self) -> Result<Vec<Node>, Error> {
        match self {
            Target::Standalone(server) => Ok(vec![Node::standalone(server)]),
            Target::Cluster(cluster) => {
                let topology = self.whole(cluster.look().await?)?;
                Ok(topology.owners().map(|primary| Node::of(cluster, primary)).collect())
            }
        }
    }

    /// Does `work` on every primary; again where slots have moved in the meantime, so that none was left out. Returns what
    /// the last pass gave, in the order of the nodes.
    ///
    /// While a slot is on the move, some of its keys are here and some there: that is waited for by the caller. With an
    /// `owner` the connections may write: whoever has the job after it kills them.
    /// # Errors
    /// `Moving` when slots are on the move; when a node can't be reached or `work` fails; `OwnerLost`.
    pub async fn each<T>(
        &self,
        owner: Option<&Identity>,
        mut work: impl AsyncFnMut(&mut Open) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let mut moved = None;
        for _ in 0..PASSES_MAX {
            let mut all = self.open(owner).await?;
            let mut done = Vec::with_capacity(all.len());
            for open in &mut all {
                done.push(work(open).await?);
            }
            match self.still(&mut all).await? {
                None => return Ok(done),
                slot => moved = slot,
            }
        }
        Err(self.moving(moved))
    }

    /// Connects to every primary, once all agree on what they own and no slot is on the move.
    ///
    /// # Errors
    /// As for [`Target::each`].
    pub async fn open(&self, owner: Option<&Identity>) -> Result<Vec<Open>, Error> {
        let mut all = Vec::new();
        for node in self.nodes().await? {
            let conn = match owner {
                None => node.server.connect().await?,
                Some(id) => connect::named(&node.server, id, "side").await?,
            };
            all.push(Open { node, conn });
        }
        // Behind the names: whoever takes the job kills those it finds.
        match (owner, self, all.first_mut()) {
            (Some(id), Target::Standalone(server), Some(open)) => owner::check(server, &mut open.conn, id).await?,
            (Some(id), Target::Cluster(_), _) => owner::check_in(self, id).await?,
            _ => {}
        }
        self.hold(&mut all).await?;
        Ok(all)
    }

    /// Looks whether every node still owns what it owned, and no slot is on the move.
    ///
    /// # Errors
    /// `Moving` if not; when a node can't be asked.
    pub async fn hold(&self, all: &mut [Open]) -> Result<(), Error> {
        match self.still(all).await? {
            None => Ok(()),
            slot => Err(self.moving(slot)),
        }
    }

    /// `None` if every node still owns what it owned; else a slot that has moved, or is about to.
    async fn still(&self, all: &mut [Open]) -> Result<Option<Slot>, Error> {
        let Target::Cluster(cluster) = self else { return Ok(None) };
        for open in all {
            let Some(address) = &open.node.address else { continue };
            let own = cluster.view_of(&mut open.conn, address).await?;
            if let Some(motion) = own.motions().first() {
                return Ok(Some(motion.slot));
            }
            let owned = own.primary(&open.node.id).map(|primary| &primary.slots);
            if owned != Some(&open.node.slots) {
                let kept = |slot: &Slot| owned.is_some_and(|owned| owned.contains(*slot));
                let moved = open.node.slots.iter().find(|slot| !kept(slot));
                return Ok(moved.or(open.node.slots.lowest()));
            }
        }
        Ok(None)
    }

    fn whole(&self, topology: Arc<Topology>) -> Result<Arc<Topology>, Error> {
        if topology.is_whole() { Ok(topology) } else { Err(self.not_whole(&topology)) }
    }

    fn not_whole(&self, topology: &Topology) -> Error {
        Error::NotWhole { address: self.to_string(), slots: topology.unowned().to_string() }
    }

    fn moving(&self, slot: Option<Slot>) -> Error {
        Error::Moving { address: self.to_string(), slot: slot.map_or(0, Slot::number) }
    }
}

impl Node {
    fn standalone(server: &Locator) -> Node {
        Node { id: String::new(), server: server.clone(), slots: Slots::all(), address: None }
    }

    fn of(cluster: &Cluster, primary: &Primary) -> Node {
        let server = Locator::fixed(cluster.server(primary.address.clone()), Default::default());
        let (id, slots) = (primary.id.clone(), primary.slots.clone());
        Node { id, server, slots, address: Some(primary.address.clone()) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Standalone(server) => server.fmt(f),
            Target::Cluster(cluster) => cluster.fmt(f),
        }
    }
}

async fn is_in_cluster(server: &Locator) -> Result<bool, Error> {
    let mut conn = server.connect().await?;
    let info = Info::parse(conn.ask(&[&b"INFO"[..], b"cluster"]).await?.bytes().unwrap_or_default());
    Ok(info.get("cluster_enabled") == Some("1"))
}
