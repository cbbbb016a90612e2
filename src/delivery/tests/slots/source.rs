//! A model of a source for a cluster: a snapshot, and a stream of units that are cut per slot.

use proptest::prelude::*;

use crate::delivery::tests::server::{Args, Data, Value};
use crate::delivery::unit::Task;
use crate::offset::ReplOffset;
use crate::resp::encode;
use crate::route::{Router, UnitBuilder};
use crate::slot::{Slot, Slots};

/// What a random unit is made of.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub kind: u8,
    pub a: u8,
    pub b: u8,
}

pub fn any_spec() -> impl Strategy<Value = Spec> {
    let kind = prop_oneof![24 => 0u8..8, 6 => 8u8..10, 3 => 10u8..14];
    (kind, 0u8..KEYS.len() as u8, 0u8..KEYS.len() as u8).prop_map(|(kind, a, b)| Spec { kind, a, b })
}

/// Of four slots.
pub const KEYS: [&str; 6] = ["{a}1", "{a}2", "{b}1", "{b}2", "{c}1", "{d}1"];

/// The name of what stands for a server's functions: no slot's key.
pub const FUNCTION: &[u8] = b"function";

pub fn slot_of(key: &str) -> Slot {
    Slot::of(key.as_bytes())
}

pub fn feeds() -> Slots {
    KEYS.iter().map(|key| slot_of(key)).collect()
}

/// What of a unit goes to a slot.
#[derive(Debug, Clone)]
pub struct Part {
    /// What its commands' tags begin with.
    pub name: Vec<u8>,
    pub slot: Slot,
    pub offset: ReplOffset,
    pub commands: Vec<(u32, Args)>,
}

impl Part {
    pub fn first_tag(&self) -> Vec<u8> {
        [&self.name[..], b"0"].concat()
    }
}

#[derive(Debug, Clone)]
pub struct Unit {
    pub offset: ReplOffset,
    pub stream_db: u32,
    pub task: Option<Task>,
    pub parts: Vec<Part>,
}

#[derive(Debug)]
pub struct Source {
    /// The snapshot: whole values, and pieces of large ones.
    pub values: Vec<(u32, Args)>,
    pub pieces: Vec<(u32, Vec<Args>)>,
    pub copy_end: (ReplOffset, u32),
    pub units: Vec<Unit>,
    copied_function: Option<Vec<u8>>,
    data: Data,
}

