//! The stream: commands of the source, one after the other, become units for the lanes.

mod copies;
mod large;
mod motion;
mod past;
mod series;
mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use super::copy_keys::CopyError;
use super::decode::{BATCH_BYTES, Error, Parts, READ_BYTES, READ_WAIT, send};
use super::feed::Rewind;
use super::learn::{Answer, AskError};
use super::value::Attributes;
use crate::args::{Args, OwnedArgs};
use crate::commands::{
    self, CopyKey, Databases, KeyAt, Lost, Restore, Rewrite, Shape, SmallKeys, Spec, Verdict, judge, normalise,
};
use crate::delivery::guard::{self, Guards, Standing};
use crate::delivery::motion::Name;
use crate::delivery::record::{self, is_own_key};
use crate::delivery::slots::record as slot_record;
use crate::delivery::unit::{Batch, LaneId};
use crate::journal::Read;
use crate::offset::ReplOffset;
use crate::rdb::{self, Unsupported};
use crate::resp::command::{Parsed, Parser};
use crate::resp::encode;
use crate::route::{Place, UnitBuilder};
use crate::slot::Slot;

/// Reads the stream and routes its units.
pub struct Stream<'a> {
    parts: &'a mut Parts,
    /// Bytes read and not yet parsed begin at `at`.
    window: Vec<u8>,
    at: usize,
    parser: Parser,
    /// By how many bytes the command at hand is longer than what stands for it in the window.
    left_out: usize,
    /// The offset behind the last command parsed.
    offset: ReplOffset,
    /// The offset behind the last whole unit, and the database selected there.
    whole: (ReplOffset, u32),
    /// The source's selected database.
    db: u32,
    /// Inside MULTI..EXEC.
    in_transaction: bool,
    unit: UnitBuilder,
    /// Keys that the transaction has written so far, where a flush under a filter may have to copy them.
    written: Vec<CopyKey>,
    keys: SmallKeys,
    filtered: u64,
    epoch: u64,
    /// The target holds guards, which go once every lane's record has passed them.
    guards_stored: bool,
    /// The slots of a cluster that hold them.
    guarded: BTreeSet<LaneId>,
    /// Those of them that went there with the switch of a slot that came, until the lanes are known to hold it.
    switched: BTreeMap<Slot, Vec<(Name, ReplOffset)>>,
    /// Where each lane's record stood when the stream began here, and the highest of them: a lane leaves out the units
    /// up to there, whatever they are made into now.
    passed: (Vec<ReplOffset>, ReplOffset),
    /// No key is left that can't be trusted.
    trusted: bool,
    /// The command at hand is a module's: only then what is copied may be worth further questions.
    is_of_module: bool,
    /// Slots in motion are looked after more often than bytes come.
    is_busy_with_motions: bool,
}

/// A command on its way, with what belongs to it.
#[derive(Clone, Copy)]
struct Command<'a> {
    args: Args<'a>,
    spec: &'a Spec,
}

impl<'a> Stream<'a> {
    /// Begins behind the snapshot, with the database that the stream then has selected.
    pub fn new(parts: &'a mut Parts, db: u32) -> Self {
        let offset = parts.feed.offset;
        Stream {
            parts,
            window: Vec::with_capacity(2 * READ_BYTES),
            at: 0,
            parser: Parser::new(),
            left_out: 0,
            offset,
            whole: (offset, db),
            db,
            in_transaction: false,
            unit: UnitBuilder::default(),
            written: Vec::new(),
            keys: SmallKeys::new(),
            filtered: 0,
            epoch: 0,
            guards_stored: false,
            guarded: BTreeSet::new(),
            switched: BTreeMap::new(),
            passed: (Vec::new(), ReplOffset(0)),
            trusted: true,
            is_of_module: false,
            is_busy_with_motions: false,
        }
    }

    /// Begins where an earlier process was.
    pub fn resume(parts: &'a mut Parts) -> Self {
        let standing = std::mem::take(&mut parts.standing);
        let mut stream = Stream::new(parts, standing.stream_db);
        stream.stand(standing);
        stream
    }

