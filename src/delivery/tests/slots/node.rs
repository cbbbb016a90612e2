//! A model of a cluster's nodes: each executes what its connections send, in slots that it owns; slots move key by key,
//! and a node may fail over to a replica that lacks the last things it executed.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::source::{FUNCTION, Source, feeds};
use crate::delivery::record::{Phase, is_own_key};
use crate::delivery::slots::record::{Floor, SlotRecord, floor_key, slot_key};
use crate::delivery::tests::server::{Args, Conn, Data, Tag, Trap, Value};
use crate::resp::command::{Parsed, Parser};
use crate::slot::{Slot, Slots};

pub const JOB: &str = "j";

/// What changed a node's data: enough to do it again.
#[derive(Debug, Clone)]
enum Change {
    /// A transaction, or a bare command.
    Ran {
        db: u32,
        commands: Vec<(Args, Option<String>)>,
    },
    Put {
        db: u32,
        key: Vec<u8>,
        value: Value,
    },
    Drop {
        db: u32,
        key: Vec<u8>,
    },
    /// The whole slot has come from another node, with what ran there.
    Came {
        ran: BTreeMap<Tag, u32>,
        failed: BTreeSet<Tag>,
    },
    Went {
        slot: Slot,
    },
    Both(Vec<Change>),
}

#[derive(Debug)]
pub struct Node {
    pub data: Data,
    base: Data,
    history: Vec<Change>,
    pub conns: Vec<Conn>,
    /// Counts its failovers.
    pub life: u32,
    /// Takes no writes until the next connect finds its successor.
    pub readonly: bool,
}

/// A slot that is on the move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Motion {
    pub slot: Slot,
    pub from: usize,
    pub to: usize,
}

#[derive(Debug)]
pub struct Nodes {
    pub nodes: Vec<Node>,
    pub owner: BTreeMap<Slot, usize>,
    pub motion: Option<Motion>,
    pub refuse: Option<Trap>,
    pub fail: Option<Trap>,
    pub source: Rc<Source>,
    /// Units and values that were left out for good, by their commands' tags without the index.
    pub removed: BTreeSet<Vec<u8>>,
    pub refused_for_good: Option<Vec<u8>>,
    pub strict: bool,
    pub violation: Option<String>,
}

impl Nodes {
    pub fn new(source: Rc<Source>, count: usize, strict: bool) -> Self {
        let owner: BTreeMap<Slot, usize> = feeds().iter().enumerate().map(|(i, slot)| (slot, i % count)).collect();
        let node = |n: usize| {
            let mut base = Data::default();
            // Of an earlier copy.
            let leftover = b"leftover{a}".to_vec();
            if owner.get(&Slot::of(&leftover)) == Some(&n) {
                base.keys.insert((0, leftover), Value::Text(b"41".to_vec()));
            }
            let (data, history) = (base.clone(), Vec::new());
            Node { data, base, history, conns: Vec::new(), life: 0, readonly: false }
        };
        Nodes {
            nodes: (0..count).map(node).collect(),
            owner,
            motion: None,
            refuse: None,
            fail: None,
            source,
            removed: BTreeSet::new(),
            refused_for_good: None,
            strict,
            violation: None,
        }
    }

    /// Runs commands at once, as on a connection of their own.
    pub fn run(&mut self, node: usize, commands: Vec<Args>) {
        let commands = commands.into_iter().map(|c| (c, None)).collect();
        self.commit(node, Change::Ran { db: 0, commands });
    }

    /// All users' keys of all nodes, of slots that they own.
    pub fn users(&self) -> BTreeMap<(u32, Vec<u8>), Value> {
        let of_node = |(n, node): (usize, &Node)| {
            let users = node.data.users().into_iter();
            users
                .filter(|((_, key), _)| key != FUNCTION && self.owner.get(&Slot::of(key)) == Some(&n))
                .collect::<Vec<_>>()
        };
        self.nodes.iter().enumerate().flat_map(of_node).collect()
    }

    pub fn record(&self, node: usize, slot: Slot) -> Option<SlotRecord> {
        match self.nodes[node].data.keys.get(&(0, slot_key(JOB, slot)))? {
            Value::Text(text) => SlotRecord::parse(text).ok(),
            _ => None,
        }
    }

    pub fn floors(&self, node: usize) -> Vec<Floor> {
        let owned = self.owner.iter().filter(|(_, owner)| **owner == node).map(|(slot, _)| *slot);
        let text = |slot| match self.nodes[node].data.keys.get(&(0, floor_key(JOB, 0, slot)))? {
            Value::Text(text) => Floor::parse(text).ok(),
            _ => None,
        };
        owned.filter_map(text).collect()
    }

