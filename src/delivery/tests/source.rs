//! A model of a source: a snapshot, and a stream of units that all take effect there.

use proptest::prelude::*;

use super::server::JOB;
use super::server::{Args, Data, Value};
use crate::delivery::record;
use crate::delivery::unit::{LaneSet, Task};
use crate::offset::ReplOffset;
use crate::resp::encode;
use crate::route::{Router, UnitBuilder};

/// What a random unit is made of.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub kind: u8,
    pub a: u8,
    pub b: u8,
    pub db: u8,
}

pub fn any_spec() -> impl Strategy<Value = Spec> {
    let kind = prop_oneof![24 => 0u8..8, 10 => 8u8..11, 2 => 11u8..16];
    (kind, 0u8..KEYS.len() as u8, 0u8..KEYS.len() as u8, prop_oneof![3 => Just(0u8), 1 => Just(1), 1 => Just(2)])
        .prop_map(|(kind, a, b, db)| Spec { kind, a, b, db })
}

/// Their lanes of two are 1 0 0 1 0 1, of three 0 0 1 2 2 1.
pub const KEYS: [&str; 6] = ["a", "b", "k1", "k2", "k9", "k4"];

/// What of a unit goes to a lane, or to several as one.
#[derive(Debug, Clone)]
pub struct Part {
    /// What its commands' tags begin with.
    pub name: Vec<u8>,
    pub lanes: LaneSet,
    pub offset: ReplOffset,
    pub commands: Vec<(u32, Args)>,
    pub task: Option<Task>,
}

impl Part {
    pub fn first_tag(&self) -> Vec<u8> {
        [&self.name[..], b"0"].concat()
    }
}

#[derive(Debug, Clone)]
pub struct Unit {
    pub offset: ReplOffset,
    /// The database selected behind it.
    pub stream_db: u32,
    pub parts: Vec<Part>,
}

#[derive(Debug)]
pub struct Source {
    pub lanes: usize,
    /// The snapshot: whole values, and pieces of large ones.
    pub values: Vec<(usize, u32, Args)>,
    pub pieces: Vec<(usize, u32, Vec<Args>)>,
    pub copy_end: (ReplOffset, u32),
    pub units: Vec<Unit>,
    data: Data,
    router: Router,
}

/// A part before it is put into a unit: its lanes, its commands by database, its task.
type RawPart = (LaneSet, Vec<(u32, Args)>, Option<Task>);

fn args(words: &[&str]) -> Args {
    words.iter().map(|w| w.as_bytes().to_vec()).collect()
}

impl Source {
    /// A source whose first `before` units are in the snapshot, and the others in the stream.
    pub fn new(lanes: usize, specs: &[Spec], before: usize) -> Self {
        let mut source = Source::empty(lanes);
        for spec in specs.iter().take(before) {
            source.random(*spec);
        }
        source.snapshot();
        for spec in specs.iter().skip(before) {
            source.random(*spec);
        }
        source
    }

    /// A source with nothing in it, whose stream begins at once.
    pub fn empty(lanes: usize) -> Self {
        Source {
            lanes,
            values: Vec::new(),
            pieces: Vec::new(),
            copy_end: (ReplOffset(100), 0),
            units: Vec::new(),
            data: Data::default(),
            router: Router::new(lanes),
        }
    }

    fn lane(&self, key: &[u8]) -> LaneSet {
        LaneSet::one(self.router.lane_of(key))
    }

    /// Makes what was done so far the snapshot.
    pub fn snapshot(&mut self) {
        let last = self.units.last().map(|u| (u.offset, u.stream_db));
        self.copy_end = last.unwrap_or(self.copy_end);
        self.units.clear();
        for ((db, key), value) in self.data.users() {
            let (at, lane) = (self.values.len(), self.router.lane_of(&key));
            let mut whole = |name: &str, rest: Vec<Vec<u8>>| {
                let tag = format!("#v:{at}").into_bytes();
                let words = [vec![name.as_bytes().to_vec(), key.clone()], rest, vec![tag]].concat();
                self.values.push((lane, db, words));
            };
            match value {
                Value::Text(text) => whole("SET", vec![text]),
                // Replacing an absent key: the model has no RESTORE.
                Value::Set(set) => whole("SADD", set.into_iter().collect()),
                Value::Hash(hash) => {
                    for (field, text) in hash {
                        self.piece(lane, db, &key, "HSET", vec![field, text]);
                    }
                }
                Value::List(list) => {
                    for element in list {
                        self.piece(lane, db, &key, "RPUSH", vec![element]);
                    }
                }
            }
        }
    }

