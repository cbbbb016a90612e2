//! Whole units on their way, wherever their bytes lie; and what a command among them is, for when it fails.

use std::sync::Arc;

use super::unit::{Chunk, Joint, Segment};
use crate::offset::ReplOffset;
use crate::resp::command::{Parsed, Parser};
use crate::resp::encode;

/// Where the bytes of a part lie.
#[derive(Debug, Clone)]
pub enum Holder {
    Chunk(Arc<Chunk>),
    Joint(Arc<Joint>),
}

impl Holder {
    pub fn chunk(&self) -> &Chunk {
        match self {
            Holder::Chunk(chunk) => chunk,
            Holder::Joint(joint) => &joint.chunk,
        }
    }

    fn same(&self, other: &Holder) -> bool {
        match (self, other) {
            (Holder::Chunk(a), Holder::Chunk(b)) => Arc::ptr_eq(a, b),
            (Holder::Joint(a), Holder::Joint(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// Whole units of one chunk: its segments `from..to`.
#[derive(Debug, Clone)]
pub struct Part {
    pub holder: Holder,
    pub from: usize,
    pub to: usize,
}

impl Part {
    fn segments(&self) -> &[Segment] {
        self.holder.chunk().segments.get(self.from..self.to).unwrap_or_default()
    }

    /// The part as what it is made of.
    fn span(&self) -> Span<'_> {
        Span { chunk: self.holder.chunk(), from: self.from, to: self.to }
    }
}

/// Segments `from..to` of a chunk.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    pub chunk: &'a Chunk,
    pub from: usize,
    pub to: usize,
}

impl<'a> Span<'a> {
    pub fn segments(&self) -> &'a [Segment] {
        self.chunk.segments.get(self.from..self.to).unwrap_or_default()
    }
}

/// Whole units in the order in which they are sent.
#[derive(Debug, Clone, Default)]
pub struct Parts(Vec<Part>);

/// Appends the commands of units, with SELECT where the database changes; returns how many commands that are.
pub fn encode_units<'a>(units: impl Iterator<Item = Span<'a>>, db: &mut u32, out: &mut Vec<u8>) -> usize {
    let mut count = 0;
    for span in units {
        let segments = span.segments();
        let mut from = span.from;
        // Neighbours of one database go out in one piece.
        for (i, segment) in segments.iter().enumerate() {
            let at = span.from + i;
            count += segment.commands as usize;
            if segments.get(i + 1).is_some_and(|next| next.db == segment.db) {
                continue;
            }
            count += select(segment.db, db, out);
            out.extend_from_slice(span.chunk.slice(from, at + 1));
            from = at + 1;
        }
    }
    count
}

/// Appends a SELECT if the database is another; returns how many commands that are.
pub fn select(wanted: u32, db: &mut u32, out: &mut Vec<u8>) -> usize {
    if *db == wanted {
        return 0;
    }
    encode::command(out, &[b"SELECT", wanted.to_string().as_bytes()]);
    *db = wanted;
    1
}

impl Parts {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn spans(&self) -> impl Iterator<Item = Span<'_>> {
        self.0.iter().map(Part::span)
    }

    /// Adds the segments `from..to` of a chunk.
    pub fn add(&mut self, holder: Holder, from: usize, to: usize) {
        match self.0.last_mut() {
            Some(part) if part.to == from && part.holder.same(&holder) => part.to = to,
            _ => self.0.push(Part { holder, from, to }),
        }
    }

    /// Takes out the unit that `at` lies in; returns how many commands it had.
    pub fn remove_unit(&mut self, at: &Located) -> u32 {
        let Some(part) = self.0.get(at.part).cloned() else { return 0 };
        let segments = &part.holder.chunk().segments;
        let ends_unit = |i: usize| segments.get(i).is_none_or(|s| s.last);
        let from = (part.from..=at.segment).rev().find(|i| *i == part.from || ends_unit(i - 1));
        let to = (at.segment..part.to).find(|i| ends_unit(*i));
        let (Some(from), Some(to)) = (from, to) else { return 0 };
        let removed = segments.get(from..=to).unwrap_or_default();
        let halves = [(part.from, from), (to + 1, part.to)];
        let kept = halves.into_iter().filter(|(a, b)| a < b);
        let kept: Vec<Part> = kept.map(|(from, to)| Part { holder: part.holder.clone(), from, to }).collect();
        self.0.splice(at.part..=at.part, kept);
        removed.iter().map(|s| s.commands).sum()
    }

