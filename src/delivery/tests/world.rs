//! The machine between the model source and the model target, and an adversary on the wires.

use std::rc::Rc;

use super::ops::Op;
use super::owner::{Io, Owner};
use super::server::{Conn, Data, Server, Trap};
use super::source::Source;
use crate::delivery::record::{Phase, Record};
use crate::delivery::rules::Rules;
use crate::delivery::standalone::{Event, Reread};
use crate::delivery::unit::Task;

const WRONG: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Rules that are kept around the machine.
#[derive(Debug, Clone, Copy)]
pub struct Around {
    /// Connecting kills this process's former connections.
    pub kill_own: bool,
    /// Connecting kills the connections of other owners.
    pub kill_others: bool,
    /// A break on one lane is a break of all: all records are read.
    pub break_all: bool,
    /// What an earlier copy left is removed before the stream comes.
    pub leftovers: bool,
    /// Records are checked when they are written, and tags when they run.
    pub strict: bool,
}

impl Default for Around {
    fn default() -> Self {
        Around { kill_own: true, kill_others: true, break_all: true, leftovers: true, strict: true }
    }
}

pub struct World {
    pub server: Server,
    source: Rc<Source>,
    rules: Rules,
    around: Around,
    generation: u64,
    owner: Owner,
    /// Processes that have been replaced and don't know it.
    old: Vec<Owner>,
    task_fails: bool,
    /// The target has lost writes since the last connect.
    lost: bool,
}

type Checked = Result<(), String>;

impl World {
    pub fn new(source: Source, rules: Rules, around: Around) -> Self {
        let source = Rc::new(source);
        let mut server = Server::new(Rc::clone(&source), around.strict);
        let owner = Owner::copying(0, &source, rules, 1);
        owner.write_first_records(&mut server);
        let mut world = World {
            server,
            source,
            rules,
            around,
            generation: 1,
            owner,
            old: Vec::new(),
            task_fails: false,
            lost: false,
        };
        world.open_lanes();
        world
    }

    fn lanes(&self) -> usize {
        self.source.lanes
    }

    fn open_lanes(&mut self) {
        let id = self.owner.id;
        self.owner.lanes.clear();
        for _ in 0..self.lanes() {
            let conn = self.server.conns.len();
            self.server.conns.push(Conn { owner: id, open: true, ..Conn::default() });
            self.owner.lanes.push(Io { conn, ..Io::default() });
        }
        self.owner.connected = true;
    }

    /// The target becomes one before 6.0, which refuses the next MULTI.
    pub fn refuse_multi(&mut self) {
        self.server.refuse_multi = true;
        self.owner.machine.set_careful(true);
    }

    /// The copy is complete and all is answered.
    pub fn warm_up(&mut self) -> Checked {
        self.step(Op::Push(1))?;
        for lane in 0..10 * self.lanes() {
            self.step(Op::Pump(lane))?;
        }
        Ok(())
    }

    /// Does one thing, and checks what must hold after each.
    pub fn step(&mut self, op: Op) -> Checked {
        match op {
            Op::Push(units) => self.owner.push(&self.source, units, self.around.leftovers),
            Op::Send(lane) => self.send(lane % self.lanes())?,
            Op::Serve(lane, bytes) => self.serve(lane % self.lanes(), bytes),
            Op::Deliver(lane, bytes) => self.deliver(lane % self.lanes(), bytes)?,
            Op::Pump(lane) => self.pump(lane % self.lanes())?,
            Op::Tick(lane) => self.tick(lane % self.lanes()),
            Op::Resume(lane) => self.owner.machine.unpause(lane % self.lanes()),
            Op::Cut(lane) => self.cut(lane % self.lanes()),
            Op::Connect => self.connect()?,
            Op::Late(nth) => {
                self.late(nth);
                self.step_old(nth)?;
            }
            Op::Refuse(after, words) => self.refuse(after, words),
            Op::Fail(after) => self.server.fail = Some(Trap { after, words: WRONG }),
            Op::TaskFails => self.task_fails = true,
            Op::Restart => self.replace(false)?,
            Op::SecondOwner => self.replace(true)?,
            Op::Distrust => {
                self.owner.machine.distrust();
                self.cut(0);
                self.lost = true;
            }
            Op::RollBack(count) => self.roll_back(count, false),
            Op::Demote(count) => self.roll_back(count, true),
        }
        self.check()
    }

