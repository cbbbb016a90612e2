//! The same against a cluster: every slot on a node of its own, which falls back apart from the others; lanes that hold
//! the slots that they feed, with a record in each slot; copies and switches past the lanes.

use std::collections::{BTreeMap, VecDeque};

use super::ops::Op;
use super::source::{Change, Data, Found, Key, SHARDS, SLOTS, Source, UNIT_BYTES, View};
use super::world::{Checked, key_of, name};
use crate::delivery::motion::{
    Effect, Look, Motion, Name, Offsets, Part, Stage, State, Ticket, Unit, Verdict, Work, resume_from,
};
use crate::delivery::rules::MotionRules;
use crate::offset::ReplOffset;

/// What keeps the lanes' part right; each is taken out by itself.
#[derive(Debug, Clone, Copy)]
pub struct Parts {
    /// Lanes give a slot up before anybody else writes to it.
    pub given_up: bool,
    /// The switch looks whether the server has all that was acknowledged.
    pub one_server: bool,
    /// A process looks at its start whether slots are where they were.
    pub checked: bool,
    /// Lanes that are connected again read what is said of their slots.
    pub strays: bool,
    /// With the switch it is written where copies stand ahead of it.
    pub guards: bool,
    /// A process begins at the records of slots in motion as well.
    pub former_records: bool,
    /// Lanes that give a slot up say which server acknowledged what they wrote.
    pub left_at: bool,
}

impl Default for Parts {
    fn default() -> Self {
        Parts {
            given_up: true,
            one_server: true,
            checked: true,
            strays: true,
            guards: true,
            former_records: true,
            left_at: true,
        }
    }
}

#[derive(Debug, Clone)]
struct Content {
    data: Data,
    shard: usize,
    offset: u64,
    /// The full sync that the record is of.
    generation: u64,
    state: Option<String>,
    whole: bool,
    guards: BTreeMap<Key, u64>,
}

/// A slot's node of the target.
#[derive(Debug)]
struct Node {
    content: Content,
    log: Vec<Content>,
    replicated: usize,
    replica: Content,
    id: u64,
}

impl Node {
    fn run(&mut self, work: impl FnOnce(&mut Content)) {
        self.log.push(self.content.clone());
        work(&mut self.content);
    }

    fn state(&self) -> State {
        let fed = State::Fed { shard: self.content.shard as u32, from: ReplOffset(0) };
        match self.content.state.as_ref().and_then(|text| State::parse(text.as_bytes())) {
            Some(State::Moving { number, .. }) if self.content.whole => {
                State::Moving { number, starts: Offsets::new(), whole: true }
            }
            state => state.unwrap_or(fed),
        }
    }
}

#[derive(Debug, Clone)]
struct Entry {
    offset: u64,
    changes: Vec<Change>,
    /// Stored with it; `None` takes all away.
    guards: Vec<(Key, Option<u64>)>,
}

/// A slot that a shard's lanes hold.
#[derive(Debug, Default)]
struct Held {
    queue: VecDeque<Entry>,
    flight: Option<Entry>,
    served: bool,
    applied: u64,
    /// The server that its record was read from; `None` before that.
    server: Option<u64>,
    leaving: Option<Ticket>,
}

enum Asked {
    List { part: Part<usize>, keys: Vec<Name>, at: u64, forks: usize },
    Copy { part: Part<usize>, keys: Vec<Name>, found: Vec<Found>, at: u64, forks: usize },
}

#[derive(Default)]
struct Shard {
    held: BTreeMap<usize, Held>,
    generation: u64,
    next: usize,
    routed: u64,
    received: u64,
    forks: usize,
    asked: Option<Asked>,
    rewind: Option<u64>,
    passed: [u64; SLOTS],
    guards: BTreeMap<Key, u64>,
    released: u64,
}

struct Looking {
    look: Look<usize>,
    views: Vec<[View; SLOTS]>,
    offsets: Offsets,
}

/// The id of no server.
const NO_SERVER: u64 = u64::MAX;