    fn stand(&mut self, standing: Standing) {
        self.guards_stored = !standing.guards.is_empty();
        self.guarded = self.slots_of(&standing.guards);
        self.parts.copy_keys.set_guards(standing.guards);
        let highest = standing.lanes.iter().max().copied().unwrap_or_default();
        self.passed = (standing.lanes, highest);
        self.trusted = !self.parts.copy_keys.has_suspects();
        self.parts.feed.set_trusted(self.trusted.then_some(ReplOffset(0)));
    }

    /// True if the target has the unit at hand as far as it concerns the lane of `key`.
    fn has_passed(&self, key: &[u8]) -> bool {
        self.has_passed_lane(self.parts.router.lane_of(key))
    }

    fn has_passed_lane(&self, lane: LaneId) -> bool {
        let (lanes, highest) = &self.passed;
        let record = || lanes.get(lane);
        self.offset <= *highest && record().is_some_and(|record| self.offset <= *record)
    }

    /// Starts again where the target's records stand.
    fn rewind(&mut self, mut rewind: Rewind) {
        self.window.clear();
        self.at = 0;
        self.parser = Parser::new();
        self.left_out = 0;
        self.offset = rewind.offset;
        self.db = rewind.standing.stream_db;
        self.whole = (rewind.offset, self.db);
        self.in_transaction = false;
        self.unit.clear();
        self.written.clear();
        self.epoch = rewind.epoch;
        self.parts.router = self.parts.router.anew();
        if let Some(motions) = &self.parts.motions {
            let (shard, offset) = (self.parts.number, rewind.offset);
            motions.with(|machine| machine.rewound(shard, offset));
        }
        self.add_switched(&mut rewind.standing);
        self.stand(rewind.standing);
        self.take_again();
    }

    /// Follows until the journal ends.
    ///
    /// # Errors
    /// When the stream is damaged, or holds what the target can't have.
    pub fn run(mut self) -> Result<(), Error> {
        let mut read = self.offset.0;
        if self.trusted {
            self.parts.feed.set_trusted(Some(ReplOffset(0)));
        }
        loop {
            if let Some(rewind) = self.parts.feed.take_rewind() {
                read = rewind.offset.0;
                self.rewind(rewind);
            }
            self.window.drain(..self.at);
            self.at = 0;
            // One large command is no reason to hold its size for good.
            if self.window.capacity() > WINDOW_BYTES_MAX && self.window.len() < READ_BYTES {
                self.window.shrink_to(2 * READ_BYTES);
            }
            let journal = &self.parts.feed.stream;
            let wait = if self.is_busy_with_motions { MOTION_WAIT } else { READ_WAIT };
            match journal.read(read, &mut self.window, READ_BYTES, wait)? {
                Read::Bytes(n) => read += n as u64,
                Read::Nothing if self.parts.batches.is_closed() => return Err(Error::Ended),
                Read::Nothing => {}
                Read::End if self.parts.feed.close() => return self.hand_over(),
                Read::End => {}
            }
            match self.parse().and_then(|()| self.look_after_motions()) {
                // A unit that waits for an answer can't be made any more: it's left for the next session.
                Err(Error::Copy(CopyError::Ended) | Error::Target(AskError::Ended)) => {
                    if self.parts.feed.close() {
                        return self.hand_over();
                    }
                    continue;
                }
                parsed => parsed?,
            }
            read = self.leave_large(read);
            self.drop_guards();
            self.hand_over()?;
        }
    }

    /// Takes all whole commands of the window.
    fn parse(&mut self) -> Result<(), Error> {
        let window = std::mem::take(&mut self.window);
        let mut parser = std::mem::take(&mut self.parser);
        let result = self.parse_all(&window, &mut parser);
        self.window = window;
        self.parser = parser;
        result
    }

