//! A model of a cluster: shards whose streams have no order between them, and slots that move.

use std::collections::{BTreeMap, BTreeSet};

use crate::delivery::motion::Effect;

pub const SHARDS: usize = 3;
pub const SLOTS: usize = 2;
pub const KEYS: usize = 3;

/// How much of the stream a unit is.
pub const UNIT_BYTES: u64 = 10;

/// The longest value, so that values that are joined don't grow without end.
const VALUE_MAX: usize = 40;

/// Slot and number.
pub type Key = (usize, usize);
pub type Data = BTreeMap<Key, Vec<u8>>;

/// What a unit does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Set(Key, u8),
    /// To one key or two.
    Push(Vec<Key>, u8),
    /// The second key's value is added to the first one's.
    Join(Key, Key),
    /// The whole value.
    Put(Key, Vec<u8>),
    Del(Vec<Key>),
    Trim(usize),
    FlushSlot(usize),
    FlushAll,
}

impl Change {
    pub fn keys(&self) -> Vec<Key> {
        match self {
            Change::Set(key, _) | Change::Put(key, _) => vec![*key],
            Change::Push(keys, _) | Change::Del(keys) => keys.clone(),
            Change::Join(to, from) => vec![*to, *from],
            Change::Trim(_) | Change::FlushSlot(_) | Change::FlushAll => Vec::new(),
        }
    }

    pub fn effect(&self) -> Effect {
        match self {
            Change::Set(..) | Change::Put(..) | Change::Push(..) | Change::Join(..) => Effect::Writes,
            Change::Del(_) => Effect::Removes,
            Change::Trim(_) => Effect::Trims,
            Change::FlushSlot(_) | Change::FlushAll => Effect::Empties,
        }
    }

    /// The slots that it concerns.
    pub fn slots(&self) -> Vec<usize> {
        match self {
            Change::Trim(slot) | Change::FlushSlot(slot) => vec![*slot],
            Change::FlushAll => (0..SLOTS).collect(),
            _ => self.keys().first().map(|key| key.0).into_iter().collect(),
        }
    }

    pub fn apply(&self, data: &mut Data) {
        match self {
            Change::Set(key, byte) => _ = data.insert(*key, vec![*byte]),
            Change::Push(keys, byte) => {
                for key in keys {
                    let value = data.entry(*key).or_default();
                    value.push(*byte);
                    value.truncate(VALUE_MAX);
                }
            }
            Change::Join(to, from) => {
                let added = data.get(from).cloned().unwrap_or_default();
                let value = data.entry(*to).or_default();
                value.extend(added);
                value.truncate(VALUE_MAX);
            }
            Change::Put(key, value) => _ = data.insert(*key, value.clone()),
            Change::Del(keys) => keys.iter().for_each(|key| _ = data.remove(key)),
            Change::Trim(slot) | Change::FlushSlot(slot) => data.retain(|key, _| key.0 != *slot),
            Change::FlushAll => data.clear(),
        }
    }
}

/// The ways in which a slot moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// SETSLOT and MIGRATE.
    Classic,
    /// The gainer streams ordinary commands; the loser then removes key by key.
    Commands,
    /// The gainer streams values; who must not have the keys trims the slot.
    Values,
}

#[derive(Debug, Clone)]
enum Move {
    Classic {
        to: usize,
    },
    Atomic {
        to: usize,
        trims: bool,
        imported: BTreeSet<Key>,
    },
    /// Keys return to the owner, which nobody shows.
    Back {
        from: usize,
    },
}

impl Move {
    fn other(&self) -> usize {
        match self {
            Move::Classic { to } | Move::Atomic { to, .. } => *to,
            Move::Back { from } => *from,
        }
    }
}

/// Whose part of a move a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Gainer,
    Loser,
}

/// What a shard's server says of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub owner: usize,
    pub busy: bool,
}

#[derive(Debug, Clone)]
pub struct Node {
    pub data: Data,
    pub stream: Vec<Change>,
    /// The data before each unit.
    before: Vec<Data>,
    sides: Vec<Option<Side>>,
    pub view: [View; SLOTS],
    /// Where each history but the first begins: the unit behind which the stream was cut.
    pub forks: Vec<usize>,
}

