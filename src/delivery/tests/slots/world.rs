//! The machine between the model source and the model nodes, and an adversary on the wires.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::node::Nodes;
use super::ops::Op;
use super::owner::{Io, Owner};
use super::source::{FUNCTION, Source, feeds};
use crate::delivery::rules::SlotRules;
use crate::delivery::slots::{Event, Found, Position, position};
use crate::delivery::standalone::Reread;
use crate::delivery::tests::server::{Conn, Data, Trap, Value};
use crate::delivery::unit::Task;
use crate::offset::ReplOffset;
use crate::slot::{Slot, Slots};

const WRONG: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Rules that are kept around the machine.
#[derive(Debug, Clone, Copy)]
pub struct Around {
    pub kill_own: bool,
    pub kill_others: bool,
    /// What an earlier copy left is removed before the stream comes.
    pub leftovers: bool,
    /// A floor that names slots of other nodes doesn't count.
    pub floors_whole: bool,
    /// A flush takes only what is below it.
    pub flush_below: bool,
    /// Records are checked when they are written, and tags when they run.
    pub strict: bool,
}

impl Default for Around {
    fn default() -> Self {
        Around {
            kill_own: true,
            kill_others: true,
            leftovers: true,
            floors_whole: true,
            flush_below: true,
            strict: true,
        }
    }
}

pub struct World {
    pub nodes: Nodes,
    source: Rc<Source>,
    rules: SlotRules,
    around: Around,
    lanes: usize,
    generation: u64,
    pub owner: Owner,
    old: Vec<Owner>,
    now_ms: i64,
    task_fails: bool,
    first_records: bool,
    /// Nodes have lost writes since all was settled, or the process is new.
    lost: bool,
    /// Keys were lost on a move.
    torn: bool,
    /// Only a new copy can help, though nobody but the adversary can know.
    hopeless: bool,
}

type Checked = Result<(), String>;

impl World {
    pub fn new(source: Source, count: usize, lanes: usize, rules: SlotRules, around: Around) -> Self {
        let source = Rc::new(source);
        let nodes = Nodes::new(Rc::clone(&source), count, around.strict);
        let owner = Owner::copying(0, &nodes, lanes, rules, 1);
        World {
            nodes,
            source,
            rules,
            around,
            lanes,
            generation: 1,
            owner,
            old: Vec::new(),
            now_ms: 1_000_000,
            task_fails: false,
            first_records: false,
            lost: false,
            torn: false,
            hopeless: false,
        }
    }

    /// The copy is complete, all is answered, and the floors stand.
    pub fn warm_up(&mut self) -> Checked {
        self.step(Op::Connect)?;
        self.step(Op::Push(1))?;
        for round in 0..10 {
            for n in 0..self.nodes.nodes.len() * self.lanes {
                self.step(Op::Pump(n))?;
                if round > 6 {
                    self.step(Op::Floor(n))?;
                    self.step(Op::Pump(n))?;
                }
            }
        }
        Ok(())
    }

    fn node(&self, n: usize) -> usize {
        n % self.nodes.nodes.len()
    }

    fn slot(&self, n: usize) -> Slot {
        let all: Vec<Slot> = feeds().iter().collect();
        all[n % all.len()]
    }

    /// The nth connection: its node, and which of the node's it is.
    fn conn(&self, n: usize) -> (usize, usize) {
        (self.node(n), n / self.nodes.nodes.len() % self.lanes)
    }