    fn parse_all(&mut self, window: &[u8], parser: &mut Parser) -> Result<(), Error> {
        loop {
            let rest = window.get(self.at..).unwrap_or_default();
            let parsed = parser.parse(rest).map_err(|error| Error::Stream { offset: self.offset, error })?;
            match parsed {
                None => return Ok(()),
                Some(Parsed::Newline) => {
                    self.parts.feed.newlines.fetch_add(1, Ordering::Relaxed);
                    self.at += 1;
                }
                Some(Parsed::Command { len }) => {
                    self.offset = self.offset.plus((len + self.left_out) as u64);
                    self.unit.add_outside(self.left_out);
                    self.take(parser.args(rest))?;
                    self.left_out = 0;
                    self.at += len;
                    if self.parts.router.bytes() >= BATCH_BYTES {
                        self.hand_over()?;
                    }
                }
            }
        }
    }

    fn hand_over(&mut self) -> Result<(), Error> {
        self.parts.status.commands_filtered.add(std::mem::take(&mut self.filtered));
        let (offset, db) = self.whole;
        let batch = Batch { epoch: self.epoch, ..self.parts.router.take(offset, db) };
        send(&self.parts.batches, batch)
    }

    /// Takes the next command of the stream.
    fn take(&mut self, args: Args<'_>) -> Result<(), Error> {
        if self.guards_stored && !self.guarded.is_empty() {
            self.drop_guards_of_slots();
        }
        match commands::lookup(args) {
            Some(spec) if spec.shape == Shape::Infrastructure => self.infrastructure(Command { args, spec })?,
            Some(spec) if self.take_fast(Command { args, spec }) => {}
            Some(spec) => self.unit_command(Command { args, spec })?,
            None if args.is_empty() => {}
            None if !self.parts.scope.command_in(args) => self.filtered += 1,
            None => {
                if let Some(spec) = self.learn(args)? {
                    self.unit_command(Command { args, spec: &spec })?;
                }
            }
        }
        if !self.in_transaction {
            if !self.trusted {
                self.copy_suspects()?;
            }
            match self.unit.is_empty() {
                true => self.unit.clear(),
                false => self.parts.router.unit(&mut self.unit, self.db, self.offset),
            }
            self.whole = (self.offset, self.db);
        }
        Ok(())
    }

    /// The way of nearly every command: one key, nothing filtered, nothing to change. False if it is none such.
    fn take_fast(&mut self, Command { args, spec }: Command<'_>) -> bool {
        let parts = &mut *self.parts;
        let plain = spec.plain() || spec.name == "SET" && args.len() == 3;
        if self.in_transaction
            || !plain
            || !parts.scope.is_whole()
            || parts.kept.is_some()
            || !parts.caps.knows_command(spec)
            || parts.copy_keys.guards(self.offset)
            || !self.unit.is_empty()
            || self.left_out > 0
        {
            return false;
        }
        match args.get(1) {
            Some(key)
                if !is_own_key(key) && parts.motions.as_ref().is_none_or(|m| m.feeds(parts.number, Slot::of(key))) =>
            {
                let lane = parts.router.lane_of(key);
                parts.router.single(lane, self.db, self.db, self.offset, args.raw());
                true
            }
            _ => false,
        }
    }

