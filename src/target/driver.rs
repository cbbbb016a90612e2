//! Moves bytes between the delivery machine and the connections of a standalone target.
//!
//! One task drives all lanes: what one lane may send depends on the answers of the others.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, Sleep, interval, sleep};

use super::connect::{self, Identity};
use super::wire::{READ_BYTES, Rate, Tokens, Wire};
use super::{Error, InScope, checkpoint, escape_key, scan};
use crate::clock::now_ms;
use crate::delivery::Standalone;
use crate::delivery::guard::{self, Standing};
use crate::delivery::motion::{State, Ticket};
use crate::delivery::record;
use crate::delivery::slots::GivenUp;
use crate::delivery::standalone::{Event, Fault, Lost, Reread, SELECT};
use crate::delivery::unit::{Batch, LANES_MAX, LaneId, Task};
use crate::journal::Large;
use crate::net::backoff::Backoff;
use crate::net::conn::Conn;
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::offset::{ReplId, ReplOffset};
use crate::slot::Slot;
use crate::status::{Shard, Status};

/// Bytes taken from the router and not yet applied; beyond, the router waits.
const QUEUED_BYTES_MAX: usize = 8 << 20;

/// How often an idle lane writes its record.
pub(super) const RECORD_INTERVAL: Duration = Duration::from_secs(1);

/// A target that owes answers and sends nothing for so long is taken for gone.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(60);

/// After so long the status line says that the target doesn't answer.
pub(super) const SILENCE_NOTED: Duration = Duration::from_secs(2);

/// What to do with a command that the target refuses for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFault {
    Stop,
    Skip,
    /// Copy its keys again from the source.
    Recopy,
}

/// What the driver needs besides the machine.
pub struct Plan {
    pub identity: Identity,
    pub on_fault: OnFault,
    pub retry_for: Option<Duration>,
    /// Bytes a second to the target.
    pub rate: Option<Rate>,
    /// Whether a key of a target database is one that this job writes.
    pub in_scope: InScope,
    /// What a copied key is remembered by (see [`Task::RemoveLeftovers`]).
    pub key_hash: fn(u32, &[u8]) -> u64,
    /// The stream's large arguments, of which units have stand-ins.
    pub large: Arc<Large>,
    pub status: Arc<Status>,
    /// The source primary whose units these are.
    pub shard: Arc<Shard>,
    /// The target stands where an earlier process left it: its records are there.
    pub resumes: bool,
    /// What is to be removed before the copy.
    pub empty_first: Option<Task>,
    pub progress: Box<dyn Progress + Send>,
}

/// Commands in RESP, each with its target database.
pub(super) type Commands = Vec<(u32, Vec<u8>)>;

impl Plan {
    /// Does with commands that were refused for good what is wanted. Returns whether what refused them may go on now, and
    /// the commands whose keys are to be copied again, each with its target database.
    ///
    /// # Errors
    /// The fault itself, where that ends the job.
    pub(super) fn take_faults(&self, at: &str, faults: &[Fault]) -> Result<(bool, Commands), Error> {
        let mut goes_on = false;
        for fault in faults {
            self.status.error("refused for good");
            // A refused transaction that doesn't say which command was wrong can't be sent without it; and behind a SELECT
            // that failed another database was written to.
            let stops = ["EXEC", SELECT].contains(&fault.what.command.as_str());
            if self.on_fault == OnFault::Stop || stops {
                return Err(Error::Fault(Box::new(fault.clone())));
            }
            let recopied = self.on_fault == OnFault::Recopy && !fault.suspects.is_empty();
            self.status.commands_skipped.add(u64::from(!recopied));
            if let Some(head) = &fault.copied {
                self.progress.not_copied(fault.what.db, head);
            }
            tracing::warn!(
                offset = %fault.what.offset, at, db = fault.what.db, command = fault.what.command, recopied,
                key = escape_key(&fault.what.key), error = fault.words, "left out: the target refuses it for good"
            );
            goes_on |= !fault.applied && !recopied;
        }
        let recopy = faults.iter().filter(|_| self.on_fault == OnFault::Recopy);
        Ok((goes_on, recopy.flat_map(|fault| fault.suspects.clone()).collect()))
    }
}

