//! A process that follows the model source to the model target, and everything that goes wrong around it.

use std::collections::BTreeMap;

use super::lanes::{Do, Entry, LANES, Lane, Record, Target};
use super::ops::Op;
use super::source::{Change, Found, Key, SHARDS, SLOTS, Source, UNIT_BYTES, View};
use crate::delivery::motion::{
    Effect, Look, Motion, Name, Offsets, Part, Stage, State, Unit, Verdict, Work, relied_until, resume_from,
};
use crate::delivery::rules::MotionRules;
use crate::offset::ReplOffset;

pub type Checked = Result<(), String>;

/// What a shard's thread has asked its source and not yet acted on.
enum Asked {
    List { part: Part<usize>, keys: Vec<Name>, at: u64, forks: usize },
    Copy { part: Part<usize>, keys: Vec<Name>, found: Vec<Found>, at: u64, forks: usize },
}

/// What is known of a shard in the process.
#[derive(Default)]
struct Shard {
    connected: bool,
    /// The target that it was connected to.
    target: u64,
    /// The next unit to be judged.
    next: usize,
    /// The furthest that anything was received of this history.
    received: u64,
    /// How many histories its source had when it was joined.
    forks: usize,
    asked: Option<Asked>,
    /// Where its thread is to begin again.
    rewind: Option<u64>,
    /// Its lanes' records, up to which they leave units out.
    passed: [u64; LANES],
    /// What its journal has begins here.
    released: u64,
}

struct Looking {
    look: Look<usize>,
    views: Vec<[View; SLOTS]>,
    offsets: Offsets,
}

pub struct World {
    pub source: Source,
    pub target: Target,
    motion: Motion<usize>,
    rules: MotionRules,
    shards: Vec<Shard>,
    lanes: Vec<Lane>,
    looking: Option<Looking>,
    noted_bytes_max: usize,
}

pub fn name(key: Key) -> Name {
    (0, vec![key.0 as u8, key.1 as u8])
}

pub fn key_of(name: &Name) -> Key {
    (usize::from(name.1[0]), usize::from(name.1[1]))
}

fn lane_of(shard: usize, slot: usize) -> usize {
    shard * LANES + slot % LANES
}

impl World {
    /// A process behind a full sync, with all slots at rest.
    pub fn new(rules: MotionRules, noted_bytes_max: usize) -> Self {
        let source = Source::new();
        let mut target = Target::default();
        target.content.data = source.truth();
        for (shard, node) in source.nodes.iter().enumerate() {
            for lane in 0..LANES {
                let record = Record { offset: node.end(), pieces: 0, forks: 0 };
                target.content.records.insert(shard * LANES + lane, record);
            }
        }
        for slot in 0..SLOTS {
            let shard = source.owner(slot);
            let from = ReplOffset(source.nodes[shard].end());
            target.content.states.insert(slot, State::Fed { shard: shard as u32, from }.encode());
        }
        target.replicate();
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        let motion = Motion::default();
        let mut world =
            World { source, target, motion, rules, shards, lanes: Vec::new(), looking: None, noted_bytes_max };
        world.process().expect("the first process begins");
        world
    }

