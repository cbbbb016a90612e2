//! What the target's replicas have: until then the units behind their records are kept, since a replica that takes over
//! without them must get them again.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::timeout;

use super::nodes::{Node, Target};
use super::{Error, ask};
use crate::net::conn::Conn;
use crate::net::info::Info;
use crate::offset::ReplOffset;

/// How often the target is asked.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a primary may take to answer. One that hangs must not keep the cluster from being looked at, which shows who
/// took its place.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Hears what is found out.
pub trait Watcher: Send + Sync {
    /// What every record says, and on which servers; `None` during the copy.
    fn recorded(&self) -> Option<Recorded>;
    /// Nothing before `offset` can be lost by a failover; `replicas`: how many there are.
    fn covered(&self, offset: ReplOffset, replicas: usize);
}

/// Every record names this offset or a later one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    pub offset: ReplOffset,
    /// The run ids of the servers that those records were read and written on: one, or the primaries of a cluster.
    pub servers: Vec<String>,
}

/// What a primary says of itself and its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    primary: bool,
    run_id: String,
    /// The name of its own stream's history.
    replid: String,
    /// How far that is.
    own: u64,
    replicas: Vec<u64>,
}

/// A position of the records, and the place in a primary's own stream behind which a replica has them.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    offset: ReplOffset,
    run_id: String,
    replid: String,
    needed: u64,
}

/// What is known of one primary and its replicas.
#[derive(Default)]
struct Watched {
    conn: Option<Conn>,
    asked: Option<Asked>,
    /// The last position that its replicas were found to have, and of which server that was.
    covered: Option<(ReplOffset, String)>,
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
    // Before the question: the place that is answered then lies behind these records.
    let Some(recorded) = watcher.recorded() else { return Ok(()) };
    let nodes = target.nodes().await?;
    all.retain(|id, _| nodes.iter().any(|node| node.id == *id));
    for node in &nodes {
        let answer = all.entry(node.id.clone()).or_default().look(node, &recorded);
        let silent = |_| Error::Silent { address: node.server.to_string(), seconds: ANSWER_MAX.as_secs() };
        timeout(ANSWER_MAX, answer).await.map_err(silent)??;
    }
    // What was found of a server counts as long as it's one of those that the records are on.
    let of_server = |watched: &Watched| {
        let (offset, run_id) = watched.covered.as_ref()?;
        recorded.servers.contains(run_id).then_some(*offset)
    };
    if let Some(covered) = all.values().map(of_server).min().flatten() {
        watcher.covered(covered, all.values().map(|watched| watched.replicas).sum());
    }
    Ok(())
}

impl Watched {
    /// Asks a primary. A connection to another server than the records are on is given up: the address may have moved.
    async fn look(&mut self, node: &Node, recorded: &Recorded) -> Result<(), Error> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => node.server.connect().await?,
        };
        let answer = Answer::of(&Info::parse(ask(&mut conn, &[b"INFO"]).await?.bytes().unwrap_or_default()));
        if answer.is_of(recorded) {
            self.conn = Some(conn);
        }
        self.replicas = answer.replicas.len();
        if let Some(offset) = covered(recorded, &answer, &mut self.asked) {
            self.covered = Some((offset, answer.run_id));
        }
        Ok(())
    }
}

impl Answer {
    fn of(info: &Info) -> Self {
        let text = |field: &str| info.get(field).unwrap_or_default().to_owned();
        Answer {
            primary: info.get("role") == Some("master"),
            run_id: text("run_id"),
            replid: text("master_replid"),
            own: info.number("master_repl_offset").unwrap_or(0),
            replicas: info.replica_offsets(),
        }
    }

    fn is_of(&self, recorded: &Recorded) -> bool {
        self.primary && recorded.servers.contains(&self.run_id)
    }
}

impl Asked {
    /// True if a place in the server's stream means the same to both, and the records haven't fallen back between them.
    fn goes_on_as(&self, now: &Asked) -> bool {
        self.replid == now.replid && self.run_id == now.run_id && self.offset <= now.offset
    }
}

/// The latest position that a replica has, if the answer tells one. `recorded`: what it was before the question.
///
/// Places are compared along one history of one server only: behind a failover the same number may stand for less, and
/// what was given up by it couldn't be sent again.
fn covered(recorded: &Recorded, answer: &Answer, asked: &mut Option<Asked>) -> Option<ReplOffset> {
    let before = asked.take();
    if !answer.is_of(recorded) {
        return None;
    }
    let Some(furthest) = answer.replicas.iter().max() else { return Some(recorded.offset) };
    let (run_id, replid) = (answer.run_id.clone(), answer.replid.clone());
    let now = Asked { offset: recorded.offset, run_id, replid, needed: answer.own };
    let Some(before) = before.filter(|before| before.goes_on_as(&now)) else {
        *asked = Some(now);
        return None;
    };
    let safe = *furthest >= before.needed;
    let position = before.offset;
    *asked = Some(if safe { now } else { before });
    safe.then_some(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(offset: u64, run_id: &str) -> Recorded {
        Recorded { offset: ReplOffset(offset), servers: vec!["other".into(), run_id.into()] }
    }

    fn answer(run_id: &str, replid: &str, own: u64, replicas: &[u64]) -> Answer {
        let replicas = replicas.to_vec();
        Answer { primary: true, run_id: run_id.into(), replid: replid.into(), own, replicas }
    }

    #[test]
    fn covered_waits_for_a_replica_where_there_is_one() {
        let mut asked = None;
        let mut ask = |at, own, replicas: &[u64]| {
            covered(&recorded(at, "a"), &answer("a", "h", own, replicas), &mut asked).map(|offset| offset.0)
        };
        assert_eq!(ask(10, 500, &[]), Some(10));
        assert_eq!(ask(20, 600, &[600]), None, "what was asked first is the place");
        assert_eq!(ask(30, 700, &[599]), None);
        assert_eq!(ask(40, 800, &[600, 3]), Some(20));
        assert_eq!(ask(50, 900, &[800]), Some(40));
    }

    /// The lanes' units behind 20 are on a server that is gone: a replica of its successor never had them.
    #[test]
    fn covered_compares_no_places_of_two_servers() {
        let ask = |asked: &mut Option<Asked>, at: Recorded, answer: &Answer| covered(&at, answer, asked);
        let before = || {
            let mut asked = None;
            ask(&mut asked, recorded(20, "a"), &answer("a", "h", 600, &[500]));
            asked
        };
        let asked = &mut before();
        for own in [700, 800] {
            let of_next = answer("b", "i", own, &[800]);
            assert_eq!(ask(asked, recorded(20, "a"), &of_next), None, "the lanes aren't there yet");
        }
        assert_eq!(ask(asked, recorded(15, "b"), &answer("b", "i", 700, &[700])), None, "asked anew");
        assert_eq!(ask(asked, recorded(30, "b"), &answer("b", "i", 800, &[700])), Some(ReplOffset(15)));
        let asked = &mut before();
        assert_eq!(ask(asked, recorded(30, "b"), &answer("b", "h", 700, &[700])), None, "another server");
        let asked = &mut before();
        assert_eq!(ask(asked, recorded(30, "a"), &answer("a", "i", 700, &[700])), None, "another history");
        let asked = &mut before();
        assert_eq!(ask(asked, recorded(15, "a"), &answer("a", "h", 700, &[700])), None, "records that fell back");
        let demoted = Answer { primary: false, ..answer("a", "h", 700, &[]) };
        assert_eq!(ask(&mut before(), recorded(30, "a"), &demoted), None, "no primary any more");
    }
}
