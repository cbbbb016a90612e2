//! CLUSTER SHARDS and CLUSTER SLOTS: lists of shards with their nodes, and of ranges with theirs.

use std::collections::{BTreeMap, HashSet};

use super::{Fault, Health, NODES_MAX, Primary, Replica, View};
use crate::net::endpoint::HostPort;
use crate::resp::reply::Reply;
use crate::slot::{Slot, Slots};

/// A node in either answer.
struct Node {
    id: String,
    address: HostPort,
    health: Health,
}

/// The primaries in an answer of CLUSTER SHARDS.
///
/// After a failover the old primary, while it's gone, stands as another primary in its shard: the slots are those of the
/// one that is well.
pub(super) fn shards(reply: &Reply, view: &View<'_>) -> Result<Vec<Primary>, Fault> {
    let (mut found, mut count) = (Vec::new(), 0);
    for shard in reply.array().ok_or(Fault::Form)? {
        let Some(numbers) = field(shard, "slots").and_then(Reply::array) else { continue };
        let Some(nodes) = field(shard, "nodes").and_then(Reply::array) else { continue };
        count += nodes.len();
        if count > NODES_MAX {
            return Err(Fault::TooMany);
        }
        let mut slots = Slots::default();
        for pair in numbers.chunks_exact(2) {
            if let (Some(first), Some(last)) = (slot(pair.first()), slot(pair.last())) {
                slots.add(first..=last);
            }
        }
        let (mut primaries, mut replicas) = (Vec::new(), Vec::new());
        for node in nodes {
            let role = field(node, "role").and_then(Reply::bytes);
            let Some(node) = shard_node(node, view) else { continue };
            match role {
                Some(b"master" | b"primary") => primaries.push(primary(node)),
                Some(_) => replicas.push(replica(node)),
                None => {}
            }
        }
        primaries.sort_by_key(|primary| primary.health == Health::Failed);
        if let Some(first) = primaries.first_mut() {
            first.slots = slots;
            first.replicas = replicas;
        }
        found.append(&mut primaries);
    }
    Ok(found)
}

/// The primaries in an answer of CLUSTER SLOTS.
pub(super) fn slots(reply: &Reply, view: &View<'_>) -> Result<Vec<Primary>, Fault> {
    let mut found: BTreeMap<String, Primary> = BTreeMap::new();
    let mut known: HashSet<(String, String)> = HashSet::new();
    for range in reply.array().ok_or(Fault::Form)? {
        let [first, last, nodes @ ..] = range.array().unwrap_or_default() else { continue };
        let (Some(first), Some(last)) = (slot(Some(first)), slot(Some(last))) else { continue };
        let mut nodes = nodes.iter().map(|node| slots_node(node, view));
        let Some(Some(owner)) = nodes.next() else { continue };
        let id = owner.id.clone();
        let owner = found.entry(id.clone()).or_insert_with(|| primary(owner));
        owner.slots.add(first..=last);
        for node in nodes.flatten() {
            if known.insert((id.clone(), node.id.clone())) {
                owner.replicas.push(replica(node));
            }
            if known.len() > NODES_MAX {
                return Err(Fault::TooMany);
            }
        }
    }
    Ok(found.into_values().collect())
}

fn primary(node: Node) -> Primary {
    let Node { id, address, health } = node;
    Primary { id, address, health, slots: Slots::default(), replicas: Vec::new() }
}

fn replica(node: Node) -> Replica {
    let Node { id, address, health } = node;
    Replica { id, address, health }
}

/// A node of a shard: names and values.
fn shard_node(node: &Reply, view: &View<'_>) -> Option<Node> {
    let text = |name: &str| field(node, name).and_then(text);
    let port = |name: &str| field(node, name).and_then(port);
    let port = match view.tls {
        true => port("tls-port").or_else(|| port("port")),
        false => port("port").or_else(|| port("tls-port")),
    }?;
    let health = match text("health").as_deref() {
        Some("fail" | "failed") => Health::Failed,
        Some("loading") => Health::Loading,
        _ => Health::Online,
    };
    let host = host(field(node, "endpoint"), text("ip"));
    Some(Node { id: text("id")?, address: view.reach(host.as_deref(), port), health })
}

/// A node of a range: endpoint, port, since 4.0 the id, since 7.0 further names and values.
fn slots_node(node: &Reply, view: &View<'_>) -> Option<Node> {
    let parts = node.array()?;
    let ip = parts.get(3).and_then(|more| field(more, "ip")).and_then(text);
    let host = host(parts.first(), ip);
    let address = view.reach(host.as_deref(), port(parts.get(1)?)?);
    let id = parts.get(2).and_then(text).unwrap_or_else(|| address.to_string());
    Some(Node { id, address, health: Health::Online })
}

/// The host to connect to; `None` stands for that of the asked node. So it is meant where the endpoint is nil or empty.
/// Where it's unknown (`?`: a host name is wanted and none is set) the ip is better, if that is told.
fn host(endpoint: Option<&Reply>, ip: Option<String>) -> Option<String> {
    let Some(endpoint) = endpoint else { return ip };
    match text(endpoint)? {
        unknown if unknown == "?" => ip.filter(|ip| ip != "?"),
        known => Some(known),
    }
}

/// The value behind a name, in a list of both.
fn field<'a>(list: &'a Reply, name: &str) -> Option<&'a Reply> {
    let mut pairs = list.array()?.chunks_exact(2);
    let pair = pairs.find(|pair| pair.first().and_then(Reply::bytes) == Some(name.as_bytes()))?;
    pair.last()
}

/// A text that isn't empty.
fn text(reply: &Reply) -> Option<String> {
    let text = String::from_utf8_lossy(reply.bytes()?).into_owned();
    (!text.is_empty()).then_some(text)
}

fn port(reply: &Reply) -> Option<u16> {
    reply.integer().and_then(|n| u16::try_from(n).ok()).filter(|port| *port > 0)
}

fn slot(reply: Option<&Reply>) -> Option<Slot> {
    reply?.integer().and_then(|n| u16::try_from(n).ok()).and_then(Slot::new)
}