    pub fn step(&mut self, op: Op) -> Checked {
        self.owner.machine.set_time(self.now_ms);
        match op {
            Op::Push(units) => self.owner.push(&self.source, units, self.around.leftovers),
            Op::Send(n) => self.send(n)?,
            Op::Serve(n, bytes) => self.serve(n, bytes),
            Op::Deliver(n, bytes) => self.deliver(n, bytes)?,
            Op::Pump(n) => self.pump(n)?,
            Op::Floor(n) => self.floor(self.node(n)),
            Op::Refresh(n) => self.owner.machine.refresh_slot(self.slot(n).number()),
            Op::Resume(n) => {
                let (node, lane) = self.conn(n);
                if let Some((id, _)) = &self.owner.links[node] {
                    let conn = self.owner.machine.conns_of(*id).start + lane;
                    self.owner.machine.unpause(conn);
                }
            }
            Op::Time(ms) => {
                self.now_ms += ms;
                self.owner.machine.set_time(self.now_ms);
                self.owner.machine.wake();
            }
            Op::Cut(n) => self.cut(self.node(n)),
            Op::Connect => self.connect()?,
            Op::Late(n) => {
                self.late(n);
                self.step_old(n)?;
            }
            Op::Refuse(after, words) => {
                if self.nodes.refused_for_good.is_none() {
                    self.nodes.refuse = Some(Trap { after, words });
                }
            }
            Op::Fail(after) => self.nodes.fail = Some(Trap { after, words: WRONG }),
            Op::TaskFails => self.task_fails = true,
            Op::Restart => self.replace(false)?,
            Op::SecondOwner => self.replace(true)?,
            Op::Distrust => {
                self.owner.machine.distrust();
                (0..self.nodes.nodes.len()).for_each(|n| self.cut(n));
                self.lost = true;
            }
            Op::RollBack(n, count) => self.roll_back(self.node(n), count, false),
            Op::Demote(n, count) => self.roll_back(self.node(n), count, true),
            Op::Move(slot, to) => self.nodes.begin_move(self.slot(slot), self.node(to)),
            Op::MoveKey => _ = self.nodes.move_key(),
            Op::MoveEnd => self.nodes.end_move(),
        }
        self.check()
    }