pub struct HeldWorld {
    source: Source,
    nodes: Vec<Node>,
    motion: Motion<usize>,
    rules: MotionRules,
    parts: Parts,
    shards: Vec<Shard>,
    looking: Option<Looking>,
    servers: BTreeMap<usize, u64>,
    /// The slots that are known to be in motion, while it isn't looked whether others are.
    unchecked: Option<Vec<usize>>,
    noted_bytes_max: usize,
}

impl HeldWorld {
    pub fn new(rules: MotionRules, parts: Parts, noted_bytes_max: usize) -> Self {
        let source = Source::new();
        let truth = source.truth();
        let node = |slot: usize| {
            let shard = source.owner(slot);
            let data = truth.iter().filter(|(key, _)| key.0 == slot).map(|(key, value)| (*key, value.clone()));
            let content = Content {
                data: data.collect(),
                shard,
                offset: source.nodes[shard].end(),
                generation: 0,
                state: None,
                whole: false,
                guards: BTreeMap::new(),
            };
            Node { replica: content.clone(), content, log: Vec::new(), replicated: 0, id: 0 }
        };
        let nodes = (0..SLOTS).map(node).collect();
        let mut world = HeldWorld {
            source,
            nodes,
            motion: Motion::default(),
            rules,
            parts,
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            looking: None,
            servers: BTreeMap::new(),
            unchecked: None,
            noted_bytes_max,
        };
        world.process().expect("the first process begins");
        // All is where it was.
        world.step(Op::LookAll).expect("a look");
        world
    }

    pub fn step(&mut self, op: Op) -> Checked {
        match op {
            Op::Write(slot, kind, a, b) => self.source.write(slot, kind, a, b),
            Op::Begin(slot, to, kind) => self.source.begin(slot, to, kind),
            Op::MoveKey(slot) => self.source.move_key(slot),
            Op::Finish(slot) => self.source.finish(slot),
            Op::Move(slot, to, kind) => {
                self.source.begin(slot, to, kind);
                self.source.finish(slot);
                self.source.clean_up(slot);
            }
            Op::CleanUp(slot) => self.source.clean_up(slot),
            Op::Cancel(slot, openly) => self.source.cancel(slot, openly),
            Op::Gossip(node) => self.source.gossip(node),
            Op::Flush(slot, all) => self.source.flush(slot, all),
            Op::Failover(node, lost) => {
                self.source.failover(node, lost);
                self.failed_over(node);
            }
            Op::Judge(shard, units) => return self.judge(shard, units),
            Op::Report(shard) => self.report(shard),
            Op::JudgeAll => {
                for shard in 0..SHARDS {
                    self.judge(shard, usize::MAX)?;
                    self.report(shard);
                }
            }
            Op::Rest => {
                self.step(Op::LookAll)?;
                self.step(Op::JudgeAll)?;
                return self.step(Op::LookAll);
            }
            Op::WorkOn(shard, times) => (0..times).for_each(|_| self.work(shard)),
            Op::Look => self.look(),
            Op::LookAll => {
                self.looking = None;
                (0..2 * SHARDS + 2).for_each(|_| self.look());
            }
            Op::Work(shard) => self.work(shard),
            Op::Send(lane, _) => self.send(lane / 2, lane % SLOTS),
            Op::Serve(lane) => self.serve(lane / 2, lane % SLOTS),
            Op::Deliver(lane) => self.deliver(lane / 2, lane % SLOTS),
            Op::Pump => self.pump(),
            Op::Tick(lane) => self.tick(lane / 2, lane % SLOTS),
            Op::Cut(shard) => self.shards[shard].held.values_mut().for_each(|held| held.server = None),
            Op::Connect(shard) => self.connect(shard),
            Op::Restart => return self.process(),
            Op::RollBack(count) => self.roll_back(count),
            Op::Replicate => self.replicate(),
            Op::Release(shard) => self.release(shard),
        }
        Ok(())
    }