/// Hears how far the lanes are.
pub trait Progress {
    /// Every lane has applied everything up to `offset`.
    fn applied(&self, offset: ReplOffset);
    /// Every lane's record names `offset` or a later one.
    fn recorded(&self, offset: ReplOffset);
    /// The keys, by source database, that a command writes which was sent to a target database.
    fn keys_written(&self, db: u32, command: &[u8]) -> Vec<(u32, Vec<u8>)>;
    /// A copied value of a target database was left out; `head` is how its RDB form begins, empty where it is no key.
    fn not_copied(&self, db: u32, head: &[u8]);
    /// The name of the source's history now: it changes with a failover.
    fn replid(&self) -> Option<ReplId>;
    /// From here on it is the records of these servers, by their run ids, that are told of: the one that the lanes are
    /// connected to, or the nodes of a cluster.
    fn servers(&self, run_ids: Vec<String>);
    /// Something beside the stream was applied, or dropped at a break.
    fn settled(&self, ticket: Ticket, applied: bool);
    /// The hash of the states of slots, where they matter.
    fn states_key(&self) -> Option<Vec<u8>>;
    /// The lanes were connected anew, to the server of that run id, which has these fields in that hash. `rewinds`: they
    /// start again from there.
    fn connected(&self, run_id: &str, states: &[(Vec<u8>, Vec<u8>)], rewinds: Option<ReplOffset>);
    /// The lanes have given up a slot.
    fn is_given_up(&self, what: GivenUp);
    /// Whether a node of a cluster says of a slot that the lanes hold something else than it was told.
    fn is_stray(&self, slot: Slot, says: Option<&State>) -> bool;
    /// The lanes have dropped slots, of which the target lost what it was told.
    fn are_lost(&self, slots: Vec<Slot>);
    /// The target has fallen back: the router is to start again. False if it can't.
    fn rewind(&self, offset: ReplOffset, epoch: u64, standing: Standing) -> bool;
}

/// Why serving the lanes stopped.
enum Exit {
    /// Everything was applied and recorded, and no more comes.
    Done,
    /// The connections can't be used further.
    Broken(Error),
    /// Work that must be done before the lane goes on.
    Task(LaneId, Task),
    /// What is queued builds on keys that aren't the source's any more: those that these commands write, each with its
    /// target database.
    Distrust(Vec<(u32, Vec<u8>)>),
}

pub struct Driver {
    plan: Plan,
    server: Locator,
    machine: Standalone,
    batches: mpsc::Receiver<Batch>,
    ended: bool,
    lanes: Vec<Wire>,
    /// The server that was written to last.
    run_id: Option<String>,
    read_buf: Vec<u8>,
    tokens: Tokens,
    /// The status line says that the target owes answers.
    silent: bool,
    /// Commands whose keys are to be copied again from the source.
    suspects: Vec<(u32, Vec<u8>)>,
    reported: (Option<ReplOffset>, Option<ReplOffset>),
}

impl Driver {
    pub fn new(plan: Plan, server: Locator, machine: Standalone, batches: mpsc::Receiver<Batch>) -> Self {
        let tokens = Tokens::new(plan.rate.clone());
        Driver {
            plan,
            server,
            machine,
            batches,
            ended: false,
            lanes: Vec::new(),
            run_id: None,
            read_buf: vec![0; READ_BYTES],
            tokens,
            silent: false,
            suspects: Vec::new(),
            reported: (None, None),
        }
    }

