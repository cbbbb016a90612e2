//! Looking at the source's servers while slots are in motion: who owns them by all views, and how far all streams are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Motions, Unchecked, lock};
use crate::clock::now_ms;
use crate::delivery::motion::{Look, Offsets, Shard};
use crate::net::conn::{self, Conn};
use crate::net::endpoint::HostPort;
use crate::net::info::Info;
use crate::net::topology::{Health, Topology};
use crate::net::{Side, cluster};
use crate::offset::ReplOffset;
use crate::pipeline::prepare::Plan;
use crate::resp::reply::Reply;
use crate::slot::Slot;
use crate::source::origin::Origin;

/// How long to wait between looks while something is in motion.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The same once it has been for a while.
const LOOK_INTERVAL_LATER: Duration = Duration::from_millis(500);

/// A slot that moves for so long has many keys, or waits for someone: looking less often costs it little.
const SOON_MS: i64 = 10_000;

/// How long a server may take to say what it sees.
const VIEW_MAX: Duration = Duration::from_secs(2);

/// Where the status line has which slots are in motion.
const PLACE: &str = "slots";

/// The same for what keeps them from being looked at.
const LOOK_PLACE: &str = "looking at slots";

/// What one server sees.
struct View {
    topology: Topology,
    /// Slots that it gives away or takes.
    busy: HashSet<Slot>,
}

/// What all of them saw.
struct Views(Vec<(View, HashMap<HostPort, Shard>)>);

impl Views {
    /// The owner of a slot that all views name, if none shows it on the move.
    fn rest(&self, slot: Slot) -> Option<Shard> {
        let mut owners = self.0.iter().map(|(view, shards)| {
            let owner = view.topology.owner(slot).filter(|_| !view.busy.contains(&slot))?;
            shards.get(&owner.address).copied()
        });
        let first = owners.next()??;
        owners.all(|owner| owner == Some(first)).then_some(first)
    }
}

impl Motions {
    /// Looks for ever, as long as something is in motion.
    pub async fn watch(self: Arc<Self>, plan: Arc<Plan>) {
        let mut conns = HashMap::new();
        loop {
            if let Err(error) = self.tell_lost(&plan).await {
                tracing::warn!(error = %error, "the target can't be told of slots that it has lost: trying on");
            }
            let begun = lock(&self.awaited).is_empty();
            let unchecked = if begun { lock(&self.unchecked).take() } else { None };
            if !begun || !self.is_moving() && unchecked.is_none() {
                self.show(&plan);
                self.wanted.notified().await;
                continue;
            }
            match self.look(&mut conns).await {
                Ok((views, offsets, look)) => {
                    plan.status.clear(LOOK_PLACE);
                    // Before anything is done for slots that it has to doubt.
                    if self.check(&plan, &views, unchecked).await {
                        self.with(|machine| machine.looked(&look, |slot| views.rest(slot), &offsets));
                    }
                }
                Err(error) => {
                    self.check_again(unchecked);
                    plan.status.waiting(LOOK_PLACE, &format!("{error}: slots can't be looked at"));
                }
            }
            self.show(&plan);
            let longest = self.with(|machine| machine.in_motion().map(|(_, since, _)| now_ms() - since).max());
            sleep(if longest.is_some_and(|ms| ms > SOON_MS) { LOOK_INTERVAL_LATER } else { LOOK_INTERVAL }).await;
        }
    }

    /// The second look of a start: a slot that isn't at rest at its feeder by all views may have begun to move before
    /// its streams were followed, and so may one that is in motion since then. False if it couldn't be made.
    async fn check(&self, plan: &Plan, views: &Views, unchecked: Option<Unchecked>) -> bool {
        let Some(unchecked) = unchecked else { return true };
        let odd: Vec<Slot> = self.with(|machine| {
            let moved = |slot: &Slot| match machine.feeder(*slot) {
                Some(feeder) => views.rest(*slot) != Some(feeder),
                None => !unchecked.moved_before.contains(slot),
            };
            Slot::all().filter(moved).collect()
        });
        match self.doubt(plan, &plan.identity, odd).await {
            Ok(()) => true,
            Err(error) => {
                self.check_again(Some(unchecked));
                tracing::warn!(error = %error, "what was seen of slots can't be written to the target: trying on");
                false
            }
        }
    }