fn args(text: &str) -> Args {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

impl Source {
    /// A source whose first `before` units are in the snapshot, and the others in the stream.
    pub fn new(specs: &[Spec], before: usize) -> Self {
        let mut source = Source::empty();
        specs.iter().take(before).for_each(|spec| source.random(*spec));
        source.snapshot();
        specs.iter().skip(before).for_each(|spec| source.random(*spec));
        source
    }

    pub fn empty() -> Self {
        Source {
            values: Vec::new(),
            pieces: Vec::new(),
            copy_end: (ReplOffset(100), 0),
            units: Vec::new(),
            copied_function: None,
            data: Data::default(),
        }
    }

    /// Makes what was done so far the snapshot.
    pub fn snapshot(&mut self) {
        self.copy_end = self.units.last().map_or(self.copy_end, |unit| (unit.offset, unit.stream_db));
        self.units.clear();
        for ((db, key), value) in self.data.users() {
            if key == FUNCTION {
                continue;
            }
            let tag = format!("#v:{}", self.values.len()).into_bytes();
            let whole = |name: &str, rest: Vec<Vec<u8>>| {
                let words = [vec![name.as_bytes().to_vec(), key.clone()], rest, vec![tag.clone()]].concat();
                (db, words)
            };
            match value {
                Value::Text(text) => self.values.push(whole("SET", vec![text])),
                // Replacing an absent key: the model has no RESTORE.
                Value::Set(set) => self.values.push(whole("SADD", set.into_iter().collect())),
                Value::Hash(hash) => {
                    for (field, text) in hash {
                        self.piece(db, &key, "HSET", vec![field, text]);
                    }
                }
                Value::List(list) => {
                    for element in list {
                        self.piece(db, &key, "RPUSH", vec![element]);
                    }
                }
            }
        }
        self.copied_function = self.function();
    }

    /// Makes what was done so far the snapshot, and adds what comes behind it.
    pub fn snapshot_and(&mut self, stream: impl Fn(&mut Source)) -> &mut Self {
        self.snapshot();
        stream(self);
        self
    }

    /// The text of the function that every primary has.
    pub fn function(&self) -> Option<Vec<u8>> {
        match self.data.keys.get(&(0, FUNCTION.to_vec()))? {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    fn piece(&mut self, db: u32, key: &[u8], name: &str, rest: Vec<Vec<u8>>) {
        let at = self.pieces.len();
        let first = self.pieces.iter().all(|(d, commands)| *d != db || commands[0][1] != key);
        let mut commands = Vec::new();
        if first {
            commands.push(vec![b"DEL".to_vec(), key.to_vec(), format!("#p:{at}:0").into_bytes()]);
        }
        let tag = format!("#p:{at}:{}", commands.len()).into_bytes();
        commands.push([vec![name.as_bytes().to_vec(), key.to_vec()], rest, vec![tag]].concat());
        self.pieces.push((db, commands));
    }

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

    /// What of the stream a slot gets.
    pub fn parts(&self, slot: Slot) -> impl Iterator<Item = &Part> {
        self.units.iter().flat_map(|u| &u.parts).filter(move |p| p.slot == slot)
    }

    /// Adds a unit: a task, and commands by database, each with its key's slot.
    pub fn unit(&mut self, stream_db: u32, task: Option<Task>, commands: &[(u32, String)]) -> &mut Self {
        let offset = self.end().plus(10);
        let at = self.units.len();
        let mut unit = Unit { offset, stream_db, task: task.clone(), parts: Vec::new() };
        for step in task.iter().flat_map(Task::steps) {
            match step {
                Task::Everywhere { commands } => {
                    let text = String::from_utf8_lossy(&commands[0]).into_owned();
                    self.run(0, &args(&text));
                }
                _ => {
                    let function = self.function();
                    self.run(0, &args("REMOVESCOPE"));
                    if let Some(text) = function {
                        self.data.keys.insert((0, FUNCTION.to_vec()), Value::Text(text));
                    }
                }
            }
        }
        for (db, text) in commands {
            let words = args(text);
            self.run(*db, &words);
            let slot = Slot::of(&words[1]);
            let place = unit.parts.iter().position(|part| part.slot == slot);
            let place = place.unwrap_or_else(|| {
                let name = format!("#u:{at}:{slot}:").into_bytes();
                unit.parts.push(Part { name, slot, offset, commands: Vec::new() });
                unit.parts.len() - 1
            });
            let part = &mut unit.parts[place];
            let tag = [&part.name[..], part.commands.len().to_string().as_bytes()].concat();
            part.commands.push((*db, [words, vec![tag]].concat()));
        }
        self.units.push(unit);
        self
    }

    fn run(&mut self, db: u32, words: &Args) {
        let result = self.data.execute(&mut db.clone(), words);
        assert!(result.is_ok(), "{words:?} takes no effect on the source: {result:?}");
    }

    pub fn one(&mut self, command: &str) -> &mut Self {
        self.unit(0, None, &[(0, command.to_owned())])
    }

    pub fn several(&mut self, commands: &[&str]) -> &mut Self {
        let commands: Vec<(u32, String)> = commands.iter().map(|c| (0, (*c).to_owned())).collect();
        self.unit(0, None, &commands)
    }

    pub fn flush(&mut self, commands: &[&str]) -> &mut Self {
        let commands: Vec<(u32, String)> = commands.iter().map(|c| (0, (*c).to_owned())).collect();
        self.unit(0, Some(Task::RemoveScope { databases: None, slots: None }), &commands)
    }

    pub fn load(&mut self, text: &str) -> &mut Self {
        let set = format!("SET {} {text}", String::from_utf8_lossy(FUNCTION)).into_bytes();
        self.unit(0, Some(Task::Everywhere { commands: vec![set] }), &[])
    }

    fn random(&mut self, Spec { kind, a, b }: Spec) {
        let n = self.units.len() + self.values.len();
        let db = u32::from(kind == 7);
        let (a, b) = (KEYS[usize::from(a)], KEYS[usize::from(b)]);
        let value = format!("{a}{n}");
        let has = |key: &str| self.data.keys.contains_key(&(0, key.as_bytes().to_vec()));
        match kind {
            2 if a != b => {
                self.several(&[&format!("DEL {a}"), &format!("DEL {b}")]);
            }
            8 if has(a) && slot_of(a) == slot_of(b) && a != b => {
                self.one(&format!("RENAME {a} {b}"));
            }
            8 | 9 if a != b => {
                let both = [self.typed(0, a, 0, &value), self.typed(6, b, 0, &value)].concat();
                let both: Vec<(u32, String)> = both.into_iter().map(|command| (0, command)).collect();
                self.unit(0, None, &both);
            }
            10 => {
                self.flush(&[]);
            }
            11 => {
                self.flush(&[&format!("SET {a} {value}"), &format!("RPUSH {b}x {value}")]);
            }
            12 => {
                self.load(&value);
            }
            13 => {
                self.unit(0, None, &[]);
            }
            kind => {
                let commands = self.typed(kind, a, db, &value);
                let commands: Vec<(u32, String)> = commands.into_iter().map(|command| (db, command)).collect();
                self.unit(db, None, &commands);
            }
        }
    }

    /// Commands of one key, which is removed first if it is of another type.
    fn typed(&self, kind: u8, key: &str, db: u32, value: &str) -> Vec<String> {
        let found = self.data.keys.get(&(db, key.as_bytes().to_vec()));
        let (command, fits) = match kind {
            0 | 1 | 7 => {
                (format!("INCR {key}"), matches!(found, Some(Value::Text(t)) if t.iter().all(u8::is_ascii_digit)))
            }
            3 => (format!("HINCRBY {key} f 1"), matches!(found, Some(Value::Hash(_)))),
            4 => (format!("APPEND {key} {value}"), matches!(found, Some(Value::Text(_)))),
            5 => (format!("SADD {key} {value}"), matches!(found, Some(Value::Set(_)))),
            6 => (format!("RPUSH {key} {value}"), matches!(found, Some(Value::List(_)))),
            _ => return vec![format!("SET {key} {value}")],
        };
        if fits || found.is_none() { vec![command] } else { vec![format!("DEL {key}"), command] }
    }

    /// Routes the snapshot.
    pub fn route_copy(&self, router: &mut Router, leftovers: bool) {
        for (db, command) in &self.values {
            let slot = router.lane_of(&command[1]);
            router.copy(slot, *db, |out| encode::command(out, &words(command)));
        }
        for (db, commands) in &self.pieces {
            let slot = router.lane_of(&commands[0][1]);
            router.piece(slot, *db, commands.len() as u32, |out| {
                commands.iter().for_each(|c| encode::command(out, &words(c)));
            });
        }
        let mut unit = UnitBuilder::default();
        if let Some(text) = &self.copied_function {
            let set = [b"SET ", FUNCTION, b" ", text].concat();
            unit.task(Task::Everywhere { commands: vec![set] }, router.everywhere());
        }
        if leftovers {
            unit.task(Task::RemoveLeftovers { copied: std::sync::Arc::default(), slots: None }, router.everywhere());
        }
        if !unit.is_empty() {
            router.unit(&mut unit, 0, ReplOffset(0));
        }
        router.copy_end(self.copy_end.0, self.copy_end.1);
    }

    /// Routes a unit of the stream as `pipeline::stream` does.
    pub fn route(&self, at: usize, router: &mut Router) {
        let unit = &self.units[at];
        let mut built = UnitBuilder::default();
        if let Some(task) = &unit.task {
            built.task(task.clone(), router.everywhere());
        }
        for part in &unit.parts {
            for (db, command) in &part.commands {
                let mut raw = Vec::new();
                encode::command(&mut raw, &words(command));
                built.command(*db, router.place_of(&command[1]), &raw);
            }
        }
        if !built.is_empty() {
            router.unit(&mut built, unit.stream_db, unit.offset);
        }
    }
}

fn words(args: &Args) -> Vec<&[u8]> {
    args.iter().map(Vec::as_slice).collect()
}