    /// Delivers everything that the router hands over; ends when it hands over no more and all is applied.
    ///
    /// # Errors
    /// When the target refuses for good, is lost for too long, or lost what it had acknowledged.
    pub async fn run(&mut self) -> Result<(), Error> {
        let mut backoff = Backoff::new(self.plan.retry_for);
        let mut best = None;
        let mut first = !self.plan.resumes;
        loop {
            let exit = match self.open(first).await {
                Ok(()) => {
                    first = false;
                    self.plan.status.clear(&self.place());
                    match self.serve().await {
                        Ok(exit) => exit,
                        Err(error) => return Err(self.stopped(error).await),
                    }
                }
                Err(error) => Exit::Broken(error),
            };
            let error = match exit {
                Exit::Done => return Ok(()),
                Exit::Broken(error) => error,
                Exit::Task(..) => continue,
                Exit::Distrust(commands) => {
                    self.note_suspects(&commands).await?;
                    self.machine.distrust();
                    self.machine.broken();
                    self.lanes.clear();
                    continue;
                }
            };
            self.machine.broken();
            self.lanes.clear();
            if !error.is_passing() {
                return Err(error);
            }
            if self.machine.applied() > best {
                best = self.machine.applied();
                backoff.progress();
            }
            self.plan.status.error("target connection");
            self.plan.status.waiting(&self.place(), &format!("{error}: connecting again"));
            tracing::warn!(error = %error, "target lost");
            let Some(wait) = backoff.failed(Instant::now()) else { return Err(error) };
            tokio::time::sleep(wait).await;
        }
    }

    /// Connects all lanes and reads the records; on the first time writes them instead.
    async fn open(&mut self, first: bool) -> Result<(), Error> {
        let lanes = self.machine.lanes();
        let mut found = connect::connect(&self.server, &self.plan.identity, lanes).await?;
        if first {
            let conn = found.conns.first_mut().ok_or_else(|| self.out_of_step())?;
            self.write_first_records(conn).await?;
            if let Some(task) = self.plan.empty_first.clone() {
                self.perform(&task).await?;
            }
            self.tell_states(conn, &found.run_id, None).await?;
        } else {
            let other = self.run_id.as_ref().is_some_and(|known| *known != found.run_id);
            if other && self.machine.recorded().is_some() && self.plan.progress.states_key().is_some() {
                // What stands beside the stream isn't in the records of others: they go back together.
                self.machine.distrust();
            }
            let before = self.machine.replies_unseen();
            let reread = self.machine.reread(&found.records).map_err(|lost| self.lost(lost))?;
            self.plan.status.replies_unseen.add(self.machine.replies_unseen() - before);
            let conn = found.conns.first_mut().ok_or_else(|| self.out_of_step())?;
            let rewinds = match &reread {
                Reread::Rewind { offset, .. } => Some(*offset),
                Reread::Continue | Reread::ReadAll => None,
            };
            self.tell_states(conn, &found.run_id, rewinds).await?;
            if let Reread::Rewind { offset, stream_db, epoch } = reread {
                let conn = found.conns.first_mut().ok_or_else(|| self.out_of_step())?;
                let guards = checkpoint::guards(conn, &self.plan.identity.records(), lanes).await?;
                let lanes = found.records.iter().flatten().map(|record| record.offset).collect();
                self.rewind(offset, epoch, Standing { stream_db, guards, lanes })?;
            }
        }

        // Copied values have no records: another server may lack what its predecessor acknowledged.
        let known = self.run_id.replace(found.run_id.clone());
        if !first && self.machine.recorded().is_none() && known.is_some_and(|known| known != found.run_id) {
            return Err(self.lost(Lost::Copy));
        }
        self.plan.progress.servers(vec![found.run_id.clone()]);
        self.lanes = found.conns.into_iter().map(|conn| Wire::new(conn, &self.plan.large)).collect();
        Ok(())
    }

