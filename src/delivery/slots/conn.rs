//! One connection: what it sends, and what the answers mean.

use std::collections::VecDeque;

use super::queue::Mark;
use super::{Cluster, ConnId, Event, Stage};
use crate::delivery::answers::{Answers, OutOfStep, Outcome};
use crate::delivery::copy::{Answer, CopyLane};
use crate::delivery::flight::{EXEC, MULTI, hold_back};
use crate::delivery::parts::{Holder, Parts, encode_units, select};
use crate::delivery::record::Phase;
use crate::delivery::refusal::{Refusal, reason, refusal};
use crate::delivery::rules::rule;
use crate::delivery::slots::record::SlotRecord;
use crate::delivery::standalone::{FLUSH_BYTES_MAX, fault};
use crate::offset::ReplOffset;
use crate::resp::reply::Scanned;

/// Bytes in flight on one connection: enough to keep a target busy that is some milliseconds away.
pub const WINDOW_BYTES: usize = 1 << 20;

/// Commands in flight on one connection: a slow target's answers stay within its output buffer.
pub const WINDOW_COMMANDS: usize = 8192;

/// Transactions are made for so many bytes at a time, and then written: while they are still in the processor's cache.
const SEND_BYTES: usize = 64 * 1024;

/// A transaction of one slot.
#[derive(Debug, Clone, Copy)]
struct Transaction {
    slot: u16,
    /// Units of the slot's list.
    units: u32,
    /// Commands of the units.
    commands: u32,
    /// Commands between MULTI and EXEC.
    queued: u32,
    bytes: u32,
    /// What its record says.
    mark: Mark,
    piece: bool,
}

#[derive(Debug, Clone, Copy)]
enum Flight {
    Transaction(Transaction),
    /// So many values of the copy, or a SELECT for them.
    Values(u32),
    /// The server's floor at this offset, and the arrivals it names.
    Floor(ReplOffset, u64),
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    pub open: bool,
    /// Slots that have something to send.
    pub ready: VecDeque<u16>,
    pub copy: CopyLane,
    flights: VecDeque<Flight>,
    /// The answers to the transaction in front.
    answers: Answers,
    bytes: usize,
    commands: usize,
    full: bool,
    pub paused: bool,
    /// What follows a MULTI that was sent alone.
    held: Vec<u8>,
}

impl Connection {
    fn push(&mut self, flight: Flight) {
        self.flights.push_back(flight);
        if self.flights.len() == 1 {
            self.begin();
        }
    }

    fn pop(&mut self) {
        if let Some(Flight::Transaction(done)) = self.flights.pop_front() {
            self.bytes -= done.bytes as usize;
            self.commands -= done.queued as usize;
        }
        self.begin();
    }

    fn begin(&mut self) {
        if let Some(Flight::Transaction(front)) = self.flights.front() {
            self.answers.reset(front.queued as usize);
        }
    }

    /// True when nothing more is to be sent. A window that was full is half empty before it's filled again: else each
    /// answer would let a little more go, and everybody would be busy with small pieces.
    fn is_full(&mut self, careful: bool) -> bool {
        let part = if self.full { 2 } else { 1 };
        self.full = self.bytes >= WINDOW_BYTES / part || self.commands >= WINDOW_COMMANDS / part;
        self.full || careful && !self.flights.is_empty()
    }

    /// The connection is gone. Returns the slots whose transactions were in flight.
    pub fn close(&mut self) -> impl Iterator<Item = u16> {
        let flights = std::mem::take(&mut self.flights);
        let mut copy = std::mem::take(&mut self.copy);
        copy.broken();
        *self = Connection { copy, ..Connection::default() };
        flights.into_iter().filter_map(|flight| match flight {
            Flight::Transaction(transaction) => Some(transaction.slot),
            Flight::Values(_) | Flight::Floor(..) => None,
        })
    }
}

impl Cluster {
    /// Connections that are open, of all servers.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// True while the target owes an answer on a connection.
    pub fn awaits_answer(&self, conn: ConnId) -> bool {
        self.conns.get(conn).is_some_and(|c| !c.flights.is_empty())
    }

    /// The time to wait after a refusal is over.
    pub fn unpause(&mut self, conn: ConnId) {
        if let Some(conn) = self.conns.get_mut(conn) {
            conn.paused = false;
        }
    }

    /// A slot goes on without the command that was refused for good.
    pub fn go_on(&mut self, slot: u16) {
        if let Some(state) = self.slots.get_mut(usize::from(slot)).filter(|s| s.stage == Stage::Stopped) {
            state.stage = Stage::Resting;
            self.rouse(slot);
        }
    }