    fn piece(&mut self, lane: usize, db: u32, key: &[u8], name: &str, rest: Vec<Vec<u8>>) {
        let at = self.pieces.len();
        let first = self.pieces.iter().all(|(_, d, commands)| *d != db || commands[0][1] != key);
        let mut commands = Vec::new();
        if first {
            commands.push(vec![b"DEL".to_vec(), key.to_vec(), format!("#p:{at}:0").into_bytes()]);
        }
        let tag = format!("#p:{at}:{}", commands.len()).into_bytes();
        commands.push([vec![name.as_bytes().to_vec(), key.to_vec()], rest, vec![tag]].concat());
        self.pieces.push((lane, db, commands));
    }

    /// The database selected in the stream at an offset; `None` for one that lies within a unit.
    pub fn db_at(&self, offset: ReplOffset) -> Option<u32> {
        let ends = self.units.iter().map(|u| (u.offset, u.stream_db)).chain([self.copy_end]);
        ends.into_iter().find(|(o, _)| *o == offset).map(|(_, db)| db)
    }

    pub fn end(&self) -> ReplOffset {
        self.units.last().map_or(self.copy_end.0, |u| u.offset)
    }

    /// The first unit behind an offset.
    pub fn behind(&self, offset: ReplOffset) -> usize {
        self.units.iter().filter(|u| u.offset <= offset).count()
    }

    /// What of the stream a lane gets, and that its ledger can show.
    pub fn parts(&self, lane: usize) -> impl Iterator<Item = &Part> {
        let parts = self.units.iter().flat_map(|u| &u.parts);
        parts.filter(move |p| p.lanes.has(lane) && !p.commands.is_empty())
    }

    /// Adds a unit of parts, each with its lanes and commands.
    fn unit(&mut self, stream_db: u32, parts: Vec<RawPart>) {
        let offset = self.end().plus(10);
        let at = self.units.len();
        let mut unit = Unit { offset, stream_db, parts: Vec::new() };
        for (lanes, mut commands, task) in parts {
            let mask = lanes.iter().map(|l| 1u64 << l).sum::<u64>();
            let name = format!("#u:{at}:{mask}:").into_bytes();
            if task.is_some() {
                let _ = self.data.execute(&mut 0, &args(&["REMOVESCOPE"]));
            }
            for (i, (db, words)) in commands.iter_mut().enumerate() {
                let result = self.data.execute(&mut db.clone(), words);
                assert!(result.is_ok(), "{words:?} takes no effect on the source: {result:?}");
                words.push([&name[..], i.to_string().as_bytes()].concat());
            }
            unit.parts.push(Part { name, lanes, offset, commands, task });
        }
        self.units.push(unit);
    }

    /// Adds a unit of these commands in one database, which goes to the lanes of the keys named.
    pub fn together(&mut self, db: u32, keys: &[&str], commands: &[&str]) -> &mut Self {
        let mut lanes = keys.iter().fold(LaneSet::default(), |set, k| set.with(self.lane(k.as_bytes())));
        if keys.is_empty() {
            lanes = LaneSet::all(self.lanes);
        }
        let split = |c: &&str| (db, args(&c.split(' ').collect::<Vec<_>>()));
        let commands = commands.iter().map(split).collect();
        self.unit(db, vec![(lanes, commands, None)]);
        self
    }

    /// Adds a unit of one command whose first argument is its key.
    pub fn one(&mut self, command: &str) -> &mut Self {
        let key = command.split(' ').nth(1).unwrap_or_default().to_owned();
        self.together(0, &[&key], &[command])
    }

    /// Adds a command that is a list of keys, each with `width - 1` values, cut per lane.
    pub fn list(&mut self, db: u32, name: &str, width: usize, words: &[&str]) -> &mut Self {
        let mut parts: Vec<RawPart> = Vec::new();
        for item in words.chunks(width) {
            let lanes = self.lane(item[0].as_bytes());
            match parts.iter_mut().find(|(l, ..)| *l == lanes) {
                Some((_, commands, _)) => commands[0].1.extend(args(item)),
                None => parts.push((lanes, vec![(db, [args(&[name]), args(item)].concat())], None)),
            }
        }
        self.unit(db, parts);
        self
    }

    /// Adds a flush under a filter: a task, and perhaps a command behind it in the same unit.
    pub fn task(&mut self, commands: &[&str]) -> &mut Self {
        let split = |c: &&str| (0, args(&c.split(' ').collect::<Vec<_>>()));
        let commands = commands.iter().map(split).collect();
        self.unit(
            0,
            vec![(LaneSet::all(self.lanes), commands, Some(Task::RemoveScope { databases: None, slots: None }))],
        );
        self
    }

    /// Adds a SWAPDB as `pipeline::stream` routes it.
    pub fn swap(&mut self, other: u32) -> &mut Self {
        let all = LaneSet::all(self.lanes);
        let keys = (0..self.lanes).map(|lane| record::key(JOB, lane));
        let del: Args = [b"DEL".to_vec()].into_iter().chain(keys).collect();
        let swap = args(&["SWAPDB", "0", &other.to_string()]);
        self.unit(other, vec![(all, vec![(0, swap), (other, del)], None)]);
        self
    }

