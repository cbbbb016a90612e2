//! A cluster that is looked at again and again, so that failovers and nodes that come and go are known.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::conn::{self, Conn, Server};
use super::endpoint::HostPort;
use super::topology::{self, Topology, View};

/// How often a cluster is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a node may take to say what it sees; one that is stopped or cut off says nothing.
const VIEW_MAX: Duration = Duration::from_secs(1);

/// How long the others may take when one has said what it sees: all were asked at once.
const LATER_MAX: Duration = Duration::from_millis(200);

/// How many nodes are asked in a look: enough that one that is cut off, and sees an old cluster, is outvoted.
const VIEWS_MAX: usize = 7;

/// Why nothing can be seen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Net(#[from] conn::Error),
    #[error(transparent)]
    Topology(#[from] topology::Error),
    #[error("no node of the cluster could be asked")]
    NoNode,
}

impl Error {
    /// True when trying again later can help.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Net(error) | Error::Topology(topology::Error::Net(error)) => error.is_passing(),
            Error::Topology(topology::Error::Answer { .. }) => false,
            Error::NoNode => true,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Net(error) | Error::Topology(topology::Error::Net(error)) => error.hint(),
            Error::Topology(topology::Error::Answer { .. }) => {
                Some("for a server that is no cluster, write ?cluster=false behind its URL".into())
            }
            Error::NoNode => None,
        }
    }
}

/// A cluster, by what its nodes say. A clone shares what is known.
#[derive(Debug, Clone)]
pub struct Cluster(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// What is true for all nodes but the address.
    server: Server,
    seeds: Vec<HostPort>,
    /// Announced address to reachable one.
    reachable: BTreeMap<HostPort, HostPort>,
    /// Kept from look to look.
    conns: Mutex<HashMap<HostPort, Conn>>,
    /// With which node the next look begins.
    turn: AtomicUsize,
    seen: Mutex<Option<Arc<Topology>>>,
    looks: Looks,
}

/// Counts looks, so that one can be waited for that began after it was asked for.
#[derive(Debug, Default)]
struct Looks {
    begun: AtomicU64,
    done: watch::Sender<u64>,
    wanted: Notify,
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.0.seeds.iter().map(HostPort::to_string).collect();
        f.write_str(&shown.join(","))
    }
}

impl Cluster {
    /// The cluster of these nodes, which differ from `server` only in their address.
    pub fn new(server: Server, seeds: &[HostPort], reachable: BTreeMap<HostPort, HostPort>) -> Self {
        let seeds = seeds.iter().map(|seed| reachable.get(seed).unwrap_or(seed).clone()).collect();
        Cluster(Arc::new(Shared {
            server,
            seeds,
            reachable,
            conns: Mutex::default(),
            turn: AtomicUsize::new(0),
            seen: Mutex::default(),
            looks: Looks::default(),
        }))
    }

    /// The node at `address`.
    pub fn server(&self, address: HostPort) -> Server {
        Server { address, ..self.0.server.clone() }
    }

    pub fn reachable(&self) -> &BTreeMap<HostPort, HostPort> {
        &self.0.reachable
    }

    /// What was seen last; `None` before the first look.
    pub fn seen(&self) -> Option<Arc<Topology>> {
        lock(&self.0.seen).clone()
    }

    /// Asks the node behind a connection that was made to `address` what it sees itself.
    ///
    /// # Errors
    /// When the connection fails, or the answer can't be read.
    pub async fn view_of(&self, conn: &mut Conn, address: &HostPort) -> Result<Topology, Error> {
        let tls = self.0.server.tls.is_some();
        Ok(topology::ask(conn, &View { asked: address, tls, address_map: &self.0.reachable }).await?)
    }