    /// A check that couldn't be made is made again, unless a later one is due.
    fn check_again(&self, unchecked: Option<Unchecked>) {
        let mut due = lock(&self.unchecked);
        if due.is_none() {
            *due = unchecked;
        }
    }

    /// What all shards' primaries see, and then how far their streams are.
    ///
    /// # Errors
    /// When one can't be asked.
    async fn look(&self, conns: &mut HashMap<HostPort, Conn>) -> Result<(Views, Offsets, Look<Slot>), cluster::Error> {
        let look = self.with(|machine| machine.look());
        let mut origins: Vec<(Shard, Origin)> =
            lock(&self.origins).iter().map(|(shard, origin)| (*shard, origin.clone())).collect();
        // One that isn't followed yet has no say: its slots can't come to rest there before it is.
        let mut heard = Offsets::new();
        self.with(|machine| {
            origins.retain(|(shard, _)| {
                heard.extend(machine.decoded_until(*shard).map(|offset| (*shard, offset)));
                heard.contains_key(shard)
            });
        });
        let mut asked = Vec::new();
        for (shard, origin) in &origins {
            let server = origin.primary().locate().await?;
            let kept = conns.remove(&server.address);
            let view = async {
                let mut conn = match kept {
                    Some(conn) => conn,
                    None => server.connect().await?,
                };
                let topology = self.cluster.view_of(&mut conn, &server.address).await?;
                let busy = busy(&mut conn, &topology).await?;
                Ok::<_, cluster::Error>((conn, View { topology, busy }))
            };
            let (conn, view) = in_time(&server.address, view).await?;
            asked.push((*shard, server.address, conn, view));
        }
        let replaced: HashSet<HostPort> = asked.iter().flat_map(|(.., view)| not_primaries(&view.topology)).collect();
        let (mut views, mut offsets) = (Vec::new(), Offsets::new());
        for (shard, address, mut conn, view) in asked {
            let offset = in_time(&address, async { Ok(offset(&mut conn).await?) }).await?;
            // A former primary takes itself for one until it hears of the next, and knows less than what was heard.
            if heard.get(&shard) > Some(&offset) || replaced.contains(&address) {
                return Err(no_primary(&address, "former primary").into());
            }
            offsets.insert(shard, offset);
            views.push((view, shards_at(&lock(&self.origins))));
            conns.insert(address, conn);
        }
        Ok((Views(views), offsets, look))
    }

    /// Says which slots are in motion, and for how long.
    fn show(&self, plan: &Plan) {
        let moving: Vec<(Slot, i64)> =
            self.with(|machine| machine.in_motion().map(|(slot, since, _)| (slot, since)).collect());
        match moving.iter().min_by_key(|(_, since)| *since) {
            None => plan.status.clear(PLACE),
            Some((slot, _)) if moving.len() == 1 => {
                plan.status.waiting(PLACE, &format!("slot {slot} is in motion on the source"));
            }
            Some((slot, _)) => {
                let words = format!("slot {slot} and {} others are in motion on the source", moving.len() - 1);
                plan.status.waiting(PLACE, &words);
            }
        }
    }
}

/// Which shard owns each slot, by one view.
pub(super) fn owners(topology: &Topology, origins: &BTreeMap<Shard, Origin>) -> BTreeMap<Slot, Shard> {
    let shards = shards_at(origins);
    let owned = topology.owners().filter_map(|primary| Some((primary, *shards.get(&primary.address)?)));
    let slots = owned.flat_map(|(primary, shard)| primary.slots.iter().map(move |slot| (slot, shard)));
    slots.filter(|(slot, _)| topology.owner(*slot).is_some()).collect()
}

/// Which shard's primary is at an address.
fn shards_at(origins: &BTreeMap<Shard, Origin>) -> HashMap<HostPort, Shard> {
    origins.iter().filter_map(|(shard, origin)| Some((origin.primary().known()?, *shard))).collect()
}

/// The nodes that a view takes for replicas, or for gone.
fn not_primaries(topology: &Topology) -> impl Iterator<Item = HostPort> {
    let primaries = || topology.primaries().iter();
    let gone = primaries().filter(|primary| primary.health == Health::Failed).map(|primary| &primary.address);
    let replicas = primaries().flat_map(|primary| &primary.replicas).map(|replica| &replica.address);
    gone.chain(replicas).cloned()
}