    fn process(&mut self) -> Checked {
        self.looking = None;
        self.motion = Motion::held_by_feeders();
        self.motion.rules = self.rules;
        self.motion.set_noted_bytes_max(self.noted_bytes_max);
        let states: Vec<State> = self.nodes.iter().map(Node::state).collect();
        let moving = |slot: usize| matches!(states[slot], State::Moving { .. });
        self.servers = (0..SLOTS).filter(|slot| moving(*slot)).map(|slot| (slot, self.nodes[slot].id)).collect();
        let mut lost = Vec::new();
        for shard in 0..SHARDS {
            let generation = self.shards[shard].generation;
            let of = |slot: &usize| {
                let content = &self.nodes[*slot].content;
                content.shard == shard && content.generation == generation
            };
            let recorded: Vec<usize> =
                (0..SLOTS).filter(of).filter(|s| self.parts.former_records || !moving(*s)).collect();
            let fed = recorded.iter().any(|slot| !moving(*slot));
            let lowest = recorded.iter().map(|slot| self.nodes[*slot].content.offset).min();
            let old = std::mem::take(&mut self.shards[shard]);
            let node = &self.source.nodes[shard];
            let highest = recorded.iter().map(|slot| self.nodes[*slot].content.offset).max().unwrap_or(0);
            let forked =
                node.forks[old.forks.min(node.forks.len())..].iter().any(|f| (*f as u64) * UNIT_BYTES < highest);
            // Nothing tells where a shard stands that feeds no slot.
            let full = !fed || forked;
            let from = match lowest.filter(|_| !full) {
                Some(lowest) if self.rules.resumes_at_starts => {
                    resume_from(shard as u32, ReplOffset(lowest), states.iter()).0
                }
                Some(lowest) => lowest,
                None => node.end(),
            };
            if full {
                lost.push(shard);
            } else if from < old.released {
                return Err(format!("shard {shard} is to begin at {from}, but its journal begins at {}", old.released));
            }
            let mut passed = [0; SLOTS];
            let mut guards = BTreeMap::new();
            if !full {
                recorded.iter().for_each(|slot| passed[*slot] = self.nodes[*slot].content.offset);
                recorded.iter().for_each(|slot| guards.extend(self.nodes[*slot].content.guards.clone()));
            }
            self.shards[shard] = Shard {
                generation,
                next: (from / UNIT_BYTES) as usize,
                routed: from,
                received: from.max(highest),
                forks: node.forks.len(),
                passed,
                guards,
                released: if full { from } else { old.released },
                ..Shard::default()
            };
            if !full && old.forks != node.forks.len() {
                lost.push(SHARDS + shard);
            }
            self.motion.join(shard as u32, ReplOffset(from), 0);
        }
        for (slot, state) in states.iter().enumerate() {
            self.motion.begin(slot, state);
        }
        for slot in 0..SLOTS {
            let content = &self.nodes[slot].content;
            if let Some(shard) = self.motion.feeder(slot).map(|shard| shard as usize) {
                let held = Held { applied: content.offset, server: Some(self.nodes[slot].id), ..Held::default() };
                self.shards[shard].held.insert(slot, held);
            }
        }
        self.check_later();
        for shard in lost {
            if shard >= SHARDS { self.doubt_forked(shard - SHARDS) } else { self.full_sync(shard) }
        }
        Ok(())
    }

    fn check_later(&mut self) {
        let known = self.motion.in_motion().map(|(slot, ..)| slot).collect();
        self.unchecked = Some(known).filter(|_| self.parts.checked);
        // A look that began before doesn't tell.
        self.looking = None;
    }

    /// All keys of these slots are to be copied, which the target is told at once.
    fn doubt(&mut self, slots: Vec<usize>) {
        for slot in slots {
            let state = self.motion.doubt(slot).expect("a switch ends at once");
            self.tell(slot, &state, true);
        }
    }

    fn tell(&mut self, slot: usize, state: &State, doubts: bool) {
        self.nodes[slot].run(|content| {
            content.state = Some(state.encode());
            content.whole |= doubts;
        });
        self.servers.entry(slot).or_insert(self.nodes[slot].id);
    }

    fn is_doubtful(&self, shard: usize, slot: usize) -> bool {
        let Some(feeder) = self.motion.feeder(slot) else { return true };
        let mut owners = self.source.nodes.iter().map(|node| node.view[slot].owner);
        owners.any(|owner| owner != feeder as usize && (owner == shard || feeder == shard as u32))
    }

    fn doubt_forked(&mut self, shard: usize) {
        self.doubt((0..SLOTS).filter(|slot| self.is_doubtful(shard, *slot)).collect());
        // Not modelled: that source and target both lose what they had, about the same slot.
        self.replicate();
    }