impl Node {
    fn run(&mut self, change: Change) {
        self.run_for(None, change);
    }

    fn run_for(&mut self, side: Option<Side>, change: Change) {
        self.sides.push(side);
        self.before.push(self.data.clone());
        change.apply(&mut self.data);
        self.stream.push(change);
    }

    /// The offset behind the last unit.
    pub fn end(&self) -> u64 {
        self.stream.len() as u64 * UNIT_BYTES
    }
}

/// What a shard answers when it is asked for a key.
pub enum Found {
    Value(Option<Vec<u8>>),
    Redirected,
}

pub struct Source {
    pub nodes: Vec<Node>,
    owner: [usize; SLOTS],
    moves: [Option<Move>; SLOTS],
    /// Slots that shards have lost and still hold keys of, and whether they trim them.
    cleanups: Vec<(usize, usize, bool)>,
    next: u8,
    /// What failovers have lost of moves: what gainers got, or what losers removed. Never both: a key lost on either
    /// side, so that no stream names it, is lost to the source and to everyone's knowledge.
    lost: Option<Side>,
}

impl Source {
    /// Slots are spread over the shards, and each has a key.
    pub fn new() -> Self {
        let mut view = [View { owner: 0, busy: false }; SLOTS];
        view.iter_mut().enumerate().for_each(|(slot, view)| view.owner = slot % SHARDS);
        let node = Node {
            data: Data::new(),
            stream: Vec::new(),
            before: Vec::new(),
            sides: Vec::new(),
            view,
            forks: Vec::new(),
        };
        let mut source = Source {
            nodes: vec![node; SHARDS],
            owner: view.map(|view| view.owner),
            moves: [const { None }; SLOTS],
            cleanups: Vec::new(),
            next: 0,
            lost: None,
        };
        for slot in 0..SLOTS {
            source.write(slot, 0, 0, 1);
        }
        source
    }

    /// What all clients see.
    pub fn truth(&self) -> Data {
        let owned = |slot: usize| self.nodes[self.owner[slot]].data.iter().filter(move |(key, _)| key.0 == slot);
        (0..SLOTS).flat_map(owned).map(|(key, value)| (*key, value.clone())).collect()
    }

    pub fn owner(&self, slot: usize) -> usize {
        self.owner[slot]
    }

    /// A client's write on one key or two of a slot.
    pub fn write(&mut self, slot: usize, kind: usize, a: usize, b: usize) {
        let (a, b) = ((slot, a % KEYS), (slot, b % KEYS));
        self.next = self.next.wrapping_add(1);
        let pair = if a == b { vec![a] } else { vec![a, b] };
        self.client(match kind % 6 {
            0 => Change::Push(vec![a], self.next),
            1 => Change::Set(a, self.next),
            2 => Change::Push(pair, self.next),
            3 if a != b => Change::Join(a, b),
            4 => Change::Del(pair),
            _ => Change::Del(vec![a]),
        });
    }

    fn client(&mut self, change: Change) {
        let slot = change.slots()[0];
        let owner = self.owner[slot];
        let there = change.keys().iter().filter(|key| self.nodes[owner].data.contains_key(key)).count();
        let server = match &self.moves[slot] {
            Some(Move::Classic { to }) if there == 0 => *to,
            // TRYAGAIN.
            Some(Move::Classic { .. }) if there < change.keys().len() => return,
            _ => owner,
        };
        // Servers stream no removal of what isn't there.
        let data = &self.nodes[server].data;
        let change = match change {
            Change::Del(keys) => Change::Del(keys.into_iter().filter(|key| data.contains_key(key)).collect()),
            change => change,
        };
        if change.keys().is_empty() {
            return;
        }
        if let Some(Move::Atomic { to, .. }) = &self.moves[slot] {
            let to = *to;
            change.keys().into_iter().for_each(|key| self.import(slot, key));
            self.nodes[to].run_for(Some(Side::Gainer), change.clone());
        }
        self.nodes[server].run(change);
    }

