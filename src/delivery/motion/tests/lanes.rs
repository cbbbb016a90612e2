//! A model of the target and of the lanes to it, which deliver exactly once by their records.

use std::collections::{BTreeMap, VecDeque};

use super::source::{Change, Data, Key};
use crate::delivery::motion::{State, Ticket};

/// Lanes of each shard; a slot's lane follows from its number.
pub const LANES: usize = 2;

#[derive(Debug, Clone)]
pub enum Do {
    Change(Change),
    /// A copied value, or that there is none.
    Put(Key, Option<Vec<u8>>),
    State(usize, State),
    Whole,
}

/// What a lane sends as one.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The unit's offset; `None` for what stands beside the stream, which is counted.
    pub offset: Option<u64>,
    pub what: Vec<Do>,
    pub ticket: Option<Ticket>,
    /// Dropped at a break, if it wasn't sent.
    pub switch: bool,
}

/// What a lane's record says: everything up to an offset, and so many things beside the stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    pub offset: u64,
    pub pieces: u64,
    /// The history that the offset is of.
    pub forks: usize,
}

#[derive(Debug, Clone, Default)]
pub struct Content {
    pub data: Data,
    pub records: BTreeMap<usize, Record>,
    pub states: BTreeMap<usize, String>,
    /// What is in motion is to be copied whole by a later process.
    pub whole: bool,
}

#[derive(Debug, Default)]
pub struct Target {
    pub content: Content,
    /// The content before each transaction.
    log: Vec<Content>,
    /// How many of them its replica has.
    replicated: usize,
    /// What its replica has.
    pub replica: Content,
    /// Changes when it loses something.
    pub id: u64,
}

impl Target {
    /// One transaction.
    pub fn run(&mut self, what: &[Do], records: &[(usize, Record)]) {
        self.log.push(self.content.clone());
        for what in what {
            match what {
                Do::Change(change) => change.apply(&mut self.content.data),
                Do::Put(key, Some(value)) => _ = self.content.data.insert(*key, value.clone()),
                Do::Put(key, None) => _ = self.content.data.remove(key),
                Do::Whole => self.content.whole = true,
                Do::State(slot, state) => _ = self.content.states.insert(*slot, state.encode()),
            }
        }
        self.content.records.extend(records.iter().copied());
    }

    pub fn state(&self, slot: usize) -> Option<State> {
        State::parse(self.content.states.get(&slot)?.as_bytes())
    }

    pub fn replicate(&mut self) {
        self.replicated = self.log.len();
        self.replica = self.content.clone();
    }

    pub fn roll_back(&mut self, count: usize) {
        let to = self.log.len().saturating_sub(count).max(self.replicated);
        if let Some(content) = self.log.get(to) {
            self.content = content.clone();
        }
        self.log.truncate(to);
        self.id += 1;
    }

    /// The lowest record of a shard's lanes.
    pub fn lowest(content: &Content, shard: usize) -> u64 {
        (0..LANES).map(|lane| content.records[&(shard * LANES + lane)].offset).min().unwrap_or(0)
    }
}

#[derive(Debug, Default)]
pub struct Lane {
    pub queue: VecDeque<Entry>,
    pub flight: Option<Vec<Entry>>,
    pub served: bool,
    /// What it was acknowledged.
    pub applied: Record,
    /// Everything up to here was given to it.
    pub routed: u64,
    /// The history of the stream.
    pub forks: usize,
}

impl Lane {
    pub fn standing_at(record: Record) -> Self {
        Lane { applied: record, routed: record.offset, forks: record.forks, ..Lane::default() }
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.flight.is_none()
    }

    /// What its record says behind the flight.
    pub fn landing(&self) -> Record {
        let flight = self.flight.iter().flatten();
        let mut record = Record { forks: self.forks, ..self.applied };
        for entry in flight {
            match entry.offset {
                Some(offset) => record.offset = record.offset.max(offset),
                None => record.pieces += 1,
            }
        }
        record
    }
}