    /// Appends to `out` what a connection sends now; there may be more when that is written.
    pub fn send(&mut self, conn: ConnId, out: &mut Vec<u8>) {
        while let Some(c) = self.conns.get_mut(conn).filter(|c| c.open) {
            #[cfg(test)]
            {
                c.copy.hasty = !self.rules.select_awaited;
            }
            if !c.held.is_empty() && c.answers.is_begun() {
                out.append(&mut c.held);
            }
            if c.paused || c.copy.is_selecting() || !c.held.is_empty() {
                return;
            }
            match c.ready.front() {
                Some(slot) if c.copy.db == 0 => {
                    let slot = *slot;
                    if out.len() >= SEND_BYTES || c.is_full(self.careful) {
                        return;
                    }
                    c.ready.pop_front();
                    self.launch(conn, slot, out);
                }
                // Transactions begin and end in database 0.
                Some(_) => {
                    if c.flights.is_empty() {
                        let sent = c.copy.select(0, out);
                        c.push(Flight::Values(sent));
                    }
                    return;
                }
                None => {
                    let sent = c.copy.send(c.flights.is_empty(), out);
                    if sent > 0 {
                        c.push(Flight::Values(sent));
                    }
                    return;
                }
            }
        }
    }

    /// Sends the next transaction of a slot.
    fn launch(&mut self, conn: ConnId, slot: u16, out: &mut Vec<u8>) {
        let Some(state) = self.slots.get_mut(usize::from(slot)).filter(|s| s.stage == Stage::Ready) else { return };
        if state.sent == 0 && rule!(self, record_read_back) {
            // The router started again: what was applied meanwhile is here twice.
            let applied = state.applied;
            let done =
                |unit: super::queue::Waiting<'_>| !unit.piece && unit.last().is_some_and(|last| last.offset <= applied);
            while self.queue.iter(state.list).next().is_some_and(done) {
                self.queue.pop(&mut state.list);
            }
        }
        let mut transaction = Transaction {
            slot,
            units: 0,
            commands: 0,
            queued: 0,
            bytes: 0,
            mark: (state.applied, state.applied_db),
            piece: false,
        };
        let mut bytes = 0;
        #[cfg(not(test))]
        let most = crate::delivery::standalone::FLUSH_COMMANDS_MAX;
        #[cfg(test)]
        let most = self.rules.flush_commands_max;
        for unit in self.queue.iter(state.list).skip(state.sent as usize) {
            let Some(last) = unit.last() else { break };
            let full = transaction.commands + unit.commands() > most || bytes + unit.bytes() > FLUSH_BYTES_MAX;
            let apart = unit.piece || last.offset <= transaction.mark.0;
            if transaction.units > 0 && (full || apart) {
                break;
            }
            transaction.units += 1;
            transaction.commands += unit.commands();
            bytes += unit.bytes();
            if unit.piece {
                transaction.piece = true;
                break;
            }
            transaction.mark = (last.offset, last.stream_db);
        }
        if transaction.units == 0 {
            if !state.record_due && !state.refresh {
                state.stage = Stage::Resting;
                self.reach();
                return;
            }
            transaction.mark = transaction.mark.max(self.level);
        }
        self.put(conn, transaction, out);
    }

    /// Encodes a transaction of what stands first in its slot's list.
    fn put(&mut self, conn: ConnId, mut transaction: Transaction, out: &mut Vec<u8>) {
        let slot = transaction.slot;
        failpoint!(if transaction.units == 0 { "record-launched" } else { "flush-launched" });
        let (Some(state), Some(c)) = (self.slots.get_mut(usize::from(slot)), self.conns.get_mut(conn)) else { return };
        let start = out.len();
        out.extend_from_slice(MULTI);
        let mut db = 0;
        let units = self.queue.iter(state.list).skip(state.sent as usize).take(transaction.units as usize);
        let mut queued = encode_units(units.map(|unit| unit.span), &mut db, out);
        queued += select(0, &mut db, out);
        if rule!(self, record_in_flush) || transaction.units == 0 {
            let record = SlotRecord {
                shard: self.job.shard,
                generation: self.job.generation,
                phase: if self.following { Phase::Following } else { Phase::Copying },
                offset: transaction.mark.0,
                stream_db: transaction.mark.1,
                pieces: state.pieces + u32::from(transaction.piece && rule!(self, pieces_counted)),
                history: self.history,
            };
            self.names.set_slot_and_exec(slot, &record, &mut self.scratch, out);
            queued += 1;
        } else {
            out.extend_from_slice(EXEC);
        }
        transaction.queued = queued as u32;
        transaction.bytes = (out.len() - start) as u32;
        state.sent += transaction.units;
        state.stage = Stage::Flying;
        self.flying += 1;
        c.bytes += transaction.bytes as usize;
        c.commands += queued;
        c.push(Flight::Transaction(transaction));
        if self.careful {
            c.held = hold_back(out, start);
            c.answers.alone = true;
        }
        #[cfg(test)]
        if !self.rules.one_in_flight && self.queue.iter(state.list).nth(state.sent as usize).is_some() {
            state.stage = Stage::Ready;
            c.ready.push_back(slot);
        }
    }

