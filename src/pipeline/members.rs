//! Which shards a cluster has, from look to look: what fails over stays the same shard.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::endpoint::HostPort;
use crate::net::topology::{Health, Primary, Topology};
use crate::slot::Slots;

/// In so many looks in a row a primary must be missing before it has left.
const LOOKS_GONE: u32 = 3;

/// In so many looks in a row a node that was of a shard must be a primary by itself before it is a new one: after a
/// failover nodes hear of the new owner of the slots before they hear that the old one is a replica.
const LOOKS_NEW: u32 = 5;

/// A shard of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    number: u32,
    /// The id of its primary.
    primary: String,
    address: HostPort,
    /// The ids of its replicas.
    replicas: BTreeSet<String>,
    /// The ids of all nodes that were of it and aren't of another.
    nodes: BTreeSet<String>,
    /// What its primary owned when that was last seen.
    slots: Slots,
    /// How often in a row it was missing.
    missing: u32,
}

/// The shards of a cluster.
#[derive(Debug, Default)]
pub struct Members {
    shards: Vec<Member>,
    next: u32,
    /// The ids of nodes that are or were of a shard.
    known: BTreeSet<String>,
    /// Nodes that were of a shard and are primaries by themselves: in how many looks in a row.
    apart: BTreeMap<String, u32>,
}

/// What a look has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A primary is there that none of the shards has.
    New { number: u32, address: HostPort, slots: Slots },
    /// The shard's primary is at this address now, perhaps another node.
    Moved { number: u32, address: HostPort },
    /// The shard's primary owns these slots now.
    Slots { number: u32, slots: Slots },
    /// The shard has no primary any more, and its slots are others'.
    Gone { number: u32 },
}

/// What has become of a shard's primary.
enum Now<'a> {
    Is(&'a Primary),
    /// It can't be told, or nobody has taken its place yet.
    Unclear,
    Left,
}

impl Members {
    /// Adds a shard as it is found at the start.
    pub fn add(&mut self, number: u32, primary: &Primary) {
        self.next = self.next.max(number + 1);
        let mut member = Member::new(number);
        member.take(primary);
        self.known.extend(member.seen());
        self.shards.push(member);
    }

    /// Takes what a look has shown; returns what is new in it.
    pub fn look(&mut self, topology: &Topology) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut taken: BTreeSet<String> = BTreeSet::new();
        for at in 0..self.shards.len() {
            let now = self.now(at, topology, &taken);
            let Some(member) = self.shards.get_mut(at) else { continue };
            match now {
                Now::Is(primary) => {
                    taken.insert(primary.id.clone());
                    changes.extend(member.take(primary));
                    member.missing = 0;
                    let seen: Vec<String> = member.seen().collect();
                    for (_, other) in self.shards.iter_mut().enumerate().filter(|(of, _)| *of != at) {
                        other.nodes.retain(|id| !seen.contains(id));
                    }
                    self.known.extend(seen);
                }
                Now::Unclear => _ = taken.insert(member.primary.clone()),
                Now::Left => member.missing += 1,
            }
        }
        let gone = self.shards.extract_if(.., |member| member.missing >= LOOKS_GONE);
        changes.extend(gone.map(|member| Change::Gone { number: member.number }));
        let before = std::mem::take(&mut self.apart);
        for primary in topology.primaries() {
            let serves = !matches!(primary.health, Health::Failed | Health::Suspected);
            if serves && !taken.contains(&primary.id) {
                let looks = before.get(&primary.id).copied().unwrap_or(0) + 1;
                if self.known.contains(&primary.id) && looks < LOOKS_NEW {
                    self.apart.insert(primary.id.clone(), looks);
                    continue;
                }
                let number = self.next;
                self.add(number, primary);
                let (address, slots) = (primary.address.clone(), primary.slots.clone());
                changes.push(Change::New { number, address, slots });
            }
        }
        changes
    }

    /// The primary of a shard. `taken`: those of the shards before it.
    fn now<'a>(&self, at: usize, topology: &'a Topology, taken: &BTreeSet<String>) -> Now<'a> {
        let Some(member) = self.shards.get(at) else { return Now::Unclear };
        let before = topology.primary(&member.primary);
        let others: BTreeSet<&str> = self.shards.iter().map(|other| other.primary.as_str()).collect();
        let free = |p: &&Primary| !taken.contains(&p.id) && !others.contains(p.id.as_str());
        let follows = |p: &Primary| member.replicas.contains(&p.id);
        let has_its_slots = |p: &Primary| !p.slots.is_disjoint(&member.slots);
        let heirs = || topology.primaries().iter().filter(free);
        // A node hears of the new owner of the slots before it hears that the old one is a replica, or that it is dead; and
        // where one failover follows the other, before it heard who follows whom.
        let promoted = heirs().find(|p| (follows(p) || member.nodes.contains(&p.id)) && has_its_slots(p));
        if let Some(primary) = promoted.filter(|_| before.is_none_or(|p| !has_its_slots(p))) {
            return Now::Is(primary);
        }
        if let Some(primary) = before.filter(|p| p.health != Health::Failed || !p.slots.is_empty()) {
            return Now::Is(primary);
        }
        if let Some(heir) = heirs().find(|p| has_its_slots(p)).or_else(|| heirs().find(|p| follows(p))) {
            return Now::Is(heir);
        }
        let owned = member.slots.iter().all(|slot| topology.owner(slot).is_some());
        // One that failed and has no slots is nobody's primary any more; it is a new one if it comes back.
        let left = before.is_none_or(|p| p.health == Health::Failed && p.slots.is_empty());
        if left && owned && topology.is_whole() { Now::Left } else { Now::Unclear }
    }
}