    /// Reads what the target says of slots in motion.
    async fn tell_states(&mut self, conn: &mut Conn, run_id: &str, rewinds: Option<ReplOffset>) -> Result<(), Error> {
        self.report();
        let Some(key) = self.plan.progress.states_key() else { return Ok(()) };
        let states = checkpoint::fields(conn, &key).await?;
        self.plan.progress.connected(run_id, &states, rewinds);
        Ok(())
    }

    /// Says in the target that a copy has begun, whatever an earlier one left there.
    async fn write_first_records(&mut self, conn: &mut Conn) -> Result<(), Error> {
        self.machine.set_time(now_ms());
        for lane in 0..self.machine.lanes() {
            let text = self.machine.first_record(lane).encode();
            let key = record::key(&self.plan.identity.records(), lane);
            conn.ask(&[&b"SET"[..], &key, text.as_bytes()]).await?;
            failpoint!("first-record");
        }
        // What stood elsewhere in an earlier copy says nothing of this one. Behind the records: those of the earlier copy
        // must not be gone on with without it.
        if !holds!("old-guards-removed") {
            return Ok(());
        }
        let records = self.plan.identity.records();
        let hashes = (0..LANES_MAX).map(|lane| guard::hash_key(&records, lane));
        let del: Vec<Vec<u8>> = std::iter::once(b"DEL".to_vec()).chain(hashes).collect();
        conn.ask(&del).await?;
        Ok(())
    }

    /// The target's records aren't where they were thought to be: what lies behind them is sent again.
    fn rewind(&self, offset: ReplOffset, epoch: u64, standing: Standing) -> Result<(), Error> {
        self.plan.status.error("target's records moved");
        failpoint!("rewind");
        tracing::warn!(%offset, "the target's records moved, as after a failover: going on from there");
        if self.plan.progress.rewind(offset, epoch, standing) {
            return Ok(());
        }
        Err(Error::FellBack { address: self.server.to_string(), offset })
    }

    async fn serve(&mut self) -> Result<Exit, Error> {
        let mut records = interval(RECORD_INTERVAL);
        records.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut timer = Box::pin(sleep(Duration::ZERO));
        loop {
            match poll_fn(|cx| self.poll(cx, &mut records, &mut timer)).await? {
                Exit::Task(lane, task) => match self.perform(&task).await {
                    Ok(()) => self.machine.task_done(lane),
                    Err(error) => return Ok(Exit::Broken(error)),
                },
                exit => return Ok(exit),
            }
        }
    }