    /// Appends the floor of a server that stands in `slot`.
    pub(super) fn put_floor(
        &mut self,
        conn: ConnId,
        (slot, arrivals): (u16, u64),
        offset: ReplOffset,
        text: &str,
        out: &mut Vec<u8>,
    ) {
        if let Some(c) = self.conns.get_mut(conn) {
            self.names.set_floor(slot, text.as_bytes(), out);
            c.push(Flight::Floor(offset, arrivals));
        }
    }

    /// Takes the next answer on a connection.
    /// # Errors
    /// When it can't be an answer to what was sent: the connection must be closed.
    pub fn answer(&mut self, conn: ConnId, scanned: Scanned<'_>) -> Result<Option<Event>, OutOfStep> {
        let c = self.conns.get_mut(conn).ok_or(OutOfStep)?;
        match c.flights.front_mut().ok_or(OutOfStep)? {
            Flight::Transaction(transaction) => {
                let Some(outcome) = c.answers.answer(scanned)? else { return Ok(None) };
                let transaction = *transaction;
                let event = self.transaction_answered(conn, &transaction, outcome);
                if !self.pending.is_empty() {
                    self.distribute();
                }
                Ok(Some(event))
            }
            Flight::Values(left) => {
                *left -= 1;
                if *left == 0 {
                    c.pop();
                }
                let event = self.value_answered(conn, scanned)?;
                if self.values == 0 && !self.pending.is_empty() {
                    self.distribute();
                }
                Ok(event)
            }
            Flight::Floor(offset, arrivals) => {
                let floor = (*offset, *arrivals);
                c.pop();
                self.floor_answered(conn, floor, scanned)
            }
        }
    }

    fn transaction_answered(&mut self, conn: ConnId, transaction: &Transaction, outcome: Outcome) -> Event {
        let slot = usize::from(transaction.slot);
        let units = transaction.units as usize;
        let event = match outcome {
            Outcome::Applied => {
                let (lost, commands) = (self.lost_keys(conn, slot, units), u64::from(transaction.commands));
                if lost.is_empty() { Event::Applied { commands } } else { Event::LostKeys { commands, lost } }
            }
            Outcome::AppliedBut(errors) => {
                let parts = self.parts(slot, units);
                let faults =
                    errors.into_iter().map(|(at, words)| fault(&parts, (at, 0), transaction.mark.0, words, true));
                Event::Faults { slot: None, faults: faults.collect() }
            }
            Outcome::Refused { words, at } => return self.transaction_refused(conn, transaction, words, at),
        };
        if let Some(c) = self.conns.get_mut(conn) {
            c.pop();
        }
        self.flying -= 1;
        self.transaction_applied(slot, transaction.mark, units, transaction.piece);
        self.rouse(transaction.slot);
        event
    }

    /// A slot's first units are in the target, and its record says so.
    pub(super) fn transaction_applied(&mut self, slot: usize, mark: Mark, units: usize, piece: bool) {
        failpoint!(if units == 0 { "record-answered" } else { "flush-answered" });
        let Some(state) = self.slots.get_mut(slot) else { return };
        for _ in 0..units {
            self.queue.pop(&mut state.list);
        }
        state.sent = state.sent.saturating_sub(units as u32);
        state.holds = 0;
        state.pieces += u32::from(piece);
        if self.following {
            (state.applied, state.applied_db) = mark;
            (state.own, state.recorded, state.refresh) = (mark.0, true, false);
            if std::mem::take(&mut state.record_due) {
                self.queue.done(self.copy_end);
            }
        }
        if state.stage == Stage::Flying && state.sent == 0 {
            state.stage = if state.moved { Stage::Away } else { Stage::Resting };
            self.away += usize::from(state.moved);
        }
        self.reach();
    }