    /// A shard begins anew: what it feeds is copied, and what is in motion doubted. Its slots are given up by the old
    /// session's lanes and held by the new one's.
    fn full_sync(&mut self, shard: usize) {
        let end = self.source.nodes[shard].end();
        self.motion.rewinds(shard as u32, ReplOffset(end));
        self.motion.rewound(shard as u32, ReplOffset(end));
        self.motion.feed_anew(shard as u32, ReplOffset(0));
        let generation = self.shards[shard].generation + 1;
        self.doubt((0..SLOTS).filter(|slot| self.is_doubtful(shard, *slot)).collect());
        let mut held = BTreeMap::new();
        for slot in (0..SLOTS).filter(|slot| self.motion.feeder(*slot) == Some(shard as u32)) {
            let source = self.source.nodes[shard].data.iter().filter(|(key, _)| key.0 == slot);
            let data: Data = source.map(|(key, value)| (*key, value.clone())).collect();
            self.nodes[slot].run(|content| {
                *content = Content {
                    data,
                    shard,
                    offset: end,
                    generation,
                    state: None,
                    whole: false,
                    guards: BTreeMap::new(),
                };
            });
            let server = Some(self.nodes[slot].id);
            held.insert(slot, Held { applied: end, server, ..Held::default() });
        }
        self.shards[shard] = Shard {
            held,
            generation,
            next: (end / UNIT_BYTES) as usize,
            routed: end,
            received: end,
            forks: self.source.nodes[shard].forks.len(),
            released: end,
            passed: [end; SLOTS],
            ..Shard::default()
        };
        self.check_later();
        // A target that loses this has records of an earlier full sync, which count as none: another begins.
        self.replicate();
    }

    fn failed_over(&mut self, shard: usize) {
        let node = &self.source.nodes[shard];
        let fork = node.forks.last().map_or(0, |fork| *fork as u64 * UNIT_BYTES);
        if self.shards[shard].received > fork {
            return self.full_sync(shard);
        }
        self.shards[shard].forks = node.forks.len();
        if (0..SLOTS).any(|slot| self.is_doubtful(shard, slot)) {
            self.doubt_forked(shard);
        }
    }

    fn judge(&mut self, shard: usize, units: usize) -> Checked {
        if let Some(from) = self.shards[shard].rewind.take() {
            if from < self.shards[shard].released {
                return Err(format!("shard {shard} is to begin again at {from}, which its journal lacks"));
            }
            self.shards[shard].next = (from / UNIT_BYTES) as usize;
            self.shards[shard].routed = from;
            self.shards[shard].asked = None;
            self.motion.rewound(shard as u32, ReplOffset(from));
            return Ok(());
        }
        for _ in 0..units {
            let next = self.shards[shard].next;
            if self.shards[shard].asked.is_some() {
                break;
            }
            let Some(change) = self.source.nodes[shard].stream.get(next).cloned() else { break };
            let offset = (next as u64 + 1) * UNIT_BYTES;
            if !self.judge_unit(shard, &change, offset) {
                break;
            }
            let state = &mut self.shards[shard];
            state.next += 1;
            state.routed = offset;
            state.received = state.received.max(offset);
        }
        Ok(())
    }

    /// False if the unit has to wait.
    fn judge_unit(&mut self, shard: usize, change: &Change, offset: u64) -> bool {
        let names: Vec<Name> = change.keys().into_iter().map(name).collect();
        let keys: Vec<(u32, &[u8])> = names.iter().map(|(db, key)| (*db, &key[..])).collect();
        for slot in change.slots() {
            let applied = match change {
                Change::FlushAll if self.motion.feeder(slot) == Some(shard as u32) => Change::FlushSlot(slot),
                change => {
                    let passed = offset <= self.shards[shard].passed[slot];
                    let effect = change.effect();
                    let unit = Unit {
                        shard: shard as u32,
                        offset: ReplOffset(offset),
                        set: slot,
                        keys: &keys,
                        effect,
                        passed,
                    };
                    match self.motion.judge(&unit) {
                        Verdict::Apply => change.clone(),
                        Verdict::Drop | Verdict::Noted { write: None } => continue,
                        Verdict::Noted { write: Some(state) } => {
                            self.tell(slot, &state, false);
                            continue;
                        }
                        Verdict::Wait => return false,
                    }
                }
            };
            self.apply(shard, slot, applied, offset);
        }
        true
    }

