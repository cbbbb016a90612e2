//! What a cluster says of itself: its primaries, their slots and replicas, and slots on the move.
//!
//! CLUSTER NODES says who owns what, and which slots the asked node gives away or takes; CLUSTER SHARDS (7.0) and CLUSTER
//! SLOTS (3.0) say where clients are to connect, which may be another name than the address that the nodes use.

use std::collections::{BTreeMap, HashMap};

use super::conn::{self, Conn};
use super::endpoint::HostPort;
use crate::resp::encode;
use crate::resp::reply::Reply;
use crate::slot::{self, Slot, Slots};

mod nodes;
mod shards;
#[cfg(test)]
mod tests;

/// Most nodes that a cluster is taken to have; real ones are told to stay under 1,000.
pub const NODES_MAX: usize = 10_000;

/// The ways to ask; CLUSTER is the first word of each.
const SHARDS: &str = "CLUSTER SHARDS";
const SLOTS: &str = "CLUSTER SLOTS";
const NODES: &str = "CLUSTER NODES";

/// Why an answer is no topology.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Net(#[from] conn::Error),
    #[error("{address} answers {command} with what is no list of nodes: {fault}")]
    Answer { address: String, command: &'static str, fault: Fault },
}

/// What is wrong with an answer as a whole; an entry that says nothing useful is left out instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("it has another form")]
    Form,
    #[error("it has more than {NODES_MAX} nodes")]
    TooMany,
    #[error("no node in it is a primary")]
    NoPrimary,
}

/// From where a cluster is looked at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The address that is asked; it stands for itself where an answer leaves the host out.
    pub asked: &'a HostPort,
    /// Connections use TLS, so ports are those for it.
    pub tls: bool,
    /// Reachable addresses of announced ones.
    pub address_map: &'a BTreeMap<HostPort, HostPort>,
}

/// How a node is, by the word of the one that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Online,
    /// Not heard from by the asked node, but not agreed on (`fail?`).
    Suspected,
    Failed,
    /// It loads its data.
    Loading,
}

/// A node that serves slots, or could.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Primary {
    /// The node's id; its address where the server is too old to tell.
    pub id: String,
    /// Where it is reached.
    pub address: HostPort,
    pub health: Health,
    pub slots: Slots,
    pub replicas: Vec<Replica>,
}

/// A node that follows a primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    pub id: String,
    pub address: HostPort,
    pub health: Health,
}

/// Where a slot that moves by MIGRATE is going, by the word of the asked node: it tells only of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Motion {
    pub slot: Slot,
    /// The node that was asked.
    pub node: String,
    pub direction: Direction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Direction {
    /// The node gives it to that one.
    MigratingTo(String),
    /// The node takes it from that one.
    ImportingFrom(String),
}

/// The nodes of a cluster, as one of them sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// In the order of their ids; those without slots and those that failed are there too.
    primaries: Vec<Primary>,
    motions: Vec<Motion>,
    /// The highest configuration epoch of a node; 0 where it isn't told.
    epoch: u64,
    /// The primary of each slot, by its place.
    owners: Vec<Owner>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    /// Its place among the primaries.
    One(u16),
    Several,
}

impl Topology {
    /// # Errors
    /// When there are too many nodes, or no primary.
    fn new(mut primaries: Vec<Primary>, motions: Vec<Motion>, epoch: u64) -> Result<Topology, Fault> {
        if primaries.iter().map(|p| 1 + p.replicas.len()).sum::<usize>() > NODES_MAX {
            return Err(Fault::TooMany);
        }
        if primaries.is_empty() {
            return Err(Fault::NoPrimary);
        }
        primaries.sort_by(|a, b| a.id.cmp(&b.id));
        primaries.iter_mut().for_each(|p| p.replicas.sort_by(|a, b| a.id.cmp(&b.id)));
        let mut owners = vec![Owner::Nobody; usize::from(slot::SLOTS)];
        for (at, primary) in primaries.iter().enumerate() {
            let at = u16::try_from(at).unwrap_or(u16::MAX);
            for slot in primary.slots.iter() {
                if let Some(owner) = owners.get_mut(slot.index()) {
                    *owner = if *owner == Owner::Nobody { Owner::One(at) } else { Owner::Several };
                }
            }
        }
        Ok(Topology { primaries, motions, epoch, owners })
    }

    /// Every primary, in the order of their ids, those without slots and those that failed too.
    pub fn primaries(&self) -> &[Primary] {
        &self.primaries
    }

    /// The primaries that own slots.
    pub fn owners(&self) -> impl Iterator<Item = &Primary> {
        self.primaries.iter().filter(|primary| !primary.slots.is_empty())
    }

    pub fn primary(&self, id: &str) -> Option<&Primary> {
        let at = self.primaries.binary_search_by(|primary| primary.id.as_str().cmp(id)).ok()?;
        self.primaries.get(at)
    }

    /// The primary that owns `slot`; `None` too where several say so.
    pub fn owner(&self, slot: Slot) -> Option<&Primary> {
        match self.owners.get(slot.index())? {
            Owner::One(at) => self.primaries.get(usize::from(*at)),
            Owner::Nobody | Owner::Several => None,
        }
    }

    /// True when each of the 16,384 slots has exactly one owner.
    pub fn is_whole(&self) -> bool {
        self.owners.iter().all(|owner| matches!(owner, Owner::One(_)))
    }