    fn transaction_refused(
        &mut self,
        conn: ConnId,
        transaction: &Transaction,
        words: String,
        at: Option<usize>,
    ) -> Event {
        let slot = usize::from(transaction.slot);
        let parts = self.parts(slot, transaction.units as usize);
        let (Some(c), Some(state)) = (self.conns.get_mut(conn), self.slots.get_mut(slot)) else {
            return Event::Elsewhere { words };
        };
        c.pop();
        self.flying -= 1;
        state.sent = state.sent.saturating_sub(transaction.units);
        state.stage = Stage::Resting;
        let why = reason(&words).unwrap_or(&words);
        let kind = match (code(why), refusal(&words)) {
            ("MOVED", _) if rule!(self, moved_settles) => {
                state.stage = Stage::Away;
                self.away += 1;
                return Event::Moved;
            }
            ("ASK" | "TRYAGAIN" | "MOVED", _) => {
                self.hold(transaction.slot);
                return Event::Held { words };
            }
            (_, Refusal::Elsewhere) if !rule!(self, elsewhere_closes) => Refusal::Passing,
            (_, Refusal::Passing) if self.careful => Refusal::Elsewhere,
            (_, kind) => kind,
        };
        match kind {
            Refusal::Elsewhere => Event::Elsewhere { words },
            Refusal::Passing => {
                c.paused = true;
                state.stage = Stage::Ready;
                c.ready.push_front(transaction.slot);
                Event::Refused { words }
            }
            Refusal::ForGood => {
                state.stage = Stage::Stopped;
                let fault = fault(&parts, (at.unwrap_or(usize::MAX), 0), transaction.mark.0, words, false);
                if let Some(located) = at.and_then(|at| parts.locate(at, 0)) {
                    let unit = self.queue.iter(state.list).position(|unit| parts.is_within(&located, &unit.span));
                    if let Some(nth) = unit {
                        self.queue.remove(&mut state.list, nth);
                        self.reach();
                    }
                }
                Event::Faults { slot: Some(transaction.slot), faults: vec![fault] }
            }
        }
    }

    fn value_answered(&mut self, conn: ConnId, scanned: Scanned<'_>) -> Result<Option<Event>, OutOfStep> {
        let c = self.conns.get_mut(conn).ok_or(OutOfStep)?;
        Ok(match c.copy.answer(scanned)? {
            Answer::Selected => None,
            Answer::Applied { bytes } => {
                self.values -= 1;
                self.copy_bytes = self.copy_bytes.saturating_sub(bytes);
                Some(Event::Copied { values: 1 })
            }
            Answer::Fault { words, what, bytes } => {
                self.values -= what.len();
                self.copy_bytes = self.copy_bytes.saturating_sub(bytes);
                let faults = what.into_iter().map(|dropped| dropped.fault(&words)).collect();
                Some(Event::Faults { slot: None, faults })
            }
            Answer::Refused { words, refusal, slot } => match (code(&words), slot) {
                ("MOVED", Some(slot)) => {
                    self.value_moved(conn, slot);
                    Some(Event::Moved)
                }
                ("ASK" | "TRYAGAIN", Some(slot)) => {
                    self.evict(conn, slot);
                    self.hold(slot);
                    Some(Event::Held { words })
                }
                _ if refusal == Refusal::Passing && !self.careful => {
                    c.paused = true;
                    Some(Event::Refused { words })
                }
                _ => Some(Event::Elsewhere { words }),
            },
        })
    }

    /// The slot of a value isn't on this connection's server any more.
    fn value_moved(&mut self, conn: ConnId, slot: u16) {
        self.evict(conn, slot);
        let Some(state) = self.slots.get_mut(usize::from(slot)) else { return };
        state.moved = true;
        if !matches!(state.stage, Stage::Flying | Stage::Away) {
            state.stage = Stage::Away;
            self.away += 1;
        }
    }

    /// Takes the values of a slot off a connection.
    fn evict(&mut self, conn: ConnId, slot: u16) {
        if let Some(c) = self.conns.get_mut(conn) {
            self.homeless.extend(c.copy.take_out(|of| of == slot));
        }
    }

    fn lost_keys(&self, conn: ConnId, slot: usize, units: usize) -> Vec<(u32, Vec<u8>)> {
        let (Some(c), Some(state)) = (self.conns.get(conn), self.slots.get(slot)) else { return Vec::new() };
        c.answers.lost_keys(0, self.queue.iter(state.list).take(units).map(|unit| unit.span))
    }

    /// The first units of a slot's list, to be looked into.
    fn parts(&self, slot: usize, units: usize) -> Parts {
        let mut parts = Parts::default();
        let Some(state) = self.slots.get(slot) else { return parts };
        for (chunk, from, to) in (0..units).filter_map(|nth| self.queue.holder(state.list, nth)) {
            parts.add(Holder::Chunk(chunk), from, to);
        }
        parts
    }
}

/// The first word of an error.
fn code(words: &str) -> &str {
    words.split(' ').next().unwrap_or(words)
}
