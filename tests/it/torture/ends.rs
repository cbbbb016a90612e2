//! What the torture runs between: a server or a cluster, and the load on it.

use super::ferry::FILTERED;
use crate::client::Reply;
use crate::cluster::{Cluster, is_passing, slot_of};
use crate::compare::{Holds, Snapshot};
use crate::load::{Mix, Workload};
use crate::server::{FAST, Server};
use crate::shards::load::{ClusterLoad, TAGS};
use crate::wait::MINUTE;
use fastrand::Rng;

/// Settings of all servers: everything that is written while nobody listens is kept, and scripts soon count as long.
const CONFIG: &[&str] = &["repl-backlog-size 64mb", "lua-time-limit 100"];

/// One side of the job.
pub enum End {
    One(Server),
    /// Every primary has a replica.
    Many(Cluster),
}

impl End {
    /// So many primaries; 0 is a standalone server.
    pub fn start(name: &str, primaries: usize) -> End {
        match primaries {
            0 => End::One(Server::with(name, &[FAST, CONFIG].concat())),
            _ => End::Many(Cluster::with(name, primaries, 1, CONFIG)),
        }
    }

    pub fn url(&self) -> String {
        match self {
            End::One(server) => server.url(),
            End::Many(cluster) => cluster.url(),
        }
    }

    pub fn cluster(&self) -> Option<&Cluster> {
        match self {
            End::One(_) => None,
            End::Many(cluster) => Some(cluster),
        }
    }

    pub fn cluster_mut(&mut self) -> Option<&mut Cluster> {
        match self {
            End::One(_) => None,
            End::Many(cluster) => Some(cluster),
        }
    }

    /// Its first server, which tells the version.
    pub fn first(&self) -> &Server {
        match self {
            End::One(server) => server,
            End::Many(cluster) => &cluster.nodes[0],
        }
    }

    /// The servers that hold keys now.
    pub fn primaries(&self) -> Vec<&Server> {
        match self {
            End::One(server) => vec![server],
            End::Many(cluster) => cluster.owners().into_iter().map(|node| &cluster.nodes[node]).collect(),
        }
    }

    pub fn some_primary(&self, rng: &mut Rng) -> &Server {
        let all = self.primaries();
        all[rng.usize(0..all.len())]
    }

    /// Waits until all nodes agree and every replica follows.
    pub fn until_whole(&self) {
        if let End::Many(cluster) = self {
            cluster.until_whole();
        }
    }

    /// Sets strings, wherever they belong.
    pub fn set_all(&self, keys: &[String], value: &str) {
        let sets = keys.iter().map(|key| cmd!["SET", key, value]);
        match self {
            End::One(server) => server.client().load(&sets.collect::<Vec<_>>()),
            End::Many(cluster) => {
                let mut client = cluster.client();
                sets.for_each(|set| _ = client.call(&set));
            }
        }
    }

    /// The values of strings; `None` while some node doesn't serve them.
    pub fn strings(&self, keys: &[String]) -> Option<Vec<Reply>> {
        match self {
            End::One(server) => {
                let mut client = server.client();
                keys.iter().map(|key| client.ask(&cmd!["GET", key]).ok()).collect()
            }
            End::Many(cluster) => {
                let mut client = cluster.client();
                let mut get = |key: &String| {
                    let reply = client.try_pipe_on(slot_of(key.as_bytes()), &[cmd!["GET", key]])?.pop()?;
                    let refused = matches!(&reply, Reply::Error(words) if is_passing(words));
                    (!refused).then_some(reply)
                };
                keys.iter().map(&mut get).collect()
            }
        }
    }
}

impl Holds for End {
    fn snapshot_where(&self, keep: &dyn Fn(u32, &[u8]) -> bool) -> Snapshot {
        match self {
            End::One(server) => server.snapshot_where(keep),
            End::Many(cluster) => cluster.snapshot_where(keep),
        }
    }
}

/// Random writes to one side.
pub enum Load {
    One(Workload),
    Many(ClusterLoad),
}

impl Load {
    pub fn start(end: &End, seed: u64, rate: u64, filtered: bool) -> Load {
        let names = if filtered { vec!["", FILTERED] } else { vec![""] };
        match end {
            End::One(server) => {
                let prefixes = names.iter().map(|name| name.to_string()).collect();
                Load::One(Workload::start(server, seed, rate, Mix { prefixes, ..Mix::of(server) }))
            }
            End::Many(cluster) => Load::Many(ClusterLoad::with(cluster, seed, rate, &names)),
        }
    }

    /// Waits until `n` more commands have been sent.
    pub fn until_sent(&self, n: u64) {
        match self {
            Load::One(load) => load.until_sent(n, MINUTE),
            Load::Many(load) => load.until_sent(n, MINUTE),
        }
    }

    /// The same with a number below `max`.
    pub fn until_some(&self, rng: &mut Rng, max: u64) {
        self.until_sent(rng.u64(0..max));
    }

    /// How many it sent.
    pub fn stop(self) -> u64 {
        match self {
            Load::One(load) => load.stop(),
            Load::Many(load) => load.stop(),
        }
    }

    /// A slot that the load writes to.
    pub fn some_slot(&self, rng: &mut Rng) -> u16 {
        let key = match self {
            Load::One(_) => {
                let kind = ["cnt", "app", "str", "lst", "hsh", "zst", "set", "stm", "txl"][rng.usize(0..9)];
                format!("{kind}:{}", rng.u32(0..60))
            }
            Load::Many(_) => format!("{{tag{}}}", rng.usize(0..TAGS)),
        };
        slot_of(key.as_bytes())
    }
}
