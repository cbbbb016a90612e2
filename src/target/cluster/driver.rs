//! Moves bytes between the delivery machine and the connections to all primaries of a cluster.
//!
//! One task drives them all. A node that breaks is connected again by itself; the others go on.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, Sleep, interval, sleep, timeout};

use super::link::{CONNECT_MAX, Connecting, Link};
use super::records::{self, read_floors, read_records, read_states};
use super::tasks::Work;
use crate::clock::now_ms;
use crate::delivery::guard::Standing;
use crate::delivery::record;
use crate::delivery::slots::{Cluster as Machine, ConnId, Event, Found};
use crate::delivery::standalone::{Fault, Lost, Reread};
use crate::delivery::unit::{Batch, Task};
use crate::net::backoff::Backoff;
use crate::net::cluster::Cluster;
use crate::net::topology::{Health, Primary, Topology};
use crate::offset::ReplOffset;
use crate::slot::{Slot, Slots};
use crate::target::driver::{OnFault, Plan, RECORD_INTERVAL, SILENCE_MAX, SILENCE_NOTED};
use crate::target::nodes::Target;
use crate::target::wire::{READ_BYTES, Tokens, Wire};
use crate::target::{Error, connect as named};

/// How much of that is waited for: what takes longer goes on beside what is sent to the others.
const CONNECT_SOON: Duration = Duration::from_millis(50);

/// How long to wait at most before a cluster is looked at again that lacks a node: a failover takes a few seconds.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// How soon to look again after slots that weren't where they were thought to be.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How soon to try a task again that couldn't be done.
const TASK_AGAIN: Duration = Duration::from_millis(200);

/// Why serving stopped for a moment.
enum Exit {
    /// Everything was applied and recorded, and no more comes.
    Done,
    /// Nodes must be connected, or records be read.
    Settle,
    Task(Task, ReplOffset),
    /// What is queued builds on keys that aren't the source's any more.
    Distrust(Vec<(u32, Vec<u8>)>),
}

pub struct Driver {
    plan: Plan,
    target: Target,
    cluster: Cluster,
    machine: Machine,
    lanes: usize,
    batches: mpsc::Receiver<Batch>,
    ended: bool,
    links: Vec<Link>,
    connecting: Vec<Connecting>,
    read_buf: Vec<u8>,
    tokens: Tokens,
    /// Why the status line says that a node is waited for.
    silent: bool,
    held: bool,
    suspects: Vec<(u32, Vec<u8>)>,
    reported: (Option<ReplOffset>, Option<ReplOffset>),
    /// When to settle again.
    settle_at: Option<Instant>,
    backoff: Backoff,
    best: Option<ReplOffset>,
    waits: bool,
}

impl Driver {
    /// `machine` makes `lanes` connections to each node of `cluster`, which `target` is.
    pub fn new(
        plan: Plan,
        (target, cluster): (Target, Cluster),
        (machine, lanes): (Machine, usize),
        batches: mpsc::Receiver<Batch>,
    ) -> Self {
        let (tokens, backoff) = (Tokens::new(plan.rate.clone()), Backoff::new(plan.retry_for));
        Driver {
            plan,
            target,
            cluster,
            machine,
            lanes,
            batches,
            ended: false,
            links: Vec::new(),
            connecting: Vec::new(),
            read_buf: vec![0; READ_BYTES],
            tokens,
            silent: false,
            held: false,
            suspects: Vec::new(),
            reported: (None, None),
            settle_at: None,
            backoff,
            best: None,
            waits: false,
        }
    }

