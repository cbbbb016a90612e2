//! A node of the cluster: its connections, once they are there.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::timeout;

use super::connect::{self, Connected};
use crate::delivery::slots::NodeId;
use crate::journal::Large;
use crate::net::cluster::Cluster;
use crate::net::topology::{Health, Primary, Topology};
use crate::target::Error;
use crate::target::connect::Identity;
use crate::target::nodes::Target;
use crate::target::wire::Wire;

/// How long connecting to a node may take.
pub const CONNECT_MAX: Duration = Duration::from_secs(3);

/// A node and its connections.
pub struct Link {
    /// Its id in the cluster.
    pub id: String,
    pub node: NodeId,
    pub run_id: String,
    pub replicas: Vec<String>,
    pub wires: Vec<Wire>,
}

impl Link {
    /// `node`: its place in the machine.
    pub fn new(primary: &Primary, node: NodeId, connected: Connected, large: &Arc<Large>) -> Self {
        Link {
            id: primary.id.clone(),
            node,
            run_id: connected.run_id,
            replicas: primary.replicas.iter().map(|replica| replica.id.clone()).collect(),
            wires: connected.conns.into_iter().map(|conn| Wire::new(conn, large)).collect(),
        }
    }

    /// Its replicas, as they were seen last.
    pub fn see(&mut self, topology: &Topology) {
        if let Some(primary) = topology.primary(&self.id).filter(|primary| !primary.slots.is_empty()) {
            self.replicas = primary.replicas.iter().map(|replica| replica.id.clone()).collect();
        }
    }

    /// True if another node has taken the place of this one.
    pub fn is_replaced(&self, topology: &Topology) -> bool {
        let gone = match topology.primary(&self.id) {
            Some(primary) => primary.slots.is_empty() && primary.health == Health::Failed,
            None => true,
        };
        gone || topology.owners().any(|primary| self.replicas.contains(&primary.id))
    }
}

/// A node that is being connected.
pub struct Connecting {
    pub id: String,
    work: Pin<Box<dyn Future<Output = Result<Connected, Error>> + Send>>,
    pub done: Option<Result<Connected, Error>>,
}

impl Connecting {
    pub fn to((target, cluster): (&Target, &Cluster), primary: &Primary, identity: &Identity, lanes: usize) -> Self {
        let (target, cluster, of, identity) = (target.clone(), cluster.clone(), primary.clone(), identity.clone());
        let work = async move {
            let connect = connect::connect((&target, &cluster), &of, &identity, lanes);
            let silent = || Error::Silent { address: of.address.to_string(), seconds: CONNECT_MAX.as_secs() };
            timeout(CONNECT_MAX, connect).await.unwrap_or_else(|_| Err(silent()))
        };
        Connecting { id: primary.id.clone(), work: Box::pin(work), done: None }
    }

    /// Ready when it is known what came of it.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.done.is_none() {
            self.done = Some(ready!(self.work.as_mut().poll(cx)));
        }
        Poll::Ready(())
    }
}