    /// Does all that can be done now without waiting.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        records: &mut Interval,
        timer: &mut std::pin::Pin<Box<Sleep>>,
    ) -> Poll<Result<Exit, Error>> {
        self.machine.set_time(now_ms());
        // Until it is pending, or a target that sends nothing would never wake the task again.
        let mut tick = false;
        while records.poll_tick(cx).is_ready() {
            tick = true;
        }
        if tick {
            self.machine.set_replid(self.plan.progress.replid());
            if let Some(silent) = self.look_for_silence() {
                return Poll::Ready(Ok(Exit::Broken(silent)));
            }
        }
        loop {
            let mut busy = self.take_batches(cx);
            for lane in 0..self.lanes.len() {
                match self.poll_lane(cx, lane, tick) {
                    Ok(Step::Idle) => {}
                    Ok(Step::Busy) => busy = true,
                    Ok(Step::Exit(exit)) => return Poll::Ready(Ok(exit)),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            if !busy {
                break;
            }
        }
        self.report();
        // Before every lane follows there is no place in the stream to start again from.
        if !self.suspects.is_empty() && self.machine.recorded().is_some() {
            return Poll::Ready(Ok(Exit::Distrust(std::mem::take(&mut self.suspects))));
        }
        if self.ended && self.machine.is_recorded() {
            return Poll::Ready(Ok(Exit::Done));
        }
        if self.ended && self.machine.is_idle() {
            // Nothing will come that could carry the records with it.
            for lane in 0..self.lanes.len() {
                self.write_record(lane);
                if let Ok(Step::Exit(exit)) = self.poll_write(cx, lane) {
                    return Poll::Ready(Ok(exit));
                }
            }
        }
        self.set_timer(cx, timer)
    }

    fn take_batches(&mut self, cx: &mut Context<'_>) -> bool {
        let mut taken = false;
        while !self.ended && self.machine.queued_bytes() < QUEUED_BYTES_MAX {
            match self.batches.poll_recv(cx) {
                Poll::Ready(Some(batch)) => {
                    // What comes of a history that got a new name must be recorded under that.
                    self.machine.set_replid(self.plan.progress.replid());
                    self.machine.push(batch);
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => break,
            }
            taken = true;
        }
        taken
    }

    fn poll_lane(&mut self, cx: &mut Context<'_>, lane: LaneId, tick: bool) -> Result<Step, Error> {
        let now = Instant::now();
        let Some(io) = self.lanes.get_mut(lane) else { return Ok(Step::Idle) };
        if io.resume_at.is_some_and(|at| at <= now) {
            io.resume_at = None;
            self.machine.unpause(lane);
        }
        let mut step = Step::Idle;
        if io.resume_at.is_none() && self.tokens.available(now) {
            if !self.machine.awaits_answer(lane) {
                io.heard = now;
            }
            let before = io.out.len();
            if let Some(task) = self.machine.send(lane, &mut io.out) {
                return Ok(Step::Exit(Exit::Task(lane, task)));
            }
            self.tokens.spend(io.added(before));
        }
        if tick && io.out.is_empty() {
            self.write_record(lane);
        }
        match self.poll_write(cx, lane)? {
            Step::Idle => {}
            other => step = other,
        }
        if let Step::Exit(_) = step {
            return Ok(step);
        }
        match self.poll_read(cx, lane)? {
            Step::Idle => Ok(step),
            other => Ok(other),
        }
    }

    fn write_record(&mut self, lane: LaneId) {
        if let Some(io) = self.lanes.get_mut(lane) {
            self.machine.send_record(lane, &mut io.out);
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, lane: LaneId) -> Result<Step, Error> {
        let Some(wire) = self.lanes.get_mut(lane) else { return Ok(Step::Idle) };
        Ok(match wire.poll_write(cx, &self.plan.status.bytes_to_target) {
            Ok(true) => Step::Busy,
            Ok(false) => Step::Idle,
            Err(error) => Step::Exit(Exit::Broken(error)),
        })
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, lane: LaneId) -> Result<Step, Error> {
        let mut step = Step::Idle;
        loop {
            let Some(wire) = self.lanes.get_mut(lane) else { return Ok(step) };
            let read = match wire.poll_read(cx, &mut self.read_buf) {
                Ok(None) => return Ok(step),
                Ok(Some(read)) => read,
                Err(error) => return Ok(Step::Exit(Exit::Broken(error))),
            };
            step = Step::Busy;
            if let Some(exit) = self.take_answers(lane, read)? {
                return Ok(Step::Exit(exit));
            }
            if read < self.read_buf.len() {
                return Ok(step);
            }
        }
    }

    /// Hands the answers among the `read` bytes just received on `lane` to the machine.
    fn take_answers(&mut self, lane: LaneId, read: usize) -> Result<Option<Exit>, Error> {
        let buf = std::mem::take(&mut self.read_buf);
        let Some(wire) = self.lanes.get_mut(lane) else { return Ok(None) };
        let mut reader = std::mem::take(&mut wire.reader);
        let said =
            reader.each(buf.get(..read).unwrap_or_default(), |scanned| match self.machine.answer(lane, scanned) {
                Ok(None) => None,
                Ok(Some(event)) => self.take_event(lane, event).transpose(),
                Err(_) => Some(Ok(Exit::Broken(self.out_of_step()))),
            });
        self.read_buf = buf;
        if let Some(wire) = self.lanes.get_mut(lane) {
            wire.reader = reader;
        }
        said.unwrap_or_else(|_| Some(Ok(Exit::Broken(self.out_of_step())))).transpose()
    }

    fn take_event(&mut self, lane: LaneId, event: Event) -> Result<Option<Exit>, Error> {
        let status = &self.plan.status;
        let Some(io) = self.lanes.get_mut(lane) else { return Ok(None) };
        match event {
            Event::Copied { values } => self.plan.shard.copied.keys_done.add(values),
            Event::Applied { commands } => status.commands_applied.add(commands),
            Event::Refused { words } => {
                let code = words.split(' ').next().unwrap_or_default().to_owned();
                status.error(&code);
                io.waits = true;
                status.waiting(&place(&self.plan.shard, lane), &format!("target answers {code}: waiting"));
                // A lane that waits does so for as long as it takes: the target is there, and says why.
                let wait = io.refusals.failed(Instant::now()).unwrap_or(Duration::from_secs(5));
                io.resume_at = Some(Instant::now() + wait);
                return Ok(None);
            }
            Event::Elsewhere { words } => {
                status.error(words.split(' ').next().unwrap_or_default());
                return Ok(Some(Exit::Broken(Error::Elsewhere { address: self.server.to_string(), words })));
            }
            Event::LostKeys { commands, lost } => {
                status.commands_applied.add(commands);
                status.error("lost key");
                tracing::warn!(lane, keys = lost.len(), "the target has lost keys: copying them again from the source");
                self.suspects.extend(lost);
                return Ok(None);
            }
            Event::Faults(faults) => return self.take_faults(lane, faults),
        }
        if io.waits {
            io.waits = false;
            io.refusals.progress();
            status.clear(&place(&self.plan.shard, lane));
        }
        Ok(None)
    }

    fn take_faults(&mut self, lane: LaneId, faults: Vec<Fault>) -> Result<Option<Exit>, Error> {
        let (goes_on, suspects) = self.plan.take_faults(&format!("lane {lane}"), &faults)?;
        self.suspects.extend(suspects);
        if goes_on {
            self.machine.unpause(lane);
        }
        Ok(None)
    }

    /// Writes into the target which keys are to be copied again, so that a later process knows, too.
    async fn note_suspects(&mut self, commands: &[(u32, Vec<u8>)]) -> Result<(), Error> {
        let commands = commands.iter();
        let keys: BTreeSet<(u32, Vec<u8>)> =
            commands.flat_map(|(db, raw)| self.plan.progress.keys_written(*db, raw)).collect();
        let mut conn = connect::side(&self.server, &self.plan.identity).await?;
        for (db, key) in keys {
            // Which lane's hash holds it doesn't matter: all are read.
            let hash = guard::hash_key(&self.plan.identity.records(), 0);
            conn.ask(&[&b"HSET"[..], &hash, &guard::field(db, &key), b"0"]).await?;
            failpoint!("suspect-noted");
        }
        Ok(())
    }

    /// Writes what stopped the job where the rest of a flush was applied: a later run must be told what to do about it.
    async fn stopped(&mut self, error: Error) -> Error {
        let Error::Fault(fault) = &error else { return error };
        if !fault.applied || fault.suspects.is_empty() {
            return error;
        }
        let written = async {
            self.note_suspects(&fault.suspects).await?;
            let mut conn = connect::side(&self.server, &self.plan.identity).await?;
            let key = record::stopped_key(&self.plan.identity.records());
            conn.ask(&[&b"SET"[..], &key, error.to_string().as_bytes()]).await?;
            failpoint!("stopped-noted");
            Ok::<(), Error>(())
        };
        if let Err(failed) = written.await {
            tracing::warn!(error = %failed, "what stopped the job can't be written to the target");
        }
        error
    }

    /// Does what plain commands can't, on a connection of its own.
    async fn perform(&mut self, task: &Task) -> Result<(), Error> {
        let mut conn = connect::side(&self.server, &self.plan.identity).await?;
        let in_scope = &self.plan.in_scope;
        let info = Info::parse(conn.ask(&[&b"INFO"[..], b"keyspace"]).await?.bytes().unwrap_or_default());
        let filled: Vec<u32> = info.keyspace().into_iter().map(|(db, _)| db).collect();
        for step in task.steps() {
            match step {
                Task::RemoveScope { databases, .. } => {
                    for db in filled.iter().filter(|db| databases.as_ref().is_none_or(|list| list.contains(db))) {
                        scan::remove(&mut conn, *db, |key| step.concerns(key) && in_scope(*db, key)).await?;
                    }
                    failpoint!("scope-removed");
                }
                Task::RemoveLeftovers { copied, .. } => {
                    let hash = self.plan.key_hash;
                    let mut removed = 0;
                    for db in &filled {
                        let doomed =
                            |key: &[u8]| step.concerns(key) && in_scope(*db, key) && !copied.contains(&hash(*db, key));
                        removed += scan::remove(&mut conn, *db, doomed).await?;
                    }
                    failpoint!("leftovers-removed");
                    tracing::info!(keys = removed, "removed what an earlier copy had left");
                }
                // Of clusters only, and never one in the other.
                Task::Everywhere { .. } | Task::InOrder(_) => return Err(self.out_of_step()),
            }
        }
        Ok(())
    }

    fn report(&mut self) {
        let now = (self.machine.applied(), self.machine.recorded());
        if let Some(offset) = now.0.filter(|_| now.0 != self.reported.0) {
            self.plan.progress.applied(offset);
        }
        if let Some(offset) = now.1.filter(|_| now.1 != self.reported.1) {
            self.plan.progress.recorded(offset);
        }
        self.reported = now;
        for (ticket, applied) in self.machine.take_settled() {
            self.plan.progress.settled(ticket, applied);
        }
    }

    /// Wakes the task when the next refused lane may send again, or the rate allows more.
    fn set_timer(&mut self, cx: &mut Context<'_>, timer: &mut std::pin::Pin<Box<Sleep>>) -> Poll<Result<Exit, Error>> {
        let resume = self.lanes.iter().filter_map(|io| io.resume_at).min();
        let next = resume.into_iter().chain(self.tokens.next()).min();
        if let Some(at) = next {
            timer.as_mut().reset(at.into());
            if timer.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    /// Says so if the target owes answers for a while; after a long one it is taken for gone.
    fn look_for_silence(&mut self) -> Option<Error> {
        let owed = |(lane, io): (LaneId, &Wire)| self.machine.awaits_answer(lane).then(|| io.heard.elapsed());
        let longest = self.lanes.iter().enumerate().filter_map(owed).max().unwrap_or_default();
        let silent = longest > SILENCE_NOTED;
        if silent != self.silent {
            self.silent = silent;
            match silent {
                true => self.plan.status.waiting(&self.place(), "target doesn't answer: waiting"),
                false => self.plan.status.clear(&self.place()),
            }
        }
        (longest > SILENCE_MAX)
            .then(|| Error::Silent { address: self.server.to_string(), seconds: SILENCE_MAX.as_secs() })
    }

    /// Where the status line has the reasons to wait for the target.
    fn place(&self) -> String {
        self.plan.shard.place("target")
    }

    fn out_of_step(&self) -> Error {
        Error::OutOfStep { address: self.server.to_string() }
    }

    fn lost(&self, lost: Lost) -> Error {
        Error::Lost { address: self.server.to_string(), lost }
    }
}

enum Step {
    Idle,
    Busy,
    Exit(Exit),
}

fn place(shard: &Shard, lane: LaneId) -> String {
    shard.place(&format!("lane {lane}"))
}