    /// The gainer gets a key of the snapshot, if it hasn't.
    fn import(&mut self, slot: usize, key: Key) {
        let owner = self.owner[slot];
        let Some(Move::Atomic { to, trims, imported }) = &mut self.moves[slot] else { return };
        let Some(value) = self.nodes[owner].data.get(&key).filter(|_| imported.insert(key)).cloned() else { return };
        let gainer = &mut self.nodes[*to];
        if *trims {
            gainer.run_for(Some(Side::Gainer), Change::Put(key, value));
        } else {
            value.iter().for_each(|byte| gainer.run_for(Some(Side::Gainer), Change::Push(vec![key], *byte)));
        }
    }

    pub fn begin(&mut self, slot: usize, to: usize, kind: Kind) {
        let owner = self.owner[slot];
        if self.moves[slot].is_some() || owner == to {
            return;
        }
        self.clean_up(slot);
        // What a failover has left there.
        let left: Vec<Key> = self.nodes[to].data.keys().filter(|key| key.0 == slot).copied().collect();
        left.into_iter().for_each(|key| self.nodes[to].run(Change::Del(vec![key])));
        self.moves[slot] = Some(match kind {
            Kind::Classic => Move::Classic { to },
            Kind::Commands => Move::Atomic { to, trims: false, imported: BTreeSet::new() },
            Kind::Values => Move::Atomic { to, trims: true, imported: BTreeSet::new() },
        });
        self.gossip(owner);
        self.gossip(to);
    }

    /// The next key of a move.
    pub fn move_key(&mut self, slot: usize) {
        let owner = self.owner[slot];
        let of_slot = |node: &Node| node.data.keys().find(|key| key.0 == slot).copied();
        match self.moves[slot].clone() {
            Some(Move::Classic { to }) => {
                if let Some(key) = of_slot(&self.nodes[owner]) {
                    self.migrate(key, owner, to);
                }
            }
            Some(Move::Atomic { imported, .. }) => {
                let next = self.nodes[owner].data.keys().find(|key| key.0 == slot && !imported.contains(key)).copied();
                next.into_iter().for_each(|key| self.import(slot, key));
            }
            Some(Move::Back { from }) => match of_slot(&self.nodes[from]) {
                Some(key) => self.migrate(key, from, owner),
                None => self.moves[slot] = None,
            },
            None => {}
        }
    }

    fn migrate(&mut self, key: Key, from: usize, to: usize) {
        let value = self.nodes[from].data.get(&key).cloned().unwrap_or_default();
        self.nodes[to].run_for(Some(Side::Gainer), Change::Put(key, value));
        self.nodes[from].run_for(Some(Side::Loser), Change::Del(vec![key]));
    }

    /// The gainer has the slot. The others learn it later.
    pub fn finish(&mut self, slot: usize) {
        let loser = self.owner[slot];
        match self.moves[slot].clone() {
            Some(Move::Classic { to }) => {
                while self.nodes[loser].data.keys().any(|key| key.0 == slot) {
                    self.move_key(slot);
                }
                self.owner[slot] = to;
                self.moves[slot] = None;
                self.nodes[to].view[slot] = View { owner: to, busy: false };
                self.nodes[loser].view[slot] = View { owner: to, busy: false };
            }
            Some(Move::Atomic { to, trims, .. }) => {
                let keys: Vec<Key> = self.nodes[loser].data.keys().filter(|key| key.0 == slot).copied().collect();
                keys.into_iter().for_each(|key| self.import(slot, key));
                self.owner[slot] = to;
                self.moves[slot] = None;
                self.nodes[to].view[slot] = View { owner: to, busy: false };
                self.cleanups.push((loser, slot, trims));
            }
            Some(Move::Back { .. }) => {
                while self.moves[slot].is_some() {
                    self.move_key(slot);
                }
            }
            None => {}
        }
    }

    /// A loser learns that a slot has gone, and removes its keys.
    pub fn clean_up(&mut self, slot: usize) {
        let Some(at) = self.cleanups.iter().position(|(_, of, _)| *of == slot) else { return };
        let (node, _, trims) = self.cleanups.remove(at);
        self.gossip(node);
        self.drop_slot(node, slot, trims);
    }