    /// How often a tagged command ran, by the word of the slot's owner.
    pub fn ran(&self, slot: Slot, tag: &[u8]) -> u32 {
        self.nodes[self.owner[&slot]].data.ran.get(tag).copied().unwrap_or(0)
    }

    pub fn begin_move(&mut self, slot: Slot, to: usize) {
        let from = self.owner[&slot];
        if self.motion.is_none() && from != to {
            self.motion = Some(Motion { slot, from, to });
        }
    }

    /// Moves the next key of the slot that moves, any of keyferry's own as well; false if there is none left.
    pub fn move_key(&mut self) -> bool {
        let Some(Motion { slot, from, to }) = self.motion else { return false };
        let next = self.nodes[from].data.keys.iter().find(|((_, key), _)| key != FUNCTION && Slot::of(key) == slot);
        let Some(((db, key), value)) = next.map(|(k, v)| (k.clone(), v.clone())) else { return false };
        self.commit(to, Change::Put { db, key: key.clone(), value });
        self.commit(from, Change::Drop { db, key });
        true
    }

    pub fn end_move(&mut self) {
        while self.move_key() {}
        // What ran belongs to the keys that came: all of it is there with the last of them.
        let Some(Motion { slot, from, to }) = self.motion.take() else { return };
        let of_slot = format!(":{slot}:").into_bytes();
        let is_of = |tag: &Tag| self.tag_is_of(tag, slot, &of_slot);
        let data = &self.nodes[from].data;
        let ran = data.ran.iter().filter(|(tag, _)| is_of(tag)).map(|(tag, n)| (tag.clone(), *n)).collect();
        let failed = data.failed.iter().filter(|tag| is_of(tag)).cloned().collect();
        self.commit(to, Change::Came { ran, failed });
        self.join_last(to);
        self.commit(from, Change::Went { slot });
        self.owner.insert(slot, to);
    }

    /// What changed last is lost or kept together with what changed before it.
    fn join_last(&mut self, node: usize) {
        let history = &mut self.nodes[node].history;
        let (last, before) = (history.pop(), history.pop());
        let joined: Vec<Change> = before.into_iter().chain(last).collect();
        history.push(Change::Both(joined));
    }

    fn tag_is_of(&self, tag: &Tag, slot: Slot, of_slot: &[u8]) -> bool {
        let number = |at: usize| {
            let text = String::from_utf8_lossy(tag);
            text.split(':').nth(at).and_then(|n| n.parse::<usize>().ok()).unwrap_or(usize::MAX)
        };
        let key = match tag.get(1) {
            Some(b'v') => self.source.values.get(number(1)).map(|(_, words)| &words[1]),
            Some(b'p') => self.source.pieces.get(number(1)).map(|(_, commands)| &commands[0][1]),
            _ => return tag.windows(of_slot.len()).any(|w| w == of_slot),
        };
        key.is_some_and(|key| Slot::of(key) == slot)
    }

    /// The node loses the last `count` things that it executed. True if a slot's keys came or went among them.
    pub fn roll_back(&mut self, node: usize, count: usize) -> bool {
        let keep = self.nodes[node].history.len().saturating_sub(count);
        let all: Vec<Change> = self.nodes[node].history.drain(..).collect();
        let torn = all.iter().skip(keep).any(|c| !matches!(c, Change::Ran { .. }));
        self.nodes[node].data = self.nodes[node].base.clone();
        self.nodes[node].life += 1;
        let strict = std::mem::replace(&mut self.strict, false);
        all.into_iter().take(keep).for_each(|change| self.commit(node, change));
        self.strict = strict;
        // Whoever doesn't own a slot forgets its keys.
        let importing = self.motion.filter(|m| m.to == node).map(|m| m.slot);
        let owner = self.owner.clone();
        let keeps = |key: &[u8]| {
            key == FUNCTION || owner.get(&Slot::of(key)) == Some(&node) || importing == Some(Slot::of(key))
        };
        self.nodes[node].data.keys.retain(|(_, key), _| keeps(key));
        torn
    }

    /// Takes up to `bytes` of what a connection has sent.
    pub fn serve(&mut self, node: usize, conn: usize, bytes: usize) {
        let Some(c) = self.nodes[node].conns.get_mut(conn).filter(|c| !c.killed) else { return };
        let upto = bytes.min(c.inbox.len());
        let (mut at, mut parser) = (0, Parser::new());
        let inbox = c.inbox.clone();
        while let Ok(Some(Parsed::Command { len })) = parser.parse(&inbox[at..upto]) {
            let args: Args = parser.args(&inbox[at..]).iter().map(<[u8]>::to_vec).collect();
            at += len;
            let answer = self.take(node, conn, args);
            let c = &mut self.nodes[node].conns[conn];
            if c.open {
                c.outbox.extend(answer);
            }
        }
        self.nodes[node].conns[conn].inbox.drain(..at);
    }