    fn check(&mut self) -> Checked {
        if let Some(violation) = self.nodes.violation.take() {
            return Err(violation);
        }
        let applied = self.owner.machine.applied();
        if applied < self.owner.applied && self.around.strict {
            return Err(format!("applied() fell from {:?} to {applied:?}", self.owner.applied));
        }
        if applied == self.owner.applied {
            return Ok(());
        }
        self.owner.applied = applied;
        let Some(applied) = applied.filter(|_| self.around.strict && !self.lost) else { return Ok(()) };
        for slot in feeds().iter() {
            for part in self.source.parts(slot).filter(|p| p.offset <= applied) {
                if self.nodes.ran(slot, &part.first_tag()) == 0 && !self.nodes.removed.contains(&part.name) {
                    return Err(format!(
                        "applied() is {applied}, but {} is missing",
                        String::from_utf8_lossy(&part.name)
                    ));
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, n: usize) -> Checked {
        self.perform()?;
        let (node, lane) = self.conn(n);
        let Some((id, ios)) = &self.owner.links[node] else { return Ok(()) };
        let conn = self.owner.machine.conns_of(*id).start + lane;
        let mut out = Vec::new();
        self.owner.machine.send(conn, &mut out);
        self.nodes.nodes[node].conns[ios[lane].conn].inbox.extend(out);
        Ok(())
    }

    /// Does a task as the driver does: nothing else happens meanwhile, and it waits for keys on the move.
    fn perform(&mut self) -> Checked {
        if self.owner.running.is_none() {
            self.owner.running = self.owner.machine.task();
        }
        if self.nodes.motion.is_some() {
            return Ok(());
        }
        let Some((task, offset)) = self.owner.running.take() else { return Ok(()) };
        let fails = std::mem::take(&mut self.task_fails);
        let count = if fails { 1 } else { self.nodes.nodes.len() };
        for node in 0..count {
            task.steps().iter().for_each(|step| self.perform_on(node, step, offset));
        }
        if fails {
            self.cut(0);
            // A node that wasn't connected is no break to the machine.
            return Ok(());
        }
        self.owner.machine.task_done();
        Ok(())
    }

    fn perform_on(&mut self, node: usize, step: &Task, offset: ReplOffset) {
        let del = |key: &[u8]| vec![b"DEL".to_vec(), key.to_vec()];
        match step {
            Task::Everywhere { commands } => {
                let words = commands[0].split(|b| *b == b' ').map(<[u8]>::to_vec).collect();
                self.nodes.run(node, vec![words]);
            }
            Task::RemoveLeftovers { .. } => self.nodes.run(node, vec![del(b"leftover{a}")]),
            Task::RemoveScope { .. } => {
                let below = |key: &[u8]| {
                    key != FUNCTION && (self.owner.machine.is_below(Slot::of(key), offset) || !self.around.flush_below)
                };
                let users = self.nodes.nodes[node].data.users();
                let mut commands = Vec::new();
                for (db, key) in users.keys().filter(|(_, key)| below(key)) {
                    commands.push(vec![b"SELECT".to_vec(), db.to_string().into_bytes()]);
                    commands.push(del(key));
                }
                self.nodes.run(node, commands);
            }
            Task::InOrder(_) => unreachable!("steps are simple"),
        }
    }

    fn serve(&mut self, n: usize, bytes: usize) {
        let (node, lane) = self.conn(n);
        if let Some((_, ios)) = &self.owner.links[node] {
            let conn = ios[lane].conn;
            self.nodes.serve(node, conn, bytes);
        }
    }

    fn deliver(&mut self, n: usize, bytes: usize) -> Checked {
        let (node, lane) = self.conn(n);
        let Some((id, ios)) = &mut self.owner.links[node] else { return Ok(()) };
        let conn = self.owner.machine.conns_of(*id).start + lane;
        let outbox = &mut self.nodes.nodes[node].conns[ios[lane].conn].outbox;
        let bytes = bytes.min(outbox.len());
        ios[lane].input.extend(outbox.drain(..bytes));
        loop {
            let Some((_, ios)) = &mut self.owner.links[node] else { return Ok(()) };
            let input = std::mem::take(&mut ios[lane].input);
            let Ok((used, scanned)) = ios[lane].scanner.scan(&input) else { return Err("answers are no RESP".into()) };
            ios[lane].input = input[used..].to_vec();
            let Some(scanned) = scanned else { return Ok(()) };
            match self.owner.machine.answer(conn, scanned) {
                Ok(Some(Event::Elsewhere { .. })) | Err(_) => {
                    self.cut(node);
                    return Ok(());
                }
                Ok(Some(Event::Faults { slot, faults: _ })) => {
                    self.nodes.removed.extend(self.nodes.refused_for_good.take());
                    if let Some(slot) = slot {
                        self.owner.machine.go_on(slot);
                    }
                }
                Ok(_) => {}
            }
        }
    }

    fn pump(&mut self, n: usize) -> Checked {
        self.send(n)?;
        self.serve(n, usize::MAX);
        self.deliver(n, usize::MAX)
    }

    fn floor(&mut self, node: usize) {
        let Some((id, ios)) = &self.owner.links[node] else { return };
        if let Some((conn, out)) = self.owner.machine.floor(*id) {
            let lane = conn - self.owner.machine.conns_of(*id).start;
            self.nodes.nodes[node].conns[ios[lane].conn].inbox.extend(out);
        }
    }

    fn cut(&mut self, node: usize) {
        let Some((id, ios)) = self.owner.links[node].take() else { return };
        for io in ios {
            let conn = &mut self.nodes.nodes[node].conns[io.conn];
            conn.open = false;
            conn.outbox.clear();
        }
        self.nodes.refused_for_good = None;
        self.owner.running = None;
        self.owner.machine.detach(id);
    }

    fn late(&mut self, n: usize) {
        let node = self.node(n);
        let closed = |c: &Conn| !c.open && !c.killed && !c.inbox.is_empty();
        let conns: Vec<usize> = (0..self.nodes.nodes[node].conns.len()).collect();
        for conn in conns {
            if closed(&self.nodes.nodes[node].conns[conn]) {
                self.nodes.serve(node, conn, usize::MAX);
            }
        }
    }

    fn kill(&mut self, node: usize) {
        let (id, around) = (self.owner.id, self.around);
        let mine = self.owner.links[node].is_none();
        for conn in &mut self.nodes.nodes[node].conns {
            if if conn.owner == id { around.kill_own && mine } else { around.kill_others } {
                conn.killed = true;
                conn.inbox.clear();
            }
        }
        if around.kill_others {
            self.old.clear();
        }
    }

    fn connect(&mut self) -> Checked {
        if std::mem::take(&mut self.hopeless) {
            return self.copy_again();
        }
        for node in 0..self.nodes.nodes.len() {
            if self.owner.links[node].is_some() {
                continue;
            }
            self.kill(node);
            let model = &mut self.nodes.nodes[node];
            model.readonly = false;
            let id = self.owner.machine.attach(&format!("{node}/{}", model.life));
            let ios = (0..self.lanes).map(|_| {
                model.conns.push(Conn { owner: self.owner.id, open: true, ..Conn::default() });
                Io { conn: model.conns.len() - 1, ..Io::default() }
            });
            self.owner.links[node] = Some((id, ios.collect()));
        }
        if !std::mem::replace(&mut self.first_records, true) {
            self.owner.write_first_records(&mut self.nodes);
        }
        let found = self.found();
        match self.owner.machine.settle(&found) {
            Ok(Reread::Continue) => {}
            Ok(Reread::Rewind { offset, epoch, .. }) if self.lost => {
                self.must_be_at_rest()?;
                self.owner.rewind(&self.source, offset, epoch);
            }
            Ok(Reread::ReadAll) if self.lost => {
                (0..self.nodes.nodes.len()).for_each(|n| self.cut(n));
            }
            Err(_) if self.lost => return self.copy_again(),
            other => return Err(format!("settle: {other:?}")),
        }
        // A demoted node is only noticed when it refuses a write.
        if !self.owner.machine.needs_settling() && self.nodes.nodes.iter().all(|node| !node.readonly) {
            (self.lost, self.torn) = (false, false);
        }
        Ok(())
    }

    /// The router is about to start again: nothing that it made before may run any more, nor have run unknown to it, since
    /// it may make something else of the same units now.
    fn must_be_at_rest(&self) -> Checked {
        let positions = self.owner.machine.positions();
        let unknown = |slot: &Slot| {
            let record = self.nodes.record(self.nodes.owner[slot], *slot);
            record.is_some_and(|record| record.offset > positions[slot.index()])
        };
        if let Some(slot) = feeds().iter().find(unknown) {
            return Err(format!("the router starts again, and slot {slot} is further than {positions:?}"));
        }
        // A floor may be.
        let holds_units = |conn: &Conn| conn.inbox.windows(5).any(|word| word == b"MULTI");
        let on_its_way = |conn: &Conn| !conn.killed && conn.owner == self.owner.id && holds_units(conn);
        if self.nodes.nodes.iter().flat_map(|node| &node.conns).any(on_its_way) {
            return Err("the router starts again with something on its way".into());
        }
        match self.owner.machine.queued_bytes() {
            0 => Ok(()),
            queued => Err(format!("the router starts again with {queued} bytes queued")),
        }
    }

    /// What the process reads: the records of slots that it wants, and the floors beside them.
    fn found(&self) -> Vec<Found> {
        let motion = self.nodes.motion;
        let of_node = |node: usize| {
            let (id, _) = self.owner.links[node].as_ref()?;
            let owned = feeds().iter().filter(|slot| self.nodes.owner[slot] == node).collect::<Vec<_>>();
            let wanted = owned.iter().copied().filter(|slot| self.owner.machine.wants(*slot, *id));
            let records = wanted.map(|slot| (slot, self.nodes.record(node, slot)));
            // A record that is on its way is answered by ASK.
            let records = records
                .filter(|(slot, record)| record.is_some() || motion.is_none_or(|m| m.slot != *slot || m.from != node));
            let moving: Slots = motion.iter().filter(|m| m.from == node || m.to == node).map(|m| m.slot).collect();
            let (records, floors) = (records.collect(), self.nodes.floors(node));
            let found = match self.around.floors_whole {
                true => Found::new(*id, owned.into_iter().collect(), records, floors),
                false => Found { node: *id, owned: owned.into_iter().collect(), records, floors, ..Found::default() },
            };
            Some(Found { moving, ..found })
        };
        (0..self.nodes.nodes.len()).filter_map(of_node).collect()
    }

    /// A full sync from the beginning.
    fn copy_again(&mut self) -> Checked {
        self.generation += 1;
        self.nodes.end_move();
        (0..self.nodes.nodes.len()).for_each(|n| self.cut(n));
        self.owner = Owner::copying(self.owner.id, &self.nodes, self.lanes, self.rules, self.generation);
        for node in 0..self.nodes.nodes.len() {
            self.nodes.run(node, vec![vec![b"STARTOVER".to_vec()]]);
        }
        self.nodes.removed.clear();
        (self.first_records, self.lost, self.torn, self.hopeless) = (false, false, false, false);
        self.connect()
    }

    /// Another process goes on with the job; this one is dead, or doesn't know of it.
    fn replace(&mut self, alive: bool) -> Checked {
        // Nobody can read a record that is on its way, nor know of keys that were lost on theirs.
        if self.torn || self.hopeless {
            return self.copy_again();
        }
        self.nodes.end_move();
        let id = self.owner.id + 1;
        let next = Owner::copying(id, &self.nodes, self.lanes, self.rules, self.generation);
        if alive {
            self.nodes.refused_for_good = None;
        } else {
            (0..self.nodes.nodes.len()).for_each(|n| self.cut(n));
        }
        let old = std::mem::replace(&mut self.owner, next);
        if alive && old.links.iter().any(Option::is_some) {
            self.old.push(old);
        }
        // It reads the records once before it connects, and once behind that.
        let positions = self.positions();
        if id.is_multiple_of(2) {
            (0..self.nodes.nodes.len()).for_each(|n| self.late(n));
        }
        (self.first_records, self.lost) = (true, true);
        let Some(positions) = positions else { return self.copy_again() };
        let next = std::mem::replace(&mut self.owner, Owner::copying(id, &self.nodes, self.lanes, self.rules, 0));
        self.owner = next.following(&self.source, &positions, self.lanes, self.generation);
        self.connect()
    }

    fn positions(&self) -> Option<Vec<(Slot, Position)>> {
        let of_slot = |slot: Slot| {
            let node = self.nodes.owner[&slot];
            let record = self.nodes.record(node, slot).filter(|r| r.generation == self.generation)?;
            let owned = feeds().iter().filter(|slot| self.nodes.owner[slot] == node).collect();
            let found = Found::new(0, owned, Vec::new(), self.nodes.floors(node));
            let floor = match self.rules.floor_names_slots {
                true => found.floor(slot, self.generation, 0, None),
                false => found
                    .floors
                    .iter()
                    .map(|f| Position { offset: f.record.offset, stream_db: f.record.stream_db })
                    .max(),
            };
            position(&record, floor).map(|position| (slot, position))
        };
        feeds().iter().map(of_slot).collect()
    }

    fn roll_back(&mut self, node: usize, count: usize, demote: bool) {
        let torn = self.nodes.roll_back(node, count);
        let in_motion = self.nodes.motion.is_some_and(|m| m.from == node || m.to == node);
        self.torn |= torn || in_motion;
        // A node of which the process knows no slot may fall back without its notice.
        let known = self.owner.links[node].is_some() && self.nodes.owner.values().any(|owner| *owner == node);
        self.hopeless |= (torn || in_motion) && !known;
        self.lost = true;
        self.nodes.nodes[node].readonly = demote;
        if demote {
            return;
        }
        self.cut(node);
        self.nodes.nodes[node].conns.iter_mut().for_each(|c| c.killed = true);
    }

    /// A process that was replaced does something.
    fn step_old(&mut self, n: usize) -> Checked {
        let Some(old) = self.old.pop() else { return Ok(()) };
        let owner = std::mem::replace(&mut self.owner, old);
        let result = self.pump(n);
        let old = std::mem::replace(&mut self.owner, owner);
        self.old.push(old);
        result
    }

    /// Delivers everything, with nothing in the way any more; then the target must be equal to the source.
    pub fn drain(&mut self) -> Checked {
        (self.nodes.refuse, self.nodes.fail, self.task_fails) = (None, None, false);
        let rounds = 60 + 20 * self.source.units.len();
        let conns = self.nodes.nodes.len() * self.lanes;
        for round in 0..rounds {
            if round == 2 {
                self.step(Op::MoveEnd)?;
            }
            self.step(Op::Connect)?;
            self.step(Op::Push(if round < 3 { 1 } else { usize::MAX }))?;
            self.step(Op::Time(1100))?;
            for n in 0..conns {
                self.step(Op::Resume(n))?;
                self.step(Op::Pump(n))?;
                // The first, so that a demoted server is noticed.
                if round < 3 || self.owner.machine.is_idle() {
                    self.step(Op::Floor(n))?;
                    self.step(Op::Pump(n))?;
                }
            }
            if round > 3 && self.owner.next == Some(self.source.units.len()) && self.owner.machine.is_recorded() {
                return self.end();
            }
        }
        Err(format!("no end after {rounds} rounds: {:?}", self.owner.machine.applied()))
    }

    fn end(&self) -> Checked {
        let expected = self.expected()?;
        let users = self.nodes.users();
        if users != expected {
            return Err(format!("target {users:?} is not {expected:?}"));
        }
        let machine = &self.owner.machine;
        if machine.applied() != Some(self.source.end()) {
            return Err(format!("applied() is {:?} at the end", machine.applied()));
        }
        if machine.queued_bytes() != 0 {
            return Err(format!("{} queued bytes at the end", machine.queued_bytes()));
        }
        for node in self.nodes.owner.values() {
            let here = self.nodes.nodes[*node].data.keys.get(&(0, FUNCTION.to_vec()));
            if here != self.source.function().map(Value::Text).as_ref() {
                return Err(format!("node {node} has the function {here:?}"));
            }
        }
        match self.positions().and_then(|all| all.into_iter().map(|(_, p)| p.offset).min()) {
            Some(lowest) if lowest == self.source.end() => Ok(()),
            other => Err(format!("the lowest position at the end is {other:?}")),
        }
    }

    /// The source's keys, without what the target refused; an error if something didn't run just once.
    fn expected(&self) -> Result<BTreeMap<(u32, Vec<u8>), Value>, String> {
        let mut data = Data::default();
        let strict = self.around.strict;
        let run = |data: &mut Data, db: u32, command: &Vec<Vec<u8>>, many: bool| {
            let Some(tag) = command.last() else { return Ok(()) };
            let name = String::from_utf8_lossy(tag);
            let ledger = &self.nodes.nodes[self.nodes.owner[&Slot::of(&command[1])]].data;
            match ledger.ran.get(tag) {
                Some(n) if *n > 1 && !many && strict => return Err(format!("{name} ran {n} times")),
                None if self.nodes.removed.iter().any(|r| tag.starts_with(r)) => return Ok(()),
                None if strict => return Err(format!("{name} never ran")),
                Some(_) if ledger.failed.contains(tag) => return Ok(()),
                _ => {}
            }
            // What fails here for want of what was refused fails there as well.
            let _ = data.execute(&mut db.clone(), command);
            Ok(())
        };
        for (db, command) in &self.source.values {
            run(&mut data, *db, command, true)?;
        }
        for (db, commands) in &self.source.pieces {
            commands.iter().try_for_each(|c| run(&mut data, *db, c, false))?;
        }
        for unit in &self.source.units {
            if unit.task.iter().flat_map(Task::steps).any(|step| matches!(step, Task::RemoveScope { .. })) {
                let _ = data.execute(&mut 0, &[b"REMOVESCOPE".to_vec()]);
            }
            for part in &unit.parts {
                part.commands.iter().try_for_each(|(db, c)| run(&mut data, *db, c, false))?;
            }
        }
        Ok(data.users())
    }
}