    /// Which unit's command stands at `index` between MULTI and EXEC, for a connection that began with database `db`.
    /// `None` for a SELECT or a record.
    pub fn locate(&self, index: usize, mut db: u32) -> Option<Located> {
        let mut at = 0;
        for (p, part) in self.0.iter().enumerate() {
            for (i, segment) in part.segments().iter().enumerate() {
                at += usize::from(segment.db != db);
                db = segment.db;
                let commands = segment.commands as usize;
                if index < at {
                    return None;
                }
                if index < at + commands {
                    return Some(Located { part: p, segment: part.from + i, command: index - at });
                }
                at += commands;
            }
        }
        None
    }

    /// The commands from `from` on, to the end of its unit or of the flush, each with its target database: those whose
    /// keys are not to be trusted when the one at `from` failed.
    pub fn commands_from(&self, from: &Located, unit_only: bool) -> Vec<(u32, Vec<u8>)> {
        let mut commands = Vec::new();
        for (p, part) in self.0.iter().enumerate().skip(from.part) {
            for (i, segment) in part.segments().iter().enumerate() {
                let at = part.from + i;
                if (p, at) < (from.part, from.segment) {
                    continue;
                }
                let mut rest = part.holder.chunk().slice(at, at + 1);
                let mut parser = Parser::new();
                while let Ok(Some(Parsed::Command { len })) = parser.parse(rest) {
                    let (command, later) = rest.split_at(len.min(rest.len()));
                    commands.push((segment.db, command.to_vec()));
                    rest = later;
                }
                if unit_only && segment.last || !holds!("recopy-what-follows") {
                    return commands;
                }
            }
        }
        commands
    }

    /// True if what `at` names lies in a span.
    pub fn is_within(&self, at: &Located, span: &Span<'_>) -> bool {
        let chunk = self.0.get(at.part).map(|part| part.holder.chunk());
        chunk.is_some_and(|chunk| std::ptr::eq(chunk, span.chunk)) && (span.from..span.to).contains(&at.segment)
    }

    /// Names the command at `at` for people.
    pub fn describe(&self, at: &Located) -> Described {
        let chunk = self.0.get(at.part).map(|p| p.holder.chunk());
        let segment = chunk.and_then(|c| c.segments.get(at.segment));
        let bytes = chunk.map(|c| c.slice(at.segment, at.segment + 1)).unwrap_or_default();
        let (command, key) = name_and_key(bytes, at.command);
        Described { command, key, db: segment.map_or(0, |s| s.db), offset: segment.map_or(ReplOffset(0), |s| s.offset) }
    }
}

/// Where in a flush a command lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    pub part: usize,
    pub segment: usize,
    /// Which command of the segment.
    pub command: usize,
}

/// A command as an error names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub command: String,
    /// The first argument: for nearly all commands the key.
    pub key: Vec<u8>,
    pub db: u32,
    pub offset: ReplOffset,
}

/// The `nth` command in `bytes`, if it is one that a key can't answer with 0 that is there and expires.
pub(super) fn expiry_command(mut bytes: &[u8], nth: usize) -> Option<Vec<u8>> {
    let mut parser = Parser::new();
    for _ in 0..nth {
        let Ok(Some(Parsed::Command { len })) = parser.parse(bytes) else { return None };
        bytes = bytes.get(len..)?;
    }
    let Ok(Some(Parsed::Command { len })) = parser.parse(bytes) else { return None };
    let name = parser.args(bytes).get(0)?;
    let is = |word: &[u8]| name.eq_ignore_ascii_case(word);
    (is(b"PEXPIREAT") || is(b"PERSIST")).then(|| bytes.get(..len).unwrap_or_default().to_vec())
}

/// The name and first argument of the `nth` command in `bytes`.
pub fn name_and_key(mut bytes: &[u8], nth: usize) -> (String, Vec<u8>) {
    let mut parser = Parser::new();
    for _ in 0..nth {
        let Ok(Some(Parsed::Command { len })) = parser.parse(bytes) else { break };
        bytes = bytes.get(len..).unwrap_or_default();
    }
    match parser.parse(bytes) {
        Ok(Some(Parsed::Command { .. })) => {
            let args = parser.args(bytes);
            let name = String::from_utf8_lossy(args.get(0).unwrap_or_default()).to_ascii_uppercase();
            (name, args.get(1).unwrap_or_default().to_vec())
        }
        _ => (String::new(), Vec::new()),
    }
}