    /// Looks at the cluster every second, and at once when [`Cluster::look_again`] asks for it; never returns.
    ///
    /// `seen` hears of each look before those who asked for one go on.
    pub async fn watch(&self, mut seen: impl FnMut(&Topology)) {
        let mut failing = false;
        loop {
            let number = self.0.looks.begun.fetch_add(1, Ordering::SeqCst) + 1;
            match self.look().await {
                Ok(topology) => {
                    failing = false;
                    seen(&topology);
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(error = %error, "the cluster can't be looked at: trying on");
                    }
                }
            }
            self.0.looks.done.send_replace(number);
            // Whichever is first; a wish that comes during a look is kept.
            let _ = timeout(LOOK_INTERVAL, self.0.looks.wanted.notified()).await;
        }
    }

    /// Waits for a look of [`Cluster::watch`] that began after this call, whatever came of it.
    ///
    /// Cancel-safe.
    pub async fn look_again(&self) {
        let looks = &self.0.looks;
        let now = looks.begun.load(Ordering::SeqCst);
        looks.wanted.notify_one();
        // The sender lives as long as this.
        let _ = looks.done.subscribe().wait_for(|done| *done > now).await;
    }

    /// Asks several nodes what they see, and takes what the latest of them say.
    ///
    /// # Errors
    /// When no node can be asked; the error of the first.
    pub async fn look(&self) -> Result<Arc<Topology>, Error> {
        let mut asking = JoinSet::new();
        for address in self.nodes() {
            let cluster = self.clone();
            asking.spawn(async move { cluster.view(address).await });
        }
        let (mut views, mut failed) = (Vec::new(), None);
        loop {
            // Nodes that say nothing shouldn't hold up those that have heard the others.
            let wait = if views.is_empty() { VIEW_MAX } else { LATER_MAX };
            let Ok(Some(view)) = timeout(wait, asking.join_next()).await else { break };
            match view {
                Ok(Ok(topology)) => views.push(topology),
                Ok(Err(error)) => _ = failed.get_or_insert(error),
                Err(_) => {}
            }
        }
        let mut seen = lock(&self.0.seen);
        let topology = latest(views, seen.as_deref()).ok_or_else(|| failed.unwrap_or(Error::NoNode))?;
        let topology = Arc::new(topology);
        *seen = Some(Arc::clone(&topology));
        Ok(topology)
    }

    /// The nodes to ask now: some of those known, in turn; before the first look, and where none is left, the seeds.
    fn nodes(&self) -> Vec<HostPort> {
        let seen = lock(&self.0.seen).clone();
        let mut known: Vec<HostPort> = seen.iter().flat_map(|topology| topology.addresses().cloned()).collect();
        known.extend(self.0.seeds.iter().filter(|seed| !known.contains(seed)).cloned().collect::<Vec<_>>());
        let from = self.0.turn.fetch_add(VIEWS_MAX, Ordering::Relaxed) % known.len().max(1);
        known.rotate_left(from);
        known.truncate(VIEWS_MAX);
        known
    }

    /// Asks a node what it sees.
    ///
    /// # Errors
    /// When it doesn't answer soon, or the answer can't be read.
    pub async fn view(&self, address: HostPort) -> Result<Topology, Error> {
        let kept = lock(&self.0.conns).remove(&address);
        let ask = async {
            if let Some(mut conn) = kept
                && let Ok(topology) = self.view_of(&mut conn, &address).await
            {
                return Ok((conn, topology));
            }
            // One that was kept may have been ended since.
            let mut conn = self.server(address.clone()).connect().await?;
            let topology = self.view_of(&mut conn, &address).await?;
            Ok((conn, topology))
        };
        match timeout(VIEW_MAX, ask).await {
            Ok(Ok((conn, topology))) => {
                lock(&self.0.conns).insert(address, conn);
                Ok(topology)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let side = self.0.server.side;
                Err(conn::Error::Timeout { side, address: address.to_string(), after: VIEW_MAX }.into())
            }
        }
    }
}

/// The latest view by its epoch; of several, that which most agree with on who owns what, or which was seen before.
fn latest(views: Vec<Topology>, before: Option<&Topology>) -> Option<Topology> {
    let votes = |view: &Topology| views.iter().filter(|other| other.same_owners(view)).count();
    let known = |view: &Topology| before.is_some_and(|before| before.same_owners(view));
    let best = (0..views.len()).max_by_key(|at| views.get(*at).map(|view| (view.epoch(), votes(view), known(view))))?;
    views.into_iter().nth(best)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::reply::Reply;

    /// As a node says it: each primary with its port and slots.
    fn view(primaries: &[(u16, &str)]) -> Topology {
        let line = |(port, slots): &(u16, &str)| {
            format!("{port:040} 10.0.0.1:{port}@1{port} master - 0 0 1 connected {slots}\n")
        };
        let text: String = primaries.iter().map(line).collect();
        let asked = HostPort { host: "10.0.0.1".into(), port: primaries[0].0 };
        let map = BTreeMap::new();
        let view = View { asked: &asked, tls: false, address_map: &map };
        topology::from_nodes(&Reply::Bulk(text.into_bytes()), &view).unwrap()
    }

    #[test]
    fn latest_outvotes_a_node_that_is_cut_off_and_keeps_what_was_seen_in_a_draw() {
        let old = || view(&[(7000, "0-8000"), (7001, "8001-16383")]);
        let new = || view(&[(7002, "0-8000"), (7001, "8001-16383")]);
        assert!(latest(vec![old(), new(), new()], Some(&old())).unwrap().same_owners(&new()));
        assert!(latest(vec![new(), old()], Some(&old())).unwrap().same_owners(&old()));
        assert!(latest(vec![old(), new()], Some(&new())).unwrap().same_owners(&new()));
        assert_eq!(latest(Vec::new(), Some(&old())), None);
    }
}