    /// Does one thing.
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
                return self.failed_over(node);
            }
            Op::Judge(shard, units) => return self.judge(shard, units),
            Op::Report(shard) => self.report(shard),
            Op::JudgeAll => return self.judge_all(),
            Op::Rest => {
                self.step(Op::LookAll)?;
                self.judge_all()?;
                return self.step(Op::LookAll);
            }
            Op::WorkOn(shard, times) => (0..times).for_each(|_| self.work(shard)),
            Op::Look => self.look(),
            Op::LookAll => {
                self.looking = None;
                (0..2 * SHARDS + 2).for_each(|_| self.look());
            }
            Op::Work(shard) => self.work(shard),
            Op::Send(lane, entries) => self.send(lane, entries),
            Op::Serve(lane) => self.serve(lane),
            Op::Deliver(lane) => self.deliver(lane),
            Op::Pump => self.pump(),
            Op::Tick(lane) => self.tick(lane),
            Op::Cut(shard) => self.cut(shard),
            Op::Connect(shard) => return self.connect(shard),
            Op::Restart => return self.process(),
            Op::RollBack(count) => self.roll_back(count),
            Op::Replicate => self.replicate(),
            Op::Release(shard) => self.release(shard),
        }
        Ok(())
    }

    /// A process begins with what the target says; one before it is dead.
    fn process(&mut self) -> Checked {
        self.looking = None;
        self.motion = Motion::default();
        self.motion.rules = self.rules;
        self.motion.set_noted_bytes_max(self.noted_bytes_max);
        let records = |lane: usize| self.target.content.records[&lane];
        self.lanes = (0..SHARDS * LANES).map(|lane| Lane::standing_at(records(lane))).collect();
        let states: Vec<State> = (0..SLOTS).filter_map(|slot| self.target.state(slot)).collect();
        let mut lost = Vec::new();
        for shard in 0..SHARDS {
            let lowest = ReplOffset(Target::lowest(&self.target.content, shard));
            let mut from = if self.rules.resumes_at_starts && !self.target.content.whole {
                resume_from(shard as u32, lowest, states.iter()).0
            } else {
                lowest.0
            };
            let node = &self.source.nodes[shard];
            let forked = self.has_forked(shard);
            let old = &self.shards[shard];
            if forked {
                from = node.end();
                lost.push(shard);
            } else if from < old.released {
                return Err(format!("shard {shard} is to begin at {from}, but its journal begins at {}", old.released));
            }
            let passed = std::array::from_fn(|lane| if forked { from } else { records(shard * LANES + lane).offset });
            let (forks, target, next) = (node.forks.len(), self.target.id, (from / UNIT_BYTES) as usize);
            let released = if forked { from } else { old.released };
            self.shards[shard] = Shard {
                connected: true,
                target,
                next,
                received: passed
                    .into_iter()
                    .max()
                    .unwrap_or(0)
                    .max(from)
                    .max(relied_until(shard as u32, states.iter()).0),
                forks,
                asked: None,
                rewind: None,
                passed,
                released,
            };
            self.motion.join(shard as u32, ReplOffset(from), target);
        }
        for (lane, state) in self.lanes.iter_mut().enumerate() {
            state.forks = self.shards[lane / LANES].forks;
        }
        for slot in 0..SLOTS {
            let state = self.target.state(slot).ok_or("a slot has no state")?;
            self.motion.begin(slot, &state);
        }
        if self.target.content.whole {
            let moving: Vec<usize> = self.motion.in_motion().map(|(slot, ..)| slot).collect();
            moving.into_iter().for_each(|slot| _ = self.motion.doubt(slot));
        }
        for shard in 0..SHARDS {
            let lanes = &self.lanes[shard * LANES..(shard + 1) * LANES];
            if lost.contains(&shard) {
                self.full_sync(shard);
            } else if lanes.iter().any(|lane| lane.applied.forks != lane.forks) {
                self.doubt_forked(shard);
            }
        }
        Ok(())
    }

    /// A shard that goes on with another history may have lost what nobody received, of slots that it had given away:
    /// no stream tells of that.
    fn doubt_forked(&mut self, shard: usize) {
        self.end_switches();
        let slots: Vec<usize> = (0..SLOTS).filter(|slot| self.is_doubtful(shard, *slot)).collect();
        let what = self.doubt(slots);
        let forks = self.shards[shard].forks;
        let mut records = Vec::new();
        for lane in shard * LANES..(shard + 1) * LANES {
            self.lanes[lane].forks = forks;
            records.push((lane, Record { forks, ..self.target.content.records[&lane] }));
        }
        self.target.run(&what, &records);
        // Not modelled: that source and target both lose what they had, about the same slot.
        self.replicate();
    }

    /// All keys of these slots are to be copied; what the target is told of that at once.
    fn doubt(&mut self, slots: Vec<usize>) -> Vec<Do> {
        self.end_switches();
        let states = slots.into_iter().filter_map(|slot| Some(Do::State(slot, self.motion.doubt(slot)?)));
        std::iter::once(Do::Whole).chain(states.collect::<Vec<_>>()).collect()
    }

    /// Waits until no switch is on its way.
    fn end_switches(&mut self) {
        let switching = |(_, _, stage): (usize, i64, &Stage)| matches!(stage, Stage::Switching { .. });
        for _ in 0..2 {
            if self.motion.in_motion().any(switching) {
                for shard in 0..SHARDS {
                    self.connect(shard).expect("the target is there");
                }
                self.pump();
            }
        }
        assert!(!self.motion.in_motion().any(switching), "a switch that neither lands nor is dropped");
    }

    /// A slot in motion, or one that the shard has lost or gained without a trace so far.
    fn is_doubtful(&self, shard: usize, slot: usize) -> bool {
        let Some(feeder) = self.motion.feeder(slot) else { return true };
        let mut owners = self.source.nodes.iter().map(|node| node.view[slot].owner);
        let named = |owner: usize| owner == shard || feeder == shard as u32;
        owners.any(|owner| owner != feeder as usize && named(owner))
    }

    /// True when units that are in the target may not be in the history that the shard goes on with.
    fn has_forked(&self, shard: usize) -> bool {
        let forks = &self.source.nodes[shard].forks;
        let states: Vec<State> = (0..SLOTS).filter_map(|slot| self.target.state(slot)).collect();
        let relied = relied_until(shard as u32, states.iter()).0;
        (shard * LANES..(shard + 1) * LANES).any(|lane| {
            let record = self.target.content.records[&lane];
            forks[record.forks..].iter().any(|fork| (*fork as u64) * UNIT_BYTES < record.offset.max(relied))
        })
    }

    /// A shard begins anew: all keys of what it feeds, and of what is in motion, are doubtful.
    fn full_sync(&mut self, shard: usize) {
        let end = self.source.nodes[shard].end();
        let target = &self.target;
        self.motion.reread(shard as u32, target.id, |slot| target.state(slot));
        self.motion.rewinds(shard as u32, ReplOffset(end));
        // Nothing that the lanes had counts any more.
        for lane in shard * LANES..(shard + 1) * LANES {
            self.lanes[lane] = Lane::standing_at(self.target.content.records[&lane]);
        }
        (self.shards[shard].connected, self.shards[shard].target) = (true, self.target.id);
        self.end_switches();
        let fed = |slot: usize| self.motion.feeder(slot) == Some(shard as u32);
        let slots: Vec<usize> = (0..SLOTS).filter(|slot| fed(*slot) || self.is_doubtful(shard, *slot)).collect();
        self.motion.rewound(shard as u32, ReplOffset(end));
        let what = self.doubt(slots);
        let (mut records, forks) = (Vec::new(), self.source.nodes[shard].forks.len());
        for lane in shard * LANES..(shard + 1) * LANES {
            let record = Record { offset: end, pieces: self.target.content.records[&lane].pieces, forks };
            self.lanes[lane] = Lane::standing_at(record);
            self.shards[shard].passed[lane % LANES] = end;
            records.push((lane, record));
        }
        let target = self.target.id;
        let next = (end / UNIT_BYTES) as usize;
        let passed = self.shards[shard].passed;
        self.shards[shard] = Shard {
            connected: true,
            target,
            next,
            received: end,
            forks,
            asked: None,
            rewind: None,
            passed,
            released: end,
        };
        self.target.run(&what, &records);
        // A target that loses this has records of an earlier full sync, which count as none: another begins.
        self.replicate();
    }

    /// The shard's link breaks, and goes on or doesn't.
    fn failed_over(&mut self, shard: usize) -> Checked {
        let node = &self.source.nodes[shard];
        let fork = node.forks.last().map_or(0, |fork| *fork as u64 * UNIT_BYTES);
        let forks = node.forks.len();
        if self.shards[shard].received > fork {
            self.full_sync(shard);
            return Ok(());
        }
        self.shards[shard].forks = forks;
        if (0..SLOTS).any(|slot| self.is_doubtful(shard, slot)) {
            self.doubt_forked(shard);
            return Ok(());
        }
        self.lanes[shard * LANES..(shard + 1) * LANES].iter_mut().for_each(|lane| lane.forks = forks);
        Ok(())
    }

    fn judge(&mut self, shard: usize, units: usize) -> Checked {
        if let Some(from) = self.shards[shard].rewind.take() {
            if from < self.shards[shard].released {
                return Err(format!("shard {shard} is to begin again at {from}, which its journal lacks"));
            }
            self.shards[shard].next = (from / UNIT_BYTES) as usize;
            self.shards[shard].asked = None;
            self.motion.rewound(shard as u32, ReplOffset(from));
            return Ok(());
        }
        for _ in 0..units {
            let next = self.shards[shard].next;
            // A thread that has asked its source waits for the answer.
            if self.shards[shard].asked.is_some() {
                break;
            }
            let Some(change) = self.source.nodes[shard].stream.get(next).cloned() else { break };
            if !self.judge_unit(shard, &change, (next as u64 + 1) * UNIT_BYTES) {
                break;
            }
            let state = &mut self.shards[shard];
            state.next += 1;
            state.received = state.received.max(state.next as u64 * UNIT_BYTES);
        }
        Ok(())
    }

    fn judge_all(&mut self) -> Checked {
        for shard in 0..SHARDS {
            self.judge(shard, usize::MAX)?;
            self.report(shard);
        }
        Ok(())
    }

    /// False if the unit has to wait.
    fn judge_unit(&mut self, shard: usize, change: &Change, offset: u64) -> bool {
        let keys: Vec<Name> = change.keys().into_iter().map(name).collect();
        let keys: Vec<(u32, &[u8])> = keys.iter().map(|(db, key)| (*db, &key[..])).collect();
        let mut what: BTreeMap<usize, Vec<Do>> = BTreeMap::new();
        for slot in change.slots() {
            let lane = lane_of(shard, slot);
            let passed = offset <= self.shards[shard].passed[slot % LANES];
            let mut add = |what_of| what.entry(lane).or_default().push(what_of);
            if *change == Change::FlushAll && self.motion.feeder(slot) == Some(shard as u32) {
                add(Do::Change(Change::FlushSlot(slot)));
                continue;
            }
            let unit = Unit {
                shard: shard as u32,
                offset: ReplOffset(offset),
                set: slot,
                keys: &keys,
                effect: change.effect(),
                passed,
            };
            match self.motion.judge(&unit) {
                Verdict::Apply => add(Do::Change(change.clone())),
                Verdict::Drop | Verdict::Noted { write: None } => {}
                Verdict::Noted { write: Some(state) } => add(Do::State(slot, state)),
                Verdict::Wait => return false,
            }
        }
        for (lane, what) in what {
            let lane = &mut self.lanes[lane];
            if offset > lane.applied.offset {
                if lane.is_idle() {
                    lane.applied.offset = lane.routed;
                }
                lane.queue.push_back(Entry { offset: Some(offset), what, ticket: None, switch: false });
            }
        }
        for lane in shard * LANES..(shard + 1) * LANES {
            self.lanes[lane].routed = offset;
        }
        true
    }

    fn report(&mut self, shard: usize) {
        let offset = ReplOffset(self.shards[shard].next as u64 * UNIT_BYTES);
        self.motion.decoded(shard as u32, offset);
        self.acknowledge(shard);
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
        match self.motion.work(shard as u32, 2) {
            Some(Work::List(part)) => {
                let of_slot = |key: &&Key| key.0 == part.set;
                let mut keys: Vec<Name> = node.data.keys().filter(of_slot).map(|key| name(*key)).collect();
                keys.extend(self.target.content.data.keys().filter(of_slot).map(|key| name(*key)));
                self.shards[shard].asked = Some(Asked::List { part, keys, at, forks });
            }
            Some(Work::Copy(part, keys)) => {
                let found = keys.iter().map(|key| self.source.read(shard, key_of(key))).collect();
                self.shards[shard].asked = Some(Asked::Copy { part, keys, found, at, forks });
            }
            Some(Work::Switch { set, state, ticket }) => {
                let what = vec![Do::State(set, state)];
                let entry = Entry { offset: None, what, ticket: Some(ticket), switch: true };
                self.lanes[lane_of(shard, set)].queue.push_back(entry);
            }
            None => {}
        }
    }

    fn act(&mut self, shard: usize, asked: Asked) {
        let history = self.source.nodes[shard].forks.len();
        match asked {
            // An answer about a history that isn't the stream's.
            Asked::List { part, forks, .. } | Asked::Copy { part, forks, .. } if forks != history => {
                self.motion.failed(part);
            }
            Asked::List { part, keys, at, .. } => {
                self.shards[shard].received = self.shards[shard].received.max(at);
                self.motion.listed(part, keys, ReplOffset(at));
            }
            Asked::Copy { part, found, .. } if found.iter().any(|found| matches!(found, Found::Redirected)) => {
                self.motion.redirected(part);
            }
            Asked::Copy { part, keys, found, at, .. } => {
                self.shards[shard].received = self.shards[shard].received.max(at);
                let Some(ticket) = self.motion.copied(part, &keys, ReplOffset(at)) else { return };
                let put = |(key, found): (&Name, Found)| match found {
                    Found::Value(value) => Some(Do::Put(key_of(key), value)),
                    Found::Redirected => None,
                };
                let what = keys.iter().zip(found).filter_map(put).collect();
                let entry = Entry { offset: None, what, ticket: Some(ticket), switch: false };
                self.lanes[lane_of(shard, part.set)].queue.push_back(entry);
            }
        }
    }

    fn send(&mut self, lane: usize, entries: usize) {
        if !self.shards[lane / LANES].connected {
            return;
        }
        let lane = &mut self.lanes[lane];
        if lane.flight.is_none() && !lane.queue.is_empty() {
            let count = entries.min(lane.queue.len());
            lane.flight = Some(lane.queue.drain(..count).collect());
            lane.served = false;
        }
    }

    fn serve(&mut self, lane: usize) {
        let shard = &self.shards[lane / LANES];
        if !shard.connected || shard.target != self.target.id {
            return;
        }
        let state = &mut self.lanes[lane];
        if let Some(flight) = state.flight.as_ref().filter(|_| !state.served) {
            let what: Vec<Do> = flight.iter().flat_map(|entry| entry.what.clone()).collect();
            self.target.run(&what, &[(lane, state.landing())]);
            state.served = true;
        }
    }

    fn deliver(&mut self, lane: usize) {
        let shard = lane / LANES;
        let state = &self.lanes[lane];
        if self.shards[shard].connected && state.served && state.flight.is_some() {
            self.landed(lane);
            self.acknowledge(shard);
        }
    }

    /// A lane's flight was applied.
    fn landed(&mut self, lane: usize) {
        let state = &mut self.lanes[lane];
        state.applied = state.landing();
        let flight = state.flight.take().unwrap_or_default();
        for ticket in flight.into_iter().filter_map(|entry| entry.ticket) {
            self.motion.acknowledged(ticket);
        }
    }

    /// Says up to where a shard's lanes have applied everything.
    fn acknowledge(&mut self, shard: usize) {
        let lanes = &self.lanes[shard * LANES..(shard + 1) * LANES];
        let position = |lane: &Lane| if lane.is_idle() { lane.routed } else { lane.applied.offset };
        let applied = lanes.iter().map(position).min().unwrap_or(0);
        self.motion.applied(shard as u32, ReplOffset(applied));
    }

    fn pump(&mut self) {
        for lane in 0..SHARDS * LANES {
            self.send(lane, usize::MAX);
            self.serve(lane);
            self.deliver(lane);
        }
    }

    fn tick(&mut self, lane: usize) {
        let state = &mut self.lanes[lane];
        if state.is_idle() && state.routed > state.applied.offset {
            let offset = Some(state.routed);
            state.queue.push_back(Entry { offset, what: Vec::new(), ticket: None, switch: false });
        }
    }

    fn cut(&mut self, shard: usize) {
        self.shards[shard].connected = false;
        for lane in shard * LANES..(shard + 1) * LANES {
            let queue = std::mem::take(&mut self.lanes[lane].queue);
            let (switches, rest): (Vec<Entry>, _) = queue.into_iter().partition(|entry| entry.switch);
            self.lanes[lane].queue = rest.into();
            switches.into_iter().filter_map(|entry| entry.ticket).for_each(|ticket| self.motion.dropped(ticket));
        }
    }

    fn connect(&mut self, shard: usize) -> Checked {
        // A lost server is noticed by the next who asks for anything.
        if self.shards[shard].connected && self.shards[shard].target == self.target.id {
            return Ok(());
        }
        self.cut(shard);
        let changed = self.shards[shard].target != self.target.id;
        let lanes = shard * LANES..(shard + 1) * LANES;
        for lane in lanes.clone() {
            let record = self.target.content.records[&lane];
            let state = &mut self.lanes[lane];
            if changed || state.flight.is_none() {
                continue;
            }
            if record >= state.landing() {
                self.landed(lane);
                continue;
            }
            for entry in state.flight.take().unwrap_or_default().into_iter().rev() {
                match entry.ticket.filter(|_| entry.switch) {
                    Some(ticket) => self.motion.dropped(ticket),
                    None => self.lanes[lane].queue.push_front(entry),
                }
            }
        }
        let target = &self.target;
        self.motion.reread(shard as u32, target.id, |slot| target.state(slot));
        if changed && self.has_forked(shard) {
            self.full_sync(shard);
            return Ok(());
        }
        if changed {
            let lowest = Target::lowest(&self.target.content, shard);
            for lane in lanes {
                let record = self.target.content.records[&lane];
                self.lanes[lane] = Lane { forks: self.shards[shard].forks, ..Lane::standing_at(record) };
                self.shards[shard].passed[lane % LANES] = record.offset;
            }
            self.motion.rewinds(shard as u32, ReplOffset(lowest));
            self.shards[shard].rewind = Some(lowest);
        }
        self.shards[shard].connected = true;
        self.shards[shard].target = self.target.id;
        self.acknowledge(shard);
        Ok(())
    }

    fn roll_back(&mut self, count: usize) {
        self.target.roll_back(count);
    }

    fn replicate(&mut self) {
        self.target.replicate();
        for shard in 0..SHARDS {
            let lowest = Target::lowest(&self.target.replica, shard);
            self.motion.covered(shard as u32, ReplOffset(lowest));
        }
    }

    fn release(&mut self, shard: usize) {
        let record = Target::lowest(&self.target.replica, shard);
        let keep = self.motion.keep_from(shard as u32).map_or(u64::MAX, |offset| offset.0);
        let released = &mut self.shards[shard].released;
        *released = (*released).max(record.min(keep));
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
                for _ in 0..2 * (KEYS_OF_WORK + 2) {
                    self.step(Op::Work(shard))?;
                }
            }
            self.step(Op::Pump)?;
            self.step(Op::LookAll)?;
            let judged = |(shard, node): (&Shard, &super::source::Node)| shard.next == node.stream.len();
            let all = self.shards.iter().zip(&self.source.nodes).all(judged) && self.lanes.iter().all(Lane::is_idle);
            if all && self.motion.in_motion().next().is_none() && self.shards.iter().all(|shard| shard.rewind.is_none())
            {
                return self.compare();
            }
        }
        let motion: Vec<String> =
            self.motion.in_motion().map(|(slot, _, stage)| format!("{slot}: {stage:?}")).collect();
        Err(format!("doesn't come to rest: {motion:?}"))
    }

    fn compare(&self) -> Checked {
        let truth = self.source.truth();
        if self.target.content.data == truth {
            return Ok(());
        }
        Err(format!("the target has {:?}, the source {truth:?}", self.target.content.data))
    }
}

/// Enough work for every key of every slot.
const KEYS_OF_WORK: usize = 8;

/// The effects are all modelled.
const _: fn(Effect) = |effect| match effect {
    Effect::Writes | Effect::Removes | Effect::Trims | Effect::Empties => {}
};