    /// The slots that have no owner, or several.
    pub fn unowned(&self) -> Slots {
        Slot::all().filter(|slot| self.owner(*slot).is_none()).collect()
    }

    /// The slots that the asked node gives away or takes by MIGRATE.
    pub fn motions(&self) -> &[Motion] {
        &self.motions
    }

    /// How late a view this is: of two, the one with the higher epoch knows of later failovers and moves. 0 where only
    /// CLUSTER SHARDS or SLOTS was answered.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The addresses of all nodes, those of primaries first.
    pub fn addresses(&self) -> impl Iterator<Item = &HostPort> {
        let replicas = self.primaries.iter().flat_map(|primary| &primary.replicas);
        self.primaries.iter().map(|primary| &primary.address).chain(replicas.map(|replica| &replica.address))
    }

    /// True when the same nodes own the same slots at the same addresses, whatever their health and replicas.
    pub fn same_owners(&self, other: &Topology) -> bool {
        let key = |primary: &Primary| (primary.id.clone(), primary.address.clone(), primary.slots.clone());
        self.owners().map(key).eq(other.owners().map(key))
    }

    /// The same with the addresses that another answer has for its nodes.
    fn with_addresses(mut self, from: &Topology) -> Topology {
        let mut known: HashMap<&str, &HostPort> = HashMap::new();
        for primary in &from.primaries {
            known.insert(&primary.id, &primary.address);
            known.extend(primary.replicas.iter().map(|replica| (replica.id.as_str(), &replica.address)));
        }
        let better = |id: &str, address: &mut HostPort| {
            if let Some(known) = known.get(id) {
                (*known).clone_into(address);
            }
        };
        for primary in &mut self.primaries {
            better(&primary.id, &mut primary.address);
            primary.replicas.iter_mut().for_each(|replica| better(&replica.id, &mut replica.address));
        }
        self
    }
}

impl View<'_> {
    /// Where a node is reached that is announced at `host` and `port`.
    fn reach(&self, host: Option<&str>, port: u16) -> HostPort {
        let host = host.unwrap_or(&self.asked.host).to_owned();
        let announced = HostPort { host, port };
        self.address_map.get(&announced).cloned().unwrap_or(announced)
    }
}

/// Reads the answer of CLUSTER SHARDS.
///
/// Source: redis 7.0 src/cluster.c, addNodeDetailsToShardReply; valkey 9.1 src/cluster.c.
/// # Errors
/// See [`Fault`].
pub fn from_shards(reply: &Reply, view: &View<'_>) -> Result<Topology, Fault> {
    Topology::new(shards::shards(reply, view)?, Vec::new(), 0)
}

/// Reads the answer of CLUSTER SLOTS, which knows only primaries with slots.
///
/// Source: redis 3.0 to 8.10 src/cluster.c, clusterReplyMultiBulkSlots and addNodeReplyForClusterSlot.
/// # Errors
/// See [`Fault`].
pub fn from_slots(reply: &Reply, view: &View<'_>) -> Result<Topology, Fault> {
    Topology::new(shards::slots(reply, view)?, Vec::new(), 0)
}

/// Reads the answer of CLUSTER NODES.
///
/// Source: redis 3.0 to 8.10 src/cluster.c, clusterGenNodeDescription.
/// # Errors
/// See [`Fault`].
pub fn from_nodes(reply: &Reply, view: &View<'_>) -> Result<Topology, Fault> {
    let nodes::Nodes { primaries, motions, epoch } = nodes::nodes(reply.bytes().ok_or(Fault::Form)?, view)?;
    Topology::new(primaries, motions, epoch)
}

/// Asks a node for its cluster's topology.
///
/// Who owns what is the word of CLUSTER NODES where that may be asked; the others give addresses.
/// # Errors
/// When the connection fails, none of the three commands is allowed, or the answer can't be read.
pub async fn ask(conn: &mut Conn, view: &View<'_>) -> Result<Topology, Error> {
    let places = match answer(conn, SHARDS).await? {
        Reply::Error(_) => match answer(conn, SLOTS).await? {
            Reply::Error(_) => None,
            slots => Some((SLOTS, from_slots(&slots, view))),
        },
        shards => Some((SHARDS, from_shards(&shards, view))),
    };
    let nodes = match (answer(conn, NODES).await?, &places) {
        (Reply::Error(words), None) => return Err(conn.refused(NODES.as_bytes(), words).into()),
        (Reply::Error(_), Some(_)) => None,
        (nodes, _) => Some((NODES, from_nodes(&nodes, view))),
    };
    let address = || conn.address().to_owned();
    let read = |(command, read): (_, Result<Topology, Fault>)| {
        read.map_err(|fault| Error::Answer { address: address(), command, fault })
    };
    match (nodes.map(read), places.map(read)) {
        (Some(nodes), Some(Ok(places))) => nodes.map(|nodes| nodes.with_addresses(&places)),
        (Some(nodes), _) => nodes,
        (None, Some(places)) => places,
        (None, None) => Err(Error::Answer { address: address(), command: NODES, fault: Fault::Form }),
    }
}

async fn answer(conn: &mut Conn, command: &str) -> Result<Reply, conn::Error> {
    let mut out = Vec::new();
    encode::command(&mut out, &command.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    conn.send(&out).await?;
    conn.reply().await
}
