//! Writing to a slot past the lanes: to one that moves on the source, which no lane holds.

use std::collections::HashMap;
use std::sync::Arc;

use crate::delivery::slots::record::{state_key, whole_key};
use crate::net::cluster::Cluster;
use crate::net::conn::Conn;
use crate::net::endpoint::HostPort;
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::net::topology::{Primary, Topology};
use crate::resp::encode;
use crate::slot::Slot;
use crate::target::connect::{self, Identity};
use crate::target::nodes::Target;
use crate::target::{Error, owner, read_exec};

/// Connections beside the lanes, to the nodes of a cluster.
pub struct Past {
    target: Target,
    cluster: Cluster,
    id: Identity,
    topology: Option<Arc<Topology>>,
    conns: HashMap<HostPort, Conn>,
}

impl Past {
    /// `None` where the target is no cluster. The connections end when the shard's lanes are connected anew.
    pub fn new(target: &Target, id: &Identity) -> Option<Past> {
        let Target::Cluster(cluster) = target else { return None };
        let (target, cluster, id) = (target.clone(), cluster.clone(), id.clone());
        Some(Past { target, cluster, id, topology: None, conns: HashMap::new() })
    }

    /// Runs commands of one slot in one transaction, on the server that has the slot; returns which server it was. With
    /// an `only`, nothing is done on another one.
    ///
    /// # Errors
    /// When it can't be reached or refuses, or the slot is on the move; `OwnerLost`.
    pub async fn write(&mut self, slot: Slot, raw: &[u8], commands: u32, only: Option<&str>) -> Result<String, Error> {
        self.on(slot, async |conn: &mut Conn, _: &Primary| {
            let server = server(conn).await?;
            if only.is_some_and(|only| only != server) {
                return Ok(server);
            }
            let mut out = Vec::with_capacity(raw.len() + 40);
            encode::command(&mut out, &[b"MULTI"]);
            out.extend_from_slice(raw);
            encode::command(&mut out, &[b"EXEC"]);
            conn.send(&out).await?;
            read_exec(conn, commands as usize + 1, b"EXEC").await?;
            Ok(server)
        })
        .await
    }

    /// The keys of a slot with their databases, and the server that has them.
    ///
    /// # Errors
    /// As for [`Past::write`].
    pub async fn keys(&mut self, slot: Slot) -> Result<(Vec<(u32, Vec<u8>)>, String), Error> {
        let cluster = self.cluster.clone();
        self.on(slot, async |conn: &mut Conn, at: &Primary| {
            let server = server(conn).await?;
            let info = crate::target::ask(conn, &[&b"INFO"[..], b"keyspace"]).await?;
            let filled = Info::parse(info.bytes().unwrap_or_default()).keyspace();
            let mut keys = Vec::new();
            for (db, _) in filled {
                keys.extend(list(conn, slot, db).await?.into_iter().map(|key| (db, key)));
            }
            select(conn, 0).await?;
            // While it moves key by key some are here and some there.
            let view = cluster.view_of(conn, &at.address).await?;
            let here = view.owner(slot).is_some_and(|owner| owner.id == at.id);
            if !here || view.motions().iter().any(|motion| motion.slot == slot) {
                return Err(Error::Moving { address: conn.address().to_owned(), slot: slot.number() });
            }
            Ok((keys, server))
        })
        .await
    }

    /// Does something on the node that owns a slot.
    async fn on<T>(
        &mut self,
        slot: Slot,
        work: impl AsyncFnOnce(&mut Conn, &Primary) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let topology = match &self.topology {
            Some(topology) => Arc::clone(topology),
            None => self.cluster.look().await?,
        };
        self.topology = None;
        let moves = topology.motions().iter().any(|motion| motion.slot == slot);
        let owner = topology.owner(slot).filter(|_| !moves);
        let owner = owner.ok_or_else(|| Error::Moving { address: self.target.to_string(), slot: slot.number() })?;
        // Not kept where anything fails: what is on its way would be taken for later answers.
        let mut conn = match self.conns.remove(&owner.address) {
            Some(conn) => conn,
            None => self.connect(&owner.address).await?,
        };
        let done = work(&mut conn, owner).await?;
        self.conns.insert(owner.address.clone(), conn);
        self.topology = Some(topology);
        Ok(done)
    }

    async fn connect(&self, address: &HostPort) -> Result<Conn, Error> {
        let at = Locator::fixed(self.cluster.server(address.clone()), Default::default());
        let conn = connect::named(&at, &self.id, "side").await?;
        owner::check_in(&self.target, &self.id).await?;
        Ok(conn)
    }
}

async fn select(conn: &mut Conn, db: u32) -> Result<(), Error> {
    crate::target::ask(conn, &[&b"SELECT"[..], db.to_string().as_bytes()]).await.map(|_| ())
}

async fn list(conn: &mut Conn, slot: Slot, db: u32) -> Result<Vec<Vec<u8>>, Error> {
    select(conn, db).await?;
    let number = slot.number().to_string();
    let count = crate::target::ask(conn, &[&b"CLUSTER"[..], b"COUNTKEYSINSLOT", number.as_bytes()]).await?;
    // Nobody else writes to the slot.
    let count = count.integer().unwrap_or(0).to_string();
    let words = [&b"CLUSTER"[..], b"GETKEYSINSLOT", number.as_bytes(), count.as_bytes()];
    let reply = crate::target::ask(conn, &words).await?;
    let keys = reply.array().unwrap_or_default().iter();
    Ok(keys.filter_map(|key| key.bytes().map(<[u8]>::to_vec)).collect())
}

/// Which server it is, and which history: see `Cluster::attach`.
pub async fn server(conn: &mut Conn) -> Result<String, Error> {
    let info = Info::parse(crate::target::ask(conn, &[b"INFO"]).await?.bytes().unwrap_or_default());
    let word = |name| info.get(name).unwrap_or_default();
    Ok(format!("{}/{}", word("run_id"), word("master_replid")))
}

/// Appends what says `state` of a slot. `doubts`: a later process is to copy all its keys.
pub fn put_state(job: &str, slot: Slot, state: &str, doubts: bool, out: &mut Vec<u8>) -> u32 {
    encode::command(out, &[&b"SET"[..], &state_key(job, slot), state.as_bytes()]);
    if doubts {
        encode::command(out, &[&b"SET"[..], &whole_key(job, slot), b"1"]);
    }
    1 + u32::from(doubts)
}