    /// Gives a unit to the lanes, as its guards have it.
    fn apply(&mut self, shard: usize, slot: usize, change: Change, offset: u64) {
        let guarded = |key: &Key| self.shards[shard].guards.get(key).is_some_and(|at| *at >= offset);
        let (mut changes, mut guards) = (vec![change.clone()], Vec::new());
        let keys = change.keys();
        if matches!(change, Change::FlushSlot(_)) {
            let gone: Vec<Key> = self.shards[shard].guards.keys().filter(|key| key.0 == slot).copied().collect();
            gone.iter().for_each(|key| _ = self.shards[shard].guards.remove(key));
            guards.extend(gone.into_iter().map(|key| (key, None)));
        } else if !keys.is_empty() && keys.iter().all(guarded) {
            return;
        } else if keys.iter().any(guarded) {
            // The keys are copied again.
            changes.clear();
            let at = self.source.nodes[shard].end();
            for key in keys {
                match self.source.read(shard, key) {
                    Found::Value(Some(value)) => changes.push(Change::Put(key, value)),
                    Found::Value(None) => changes.push(Change::Del(vec![key])),
                    Found::Redirected => {
                        self.motion.sign(slot);
                        let names = [name(key)];
                        let keys: Vec<(u32, &[u8])> = names.iter().map(|(db, key)| (*db, &key[..])).collect();
                        let (shard, offset) = (shard as u32, ReplOffset(offset));
                        let effect = Effect::Writes;
                        let unit = Unit { shard, offset, set: slot, keys: &keys, effect, passed: false };
                        if let Verdict::Noted { write: Some(state) } = self.motion.judge(&unit) {
                            self.tell(slot, &state, false);
                        }
                        continue;
                    }
                }
                guards.push((key, Some(at)));
                self.shards[shard].guards.insert(key, at);
                self.shards[shard].received = self.shards[shard].received.max(at);
            }
        }
        if let Some(held) = self.shards[shard].held.get_mut(&slot).filter(|held| offset > held.applied) {
            held.queue.push_back(Entry { offset, changes, guards });
        }
    }

    fn report(&mut self, shard: usize) {
        let offset = ReplOffset(self.shards[shard].next as u64 * UNIT_BYTES);
        if self.shards[shard].rewind.is_some() {
            return;
        }
        self.motion.decoded(shard as u32, offset);
        for (slot, ticket) in self.motion.to_give_up(shard as u32) {
            match self.shards[shard].held.get_mut(&slot).filter(|_| self.parts.given_up) {
                Some(held) => held.leaving = Some(ticket),
                None => self.motion.acknowledged(ticket),
            }
        }
        self.let_go(shard);
        self.acknowledge(shard);
    }

    fn let_go(&mut self, shard: usize) {
        let idle = |held: &Held| held.queue.is_empty() && held.flight.is_none() && held.server.is_some();
        let held = &self.shards[shard].held;
        let leaves = |(slot, held): (&usize, &Held)| Some((*slot, held.leaving?, held.server?));
        let gone: Vec<(usize, Ticket, u64)> = held.iter().filter(|(_, held)| idle(held)).filter_map(leaves).collect();
        for (slot, ticket, server) in gone {
            if *self.servers.entry(slot).or_insert(server) != server && self.parts.left_at {
                self.servers.insert(slot, NO_SERVER);
            }
            self.shards[shard].held.remove(&slot);
            self.motion.acknowledged(ticket);
        }
    }

