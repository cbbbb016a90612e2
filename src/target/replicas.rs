//! What the target's replicas have: until then the units behind their records are kept, since a replica that takes over
//! without them must get them again.

use std::collections::HashMap;
use std::time::Duration;

use super::nodes::{Node, Target};
use super::{Error, ask};
use crate::net::conn::Conn;
use crate::net::info::Info;
use crate::offset::ReplOffset;

/// How often the target is asked.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Hears what is found out.
pub trait Watcher: Send + Sync {
    /// Every record in the target names this offset or a later one; `None` during the copy.
    fn recorded(&self) -> Option<ReplOffset>;
    /// Whether what [`Watcher::recorded`] says of this server's records was read from, or written to, this very server.
    ///
    /// On a cluster a replica may have taken over that lacks some of them, and nobody has noticed yet.
    fn has_records_of(&self, run_id: &str) -> bool;
    /// Nothing before `offset` can be lost by a failover; `replicas`: how many there are.
    fn covered(&self, offset: ReplOffset, replicas: usize);
}

/// A record position, and how far the target's own stream was when it had been written.
type Asked = (ReplOffset, u64);

/// What is known of the replicas of one primary.
#[derive(Default)]
struct Watched {
    conn: Option<(Conn, String)>,
    asked: Option<Asked>,
    covered: Option<ReplOffset>,
    replicas: usize,
}

/// Asks again and again; never returns. The lanes notice when the target is gone.
pub async fn watch(target: &Target, watcher: &dyn Watcher) {
    let mut all = HashMap::new();
    loop {
        if let Err(error) = look(target, watcher, &mut all).await {
            tracing::debug!(error = %error, "can't ask the target for its replicas");
        }
        tokio::time::sleep(ASK_INTERVAL).await;
    }
}

/// Asks every primary, and tells what all of them have.
async fn look(target: &Target, watcher: &dyn Watcher, all: &mut HashMap<String, Watched>) -> Result<(), Error> {
    let Some(recorded) = watcher.recorded() else { return Ok(()) };
    let nodes = target.nodes().await?;
    all.retain(|id, _| nodes.iter().any(|node| node.id == *id));
    for node in &nodes {
        let watched = all.entry(node.id.clone()).or_default();
        if let Err(error) = watched.look(node, watcher, recorded).await {
            watched.conn = None;
            return Err(error);
        }
    }
    let covered = all.values().map(|watched| watched.covered).min().flatten();
    if let Some(covered) = covered {
        watcher.covered(covered, all.values().map(|watched| watched.replicas).sum());
    }
    Ok(())
}

impl Watched {
    async fn look(&mut self, node: &Node, watcher: &dyn Watcher, recorded: ReplOffset) -> Result<(), Error> {
        let (mut conn, run_id) = match self.conn.take() {
            Some(known) => known,
            None => {
                let mut conn = node.server.connect().await?;
                let info = Info::parse(ask(&mut conn, &[&b"INFO"[..], b"server"]).await?.bytes().unwrap_or_default());
                // Another server, or another data set: what its replicas must have is asked anew.
                *self = Watched::default();
                (conn, info.get("run_id").unwrap_or_default().to_owned())
            }
        };
        let reply = ask(&mut conn, &[&b"INFO"[..], b"replication"]).await?;
        let info = Info::parse(reply.bytes().unwrap_or_default());
        // It may have been demoted since, and have no replicas because it is one itself.
        if let Some(role) = info.get("role").filter(|role| *role != "master") {
            let (address, role) = (conn.address().to_owned(), role.replace("slave", "replica"));
            return Err(Error::NotPrimary { address, role });
        }
        // Behind the answer: the records may have been on a server that is gone by now.
        if watcher.has_records_of(&run_id) {
            let (offsets, own) = (info.replica_offsets(), info.number("master_repl_offset").unwrap_or(0));
            self.replicas = offsets.len();
            self.covered = covered(recorded, &offsets, own, &mut self.asked).or(self.covered);
        }
        self.conn = Some((conn, run_id));
        Ok(())
    }
}

/// The latest position that a replica has, if the answer tells one.
///
/// `recorded`: the position of the records before the target answered `replicas` and `own`, its replicas' and its own
/// offset: when a replica has come to `own`, it has those records.
fn covered(recorded: ReplOffset, replicas: &[u64], own: u64, asked: &mut Option<Asked>) -> Option<ReplOffset> {
    let Some(furthest) = replicas.iter().max() else {
        *asked = None;
        return Some(recorded);
    };
    let (position, needed) = *asked.get_or_insert((recorded, own));
    let safe = *furthest >= needed;
    if safe {
        *asked = Some((recorded, own));
    }
    safe.then_some(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covered_waits_for_a_replica_where_there_is_one() {
        let mut asked = None;
        assert_eq!(covered(ReplOffset(10), &[], 500, &mut asked), Some(ReplOffset(10)));
        assert_eq!(covered(ReplOffset(20), &[100], 600, &mut asked), None);
        assert_eq!(covered(ReplOffset(30), &[599], 700, &mut asked), None);
        assert_eq!(covered(ReplOffset(40), &[600, 3], 800, &mut asked), Some(ReplOffset(20)));
        assert_eq!(covered(ReplOffset(50), &[800], 900, &mut asked), Some(ReplOffset(40)));
    }
}