    fn check(&mut self) -> Checked {
        if let Some(violation) = self.server.violation.take() {
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
        let seen = self.owner.next.and_then(|n| self.source.units.get(n)).map_or(self.source.end(), |u| u.offset);
        if applied > seen {
            return Err(format!("applied() is {applied}, but {seen} was received"));
        }
        for lane in 0..self.lanes() {
            for part in self.source.parts(lane).filter(|p| p.offset <= applied) {
                if !self.server.data.ran.contains_key(&part.first_tag()) && !self.server.removed.contains(&part.name) {
                    let name = String::from_utf8_lossy(&part.name);
                    return Err(format!("applied() is {applied}, but {name} is missing"));
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, lane: usize) -> Checked {
        if !self.owner.connected {
            return Ok(());
        }
        let owes = self.owner.machine.awaits_answer(lane);
        let mut out = Vec::new();
        if let Some(task) = self.owner.machine.send(lane, &mut out) {
            return self.perform(lane, &task);
        }
        if owes && self.around.strict && out.windows(5).any(|w| w == b"MULTI") {
            return Err(format!("lane {lane} sent a flush behind another"));
        }
        self.server.conns[self.owner.lanes[lane].conn].inbox.extend(out);
        Ok(())
    }

    /// Does a task as the driver does: nothing else happens meanwhile.
    fn perform(&mut self, lane: usize, task: &Task) -> Checked {
        if std::mem::take(&mut self.task_fails) {
            self.break_all();
            return Ok(());
        }
        let command: &[u8] = match task {
            Task::RemoveScope { .. } => b"REMOVESCOPE",
            Task::RemoveLeftovers { .. } => b"REMOVELEFTOVERS",
            other => return Err(format!("a standalone target is given {other:?}")),
        };
        self.server.run(0, vec![vec![command.to_vec()]]);
        self.owner.machine.task_done(lane);
        Ok(())
    }

    fn serve(&mut self, lane: usize, bytes: usize) {
        if let Some(io) = self.owner.lanes.get(lane) {
            self.server.serve(io.conn, bytes);
        }
    }

    fn deliver(&mut self, lane: usize, bytes: usize) -> Checked {
        if !self.owner.connected {
            return Ok(());
        }
        let outbox = &mut self.server.conns[self.owner.lanes[lane].conn].outbox;
        let bytes = bytes.min(outbox.len());
        let fresh: Vec<u8> = outbox.drain(..bytes).collect();
        let io = &mut self.owner.lanes[lane];
        io.input.extend(fresh);
        loop {
            let io = &mut self.owner.lanes[lane];
            let input = std::mem::take(&mut io.input);
            let Ok((used, scanned)) = io.scanner.scan(&input) else { return Err("answers are no RESP".into()) };
            io.input = input[used..].to_vec();
            let Some(scanned) = scanned else { return Ok(()) };
            match self.owner.machine.answer(lane, scanned) {
                Ok(
                    None
                    | Some(Event::Copied { .. } | Event::Applied { .. } | Event::LostKeys { .. } | Event::Refused { .. }),
                ) => {}
                Ok(Some(Event::Elsewhere { .. })) | Err(_) => {
                    self.break_all();
                    return Ok(());
                }
                Ok(Some(Event::Faults(faults))) => {
                    self.server.removed.extend(self.server.refused_for_good.take());
                    if faults.iter().any(|f| !f.applied) {
                        self.owner.machine.unpause(lane);
                    }
                }
            }
        }
    }

    fn pump(&mut self, lane: usize) -> Checked {
        self.send(lane)?;
        self.serve(lane, usize::MAX);
        self.deliver(lane, usize::MAX)
    }

    fn tick(&mut self, lane: usize) {
        if self.owner.connected {
            let mut out = Vec::new();
            self.owner.machine.send_record(lane, &mut out);
            self.server.conns[self.owner.lanes[lane].conn].inbox.extend(out);
        }
    }

    fn refuse(&mut self, after: u32, words: &'static str) {
        if self.server.refused_for_good.is_none() {
            self.server.refuse = Some(Trap { after, words });
        }
    }

    fn cut(&mut self, lane: usize) {
        self.break_all();
        self.owner.cut = Some(lane);
    }

    fn break_all(&mut self) {
        for io in &self.owner.lanes {
            let conn = &mut self.server.conns[io.conn];
            conn.open = false;
            conn.outbox.clear();
        }
        self.server.refused_for_good = None;
        self.owner.machine.broken();
        self.owner.connected = false;
        self.owner.cut = None;
    }

    fn late(&mut self, nth: usize) {
        let closed = |c: &&Conn| !c.open && !c.killed && !c.inbox.is_empty();
        let count = self.server.conns.iter().filter(closed).count();
        let Some(nth) = nth.checked_rem(count) else { return };
        let conn = self.server.conns.iter().enumerate().filter(|(_, c)| closed(c)).nth(nth).map(|(i, _)| i);
        if let Some(conn) = conn {
            self.server.serve(conn, usize::MAX);
        }
    }

    fn kill(&mut self) {
        let id = self.owner.id;
        let around = self.around;
        for conn in &mut self.server.conns {
            if if conn.owner == id { around.kill_own } else { around.kill_others } {
                conn.killed = true;
                conn.inbox.clear();
            }
        }
        if around.kill_others {
            // A process without connections finds another's token in the lease, and ends.
            self.old.clear();
        }
    }

    /// What the process knows of the records: what it reads, for the lanes that it connects.
    fn records(&self) -> Vec<Option<Record>> {
        let kept = |lane: usize| self.owner.cut.is_some_and(|cut| cut != lane) && !self.around.break_all;
        let record = |lane: usize| match kept(lane) {
            true => Some(self.owner.machine.first_record(lane)),
            false => self.server.data.record(lane),
        };
        (0..self.lanes()).map(record).collect()
    }

    fn connect(&mut self) -> Checked {
        if self.owner.connected {
            return Ok(());
        }
        self.kill();
        self.server.readonly = false;
        let records = self.records();
        let lost = std::mem::take(&mut self.lost);
        if lost && self.owner.machine.recorded().is_none() {
            // Lost in the copy: its values can't tell, the run id does.
            return self.copy_again();
        }
        self.reread(&records, lost)
    }

    /// `lost`: the records may differ from what the machine knows.
    fn reread(&mut self, records: &[Option<Record>], lost: bool) -> Checked {
        match self.owner.machine.reread(records) {
            Ok(Reread::Continue) => {}
            Ok(Reread::Rewind { offset, epoch, .. }) if lost => self.owner.rewind(&self.source, offset, epoch),
            Err(_) if lost => return self.copy_again(),
            other => return Err(format!("reread: {other:?}")),
        }
        self.open_lanes();
        Ok(())
    }

    /// A full sync from the beginning.
    fn copy_again(&mut self) -> Checked {
        self.generation += 1;
        self.owner = Owner::copying(self.owner.id, &self.source, self.rules, self.generation);
        self.server.run(0, vec![vec![b"STARTOVER".to_vec()]]);
        self.owner.write_first_records(&mut self.server);
        self.server.removed.clear();
        self.open_lanes();
        Ok(())
    }

    /// Another process goes on with the job; this one is dead, or doesn't know of it.
    fn replace(&mut self, alive: bool) -> Checked {
        let id = self.owner.id + 1;
        let next = Owner::copying(id, &self.source, self.rules, self.generation);
        if alive {
            self.server.refused_for_good = None;
        } else {
            self.break_all();
        }
        let old = std::mem::replace(&mut self.owner, next);
        if alive && old.connected {
            self.old.push(old);
        }
        // It reads the records once before it connects its lanes, and once behind that.
        let records = self.records();
        if id.is_multiple_of(2) {
            self.late(0);
        }
        self.kill();
        self.server.readonly = false;
        self.lost = false;
        let following = |r: &&Record| r.phase == Phase::Following && r.job.generation == self.generation;
        let records: Vec<Record> = records.iter().flatten().filter(following).cloned().collect();
        if records.len() < self.lanes() {
            return self.copy_again();
        }
        self.owner = Owner::following(self.owner.id, &self.source, self.rules, &records);
        let records = self.records();
        self.reread(&records, true)
    }

    fn roll_back(&mut self, count: usize, demote: bool) {
        self.server.roll_back(count);
        self.lost = true;
        self.server.readonly = demote;
        if demote {
            return;
        }
        self.cut(0);
        self.server.conns.iter_mut().for_each(|c| c.killed = true);
        self.old.clear();
    }

    /// A process that was replaced does something.
    fn step_old(&mut self, lane: usize) -> Checked {
        let Some(old) = self.old.pop() else { return Ok(()) };
        let owner = std::mem::replace(&mut self.owner, old);
        let result = self.pump(lane % self.lanes());
        let old = std::mem::replace(&mut self.owner, owner);
        if old.connected {
            self.old.push(old);
        }
        result
    }

    /// Delivers everything, with nothing in the way any more; then the target must be equal to the source.
    pub fn drain(&mut self) -> Checked {
        self.server.refuse = None;
        self.server.fail = None;
        self.task_fails = false;
        let rounds = 60 + 20 * self.source.units.len();
        for round in 0..rounds {
            self.step(Op::Connect)?;
            self.step(Op::Push(if round < 3 { 1 } else { usize::MAX }))?;
            for lane in 0..self.lanes() {
                self.step(Op::Resume(lane))?;
                self.step(Op::Pump(lane))?;
                // The first, so that a demoted server is noticed.
                let machine = &self.owner.machine;
                if round < 3 || machine.is_idle() && !machine.is_recorded() {
                    self.step(Op::Tick(lane))?;
                    self.step(Op::Pump(lane))?;
                }
            }
            if round > 3 && self.owner.next == Some(self.source.units.len()) && self.owner.machine.is_recorded() {
                return self.end();
            }
        }
        Err(format!("no end after {rounds} rounds: {:?}", self.owner.machine))
    }

    fn end(&self) -> Checked {
        let expected = self.expected()?;
        if self.server.data.users() != expected {
            return Err(format!("target {:?} is not {expected:?}", self.server.data.users()));
        }
        let machine = &self.owner.machine;
        if machine.applied() != Some(self.source.end()) {
            return Err(format!("applied() is {:?} at the end", machine.applied()));
        }
        if machine.queued_bytes() != 0 {
            return Err(format!("{} queued bytes at the end", machine.queued_bytes()));
        }
        match self.records().iter().position(|r| r.as_ref().map(|r| r.offset) != Some(self.source.end())) {
            Some(lane) => Err(format!("lane {lane}'s record at the end: {:?}", self.server.data.record(lane))),
            None => Ok(()),
        }
    }

    /// The source's keys, without what the target refused; an error if something didn't run just once.
    fn expected(&self) -> Result<std::collections::BTreeMap<(u32, Vec<u8>), super::server::Value>, String> {
        let mut data = Data::default();
        let ledger = &self.server.data;
        let run = |data: &mut Data, db: u32, command: &Vec<Vec<u8>>, many: bool| {
            let Some(tag) = command.last() else { return Ok(()) };
            let name = String::from_utf8_lossy(tag);
            match ledger.ran.get(tag) {
                Some(n) if *n > 1 && !many && self.around.strict => return Err(format!("{name} ran {n} times")),
                None if self.server.removed.iter().any(|r| tag.starts_with(r)) => return Ok(()),
                None if self.around.strict => return Err(format!("{name} never ran")),
                Some(_) if ledger.failed.contains(tag) => return Ok(()),
                _ => {}
            }
            // What fails here for want of what was refused fails there as well.
            let _ = data.execute(&mut db.clone(), command);
            Ok(())
        };
        for (_, db, command) in &self.source.values {
            run(&mut data, *db, command, true)?;
        }
        for (_, db, commands) in &self.source.pieces {
            commands.iter().try_for_each(|c| run(&mut data, *db, c, false))?;
        }
        for part in self.source.units.iter().flat_map(|u| &u.parts) {
            if part.task.is_some() {
                let _ = data.execute(&mut 0, &[b"REMOVESCOPE".to_vec()]);
            }
            part.commands.iter().try_for_each(|(db, c)| run(&mut data, *db, c, false))?;
        }
        Ok(data.users())
    }
}