    fn look(&mut self) {
        let Some(looking) = &mut self.looking else {
            let look = self.motion.look();
            self.looking = Some(Looking { look, views: Vec::new(), offsets: Offsets::new() });
            return;
        };
        if looking.views.len() < SHARDS {
            looking.views.push(self.source.nodes[looking.views.len()].view);
            return;
        }
        let asked = looking.offsets.len();
        if asked < SHARDS {
            looking.offsets.insert(asked as u32, ReplOffset(self.source.nodes[asked].end()));
            return;
        }
        let Some(looking) = self.looking.take() else { return };
        let rest = |slot: usize| {
            let first = looking.views[0][slot].owner;
            let same = looking.views.iter().all(|view| view[slot].owner == first && !view[slot].busy);
            same.then_some(first as u32)
        };
        if let Some(known) = self.unchecked.take() {
            let odd = |slot: &usize| match self.motion.feeder(*slot) {
                Some(feeder) => rest(*slot) != Some(feeder),
                None => !known.contains(slot),
            };
            self.doubt((0..SLOTS).filter(odd).collect());
        }
        self.motion.looked(&looking.look, rest, &looking.offsets);
    }

    fn work(&mut self, shard: usize) {
        if self.shards[shard].rewind.is_some() {
            return;
        }
        let node = &self.source.nodes[shard];
        let (at, forks) = (node.end(), node.forks.len());
        if let Some(asked) = self.shards[shard].asked.take() {
            return self.act(shard, asked);
        }
        self.report(shard);
        match self.motion.work(shard as u32, 2) {
            Some(Work::List(part)) => {
                let node = &self.source.nodes[shard];
                let keys = node.data.keys().filter(|key| key.0 == part.set).map(|key| name(*key)).collect();
                self.shards[shard].asked = Some(Asked::List { part, keys, at, forks });
            }
            Some(Work::Copy(part, keys)) => {
                let found = keys.iter().map(|key| self.source.read(shard, key_of(key))).collect();
                self.shards[shard].asked = Some(Asked::Copy { part, keys, found, at, forks });
            }
            Some(Work::Switch { set, state, ticket }) => self.switch(shard, set, &state, ticket),
            None => {}
        }
    }

    fn act(&mut self, shard: usize, asked: Asked) {
        let history = self.source.nodes[shard].forks.len();
        match asked {
            Asked::List { part, forks, .. } | Asked::Copy { part, forks, .. } if forks != history => {
                self.motion.failed(part);
            }
            Asked::List { part, mut keys, at, .. } => {
                self.shards[shard].received = self.shards[shard].received.max(at);
                keys.extend(self.nodes[part.set].content.data.keys().map(|key| name(*key)));
                self.servers.insert(part.set, self.nodes[part.set].id);
                self.motion.listed(part, keys, ReplOffset(at));
            }
            Asked::Copy { part, found, .. } if found.iter().any(|found| matches!(found, Found::Redirected)) => {
                self.motion.redirected(part);
            }
            Asked::Copy { part, keys, found, at, .. } => {
                self.shards[shard].received = self.shards[shard].received.max(at);
                let Some(ticket) = self.motion.copied(part, &keys, ReplOffset(at)) else { return };
                self.nodes[part.set].run(|content| {
                    for (key, found) in keys.iter().zip(found) {
                        match found {
                            Found::Value(Some(value)) => _ = content.data.insert(key_of(key), value),
                            _ => _ = content.data.remove(&key_of(key)),
                        }
                    }
                });
                self.motion.acknowledged(ticket);
            }
        }
    }

    fn switch(&mut self, shard: usize, slot: usize, state: &State, ticket: Ticket) {
        let State::Fed { from, .. } = state else { unreachable!("a switch feeds") };
        let ahead: Vec<(Key, u64)> =
            self.motion.copies_ahead(slot).iter().map(|(name, at)| (key_of(name), at.0)).collect();
        let same = self.servers.remove(&slot) == Some(self.nodes[slot].id);
        if !same && self.parts.one_server {
            self.motion.dropped(ticket);
            return self.doubt(vec![slot]);
        }
        let ahead = if self.parts.guards { ahead } else { Vec::new() };
        let generation = self.shards[shard].generation;
        self.nodes[slot].run(|content| {
            content.state = Some(state.encode());
            (content.shard, content.offset, content.generation) = (shard, from.0, generation);
            content.whole = false;
            content.guards = ahead.iter().copied().collect();
        });
        self.shards[shard].guards.extend(ahead);
        self.motion.acknowledged(ticket);
        self.shards[shard].passed[slot] = from.0;
        self.shards[shard].held.insert(slot, Held { applied: from.0, ..Held::default() });
    }