    /// Delivers everything that the router hands over; ends when it hands over no more and all is applied.
    ///
    /// # Errors
    /// When the target refuses for good, is lost for too long, or lost what it had acknowledged.
    pub async fn run(&mut self) -> Result<(), Error> {
        if !self.plan.resumes {
            self.begin().await?;
        }
        self.settle_now().await?;
        let mut ticks = interval(RECORD_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut timer = Box::pin(sleep(Duration::ZERO));
        loop {
            match poll_fn(|cx| self.poll(cx, &mut ticks, &mut timer)).await {
                Ok(Exit::Done) => return Ok(()),
                Ok(Exit::Settle) => self.settle_now().await?,
                Ok(Exit::Task(task, offset)) => self.perform(&task, offset).await?,
                Ok(Exit::Distrust(commands)) => {
                    self.note_suspects(&commands).await?;
                    self.machine.distrust();
                    self.drop_all();
                    self.settle_now().await?;
                }
                Err(error) => return Err(self.stopped(error).await),
            }
        }
    }

    /// Says in every slot that a copy has begun, and removes what is to go before it.
    async fn begin(&mut self) -> Result<(), Error> {
        loop {
            match self.write_first().await {
                Ok(()) => break,
                Err(error) => self.wait_after(error).await?,
            }
        }
        self.at_peace();
        match self.plan.empty_first.clone() {
            Some(task) => self.perform(&task, ReplOffset(u64::MAX)).await,
            None => Ok(()),
        }
    }

    async fn write_first(&mut self) -> Result<(), Error> {
        self.machine.set_time(now_ms());
        let (floor, job) = (self.machine.first_floor(), self.plan.identity.job.clone());
        for mut open in self.target.open(Some(&self.plan.identity)).await? {
            let feeds = open.node.slots.iter().filter(|slot| self.machine.feeds().contains(*slot));
            let records: Vec<_> = feeds.map(|slot| (slot, self.machine.record(slot))).collect();
            records::write_first(&mut open.conn, &job, &floor, &records).await?;
        }
        Ok(())
    }

    /// Waits after a failure; an error when it has lasted too long.
    async fn wait_after(&mut self, error: Error) -> Result<(), Error> {
        let wait = self.wait_for(error)?;
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// How long to wait after a failure.
    fn wait_for(&mut self, error: Error) -> Result<Duration, Error> {
        if !error.is_passing() {
            return Err(error);
        }
        if self.machine.applied() > self.best {
            self.best = self.machine.applied();
            self.backoff.progress();
        }
        self.plan.status.error("target connection");
        self.plan.status.waiting(&self.place(), &format!("{error}: connecting again"));
        self.waits = true;
        tracing::warn!(error = %error, "target lost");
        self.backoff.failed(Instant::now()).map(|wait| wait.min(WAIT_MAX)).ok_or(error)
    }

    /// Nothing is waited for any more.
    fn at_peace(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.plan.status.clear(&self.place());
        }
    }

    /// Connects what isn't connected and reads what must be read; what couldn't be done now is done later.
    async fn settle_now(&mut self) -> Result<(), Error> {
        self.settle_at = None;
        match self.settle().await {
            // The end of that calls.
            Ok(None) if !self.connecting.is_empty() => self.settle_at = Some(Instant::now() + CONNECT_MAX),
            Ok(None) => {
                self.at_peace();
                if self.machine.needs_settling() {
                    self.settle_at = Some(Instant::now() + LOOK_AGAIN);
                }
            }
            Ok(Some(error)) | Err(error) => {
                let wait = self.wait_for(error)?;
                self.settle_at = Some(Instant::now() + wait);
            }
        }
        Ok(())
    }

    /// Returns the error of a node that couldn't be connected; the others are settled all the same.
    async fn settle(&mut self) -> Result<Option<Error>, Error> {
        let topology = self.cluster.look().await?;
        self.drop_replaced(&topology);
        let mut failed = None;
        for primary in topology.owners() {
            if let Err(error) = self.link(primary).await {
                if !error.is_passing() {
                    return Err(error);
                }
                failed.get_or_insert(error);
            }
        }
        if !topology.is_whole() {
            let slots = topology.unowned().to_string();
            failed.get_or_insert(Error::NotWhole { address: self.target.to_string(), slots });
        }
        let node_of = |id: &str| self.links.iter().find(|link| link.id == id).map(|link| link.node);
        let moving = match self.machine.loses_homes(|slot| node_of(&topology.owner(slot)?.id)) {
            // A node that can't be asked may be one that a slot was moving from or to.
            true if failed.is_some() || !self.connecting.is_empty() => return Ok(failed),
            // Before the records: a move that ends in between took its slot's along.
            true => self.motions(&topology).await?,
            false => Slots::default(),
        };
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.links.len() {
            match self.found(at, &topology).await {
                Ok(of_node) => {
                    found.extend(of_node.map(|of_node| Found { moving: moving.clone(), ..of_node }));
                    at += 1;
                }
                Err(error) if error.is_passing() => {
                    self.drop_link(at);
                    failed.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        self.settle_machine(&found).await?;
        if failed.is_none() && self.connecting.is_empty() {
            self.machine.set_fenced();
            // Only now is what the records say what these servers have. While one is missing its replica may lack more than
            // those of the others.
            if !self.machine.needs_settling() {
                let servers = self.links.iter().map(|link| link.run_id.clone()).collect();
                self.plan.progress.servers(servers);
            }
        }
        Ok(failed)
    }

    async fn settle_machine(&mut self, found: &[Found]) -> Result<(), Error> {
        let before = self.machine.replies_unseen();
        let reread = self.machine.settle(found).map_err(|lost| self.lost(lost));
        let strays = self.machine.take_strays();
        if !strays.is_empty() {
            self.plan.progress.are_lost(strays);
        }
        let reread = reread?;
        self.plan.status.replies_unseen.add(self.machine.replies_unseen() - before);
        let (offset, stream_db, epoch) = match reread {
            Reread::Continue => return Ok(()),
            Reread::ReadAll => {
                // Nodes that were closed for it already stay until the others are there.
                if self.machine.has_homes() {
                    self.drop_all();
                }
                return Ok(());
            }
            Reread::Rewind { offset, stream_db, epoch } => (offset, stream_db, epoch),
        };
        self.plan.status.error("target's records moved");
        failpoint!("rewind");
        tracing::warn!(%offset, "the target's records moved, as after a failover: going on from there");
        let guards = loop {
            match records::guards(&self.target, &self.plan.identity.job, self.machine.feeds()).await {
                Ok(guards) => break guards,
                Err(error) => self.wait_after(error).await?,
            }
        };
        let standing = Standing { stream_db, guards, lanes: self.machine.positions() };
        match self.plan.progress.rewind(offset, epoch, standing) {
            true => Ok(()),
            false => Err(Error::FellBack { address: self.target.to_string(), offset }),
        }
    }

    /// Connects a primary that isn't, or begins to.
    async fn link(&mut self, primary: &Primary) -> Result<(), Error> {
        if self.links.iter().any(|link| link.id == primary.id) {
            return Ok(());
        }
        let begun = self.connecting.iter().position(|connecting| connecting.id == primary.id);
        let mut connecting = match begun {
            Some(at) => self.connecting.swap_remove(at),
            None => {
                let ends = (&self.target, &self.cluster);
                Connecting::to(ends, primary, &self.plan.identity, self.lanes)
            }
        };
        // Nothing is lost where that is too short.
        let _ = timeout(CONNECT_SOON, poll_fn(|cx| connecting.poll(cx))).await;
        let Some(done) = connecting.done.take() else {
            self.connecting.push(connecting);
            return Ok(());
        };
        let connected = done?;
        let node = self.machine.attach(&connected.identity);
        self.links.push(Link::new(primary, node, connected, &self.plan.large));
        Ok(())
    }

    /// A server whose replica has taken over may hang, and keep its connections: what was sent to it is lost.
    fn drop_replaced(&mut self, topology: &Topology) {
        while let Some(at) = self.links.iter().position(|link| link.is_replaced(topology)) {
            self.drop_link(at);
        }
        self.links.iter_mut().for_each(|link| link.see(topology));
        self.connecting.retain(|connecting| topology.owners().any(|primary| primary.id == connecting.id));
    }

    /// The slots that nodes give away or take just now, key by key. Each knows its own only, and one that has taken over
    /// none of its predecessor's.
    async fn motions(&self, topology: &Topology) -> Result<Slots, Error> {
        let mut moving = Vec::new();
        for primary in topology.primaries().iter().filter(|primary| primary.health != Health::Failed) {
            let view = self.cluster.view(primary.address.clone()).await?;
            moving.extend(view.motions().iter().map(|motion| motion.slot));
        }
        Ok(moving.into_iter().collect())
    }

    /// Reads what a node holds of the slots whose records are wanted; nothing if none is.
    async fn found(&mut self, at: usize, topology: &Topology) -> Result<Option<Found>, Error> {
        let job = self.plan.identity.job.clone();
        let Some(link) = self.links.get(at) else { return Ok(None) };
        let Some(primary) = topology.primary(&link.id) else { return Ok(None) };
        let (node, owned) = (link.node, primary.slots.clone());
        let wanted: Vec<Slot> = owned.iter().filter(|slot| self.machine.wants(*slot, node)).collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        // On a connection of its own: others' answers may be on their way.
        let mut conn = self.cluster.server(primary.address.clone()).connect().await?;
        let records = read_records(&mut conn, &job, &wanted).await?;
        let mut strays = Slots::default();
        if self.plan.progress.states_key().is_some() {
            let says: BTreeMap<_, _> = read_states(&mut conn, &job, &wanted).await?.into_iter().collect();
            let stray = |slot: &Slot| self.plan.progress.is_stray(*slot, says.get(slot));
            strays.extend(wanted.iter().copied().filter(stray));
        }
        let looked: BTreeSet<Slot> = wanted.into_iter().chain(owned.lowest()).collect();
        let looked: Vec<Slot> = looked.into_iter().collect();
        let shard = self.machine.shard();
        let floors = read_floors(&mut conn, &job, shard, &looked).await?;
        Ok(Some(Found { strays, ..Found::new(node, owned, records, floors) }))
    }

    fn drop_link(&mut self, at: usize) {
        if at < self.links.len() {
            let link = self.links.swap_remove(at);
            self.machine.detach(link.node);
        }
    }

    fn drop_all(&mut self) {
        while !self.links.is_empty() {
            self.drop_link(0);
        }
    }

    /// Does a task, for as long as it takes.
    async fn perform(&mut self, task: &Task, offset: ReplOffset) -> Result<(), Error> {
        let mut backoff = Backoff::new(self.plan.retry_for);
        loop {
            let work = Work {
                target: &self.target,
                identity: &self.plan.identity,
                in_scope: &self.plan.in_scope,
                key_hash: self.plan.key_hash,
            };
            let error = match work.perform(task, |key| self.machine.is_below(Slot::of(key), offset)).await {
                Ok(()) => break,
                Err(error) => error,
            };
            if !error.is_passing() {
                if self.plan.on_fault == OnFault::Stop || matches!(error, Error::OwnerLost { .. }) {
                    return Err(error);
                }
                self.plan.status.error("refused for good");
                self.plan.status.commands_skipped.add(1);
                tracing::warn!(%offset, error = %error, "left out: the target refuses it for good");
                break;
            }
            self.waits = true;
            self.plan.status.waiting(&self.place(), &error.to_string());
            // A slot may be on the move for as long as it likes.
            if !matches!(error, Error::Moving { .. }) && backoff.failed(Instant::now()).is_none() {
                return Err(error);
            }
            tokio::time::sleep(TASK_AGAIN).await;
        }
        self.at_peace();
        self.machine.task_done();
        Ok(())
    }

    /// Does all that can be done now without waiting.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        ticks: &mut Interval,
        timer: &mut Pin<Box<Sleep>>,
    ) -> Poll<Result<Exit, Error>> {
        self.machine.set_time(now_ms());
        self.machine.wake();
        if ticks.poll_tick(cx).is_ready() && self.tick() {
            return Poll::Ready(Ok(Exit::Settle));
        }
        if self.connecting.iter_mut().any(|connecting| connecting.poll(cx).is_ready()) {
            return Poll::Ready(Ok(Exit::Settle));
        }
        loop {
            let mut busy = self.take_batches(cx);
            let mut at = 0;
            while at < self.links.len() {
                match self.poll_link(cx, at) {
                    Ok(moved) => {
                        busy |= moved;
                        at += 1;
                    }
                    Err(Broken::Lost(error)) => {
                        self.drop_link(at);
                        return Poll::Ready(self.wait_for(error).map(|wait| {
                            self.settle_at = Some(Instant::now() + wait);
                            Exit::Settle
                        }));
                    }
                    Err(Broken::Fatal(error)) => return Poll::Ready(Err(error)),
                }
            }
            if !busy {
                break;
            }
        }
        match self.next_exit() {
            Some(exit) => Poll::Ready(Ok(exit)),
            None => self.set_timer(cx, timer),
        }
    }

    fn next_exit(&mut self) -> Option<Exit> {
        self.machine.let_go();
        for given_up in self.machine.take_given_up() {
            self.plan.progress.is_given_up(given_up);
        }
        if self.machine.needs_settling() {
            // Slots may have come.
            self.settle_at.get_or_insert_with(Instant::now);
        }
        self.report();
        // Before every slot follows there is no place in the stream to start again from.
        if !self.suspects.is_empty() && self.machine.recorded().is_some() {
            return Some(Exit::Distrust(std::mem::take(&mut self.suspects)));
        }
        if self.ended && self.machine.is_recorded() {
            return Some(Exit::Done);
        }
        if let Some((task, offset)) = self.machine.task() {
            return Some(Exit::Task(task, offset));
        }
        self.settle_at.is_some_and(|at| at <= Instant::now()).then_some(Exit::Settle)
    }

    /// What is done every second; true if records must be read.
    fn tick(&mut self) -> bool {
        self.look_for_silence();
        self.name_history();
        self.machine.refresh();
        self.write_floors();
        self.show_held();
        let Some(topology) = self.cluster.seen().filter(|_| self.settle_at.is_none()) else { return false };
        if self.links.iter().any(|link| link.is_replaced(&topology)) {
            return true;
        }
        topology.owners().any(|primary| match self.links.iter().find(|link| link.id == primary.id) {
            Some(link) => primary.slots.iter().any(|slot| self.machine.wants(slot, link.node)),
            None => primary.slots.iter().any(|slot| self.machine.feeds().contains(slot)),
        })
    }

    fn write_floors(&mut self) {
        for at in 0..self.links.len() {
            let Some(node) = self.links.get(at).map(|link| link.node) else { continue };
            if let Some((conn, bytes)) = self.machine.floor(node) {
                let lane = conn - self.machine.conns_of(node).start;
                let wire = self.links.get_mut(at).and_then(|link| link.wires.get_mut(lane));
                wire.into_iter().for_each(|wire| wire.out.extend_from_slice(&bytes));
            }
        }
    }

    fn take_batches(&mut self, cx: &mut Context<'_>) -> bool {
        let mut taken = false;
        while !self.ended && !self.machine.is_full() {
            match self.batches.poll_recv(cx) {
                Poll::Ready(Some(batch)) => {
                    self.name_history();
                    self.machine.push(batch);
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => break,
            }
            taken = true;
        }
        if self.ended && self.machine.is_idle() {
            // Nothing will come that could carry the records with it.
            self.write_floors();
        }
        taken
    }

    /// The source's history may have got another name: whatever is written of it must be under that, or it would seem to
    /// have left the old one where that ends. The floors tell it in full.
    fn name_history(&mut self) {
        if self.machine.set_replid(self.plan.progress.replid()) {
            self.write_floors();
        }
    }

    /// True if something was sent or received.
    fn poll_link(&mut self, cx: &mut Context<'_>, at: usize) -> Result<bool, Broken> {
        let Some(link) = self.links.get(at) else { return Ok(false) };
        let (first, count) = (self.machine.conns_of(link.node).start, link.wires.len());
        let mut busy = false;
        for lane in 0..count {
            busy |= self.poll_wire(cx, (at, lane), first + lane)?;
        }
        Ok(busy)
    }

    fn poll_wire(&mut self, cx: &mut Context<'_>, place: (usize, usize), conn: ConnId) -> Result<bool, Broken> {
        let now = Instant::now();
        let Some(wire) = wire_at(&mut self.links, place) else { return Ok(false) };
        if wire.resume_at.is_some_and(|at| at <= now) {
            wire.resume_at = None;
            self.machine.unpause(conn);
        }
        if wire.resume_at.is_none() && self.tokens.available(now) {
            if !self.machine.awaits_answer(conn) {
                wire.heard = now;
            }
            let before = wire.out.len();
            self.machine.send(conn, &mut wire.out);
            self.tokens.spend(wire.added(before));
        }
        let mut busy = wire.poll_write(cx, &self.plan.status.bytes_to_target).map_err(Broken::Lost)?;
        loop {
            let Some(wire) = wire_at(&mut self.links, place) else { return Ok(busy) };
            let Some(read) = wire.poll_read(cx, &mut self.read_buf).map_err(Broken::Lost)? else { return Ok(busy) };
            busy = true;
            self.take_answers(place, conn, read)?;
            if read < self.read_buf.len() {
                return Ok(busy);
            }
        }
    }

    /// Hands the answers among the `read` bytes just received to the machine.
    fn take_answers(&mut self, place: (usize, usize), conn: ConnId, read: usize) -> Result<(), Broken> {
        let buf = std::mem::take(&mut self.read_buf);
        let Some(of) = wire_at(&mut self.links, place) else { return Ok(()) };
        let mut reader = std::mem::take(&mut of.reader);
        let mut applied = 0;
        let fresh = buf.get(..read).unwrap_or_default();
        let said = reader.each(fresh, |scanned| match self.machine.answer(conn, scanned) {
            Ok(None) => None,
            Ok(Some(Event::Applied { commands })) => {
                applied += commands;
                None
            }
            Ok(Some(event)) => self.take_event(place, event).err(),
            Err(_) => Some(Broken::Lost(self.out_of_step())),
        });
        self.read_buf = buf;
        self.plan.status.commands_applied.add(applied);
        if let Some(of) = wire_at(&mut self.links, place) {
            of.reader = reader;
            if applied > 0 && std::mem::take(&mut of.waits) {
                of.refusals.progress();
                self.plan.status.clear(&self.wire_place(place));
            }
        }
        match said {
            Ok(None) => Ok(()),
            Ok(Some(broken)) => Err(broken),
            Err(_) => Err(Broken::Lost(self.out_of_step())),
        }
    }

    fn take_event(&mut self, place: (usize, usize), event: Event) -> Result<(), Broken> {
        let status = &self.plan.status;
        match event {
            Event::Copied { values } => self.plan.shard.copied.keys_done.add(values),
            Event::Applied { commands } => status.commands_applied.add(commands),
            Event::Refused { words } => {
                let code = words.split(' ').next().unwrap_or_default().to_owned();
                status.error(&code);
                let name = self.wire_place(place);
                let Some(wire) = wire_at(&mut self.links, place) else { return Ok(()) };
                // Of many transactions that are refused together, one counts.
                if wire.resume_at.is_none() {
                    wire.waits = true;
                    status.waiting(&name, &format!("target answers {code}: waiting"));
                    let wait = wire.refusals.failed(Instant::now()).unwrap_or(Duration::from_secs(5));
                    wire.resume_at = Some(Instant::now() + wait);
                }
            }
            Event::Held { words } => status.error(words.split(' ').next().unwrap_or_default()),
            Event::Moved => {
                status.error("MOVED");
                self.settle_at.get_or_insert_with(Instant::now);
            }
            Event::Elsewhere { words } => {
                status.error(words.split(' ').next().unwrap_or_default());
                return Err(Broken::Lost(Error::Elsewhere { address: self.wire_place(place), words }));
            }
            Event::LostKeys { commands, lost } => {
                status.commands_applied.add(commands);
                status.error("lost key");
                tracing::warn!(keys = lost.len(), "the target has lost keys: copying them again from the source");
                self.suspects.extend(lost);
            }
            Event::Faults { slot, faults } => self.take_faults(slot, &faults)?,
        }
        Ok(())
    }

    fn take_faults(&mut self, slot: Option<u16>, faults: &[Fault]) -> Result<(), Broken> {
        let (goes_on, suspects) = self.plan.take_faults("slot", faults).map_err(Broken::Fatal)?;
        self.suspects.extend(suspects);
        if let Some(slot) = slot.filter(|_| goes_on) {
            self.machine.go_on(slot);
        }
        Ok(())
    }

    /// Writes into the target which keys are to be copied again, so that a later process knows, too.
    async fn note_suspects(&mut self, commands: &[(u32, Vec<u8>)]) -> Result<(), Error> {
        let keys = commands.iter().flat_map(|(db, raw)| self.plan.progress.keys_written(*db, raw)).collect();
        loop {
            match records::note_suspects(&self.target, &self.plan.identity, &keys).await {
                Ok(()) => return Ok(()),
                Err(error) => self.wait_after(error).await?,
            }
        }
    }

    /// Writes what stopped the job where the rest of a flush was applied: a later run must be told what to do about it.
    async fn stopped(&mut self, error: Error) -> Error {
        let Error::Fault(fault) = &error else { return error };
        if !fault.applied || fault.suspects.is_empty() {
            return error;
        }
        let suspects = fault.suspects.clone();
        let written = async {
            self.note_suspects(&suspects).await?;
            let key = record::stopped_key(&self.plan.identity.records());
            let holder = self.target.holder(&key).await?;
            let mut conn = named::named(&holder.server, &self.plan.identity, "side").await?;
            crate::target::owner::check_in(&self.target, &self.plan.identity).await?;
            crate::target::ask(&mut conn, &[&b"SET"[..], &key, error.to_string().as_bytes()]).await?;
            failpoint!("stopped-noted");
            Ok::<(), Error>(())
        };
        if let Err(failed) = written.await {
            tracing::warn!(error = %failed, "what stopped the job can't be written to the target");
        }
        error
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
    }

    /// Wakes the task when something that waits may go on.
    fn set_timer(&mut self, cx: &mut Context<'_>, timer: &mut Pin<Box<Sleep>>) -> Poll<Result<Exit, Error>> {
        let resume = self.links.iter().flat_map(|link| &link.wires).filter_map(|wire| wire.resume_at).min();
        let wake = self.machine.next_wake().map(|at| {
            let wait = u64::try_from(at - now_ms()).unwrap_or(0);
            Instant::now() + Duration::from_millis(wait)
        });
        let next = resume.into_iter().chain(self.tokens.next()).chain(wake).chain(self.settle_at).min();
        if let Some(at) = next {
            timer.as_mut().reset(at.into());
            if timer.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    /// Says so if a node owes answers for a while; after a long one it is taken for gone.
    fn look_for_silence(&mut self) {
        let mut longest = Duration::ZERO;
        let mut gone = None;
        for (at, link) in self.links.iter().enumerate() {
            let conns = self.machine.conns_of(link.node);
            let owed = conns.zip(&link.wires).filter(|(conn, _)| self.machine.awaits_answer(*conn));
            let silence = owed.map(|(_, wire)| wire.heard.elapsed()).max().unwrap_or_default();
            longest = longest.max(silence);
            gone = gone.or((silence > SILENCE_MAX).then_some(at));
        }
        let silent = longest > SILENCE_NOTED;
        if silent != self.silent {
            self.silent = silent;
            match silent {
                true => self.plan.status.waiting(&self.place(), "target doesn't answer: waiting"),
                false => self.plan.status.clear(&self.place()),
            }
        }
        if let Some(at) = gone {
            self.drop_link(at);
            self.settle_at = Some(Instant::now());
        }
    }

    /// Says that slots on the move are waited for.
    fn show_held(&mut self) {
        let held = self.machine.next_wake().is_some();
        if held != self.held {
            self.held = held;
            let place = self.plan.shard.place("slots");
            match held {
                true => self.plan.status.waiting(&place, "slots of the target are on the move: waiting"),
                false => self.plan.status.clear(&place),
            }
        }
    }

    /// Where the status line has the reasons to wait for the target.
    fn place(&self) -> String {
        self.plan.shard.place("target")
    }

    fn wire_place(&self, (at, lane): (usize, usize)) -> String {
        let address = self.links.get(at).and_then(|link| link.wires.get(lane)).map(|wire| wire.conn.address());
        self.plan.shard.place(&format!("target {}", address.unwrap_or_default()))
    }

    fn out_of_step(&self) -> Error {
        Error::OutOfStep { address: self.target.to_string() }
    }

    fn lost(&self, lost: Lost) -> Error {
        Error::Lost { address: self.target.to_string(), lost }
    }
}

/// Why a connection can't be used further.
enum Broken {
    Lost(Error),
    /// Nothing can be gone on with.
    Fatal(Error),
}

fn wire_at(links: &mut [Link], (at, lane): (usize, usize)) -> Option<&mut Wire> {
    links.get_mut(at)?.wires.get_mut(lane)
}
