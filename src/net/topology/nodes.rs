//! CLUSTER NODES: a line for each node.
//!
//! `<id> <ip:port@cport[,hostname[,name=value]...]> <flags> <primary's id> <ping> <pong> <epoch> <link> <slot>...`

use std::collections::BTreeMap;

use super::{Direction, Fault, Health, Motion, NODES_MAX, Primary, Replica, View};
use crate::net::endpoint::HostPort;
use crate::slot::{Slot, Slots};

/// What the answer says.
pub(super) struct Nodes {
    pub primaries: Vec<Primary>,
    pub motions: Vec<Motion>,
    /// The highest configuration epoch.
    pub epoch: u64,
}

/// One line, as far as it matters.
struct Line<'a> {
    id: &'a str,
    address: HostPort,
    health: Health,
    /// It's the node that was asked.
    asked: bool,
    /// The id of the primary that it follows.
    primary: Option<&'a str>,
    epoch: u64,
    slots: Slots,
    motions: Vec<Motion>,
}

/// The primaries with their replicas, and the slots on the move. Lines that name no node that is a member and has an
/// address are left out: handshakes, forgotten ones (`noaddr`), other forms.
pub(super) fn nodes(text: &[u8], view: &View<'_>) -> Result<Nodes, Fault> {
    let text = String::from_utf8_lossy(text);
    let mut primaries: BTreeMap<&str, Primary> = BTreeMap::new();
    let (mut replicas, mut motions, mut epoch) = (Vec::new(), Vec::new(), 0);
    for (count, text) in text.lines().enumerate() {
        if count >= NODES_MAX {
            return Err(Fault::TooMany);
        }
        let Some(line) = line(text, view) else { continue };
        if line.asked {
            motions = line.motions;
        }
        epoch = epoch.max(line.epoch);
        let (id, address, health) = (line.id.to_owned(), line.address, line.health);
        match line.primary {
            Some(primary) => replicas.push((primary, Replica { id, address, health })),
            None => {
                let primary = Primary { id, address, health, slots: line.slots, replicas: Vec::new() };
                primaries.insert(line.id, primary);
            }
        }
    }
    for (id, replica) in replicas {
        // One whose primary is unknown is of no use: nobody can tell what it holds.
        if let Some(primary) = primaries.get_mut(id) {
            primary.replicas.push(replica);
        }
    }
    Ok(Nodes { primaries: primaries.into_values().collect(), motions, epoch })
}

fn line<'a>(text: &'a str, view: &View<'_>) -> Option<Line<'a>> {
    let mut words = text.split_whitespace();
    let (id, place, flags, primary) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let is = |flag: &str| flags.split(',').any(|f| f == flag);
    if is("handshake") || is("noaddr") {
        return None;
    }
    let replica = is("slave") || is("replica");
    if !replica && !is("master") && !is("primary") {
        return None;
    }
    let health = match () {
        () if is("fail") => Health::Failed,
        () if is("fail?") => Health::Suspected,
        () => Health::Online,
    };
    let (mut slots, mut motions) = (Slots::default(), Vec::new());
    let epoch = words.nth(2).and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    // The state of the link comes before the slots.
    for word in words.skip(1) {
        match word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(text) => motions.extend(motion(id, text)),
            None => {
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                if let (Some(first), Some(last)) = (slot(first), slot(last)) {
                    slots.add(first..=last);
                }
            }
        }
    }
    let (address, asked) = (address(place, view)?, is("myself"));
    Some(Line { id, address, health, asked, primary: replica.then_some(primary), epoch, slots, motions })
}

/// `ip:port`, since 4.0 with the bus's port behind `@`, since 7.0 with a host name and more behind commas.
///
/// The ip is empty where the node doesn't know its own yet. IPv6 stands without brackets: `::1:7000@17000`.
fn address(place: &str, view: &View<'_>) -> Option<HostPort> {
    let mut parts = place.split(',');
    let ip_port = parts.next()?;
    let name = parts.next().filter(|name| !name.is_empty() && !name.contains('='));
    let (ip_port, _) = ip_port.rsplit_once('@').unwrap_or((ip_port, ""));
    let (ip, port) = ip_port.rsplit_once(':')?;
    let ip = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let host = if ip.is_empty() { name } else { Some(ip) };
    Some(view.reach(host, port))
}

/// `77->-<id>`: the node gives slot 77 away; `93-<-<id>`: it takes slot 93.
fn motion(node: &str, text: &str) -> Option<Motion> {
    let split = |arrow: &str| text.split_once(arrow).map(|(slot, id)| (slot, id.to_owned()));
    let (number, direction) = match (split("->-"), split("-<-")) {
        (Some((number, to)), _) => (number, Direction::MigratingTo(to)),
        (None, Some((number, from))) => (number, Direction::ImportingFrom(from)),
        (None, None) => return None,
    };
    Some(Motion { slot: slot(number)?, node: node.to_owned(), direction })
}

fn slot(text: &str) -> Option<Slot> {
    text.parse().ok().and_then(Slot::new)
}