    fn send(&mut self, shard: usize, slot: usize) {
        let Some(held) = self.shards[shard].held.get_mut(&slot).filter(|held| held.server.is_some()) else { return };
        if held.flight.is_none() {
            held.flight = held.queue.pop_front();
            held.served = false;
        }
    }

    fn serve(&mut self, shard: usize, slot: usize) {
        let generation = self.shards[shard].generation;
        let node = &mut self.nodes[slot];
        let Some(held) = self.shards[shard].held.get_mut(&slot).filter(|held| held.server == Some(node.id)) else {
            return;
        };
        if let Some(flight) = held.flight.as_ref().filter(|_| !held.served) {
            node.run(|content| {
                flight.changes.iter().for_each(|change| change.apply(&mut content.data));
                for (key, at) in &flight.guards {
                    match at {
                        Some(at) => _ = content.guards.insert(*key, *at),
                        None => _ = content.guards.remove(key),
                    }
                }
                (content.shard, content.offset, content.generation) = (shard, flight.offset, generation);
            });
            held.served = true;
        }
    }

    fn deliver(&mut self, shard: usize, slot: usize) {
        let id = self.nodes[slot].id;
        let Some(held) = self.shards[shard].held.get_mut(&slot).filter(|held| held.server == Some(id)) else { return };
        if held.served
            && let Some(flight) = held.flight.take()
        {
            held.applied = flight.offset;
            held.served = false;
            self.let_go(shard);
            self.acknowledge(shard);
        }
    }

    fn acknowledge(&mut self, shard: usize) {
        let state = &self.shards[shard];
        let of = |held: &Held| match held.queue.is_empty() && held.flight.is_none() {
            true => state.routed,
            false => held.applied,
        };
        let applied = state.held.values().map(of).min().unwrap_or(state.routed);
        self.motion.applied(shard as u32, ReplOffset(applied));
    }

    fn pump(&mut self) {
        for shard in 0..SHARDS {
            for slot in 0..SLOTS {
                for _ in 0..50 {
                    self.send(shard, slot);
                    self.serve(shard, slot);
                    self.deliver(shard, slot);
                }
            }
        }
    }

    /// A slot that rests has its record written again.
    fn tick(&mut self, shard: usize, slot: usize) {
        let routed = self.shards[shard].routed;
        if let Some(held) = self.shards[shard].held.get_mut(&slot)
            && held.queue.is_empty()
            && held.flight.is_none()
            && held.applied < routed
        {
            held.queue.push_back(Entry { offset: routed, changes: Vec::new(), guards: Vec::new() });
        }
    }

    /// Whether a slot's node says something else than it was told.
    fn is_stray(&self, slot: usize) -> bool {
        let Some((now, before)) = self.motion.told_of(slot).filter(|_| self.parts.strays) else { return false };
        let says = self.nodes[slot].state();
        let same = match (&now, &says) {
            (State::Moving { number, .. }, State::Moving { number: said, .. }) => number == said,
            (now, says) => now == says,
        };
        !same && before.as_ref() != Some(&says)
    }

    fn connect(&mut self, shard: usize) {
        let away = |(slot, held): (&usize, &Held)| (held.server != Some(self.nodes[*slot].id)).then_some(*slot);
        let away: Vec<usize> = self.shards[shard].held.iter().filter_map(away).collect();
        let mut lowest: Option<u64> = None;
        let mut strays = Vec::new();
        for slot in away {
            let (stray, node) = (self.is_stray(slot), &self.nodes[slot]);
            let generation = self.shards[shard].generation;
            if stray {
                let gone = self.shards[shard].held.remove(&slot);
                gone.and_then(|held| held.leaving).into_iter().for_each(|ticket| self.motion.acknowledged(ticket));
                strays.push(slot);
                continue;
            }
            if node.content.shard != shard || node.content.generation != generation {
                return self.full_sync(shard);
            }
            let Some(held) = self.shards[shard].held.get_mut(&slot) else { continue };
            held.server = Some(node.id);
            if let Some(flight) = held.flight.take() {
                if node.content.offset >= flight.offset {
                    held.applied = flight.offset;
                } else {
                    held.queue.push_front(flight);
                }
            }
            if node.content.offset < held.applied {
                held.applied = node.content.offset;
                lowest = Some(lowest.unwrap_or(u64::MAX).min(held.applied));
            }
        }
        for slot in strays {
            if !matches!(self.motion.in_motion().find(|(of, ..)| *of == slot), Some((_, _, Stage::Switching { .. }))) {
                self.doubt(vec![slot]);
            }
        }
        if let Some(lowest) = lowest {
            let state = &mut self.shards[shard];
            for (slot, held) in &mut state.held {
                held.queue.clear();
                state.passed[*slot] = held.applied;
            }
            state.guards = (0..SLOTS).flat_map(|slot| self.nodes[slot].content.guards.clone()).collect();
            (state.rewind, state.routed) = (Some(lowest), lowest);
            self.motion.rewinds(shard as u32, ReplOffset(lowest));
        }
        self.let_go(shard);
        self.acknowledge(shard);
    }