    /// What a stream has where all is filtered out: its offset moves on.
    pub fn nothing(&mut self, db: u32) -> &mut Self {
        self.unit(db, Vec::new());
        self
    }

    fn random(&mut self, Spec { kind, a, b, db }: Spec) {
        let n = self.units.len() + self.values.len();
        let (a, b, db) = (KEYS[usize::from(a)], KEYS[usize::from(b)], u32::from(db));
        let value = format!("{a}{n}");
        let has = |key: &str| self.data.keys.contains_key(&(db, key.as_bytes().to_vec()));
        match kind {
            2 => self.list(db, "DEL", 1, &[a, b, "k2"]),
            3 => self.list(db, "MSET", 2, &[a, "1", b, "2"]),
            8 if has(a) && a != b => self.together(db, &[a, b], &[&format!("RENAME {a} {b}")]),
            9 => {
                let both = [self.typed(0, a, db, &value), self.typed(7, b, db, &value)].concat();
                let commands: Vec<&str> = both.iter().map(String::as_str).collect();
                if a == b { self.nothing(db) } else { self.together(db, &[a, b], &commands) }
            }
            10 => {
                // A command that names a key but reads others.
                let commands = [format!("DEL {a}"), format!("RPUSH {a} {value}")];
                self.together(db, &[], &commands.each_ref().map(String::as_str))
            }
            11 => self.together(db, &[], &["FLUSHALL"]),
            12 => self.swap(1 + db % 2),
            13 => self.task(&[&format!("SET {a} {value}")]),
            14 => self.task(&[]),
            15 => self.nothing(db),
            kind => {
                let commands = self.typed(kind, a, db, &value);
                self.together(db, &[a], &commands.iter().map(String::as_str).collect::<Vec<_>>())
            }
        };
    }

    /// Commands of one key, which is removed first if it is of another type.
    fn typed(&self, kind: u8, key: &str, db: u32, value: &str) -> Vec<String> {
        let found = self.data.keys.get(&(db, key.as_bytes().to_vec()));
        let (command, fits) = match kind {
            0 | 1 => (format!("INCR {key}"), matches!(found, Some(Value::Text(t)) if t.iter().all(u8::is_ascii_digit))),
            4 => (format!("HINCRBY {key} f 1"), matches!(found, Some(Value::Hash(_)))),
            5 => (format!("APPEND {key} {value}"), matches!(found, Some(Value::Text(_)))),
            6 => (format!("SADD {key} {value}"), matches!(found, Some(Value::Set(_)))),
            7 => (format!("RPUSH {key} {value}"), matches!(found, Some(Value::List(_)))),
            _ => return vec![format!("SET {key} {value}")],
        };
        if fits || found.is_none() { vec![command] } else { vec![format!("DEL {key}"), command] }
    }

    /// Routes the snapshot.
    pub fn route_copy(&self, router: &mut Router, leftovers: bool) {
        for (lane, db, command) in &self.values {
            router.copy(*lane, *db, |out| encode::command(out, &words(command)));
        }
        for (lane, db, commands) in &self.pieces {
            router.piece(*lane, *db, commands.len() as u32, |out| {
                commands.iter().for_each(|c| encode::command(out, &words(c)));
            });
        }
        if leftovers {
            let mut unit = UnitBuilder::default();
            let task = Task::RemoveLeftovers { copied: std::sync::Arc::default(), slots: None };
            unit.task(task, router.everywhere());
            router.unit(&mut unit, 0, ReplOffset(0));
        }
        router.copy_end(self.copy_end.0, self.copy_end.1);
    }

    /// Routes a unit of the stream as `pipeline::stream` does.
    pub fn route(&self, at: usize, router: &mut Router) {
        let unit = &self.units[at];
        for part in &unit.parts {
            let mut built = UnitBuilder::default();
            let mut raw = Vec::new();
            if let Some(task) = &part.task {
                built.task(task.clone(), part.lanes.into());
            }
            for (db, command) in &part.commands {
                raw.clear();
                encode::command(&mut raw, &words(command));
                built.command(*db, part.lanes.into(), &raw);
            }
            match (&part.commands[..], part.lanes.iter().next()) {
                ([(db, _)], Some(lane)) if part.lanes.len() == 1 && part.task.is_none() => {
                    router.single(lane, *db, unit.stream_db, unit.offset, &raw);
                }
                _ => router.unit(&mut built, unit.stream_db, unit.offset),
            }
        }
    }
}

fn words(args: &Args) -> Vec<&[u8]> {
    args.iter().map(Vec::as_slice).collect()
}
