//! What the target's replicas have: until then the units behind their records are kept, since a replica that takes over
//! without them must get them again.

use std::time::Duration;

use crate::net::conn::{Conn, Error};
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::offset::ReplOffset;

/// How often the target is asked.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Hears what is found out.
pub trait Watcher: Send + Sync {
    /// Every lane's record in the target names this offset or a later one; `None` during the copy.
    fn recorded(&self) -> Option<ReplOffset>;
    /// Nothing before `offset` can be lost by a failover; `replicas`: how many there are.
    fn covered(&self, offset: ReplOffset, replicas: usize);
}

/// A record position, and how far the target's own stream was when it had been written.
type Asked = (ReplOffset, u64);

/// Asks again and again; never returns. The lanes notice when the target is gone.
pub async fn watch(server: &Locator, watcher: &dyn Watcher) {
    let (mut conn, mut asked) = (None, None);
    loop {
        if let Err(error) = ask(server, watcher, &mut conn, &mut asked).await {
            tracing::debug!(error = %error, "can't ask the target for its replicas");
            conn = None;
        }
        tokio::time::sleep(ASK_INTERVAL).await;
    }
}

async fn ask(
    server: &Locator,
    watcher: &dyn Watcher,
    conn: &mut Option<Conn>,
    asked: &mut Option<Asked>,
) -> Result<(), Error> {
    let Some(recorded) = watcher.recorded() else { return Ok(()) };
    if conn.is_none() {
        *conn = Some(server.connect().await?);
    }
    let Some(asked_of) = conn else { return Ok(()) };
    let reply = asked_of.ask(&[&b"INFO"[..], b"replication"]).await?;
    let info = Info::parse(reply.bytes().unwrap_or_default());
    // It may have been demoted since, and have no replicas because it is one itself.
    if let Some(role) = info.get("role").filter(|role| *role != "master") {
        return Err(Error::NotPrimary {
            side: server.side(),
            address: asked_of.address().to_owned(),
            role: role.replace("slave", "replica"),
        });
    }
    let offsets = info.replica_offsets();
    if let Some(covered) = covered(recorded, &offsets, info.number("master_repl_offset").unwrap_or(0), asked) {
        watcher.covered(covered, offsets.len());
    }
    Ok(())
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