fn no_primary(address: impl ToString, role: &str) -> conn::Error {
    conn::Error::NotPrimary { side: Side::Source, address: address.to_string(), role: role.to_owned() }
}

/// A server that is stopped says nothing.
async fn in_time<T>(
    address: &HostPort,
    answer: impl Future<Output = Result<T, cluster::Error>>,
) -> Result<T, cluster::Error> {
    let late = || conn::Error::Timeout { side: Side::Source, address: address.to_string(), after: VIEW_MAX };
    timeout(VIEW_MAX, answer).await.unwrap_or_else(|_| Err(late().into()))
}

/// How far a primary's stream is.
async fn offset(conn: &mut Conn) -> Result<ReplOffset, conn::Error> {
    let reply = conn.ask(&[&b"INFO"[..], b"replication"]).await?;
    let info = Info::parse(reply.bytes().unwrap_or_default());
    if let Some(role @ "slave") = info.get("role") {
        return Err(no_primary(conn.address(), role));
    }
    Ok(ReplOffset(info.number("master_repl_offset").unwrap_or(0)))
}

/// The slots that a server gives away or takes, in whichever way.
async fn busy(conn: &mut Conn, topology: &Topology) -> Result<HashSet<Slot>, conn::Error> {
    let mut busy: HashSet<Slot> = topology.motions().iter().map(|motion| motion.slot).collect();
    // Valkey 9, and Redis 8.4: moves that CLUSTER NODES doesn't show. Others don't know the words.
    for command in [&[&b"CLUSTER"[..], b"GETSLOTMIGRATIONS"][..], &[b"CLUSTER", b"MIGRATION", b"STATUS", b"ALL"]] {
        match conn.call(command).await? {
            Reply::Array(moves) => moves.iter().filter_map(unfinished).for_each(|slots| busy.extend(slots)),
            // Whether something moves can't be told then.
            Reply::Error(words) if words.starts_with("NOPERM") => {
                return Err(conn.refused(&command.join(&b' '), words));
            }
            _ => {}
        }
    }
    Ok(busy)
}

/// The slots of a move that hasn't ended. A state that nobody knows is taken for one that goes on.
fn unfinished(of: &Reply) -> Option<Vec<Slot>> {
    let pairs = of.array()?;
    let field = |names: &[&[u8]]| {
        let pair =
            pairs.chunks_exact(2).find(|pair| pair.first().and_then(Reply::bytes).is_some_and(|n| names.contains(&n)));
        pair.and_then(|pair| pair.get(1)).and_then(Reply::bytes)
    };
    const ENDED: [&[u8]; 5] = [b"success", b"failed", b"cancelled", b"canceled", b"completed"];
    if field(&[b"state"]).is_some_and(|state| ENDED.contains(&state)) {
        return None;
    }
    let ranges = std::str::from_utf8(field(&[b"slot_ranges", b"slots"])?).ok()?;
    let slot = |text: &str| text.parse().ok().and_then(Slot::new);
    let mut slots = Vec::new();
    for range in ranges.split([' ', ',']) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Some(first), Some(last)) = (slot(first), slot(last)) {
            slots.extend((first.number()..=last.number()).filter_map(Slot::new));
        }
    }
    Some(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.into())
    }

    #[test]
    fn move_that_has_not_ended_keeps_its_slots_busy() {
        let of = |state: &str, slots: &str| {
            Reply::Array(vec![bulk("name"), bulk("x"), bulk("slot_ranges"), bulk(slots), bulk("state"), bulk(state)])
        };
        let numbers =
            |reply: &Reply| unfinished(reply).map(|slots| slots.iter().map(|s| s.number()).collect::<Vec<_>>());
        assert_eq!(numbers(&of("snapshotting", "1-3 7")), Some(vec![1, 2, 3, 7]));
        assert_eq!(numbers(&of("some new state", "1-1,9-10")), Some(vec![1, 9, 10]));
        assert_eq!(numbers(&of("success", "1-3")), None);
        assert_eq!(numbers(&of("failed", "1-3")), None);
        assert_eq!(numbers(&Reply::Null), None);
    }
}
