//! A model of a target server: it executes the bytes that lanes send, and answers in RESP.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::source::Source;
use crate::delivery::record::{self, Phase, Record};
use crate::resp::command::{Parsed, Parser};

pub const JOB: &str = "j";

pub type Args = Vec<Vec<u8>>;

/// A last argument that begins with `#` names the command for the ledger; the server takes it off.
pub type Tag = Vec<u8>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Text(Vec<u8>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    List(Vec<Vec<u8>>),
    Set(BTreeSet<Vec<u8>>),
}

/// Keys, and which tagged commands ran: how often, and which of them failed because a fault was put there.
#[derive(Debug, Clone, Default)]
pub struct Data {
    pub keys: BTreeMap<(u32, Vec<u8>), Value>,
    pub ran: BTreeMap<Tag, u32>,
    pub failed: BTreeSet<Tag>,
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn ok() -> Result<Vec<u8>, String> {
    Ok(b"+OK\r\n".to_vec())
}

fn integer(n: i64) -> Result<Vec<u8>, String> {
    Ok(format!(":{n}\r\n").into_bytes())
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

impl Data {
    /// The keys without keyferry's own.
    pub fn users(&self) -> BTreeMap<(u32, Vec<u8>), Value> {
        let keys = self.keys.iter().filter(|((_, name), _)| !record::is_own_key(name));
        keys.map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    pub fn record(&self, lane: usize) -> Option<Record> {
        match self.keys.get(&(0, record::key(JOB, lane)))? {
            Value::Text(text) => Record::parse(text).ok(),
            _ => None,
        }
    }

    /// Executes a command; the answer in RESP, or the error's words.
    pub fn execute(&mut self, db: &mut u32, args: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).filter(|a| a.first() != Some(&b'#')).collect();
        let name = args[0];
        let key = |at: usize| (*db, args.get(at).map_or_else(Vec::new, |k| k.to_vec()));
        match name {
            b"SELECT" => *db = number(args[1]).and_then(|n| u32::try_from(n).ok()).ok_or("ERR index")?,
            b"SET" => drop(self.keys.insert(key(1), Value::Text(args[2].to_vec()))),
            b"MSET" => {
                for pair in args[1..].chunks(2) {
                    self.keys.insert((*db, pair[0].to_vec()), Value::Text(pair[1].to_vec()));
                }
            }
            b"DEL" => {
                let gone = args[1..].iter().filter(|k| self.keys.remove(&(*db, k.to_vec())).is_some());
                return integer(gone.count() as i64);
            }
            b"RENAME" => {
                let value = self.keys.remove(&key(1)).ok_or("ERR no such key")?;
                self.keys.insert(key(2), value);
                return Ok(b"*2\r\n*1\r\n:1\r\n$2\r\nok\r\n".to_vec());
            }
            b"FLUSHALL" => self.keys.clear(),
            b"FLUSHDB" => self.keys.retain(|(d, _), _| d != db),
            b"SWAPDB" => self.swap(number(args[1]), number(args[2])),
            // What a task does: keys in scope go, keyferry's own stay.
            b"REMOVESCOPE" => self.keys.retain(|(_, name), _| record::is_own_key(name)),
            b"STARTOVER" => *self = Data::default(),
            b"REMOVELEFTOVERS" => self.keys.retain(|(_, name), _| !name.starts_with(b"leftover")),
            _ => return self.element(name, key(1), &args[1..]),
        }
        ok()
    }

    fn swap(&mut self, a: Option<i64>, b: Option<i64>) {
        let side = |db: u32| match i64::from(db) {
            n if Some(n) == a => b.unwrap_or_default() as u32,
            n if Some(n) == b => a.unwrap_or_default() as u32,
            _ => db,
        };
        let keys = std::mem::take(&mut self.keys);
        self.keys = keys.into_iter().map(|((db, name), v)| ((side(db), name), v)).collect();
    }

    /// Commands that change a part of a key.
    fn element(&mut self, name: &[u8], key: (u32, Vec<u8>), args: &[&[u8]]) -> Result<Vec<u8>, String> {
        let empty = match name {
            b"INCR" => Value::Text(b"0".to_vec()),
            b"APPEND" => Value::Text(Vec::new()),
            b"HSET" | b"HINCRBY" => Value::Hash(BTreeMap::new()),
            b"RPUSH" => Value::List(Vec::new()),
            b"SADD" => Value::Set(BTreeSet::new()),
            other => return Err(format!("ERR unknown command {}", String::from_utf8_lossy(other))),
        };
        let fresh = !self.keys.contains_key(&key);
        let value = self.keys.entry(key.clone()).or_insert(empty);
        let result = match (name, value) {
            (b"INCR", Value::Text(text)) => match number(text) {
                Some(n) => {
                    *text = (n + 1).to_string().into_bytes();
                    integer(n + 1)
                }
                None => Err("ERR value is not an integer or out of range".into()),
            },
            (b"APPEND", Value::Text(text)) => {
                text.extend_from_slice(args[1]);
                integer(text.len() as i64)
            }
            (b"HSET", Value::Hash(hash)) => integer(i64::from(hash.insert(args[1].into(), args[2].into()).is_none())),
            (b"HINCRBY", Value::Hash(hash)) => {
                let field = hash.entry(args[1].to_vec()).or_insert_with(|| b"0".to_vec());
                let sum = number(field).unwrap_or_default() + number(args[2]).unwrap_or_default();
                *field = sum.to_string().into_bytes();
                integer(sum)
            }
            (b"RPUSH", Value::List(list)) => {
                list.extend(args[1..].iter().map(|e| e.to_vec()));
                integer(list.len() as i64)
            }
            (b"SADD", Value::Set(set)) => {
                set.extend(args[1..].iter().map(|e| e.to_vec()));
                Ok(format!("${}\r\n{}\r\n", set.len().to_string().len(), set.len()).into_bytes())
            }
            _ => Err(WRONG_TYPE.into()),
        };
        if result.is_err() && fresh {
            self.keys.remove(&key);
        }
        result
    }
}

/// A connection as the server sees it.
#[derive(Debug, Default)]
pub struct Conn {
    /// Which process opened it.
    pub owner: u64,
    /// Bytes on their way to the server, and those back.
    pub inbox: Vec<u8>,
    pub outbox: Vec<u8>,
    /// False once the client has closed it; what is in `inbox` may still run.
    pub open: bool,
    pub killed: bool,
    pub db: u32,
    pub multi: Option<Vec<Args>>,
    pub dirty: Option<String>,
}

/// One transaction or bare command as it ran: enough to run it again.
#[derive(Debug, Clone)]
struct Ran {
    db: u32,
    commands: Vec<(Args, Option<String>)>,
}

/// A fault that the adversary has laid.
#[derive(Debug, Clone)]
pub struct Trap {
    /// So many commands go through first.
    pub after: u32,
    pub words: &'static str,
}

#[derive(Debug)]
pub struct Server {
    pub data: Data,
    base: Data,
    history: Vec<Ran>,
    pub conns: Vec<Conn>,
    /// Refuses a command when it is queued, or bare.
    pub refuse: Option<Trap>,
    /// Fails a unit's command inside EXEC.
    pub fail: Option<Trap>,
    /// Refuses the next MULTI, as servers before 6.0 may.
    pub refuse_multi: bool,
    /// Fails after a demotion: it takes no writes until the next connect finds a primary.
    pub readonly: bool,
    pub source: Rc<Source>,
    /// Units (and pieces) that were left out for good, by the tag of their commands without its index.
    pub removed: BTreeSet<Vec<u8>>,
    /// The name of a unit that was refused for good, until the machine hears of it.
    pub refused_for_good: Option<Vec<u8>>,
    /// Checks every record when it is written, and that nothing runs twice.
    pub strict: bool,
    pub violation: Option<String>,
}

impl Server {
    pub fn new(source: Rc<Source>, strict: bool) -> Self {
        let mut base = Data::default();
        // Of an earlier copy.
        base.keys.insert((0, b"leftover".to_vec()), Value::Text(b"41".to_vec()));
        Server {
            data: base.clone(),
            base,
            history: Vec::new(),
            conns: Vec::new(),
            refuse: None,
            fail: None,
            refuse_multi: false,
            readonly: false,
            source,
            removed: BTreeSet::new(),
            refused_for_good: None,
            strict,
            violation: None,
        }
    }

    /// Runs commands at once, as on a connection of their own.
    pub fn run(&mut self, db: u32, commands: Vec<Args>) {
        let commands = commands.into_iter().map(|c| (c, None)).collect();
        self.commit(Ran { db, commands });
    }

    /// The server loses the last `count` things that it executed.
    pub fn roll_back(&mut self, count: usize) {
        let keep = self.history.len().saturating_sub(count);
        let kept: Vec<Ran> = self.history.drain(..).take(keep).collect();
        self.data = self.base.clone();
        let strict = std::mem::replace(&mut self.strict, false);
        for ran in kept {
            self.commit(ran);
        }
        self.strict = strict;
    }

    /// Takes up to `bytes` of what `conn` has sent.
    pub fn serve(&mut self, conn: usize, bytes: usize) {
        let Some(c) = self.conns.get_mut(conn).filter(|c| !c.killed) else { return };
        let upto = bytes.min(c.inbox.len());
        let mut at = 0;
        let mut parser = Parser::new();
        let inbox = c.inbox.clone();
        while let Ok(Some(Parsed::Command { len })) = parser.parse(&inbox[at..upto]) {
            let args: Args = parser.args(&inbox[at..]).iter().map(<[u8]>::to_vec).collect();
            at += len;
            let answer = self.take(conn, args);
            if self.conns[conn].open {
                self.conns[conn].outbox.extend(answer);
            }
        }
        self.conns[conn].inbox.drain(..at);
    }

    fn refusal(&mut self, args: &Args) -> Option<String> {
        if args[0] == b"MULTI" && std::mem::take(&mut self.refuse_multi) {
            return Some("BUSY Redis is busy running a script.".into());
        }
        if args[0] == b"MULTI" || args[0] == b"GET" {
            return None;
        }
        if self.readonly && args[0] != b"SELECT" {
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
            // Values have no index behind their number.
            let colon = tag.iter().rposition(|b| *b == b':').map_or(0, |i| i + 1);
            let end = if tag.starts_with(b"#v") { tag.len() } else { colon };
            self.refused_for_good = Some(tag[..end].to_vec());
        }
        Some(words)
    }

    fn take(&mut self, conn: usize, args: Args) -> Vec<u8> {
        if let Some(words) = self.refusal(&args) {
            let c = &mut self.conns[conn];
            if args[0] == b"EXEC" {
                c.multi = None;
                c.dirty = None;
            } else if c.multi.is_some() {
                c.dirty = Some(words.clone());
            }
            return format!("-{words}\r\n").into_bytes();
        }
        let c = &mut self.conns[conn];
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
                    None => self.exec(conn, commands, true),
                }
            }
            (_, Some(queue)) => {
                queue.push(args);
                b"+QUEUED\r\n".to_vec()
            }
            (_, None) => self.exec(conn, vec![args], false),
        }
    }

    fn exec(&mut self, conn: usize, commands: Vec<Args>, array: bool) -> Vec<u8> {
        let mut out = if array { format!("*{}\r\n", commands.len()).into_bytes() } else { Vec::new() };
        let commands = commands.into_iter().map(|args| {
            let words = self.failure(&args, array);
            (args, words)
        });
        let commands = commands.collect();
        let ran = Ran { db: self.conns[conn].db, commands };
        let (db, answers) = self.commit(ran);
        self.conns[conn].db = db;
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

    fn commit(&mut self, ran: Ran) -> (u32, Vec<u8>) {
        let mut db = ran.db;
        let mut out = Vec::new();
        for (args, failure) in &ran.commands {
            let tag = args.last().filter(|tag| tag.first() == Some(&b'#')).cloned();
            if let Some(tag) = &tag {
                let times = self.data.ran.entry(tag.clone()).or_default();
                *times += 1;
                if *times > 1 && !tag.starts_with(b"#v") && self.strict {
                    self.violation = Some(format!("{} ran twice", String::from_utf8_lossy(tag)));
                }
            }
            let result = match failure {
                Some(words) => {
                    self.data.failed.extend(tag);
                    Err(words.clone())
                }
                None => self.data.execute(&mut db, args),
            };
            match result {
                Ok(answer) => out.extend(answer),
                Err(words) => out.extend(format!("-{words}\r\n").into_bytes()),
            }
        }
        if self.strict {
            for lane in 0..self.source.lanes {
                let wrote = ran.commands.iter().any(|(a, _)| a[0] == b"SET" && a[1] == record::key(JOB, lane));
                if wrote && let Some(record) = self.data.record(lane) {
                    self.check_record(lane, &record);
                }
            }
        }
        self.history.push(ran);
        (db, out)
    }

    /// A record names all that its lane has applied, and nothing else.
    fn check_record(&mut self, lane: usize, record: &Record) {
        if record.phase == Phase::Copying {
            return;
        }
        for part in self.source.parts(lane) {
            if self.removed.contains(&part.name) {
                continue;
            }
            let applied = self.data.ran.contains_key(&part.first_tag());
            if applied != (part.offset <= record.offset) {
                let name = String::from_utf8_lossy(&part.name);
                let what = if applied { "applied" } else { "missing" };
                self.violation = Some(format!("lane {lane}'s record names {}, but {name} is {what}", record.offset));
            }
        }
        if self.source.db_at(record.offset) != Some(record.stream_db) {
            let (db, offset) = (record.stream_db, record.offset);
            self.violation = Some(format!("lane {lane}'s record has database {db} at {offset}"));
        }
    }
}