    fn roll_back(&mut self, count: usize) {
        let node = &mut self.nodes[count % SLOTS];
        let to = node.log.len().saturating_sub(count).max(node.replicated);
        if let Some(content) = node.log.get(to) {
            node.content = content.clone();
        }
        node.log.truncate(to);
        node.id += 1;
    }

    fn replicate(&mut self) {
        for node in &mut self.nodes {
            node.replicated = node.log.len();
            node.replica = node.content.clone();
        }
        for shard in 0..SHARDS {
            self.motion.covered(shard as u32, ReplOffset(self.safe(shard)));
        }
    }

    /// Up to where a replica of every node has what the shard's lanes hold.
    fn safe(&self, shard: usize) -> u64 {
        let state = &self.shards[shard];
        let of = |slot: &usize| {
            let replica = &self.nodes[*slot].replica;
            if replica.shard == shard && replica.generation == state.generation { replica.offset } else { 0 }
        };
        state.held.keys().map(of).min().unwrap_or(0)
    }

    fn release(&mut self, shard: usize) {
        let record = self.safe(shard);
        let keep = self.motion.keep_from(shard as u32).map_or(u64::MAX, |offset| offset.0);
        // A slot in motion stands where its former feeder's record says.
        let former = self.nodes.iter().filter(|node| node.replica.shard == shard).map(|node| node.replica.offset).min();
        let released = &mut self.shards[shard].released;
        *released = (*released).max(record.min(keep).min(former.unwrap_or(u64::MAX)));
    }

    /// With nothing in the way any more, the target must become equal to the source; and stay it.
    pub fn drain(&mut self) -> Checked {
        self.source.settle();
        self.quiet()?;
        for slot in 0..SLOTS {
            for key in 0..3 {
                self.source.write(slot, 0, key, key);
            }
        }
        self.quiet()
    }

    fn quiet(&mut self) -> Checked {
        for _ in 0..200 {
            for shard in 0..SHARDS {
                self.step(Op::Connect(shard))?;
                self.step(Op::Judge(shard, usize::MAX))?;
                self.step(Op::Report(shard))?;
                for _ in 0..20 {
                    self.step(Op::Work(shard))?;
                }
            }
            self.step(Op::Pump)?;
            self.step(Op::LookAll)?;
            let judged = |(shard, node): (&Shard, &super::source::Node)| {
                let idle = |held: &Held| held.queue.is_empty() && held.flight.is_none() && held.server.is_some();
                shard.next == node.stream.len() && shard.rewind.is_none() && shard.held.values().all(idle)
            };
            let all = self.shards.iter().zip(&self.source.nodes).all(judged);
            if all && self.motion.in_motion().next().is_none() {
                return self.compare();
            }
        }
        let motion: Vec<String> =
            self.motion.in_motion().map(|(slot, _, stage)| format!("{slot}: {stage:?}")).collect();
        Err(format!("doesn't come to rest: {motion:?}"))
    }

    fn compare(&self) -> Checked {
        let data: Data = self.nodes.iter().flat_map(|node| node.content.data.clone()).collect();
        let truth = self.source.truth();
        if data == truth {
            return Ok(());
        }
        Err(format!("the target has {data:?}, the source {truth:?}"))
    }
}