    /// SELECT, MULTI, EXEC, and what servers say to each other.
    fn infrastructure(&mut self, Command { args, spec }: Command<'_>) -> Result<(), Error> {
        match &*spec.name {
            "SELECT" => {
                let number = args.get(1).and_then(|db| std::str::from_utf8(db).ok()?.parse().ok());
                self.db = number.ok_or_else(|| Error::Command {
                    db: self.db,
                    offset: self.offset,
                    error: commands::Error::BadNumber { command: "SELECT".into(), index: 1 },
                })?;
                self.check_database()?;
            }
            "MULTI" => self.in_transaction = true,
            "EXEC" => {
                self.parts.status.transactions_split.add(u64::from(self.unit.is_over_slots()));
                self.in_transaction = false;
                self.written.clear();
            }
            "TRIMSLOTS" => self.trim_slots(args)?,
            "REPLCONF" if args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"GETACK")) => {
                self.parts.ack.ask(self.offset);
            }
            _ => {}
        }
        Ok(())
    }

    /// Stops before anything goes to a database that the target doesn't have.
    fn check_database(&mut self) -> Result<(), Error> {
        if !self.parts.scope.database_in(self.db) {
            return Ok(());
        }
        let target_db = self.parts.scope.target_database(self.db);
        match self.parts.learner.has_database(target_db)? {
            true => Ok(()),
            false => Err(Error::NoDatabase { db: self.db, target_db, offset: self.offset }),
        }
    }

    /// The row of a command that the table lacks; `None` if it is left out.
    fn learn(&mut self, args: Args<'_>) -> Result<Option<Spec>, Error> {
        let command = || String::from_utf8_lossy(args.get(0).unwrap_or_default()).to_ascii_uppercase();
        let (db, offset) = (self.db, self.offset);
        let mut answer = self.parts.learner.spec(args)?;
        // Where its keys are the source says, so that what is out of scope is no reason to stop.
        if matches!(answer, Answer::Unknown)
            && let Some(reply) = self.parts.copy_keys.command_info(args.get(0).unwrap_or_default())?
        {
            answer = self.parts.learner.spec_of_lacking(args, &reply);
        }
        match answer {
            Answer::Known(spec) => Ok(Some(spec)),
            Answer::Unknown | Answer::Opaque(_) if self.parts.skip_faults => {
                self.skip(&command());
                Ok(None)
            }
            Answer::Unknown => Err(Error::UnknownCommand { command: command(), db, offset }),
            Answer::Opaque(error) => Err(Error::Learnt { command: command(), db, offset, error }),
        }
    }

    /// Adds what becomes of a command to the unit.
    fn unit_command(&mut self, command: Command<'_>) -> Result<(), Error> {
        if self.is_stopped_by_motion(command)? {
            return Ok(());
        }
        let verdict = if self.parts.scope.is_whole() {
            Verdict::Pass
        } else {
            judge(command.args, command.spec, self.db, &self.parts.scope, &mut self.keys)
                .map_err(|error| self.bad(error))?
        };
        match verdict {
            Verdict::Pass => self.send(command),
            Verdict::Drop(_) => {
                self.filtered += 1;
                Ok(())
            }
            Verdict::Replace(owned) => self.send_owned(&owned),
            Verdict::Copy(keys) => self.copy(&keys),
            Verdict::Flush(databases) => self.flush(&databases),
            Verdict::Swap { a, b } => self.swap(a, b),
            Verdict::FlushSlot(_) => Err(self.cannot_send(command.spec)),
            Verdict::Refuse => {
                Err(Error::OutOfScope { command: command.spec.name.to_string(), db: self.db, offset: self.offset })
            }
        }
    }

    fn send_owned(&mut self, owned: &OwnedArgs) -> Result<(), Error> {
        let args = owned.args();
        match commands::lookup(args) {
            Some(spec) => self.send(Command { args, spec }),
            None => unreachable!("commands are only replaced by commands of the table"),
        }
    }

    /// Adds a command that is in scope, as the target can take it.
    fn send(&mut self, command: Command<'_>) -> Result<(), Error> {
        let received_ms = self.parts.feed.stream.received_ms(self.offset.0);
        let rewrite = normalise(command.args, command.spec, received_ms, &self.parts.caps);
        match rewrite.map_err(|error| self.bad(error))? {
            Rewrite::AsIs => self.place(command, true),
            Rewrite::Replace(list) => self.place_all(&list),
            Rewrite::Nearest { commands, lost } => self.nearest(command, &commands, lost),
            Rewrite::NoType(name) => self.cannot_write(command, Unsupported::Type(name.as_str())),
            Rewrite::Drop => Ok(()),
            Rewrite::Restore(restore) => self.restore(command, restore),
            Rewrite::RestoreFunctions { payload, policy } => self.restore_functions(command, payload, policy),
            Rewrite::CopyKeys => {
                let keys = self.written_keys(command)?;
                self.is_of_module = command.spec.shape == Shape::Module;
                let copied = self.copy(&keys);
                self.is_of_module = false;
                copied
            }
            Rewrite::NoModule => self.without_module(command),
            // Without SWAPDB both databases are copied anew, without FLUSHALL their keys are deleted.
            Rewrite::CannotSend if matches!(command.spec.shape, Shape::SwapDb | Shape::FlushAll | Shape::FlushDb) => {
                self.whole_among_others(command)
            }
            Rewrite::CannotSend if self.parts.skip_faults => {
                self.skip(&command.spec.name);
                Ok(())
            }
            Rewrite::CannotSend => Err(self.cannot_send(command.spec)),
        }
    }

    /// Adds what stands for a command of the source, in its order.
    fn place_all(&mut self, list: &[OwnedArgs]) -> Result<(), Error> {
        let alone = list.len() == 1;
        for owned in list {
            let args = owned.args();
            match commands::lookup(args) {
                Some(spec) => self.place(Command { args, spec }, alone)?,
                None => unreachable!("commands are only replaced by commands of the table"),
            }
        }
        Ok(())
    }

    /// Adds what comes nearest to a command that the target has no place for, if that is accepted.
    fn nearest(&mut self, command: Command<'_>, nearest: &[OwnedArgs], lost: Lost) -> Result<(), Error> {
        let lost = match lost {
            Lost::FieldExpiry => Unsupported::FieldExpiry,
            Lost::Idempotency => Unsupported::Idempotency,
        };
        if !self.parts.writer.is_lossy() {
            return self.cannot_write(command, lost);
        }
        if self.is_guarded(command)? {
            return Ok(());
        }
        let key = self.written_keys(command)?.into_iter().next();
        self.parts.lost(Some(lost), (self.db, &key.map(|key| key.key).unwrap_or_default()));
        self.place_all(nearest)
    }

    /// Says that the target can't hold what a command writes; only `--on-error skip` goes on without it.
    ///
    /// The source isn't asked what its keys hold: what the target lacks is known without.
    fn cannot_write(&mut self, command: Command<'_>, lost: Unsupported) -> Result<(), Error> {
        if self.is_guarded(command)? {
            return Ok(());
        }
        let key = self.written_keys(command)?.into_iter().find(|key| !self.has_passed(&key.key));
        match key {
            Some(key) => self.cannot_put(key.db, &key.key, lost.into()),
            None => Ok(()),
        }
    }

    /// Says that the target lacks the module of a command; only `--on-error skip` goes on without it.
    fn without_module(&mut self, command: Command<'_>) -> Result<(), Error> {
        if self.is_guarded(command)? {
            return Ok(());
        }
        let written = self.written_keys(command)?;
        let has_keys = !written.is_empty();
        let first = written.into_iter().find(|key| !self.has_passed(&key.key));
        if has_keys && first.is_none() {
            return Ok(());
        }
        let name = command.spec.name.to_string();
        let key = first.map(|key| crate::target::escape_key(&key.key)).unwrap_or_default();
        if !self.parts.skip_faults {
            return Err(Error::NoModule { command: name, db: self.db, key, offset: self.offset });
        }
        self.parts.status.error("module");
        self.parts.status.commands_skipped.add(1);
        tracing::warn!(command = name, db = self.db, key, offset = %self.offset, "left out: the target hasn't its module");
        Ok(())
    }

    /// True if the command's keys stand elsewhere than the stream, so that they are left alone or copied.
    fn is_guarded(&mut self, command: Command<'_>) -> Result<bool, Error> {
        commands::keys(command.spec, command.args, &mut self.keys).map_err(|error| self.bad(error))?;
        let keys = std::mem::take(&mut self.keys);
        let stopped = self.is_stopped_by_guard(command, &keys);
        self.keys = keys;
        stopped
    }

    fn skip(&mut self, command: &str) {
        self.parts.status.error("command");
        self.parts.status.commands_skipped.add(1);
        tracing::warn!(command, offset = %self.offset, "left out: the target has nothing like it");
    }

    /// Says that a value of the source can't be written; only `--on-error skip` goes on without it.
    fn cannot_put(&mut self, db: u32, key: &[u8], error: super::value::Error) -> Result<(), Error> {
        let key = crate::target::escape_key(key);
        if !self.parts.skip_faults {
            return Err(Error::Value { db, key, error });
        }
        self.parts.status.error("value");
        self.parts.status.commands_skipped.add(1);
        tracing::warn!(db, key, offset = %self.offset, error = %error, "left out: the target can't hold it");
        Ok(())
    }

    /// Adds a command to the lanes of its keys. `alone`: it is all there is for the source's command.
    fn place(&mut self, command: Command<'_>, alone: bool) -> Result<(), Error> {
        let Command { args, spec } = command;
        let db = self.parts.scope.target_database(self.db);
        let router = &self.parts.router;
        let everywhere = router.everywhere();
        match spec.shape {
            Shape::FlushAll | Shape::FlushDb | Shape::SwapDb if self.has_others_keys() => {
                return self.whole_among_others(command);
            }
            // The hashes go with all else.
            Shape::FlushAll => _ = self.parts.copy_keys.forget(None, |_| false),
            Shape::FlushDb => {
                let forgotten = self.parts.copy_keys.forget(Some(self.db), |_| false);
                self.unit.command(db, everywhere, args.raw());
                if db == 0 {
                    self.store_guards_again();
                } else {
                    self.remove_guards(&forgotten);
                }
                return Ok(());
            }
            Shape::SwapDb => return self.swap_whole(command),
            Shape::FlushSlot => return Err(self.cannot_send(spec)),
            Shape::Global if self.is_said_by_all(spec) && !self.parts.leads() => return Ok(()),
            Shape::Global => return self.global(db, command),
            _ => return self.place_keys(command, alone),
        }
        self.unit.command(db, everywhere, args.raw());
        Ok(())
    }

    /// Removes guards from the target that the unit at hand ends: a later process would leave out what comes behind it.
    fn remove_guards(&mut self, guards: &Guards) {
        let mut remove: Vec<(LaneId, Vec<u8>)> = Vec::new();
        for (db, key) in guards.keys.keys() {
            let field = guard::field(*db, key);
            remove.push((self.parts.router.lane_of(key), field.clone()));
            if !self.parts.router.is_by_slot() {
                // Keys that can't be trusted are noted there.
                remove.push((0, field));
            }
        }
        remove.extend(guards.databases.keys().map(|db| (0, guard::database_field(*db))));
        for (lane, field) in remove {
            let hdel = OwnedArgs::new(&[&b"HDEL"[..], &self.guards_key(lane), &field]);
            self.unit.command(0, self.parts.router.place(lane), hdel.args().raw());
        }
    }

    /// The hash in which the guards of a lane are, or those of a slot.
    fn guards_key(&self, lane: LaneId) -> Vec<u8> {
        match u16::try_from(lane).ok().and_then(Slot::new).filter(|_| self.parts.router.is_by_slot()) {
            Some(slot) => slot_record::guards_key(&self.parts.job, slot),
            None => guard::hash_key(&self.parts.records, lane),
        }
    }

    /// Answers the units on keys of a database by copies, up to where the source is now; a later process, too.
    fn doubt(&mut self, db: u32) -> Result<(), Error> {
        let at = self.parts.copy_keys.doubt(db, self.offset)?;
        self.store_guard_field(0, &guard::database_field(db), at);
        Ok(())
    }

    /// A message goes with the writes of the slot its channel's name falls in; what every client sees, behind all.
    fn global(&mut self, db: u32, command: Command<'_>) -> Result<(), Error> {
        let Command { args, spec } = command;
        let router = &self.parts.router;
        let place = match (&*spec.name, args.get(1)) {
            ("PUBLISH" | "SPUBLISH", Some(channel)) => router.place_of(channel),
            _ if router.is_by_slot() => return self.everywhere(args.raw()),
            _ => router.everywhere(),
        };
        self.unit.command(db, place, args.raw());
        Ok(())
    }

    fn place_keys(&mut self, command: Command<'_>, alone: bool) -> Result<(), Error> {
        let Command { args, spec } = command;
        commands::keys(spec, args, &mut self.keys).map_err(|error| self.bad(error))?;
        let keys = std::mem::take(&mut self.keys);
        let result = self.place_with(command, &keys, alone);
        self.keys = keys;
        result
    }

    fn place_with(&mut self, command: Command<'_>, keys: &SmallKeys, alone: bool) -> Result<(), Error> {
        let Command { args, spec } = command;
        if self.is_stopped_by_guard(command, keys)? {
            return Ok(());
        }
        if self.in_transaction && (!self.parts.scope.is_whole() || self.parts.slots.is_some()) {
            let written = keys.iter().filter(|k| k.role.writes()).map(|k| self.copy_key(args, k));
            let written: Vec<CopyKey> = written.collect();
            self.written.extend(written);
        }
        if self.parts.router.is_by_slot() {
            return self.place_in_slots(command, keys);
        }
        let router = &self.parts.router;
        let places = keys.iter().map(|at| router.place_of(args.get(at.index).unwrap_or_default()));
        let place = match places.reduce(Place::with) {
            Some(place) if !keys.reads_undeclared => place,
            _ => router.everywhere(),
        };
        let db = self.parts.scope.target_database(self.db);
        // With copies before it at the same offset it must stay one unit: a record would name both or neither.
        let alone = alone && !self.in_transaction && self.unit.is_empty() && self.left_out == 0;
        let list = place.is_several() && alone && commands::is_key_list(spec, keys);
        if !list {
            self.unit.command(db, place, args.raw());
            return Ok(());
        }
        for lane in place.lanes() {
            let router = &mut self.parts.router;
            let of_lane = |at: KeyAt| router.lane_of(args.get(at.index).unwrap_or_default()) == lane;
            if let Some(part) = commands::cut(args, spec, keys, of_lane) {
                router.single(lane, db, self.db, self.offset, part.args().raw());
            }
        }
        Ok(())
    }

    fn store_guard_field(&mut self, lane: LaneId, field: &[u8], offset: ReplOffset) {
        if !holds!("guard-with-value") {
            // It would follow in a transaction of its own.
            return;
        }
        let (hash, offset) = (self.guards_key(lane), offset.to_string());
        let hset = OwnedArgs::new(&[b"HSET", &hash[..], field, offset.as_bytes()]);
        self.unit.command(0, self.parts.router.place(lane), hset.args().raw());
        self.guards_stored = true;
        if self.parts.router.is_by_slot() {
            self.guarded.insert(lane);
        }
        failpoint!("guard-stored");
    }

    /// Adds a RESTORE of the stream, with a payload that the target takes.
    fn restore(&mut self, Command { args, .. }: Command<'_>, restore: Restore) -> Result<(), Error> {
        let key = args.get(restore.key).unwrap_or_default();
        let payload = args.get(restore.payload).unwrap_or_default();
        let as_del = OwnedArgs::new(&[&b"DEL"[..], key]);
        commands::keys(lookup_own(as_del.args()), as_del.args(), &mut self.keys).map_err(|e| self.bad(e))?;
        let keys = std::mem::take(&mut self.keys);
        let del = Command { args: as_del.args(), spec: lookup_own(as_del.args()) };
        let stopped = self.is_stopped_by_guard(del, &keys)?;
        self.keys = keys;
        if stopped {
            return Ok(());
        }
        let value = rdb::verify(payload, true).map_err(CopyError::Damaged)?;
        let attributes = Attributes {
            expires_at_ms: (restore.expiry_ms > 0).then_some(restore.expiry_ms),
            idle_s: restore.idle.and_then(|s| u64::try_from(s).ok()),
            freq: restore.freq.and_then(|n| u8::try_from(n).ok()),
        };
        self.put_value(self.db, key, &value, &attributes)
    }

    fn restore_functions(&mut self, command: Command<'_>, payload: usize, policy: &str) -> Result<(), Error> {
        let payload = command.args.get(payload).unwrap_or_default();
        let restamped = self.parts.writer.restorer().restamp_functions(payload, true);
        let Some(payload) = restamped.map_err(CopyError::Damaged)? else {
            if !self.parts.skip_faults {
                return Err(self.cannot_send(command.spec));
            }
            self.skip(&command.spec.name);
            return Ok(());
        };
        let mut raw = Vec::new();
        encode::command(&mut raw, &[&b"FUNCTION"[..], b"RESTORE", &payload, policy.as_bytes()]);
        if self.parts.router.is_by_slot() {
            return self.everywhere(&raw);
        }
        self.unit.command(0, self.parts.router.everywhere(), &raw);
        Ok(())
    }

    /// SWAPDB where the target's databases can do the same. Records stay where they are read: in database 0.
    fn swap_whole(&mut self, Command { args, .. }: Command<'_>) -> Result<(), Error> {
        let number = |at: usize| args.get(at).and_then(|db| std::str::from_utf8(db).ok()?.parse::<u32>().ok());
        let (Some(a), Some(b)) = (number(1), number(2)) else { return Ok(()) };
        let all = self.parts.router.everywhere();
        if self.parts.copy_keys.guards(self.offset) {
            // Keys that stand elsewhere than the stream would change places too.
            return self.swap(a, b);
        }
        self.unit.command(0, all, args.raw());
        let other = match (a, b) {
            (0, other) | (other, 0) if other != 0 => other,
            _ => return Ok(()),
        };
        let mut del: Vec<Vec<u8>> = vec![b"DEL".to_vec()];
        for lane in all.lanes() {
            del.push(record::key(&self.parts.records, lane));
            del.push(guard::hash_key(&self.parts.records, lane));
        }
        self.unit.command(other, all, OwnedArgs::new(&del).args().raw());
        Ok(())
    }

    /// True where keys of the target are none of this stream's: those that were there before, and other shards'. Of a
    /// cluster nobody can empty all nodes at once.
    fn has_others_keys(&self) -> bool {
        self.parts.kept.is_some() || self.parts.slots.is_some() || self.parts.router.is_by_slot()
    }

    /// True for what every primary of a cluster has of its own, unlike a message.
    fn is_said_by_all(&self, spec: &Spec) -> bool {
        self.parts.slots.is_some() && !matches!(&*spec.name, "PUBLISH" | "SPUBLISH")
    }

    /// FLUSHALL, FLUSHDB and SWAPDB where some keys of the target are to stay.
    fn whole_among_others(&mut self, Command { args, spec }: Command<'_>) -> Result<(), Error> {
        let number = |at: usize| args.get(at).and_then(|db| std::str::from_utf8(db).ok()?.parse::<u32>().ok());
        match (spec.shape, number(1), number(2)) {
            (Shape::FlushAll, ..) => self.flush(&Databases::All)?,
            (Shape::FlushDb, ..) => self.flush(&Databases::These(vec![self.db]))?,
            (_, Some(a), Some(b)) => self.swap(a, b)?,
            _ => {}
        }
        self.empty_moving()
    }

    fn bad(&self, error: commands::Error) -> Error {
        Error::Command { db: self.db, offset: self.offset, error }
    }

    fn cannot_send(&self, spec: &Spec) -> Error {
        Error::CannotSend { command: spec.name.to_string(), db: self.db, offset: self.offset }
    }
}

/// How long a read waits while slots are in motion.
const MOTION_WAIT: std::time::Duration = std::time::Duration::from_millis(5);

/// A larger window is given back when it isn't needed any more.
const WINDOW_BYTES_MAX: usize = 8 * READ_BYTES;

/// Keys read from the source in one transaction: it stands still for them.
const COPY_KEYS_MAX: usize = 64;

/// Keys that can't be trusted and are copied along with one unit.
const COPY_KEYS_OF_UNIT_MAX: usize = 1024;

/// The row of a command that is made here.
fn lookup_own(args: Args<'_>) -> &'static Spec {
    match commands::lookup(args) {
        Some(spec) => spec,
        None => unreachable!("keyferry only makes commands of its own table"),
    }
}

#[cfg(test)]
mod tests;