impl Member {
    fn new(number: u32) -> Self {
        Member {
            number,
            primary: String::new(),
            address: HostPort { host: String::new(), port: 0 },
            replicas: BTreeSet::new(),
            nodes: BTreeSet::new(),
            slots: Slots::default(),
            missing: 0,
        }
    }

    /// The nodes that it has by the last look.
    fn seen(&self) -> impl Iterator<Item = String> {
        std::iter::once(&self.primary).chain(&self.replicas).cloned()
    }

    fn take(&mut self, primary: &Primary) -> Vec<Change> {
        let (number, mut changes) = (self.number, Vec::new());
        if self.address != primary.address {
            changes.push(Change::Moved { number, address: primary.address.clone() });
        }
        if self.slots != primary.slots {
            changes.push(Change::Slots { number, slots: primary.slots.clone() });
        }
        self.primary.clone_from(&primary.id);
        self.address = primary.address.clone();
        self.slots = primary.slots.clone();
        self.replicas = primary.replicas.iter().map(|replica| replica.id.clone()).collect();
        self.nodes.extend(self.seen().collect::<Vec<_>>());
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::topology::{View, from_nodes};
    use crate::resp::reply::Reply;
    use std::collections::BTreeMap;

    /// Nodes `name flags primary slots`; a name is one digit, which makes its id and port.
    fn topology(nodes: &[&str]) -> Topology {
        let line = |node: &&str| {
            let words: Vec<&str> = node.split(' ').collect();
            let id = |name: &str| if name == "-" { "-".to_owned() } else { name.repeat(40) };
            let slots = words.get(3).copied().unwrap_or_default();
            format!("{} h:700{}@17000 {} {} 0 0 1 connected {slots}\n", id(words[0]), words[0], words[1], id(words[2]))
        };
        let text: String = nodes.iter().map(line).collect();
        let (asked, map) = (HostPort { host: "h".into(), port: 7001 }, BTreeMap::new());
        let view = View { asked: &asked, tls: false, address_map: &map };
        from_nodes(&Reply::Bulk(text.into_bytes()), &view).unwrap()
    }

    fn at(port: u16) -> HostPort {
        HostPort { host: "h".into(), port }
    }

    fn slots(text: &str) -> Slots {
        text.parse().unwrap()
    }

    const TWO: [&str; 4] = ["1 master - 0-8000", "2 master - 8001-16383", "3 slave 1", "4 slave 2"];

    fn two() -> Members {
        let mut members = Members::default();
        topology(&TWO).primaries().iter().zip(0..).for_each(|(primary, number)| members.add(number, primary));
        assert_eq!(members.look(&topology(&TWO)), []);
        members
    }

    #[test]
    fn promoted_replica_is_the_same_shard() {
        let mut members = two();
        // Dead, and nobody has taken its place yet.
        let dead = topology(&["1 master,fail - 0-8000", "2 master - 8001-16383", "3 slave 1", "4 slave 2"]);
        assert_eq!(members.look(&dead), []);
        let promoted = topology(&["1 master,fail -", "2 master - 8001-16383", "3 master - 0-8000", "4 slave 2"]);
        assert_eq!(members.look(&promoted), [Change::Moved { number: 0, address: at(7003) }]);
        // It comes back, takes itself for a primary for a while, and takes over again.
        let still = topology(&["1 master -", "2 master - 8001-16383", "3 master - 0-8000", "4 slave 2"]);
        (1..LOOKS_NEW).for_each(|_| assert_eq!(members.look(&still), []));
        let back = topology(&["1 slave 3", "2 master - 8001-16383", "3 master - 0-8000", "4 slave 2"]);
        assert_eq!(members.look(&back), []);
        assert_eq!(members.look(&topology(&TWO)), [Change::Moved { number: 0, address: at(7001) }]);
        // It hears of the failover before it hears who follows whom.
        assert_eq!(members.look(&still), [Change::Moved { number: 0, address: at(7003) }]);
        (2..LOOKS_NEW).for_each(|_| assert_eq!(members.look(&still), []));
        let new = Change::New { number: 2, address: at(7001), slots: Slots::default() };
        assert_eq!(members.look(&still), [new]);
    }

    #[test]
    fn node_that_was_of_the_shard_and_has_its_slots_is_its_primary_whatever_is_said_of_the_other() {
        let mut members = two();
        let promoted = topology(&["2 master - 8001-16383", "3 master - 0-8000", "4 slave 2"]);
        assert_eq!(members.look(&promoted), [Change::Moved { number: 0, address: at(7003) }]);
        // It is dead, which nobody has noticed yet, nor that the former primary followed it.
        let back = topology(&["1 master - 0-8000", "2 master - 8001-16383", "3 master -", "4 slave 2"]);
        assert_eq!(members.look(&back), [Change::Moved { number: 0, address: at(7001) }]);
    }

    #[test]
    fn failed_primary_without_slots_has_left_after_some_looks() {
        let mut members = two();
        let emptied = topology(&["1 master -", "2 master - 0-16383", "4 slave 2"]);
        assert_eq!(members.look(&emptied).len(), 2);
        let failed = topology(&["1 master,fail -", "2 master - 0-16383", "4 slave 2"]);
        (1..LOOKS_GONE).for_each(|_| assert_eq!(members.look(&failed), []));
        assert_eq!(members.look(&failed), [Change::Gone { number: 0 }]);
        (0..9).for_each(|_| assert_eq!(members.look(&failed), []));
    }

    #[test]
    fn heir_that_was_no_known_replica_is_known_by_its_slots() {
        let mut members = two();
        let other = topology(&["2 master - 8001-16383", "9 master - 0-8000"]);
        assert_eq!(members.look(&other), [Change::Moved { number: 0, address: at(7009) }]);
    }

    #[test]
    fn new_primary_is_a_new_shard_and_one_that_only_failed_is_none() {
        let mut members = two();
        let with = |more: &str| topology(&[&TWO[..], &[more]].concat());
        assert_eq!(members.look(&with("5 master,fail -")), []);
        let new = Change::New { number: 2, address: at(7005), slots: Slots::default() };
        assert_eq!(members.look(&with("5 master -")), [new]);
        assert_eq!(members.look(&with("5 master -")), []);
        let moved = topology(&["1 master - 1-8000", "2 master - 8001-16383", "3 slave 1", "4 slave 2", "5 master - 0"]);
        let changes = members.look(&moved);
        let want =
            [Change::Slots { number: 0, slots: slots("1-8000") }, Change::Slots { number: 2, slots: slots("0") }];
        assert_eq!(changes, want);
    }

    #[test]
    fn primary_without_slots_stays_until_it_has_left_for_some_looks() {
        let mut members = two();
        let emptied = topology(&["1 master -", "2 master - 0-16383", "4 slave 2"]);
        assert_eq!(members.look(&emptied).len(), 2);
        assert_eq!(members.look(&emptied), []);
        // Its node follows another shard's primary now.
        let left = topology(&["1 slave 2", "2 master - 0-16383", "4 slave 2"]);
        assert_eq!(members.look(&left), []);
        assert_eq!(members.look(&emptied), []);
        assert_eq!(members.look(&left), []);
        assert_eq!(members.look(&left), []);
        assert_eq!(members.look(&left), [Change::Gone { number: 0 }]);
        let new = Change::New { number: 2, address: at(7001), slots: Slots::default() };
        (1..LOOKS_NEW).for_each(|_| assert_eq!(members.look(&emptied), []));
        assert_eq!(members.look(&emptied), [new], "numbers aren't used again");
    }

    #[test]
    fn shard_whose_slots_nobody_has_is_waited_for() {
        let mut members = two();
        let half = topology(&["2 master - 8001-16383", "4 slave 2"]);
        (0..9).for_each(|_| assert_eq!(members.look(&half), []));
    }
}