    fn drop_slot(&mut self, node: usize, slot: usize, trims: bool) {
        let keys: Vec<Key> = self.nodes[node].data.keys().filter(|key| key.0 == slot).copied().collect();
        if trims {
            self.nodes[node].run_for(Some(Side::Loser), Change::Trim(slot));
        } else {
            keys.into_iter().for_each(|key| self.nodes[node].run_for(Some(Side::Loser), Change::Del(vec![key])));
        }
    }

    /// A move is broken off. `openly`: the servers show it until all keys are back.
    pub fn cancel(&mut self, slot: usize, openly: bool) {
        let owner = self.owner[slot];
        match self.moves[slot].clone() {
            Some(Move::Classic { to }) => {
                while openly && let Some(key) = self.nodes[to].data.keys().find(|key| key.0 == slot).copied() {
                    self.migrate(key, to, owner);
                }
                self.moves[slot] = (!openly).then_some(Move::Back { from: to });
                self.gossip(owner);
                self.gossip(to);
            }
            Some(Move::Atomic { to, trims, .. }) => {
                self.moves[slot] = None;
                self.drop_slot(to, slot, trims);
                self.gossip(owner);
                self.gossip(to);
            }
            Some(Move::Back { .. }) | None => {}
        }
    }

    /// A node learns the truth.
    pub fn gossip(&mut self, node: usize) {
        for slot in 0..SLOTS {
            let part = |m: &Move| !matches!(m, Move::Back { .. }) && (m.other() == node || self.owner[slot] == node);
            let busy = self.moves[slot].as_ref().is_some_and(part);
            self.nodes[node].view[slot] = View { owner: self.owner[slot], busy };
        }
        // A loser that learns it removes what it has: in its own time.
    }

    /// An operator empties a slot or a shard.
    pub fn flush(&mut self, slot: usize, all: bool) {
        let owner = self.owner[slot];
        let atomic = |(of, m): (usize, &Option<Move>)| matches!(m, Some(Move::Atomic { to, .. }) if *to == owner || self.owner[of] == owner);
        if self.moves.iter().enumerate().any(atomic) || !all && self.moves[slot].is_some() {
            return;
        }
        self.nodes[owner].run(if all { Change::FlushAll } else { Change::FlushSlot(slot) });
    }

    /// A replica without the last units takes over.
    pub fn failover(&mut self, node: usize, lost: usize) {
        for slot in 0..SLOTS {
            let of =
                matches!(&self.moves[slot], Some(Move::Atomic { to, .. }) if *to == node || self.owner[slot] == node);
            if of {
                self.cancel(slot, true);
            }
        }
        let node = &mut self.nodes[node];
        let mut kept = node.stream.len().saturating_sub(lost);
        for (at, side) in node.sides.iter().enumerate().skip(kept).filter_map(|(at, side)| Some((at, (*side)?))) {
            if *self.lost.get_or_insert(side) != side {
                kept = at + 1;
            }
        }
        if let Some(data) = node.before.get(kept) {
            node.data = data.clone();
        }
        node.before.truncate(kept);
        node.sides.truncate(kept);
        node.stream.truncate(kept);
        node.forks.push(kept);
    }

    /// Asks a shard for a key of a slot.
    pub fn read(&self, node: usize, key: Key) -> Found {
        let node_of = &self.nodes[node];
        let view = node_of.view[key.0];
        let value = node_of.data.get(&key);
        let leaves = matches!(&self.moves[key.0], Some(Move::Classic { .. })) && view.busy;
        if view.owner != node || leaves && value.is_none() {
            return Found::Redirected;
        }
        Found::Value(value.cloned())
    }

    /// Ends all moves, and everybody knows it.
    pub fn settle(&mut self) {
        for slot in 0..SLOTS {
            self.finish(slot);
            self.clean_up(slot);
        }
        (0..SHARDS).for_each(|node| self.gossip(node));
    }
}