    /// Why a node doesn't serve commands: their slot is elsewhere, or keys of it are.
    fn redirection(&self, node: usize, db: u32, commands: &[Args]) -> Option<String> {
        let named = |args: &Args| -> Vec<Vec<u8>> {
            let args: Vec<&Vec<u8>> = args.iter().filter(|a| a.first() != Some(&b'#')).collect();
            match args[0].as_slice() {
                b"SELECT" | b"MULTI" | b"EXEC" => Vec::new(),
                b"RENAME" => vec![args[1].clone(), args[2].clone()],
                _ => vec![args[1].clone()],
            }
        };
        let mut db = db;
        let (mut found, mut missing) = (false, false);
        for args in commands {
            if args[0] == b"SELECT" {
                db = String::from_utf8_lossy(&args[1]).parse().unwrap_or(0);
            }
            for key in named(args) {
                let slot = Slot::of(&key);
                if self.owner.get(&slot) != Some(&node) {
                    return Some(format!("MOVED {slot} 127.0.0.1:1"));
                }
                if self.motion.is_some_and(|m| m.slot == slot) {
                    let here = self.nodes[node].data.keys.contains_key(&(db, key));
                    (found, missing) = (found || here, missing || !here);
                }
            }
        }
        match (found, missing) {
            (true, true) => Some("TRYAGAIN Multiple keys request during rehashing of slot".into()),
            (false, true) => Some("ASK 1 127.0.0.1:1".into()),
            _ => None,
        }
    }

    fn refusal(&mut self, node: usize, args: &Args) -> Option<String> {
        if args[0] == b"MULTI" {
            return None;
        }
        if self.nodes[node].readonly && args[0] != b"SELECT" {
            return Some("READONLY You can't write against a read only replica.".into());
        }
        let trap = self.refuse.as_mut()?;
        let for_good = trap.words.starts_with("NOPERM");
        if for_good && args.last().is_none_or(|tag| tag.first() != Some(&b'#')) {
            return None;
        }
        if trap.after > 0 {
            trap.after -= 1;
            return None;
        }
        let words = trap.words.to_owned();
        self.refuse = None;
        if for_good && let Some(tag) = args.last() {
            let colon = tag.iter().rposition(|b| *b == b':').map_or(0, |i| i + 1);
            let end = if tag.starts_with(b"#v") { tag.len() } else { colon };
            self.refused_for_good = Some(tag[..end].to_vec());
        }
        Some(words)
    }

    fn take(&mut self, node: usize, conn: usize, args: Args) -> Vec<u8> {
        let db = self.nodes[node].conns[conn].db;
        let refused = match args[0].as_slice() {
            b"EXEC" => {
                let queued = self.nodes[node].conns[conn].multi.clone().unwrap_or_default();
                self.redirection(node, db, &queued)
            }
            _ => self.redirection(node, db, std::slice::from_ref(&args)),
        };
        let refused = match refused {
            None => self.refusal(node, &args),
            refused => refused,
        };
        let c = &mut self.nodes[node].conns[conn];
        let dirty = c.dirty.is_some();
        if let Some(words) = refused.filter(|_| !(dirty && args[0] == b"EXEC")) {
            if args[0] == b"EXEC" {
                (c.multi, c.dirty) = (None, None);
            } else if c.multi.is_some() {
                c.dirty = Some(words.clone());
            }
            return format!("-{words}\r\n").into_bytes();
        }
        match (args[0].as_slice(), &mut c.multi) {
            (b"MULTI", None) => {
                c.multi = Some(Vec::new());
                b"+OK\r\n".to_vec()
            }
            (b"MULTI", Some(_)) => b"-ERR MULTI calls can not be nested\r\n".to_vec(),
            (b"EXEC", None) => b"-ERR EXEC without MULTI\r\n".to_vec(),
            (b"EXEC", Some(_)) => {
                let commands = c.multi.take().unwrap_or_default();
                match c.dirty.take() {
                    Some(_) => b"-EXECABORT Transaction discarded because of previous errors.\r\n".to_vec(),
                    None => self.exec(node, conn, commands, true),
                }
            }
            (_, Some(queue)) => {
                queue.push(args);
                b"+QUEUED\r\n".to_vec()
            }
            (_, None) => self.exec(node, conn, vec![args], false),
        }
    }

    fn exec(&mut self, node: usize, conn: usize, commands: Vec<Args>, array: bool) -> Vec<u8> {
        let mut out = if array { format!("*{}\r\n", commands.len()).into_bytes() } else { Vec::new() };
        let mut ran = Vec::new();
        for args in commands {
            let words = self.failure(&args, array);
            ran.push((args, words));
        }
        let db = self.nodes[node].conns[conn].db;
        let (db, answers) = self.commit_commands(node, db, &ran);
        let node = &mut self.nodes[node];
        let before = std::mem::replace(&mut node.conns[conn].db, db);
        node.history.push(Change::Ran { db: before, commands: ran });
        out.extend(answers);
        out
    }

    fn failure(&mut self, args: &Args, in_exec: bool) -> Option<String> {
        let trap = self.fail.as_mut()?;
        if !in_exec || args.last()?.first() != Some(&b'#') {
            return None;
        }
        if trap.after > 0 {
            trap.after -= 1;
            return None;
        }
        let words = trap.words.to_owned();
        self.fail = None;
        Some(words)
    }

    fn commit(&mut self, node: usize, change: Change) {
        if let Change::Both(changes) = &change {
            changes.iter().for_each(|change| self.commit(node, change.clone()));
            let history = &mut self.nodes[node].history;
            history.truncate(history.len() - changes.len());
            history.push(change);
            return;
        }
        let data = &mut self.nodes[node].data;
        match &change {
            Change::Ran { db, commands } => {
                self.commit_commands(node, *db, commands);
            }
            Change::Put { db, key, value } => drop(data.keys.insert((*db, key.clone()), value.clone())),
            Change::Drop { db, key } => drop(data.keys.remove(&(*db, key.clone()))),
            Change::Both(_) => unreachable!("taken apart above"),
            Change::Came { ran, failed } => {
                data.ran.extend(ran.clone());
                data.failed.extend(failed.clone());
            }
            Change::Went { slot } => {
                let of_slot = format!(":{slot}:").into_bytes();
                let mut ran = std::mem::take(&mut data.ran);
                ran.retain(|tag, _| !self.tag_is_of(tag, *slot, &of_slot));
                self.nodes[node].data.ran = ran;
            }
        }
        self.nodes[node].history.push(change);
    }

    fn commit_commands(&mut self, node: usize, mut db: u32, commands: &[(Args, Option<String>)]) -> (u32, Vec<u8>) {
        let mut out = Vec::new();
        for (args, failure) in commands {
            let tag = args.last().filter(|tag| tag.first() == Some(&b'#')).cloned();
            let data = &mut self.nodes[node].data;
            if let Some(tag) = &tag {
                let times = data.ran.entry(tag.clone()).or_default();
                *times += 1;
                if *times > 1 && !tag.starts_with(b"#v") && self.strict {
                    self.violation = Some(format!("{} ran twice", String::from_utf8_lossy(tag)));
                }
            }
            let result = match failure {
                Some(words) => {
                    data.failed.extend(tag);
                    Err(words.clone())
                }
                None => data.execute(&mut db, args),
            };
            match result {
                Ok(answer) => out.extend(answer),
                Err(words) => out.extend(format!("-{words}\r\n").into_bytes()),
            }
        }
        let strict = self.strict;
        for (args, _) in commands.iter().filter(|(args, _)| strict && args[0] == b"SET" && is_own_key(&args[1])) {
            let slot = Slot::of(&args[1]);
            if args[1] == slot_key(JOB, slot) {
                self.check_record(node, slot);
            } else if let Ok(floor) = Floor::parse(&args[2]) {
                self.check_floor(node, &floor);
            }
        }
        (db, out)
    }

    /// A record names all that its slot has applied, and nothing else.
    fn check_record(&mut self, node: usize, slot: Slot) {
        let Some(record) = self.record(node, slot).filter(|r| r.phase == Phase::Following) else { return };
        let source = Rc::clone(&self.source);
        for part in source.parts(slot).filter(|p| !self.removed.contains(&p.name)) {
            let applied = self.ran(slot, &part.first_tag()) > 0;
            if applied != (part.offset <= record.offset) {
                let name = String::from_utf8_lossy(&part.name);
                let what = if applied { "applied" } else { "missing" };
                self.violation = Some(format!("slot {slot}'s record names {}, but {name} is {what}", record.offset));
            }
        }
        if source.db_at(record.offset) != Some(record.stream_db) {
            self.violation = Some(format!("slot {slot}'s record has the wrong database at {}", record.offset));
        }
    }

    /// A floor names only what all its slots have applied.
    fn check_floor(&mut self, node: usize, floor: &Floor) {
        let source = Rc::clone(&self.source);
        let here: Slots = floor.slots.iter().filter(|slot| self.owner.get(slot) == Some(&node)).collect();
        for slot in here.iter() {
            let parts = source.parts(slot).filter(|p| p.offset <= floor.record.offset);
            for part in parts.filter(|p| !self.removed.contains(&p.name)) {
                if self.ran(slot, &part.first_tag()) == 0 {
                    let (name, at) = (String::from_utf8_lossy(&part.name), floor.record.offset);
                    self.violation = Some(format!("a floor names {at}, but {name} is missing"));
                }
            }
        }
    }
}
