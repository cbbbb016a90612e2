//! Units that wait for their slots: a list for each slot through one arena, over chunks in the order of the stream.
//!
//! A unit stays in its list until it is applied, so that what was sent and not answered needs no place of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::delivery::parts::Span;
use crate::delivery::unit::{Chunk, Segment};
use crate::offset::ReplOffset;

/// No unit.
const NONE: u32 = u32::MAX;

/// A place in the stream, and the database selected there.
pub type Mark = (ReplOffset, u32);

/// The units of one slot.
#[derive(Debug, Clone, Copy)]
pub struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub const NEW: List = List { head: NONE, tail: NONE };

    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// Number of an entry, counted from the first ever; it wraps.
type EntryId = u32;

#[derive(Debug, Clone, Copy)]
struct Unit {
    entry: EntryId,
    /// Its first segment.
    segment: u32,
    /// The next of its slot, or of those free.
    next: u32,
}

/// A chunk, or a place in the stream that is reached when all before it is applied.
#[derive(Debug)]
struct Entry {
    chunk: Option<Arc<Chunk>>,
    /// What of it isn't applied.
    left: u32,
    /// Everything up to here is applied when this entry and all before it are.
    end: Option<Mark>,
    pieces: bool,
}

#[derive(Debug)]
pub struct Queue {
    entries: VecDeque<Entry>,
    first: EntryId,
    units: Vec<Unit>,
    free: u32,
    /// Bytes of the chunks that are held.
    bytes: usize,
    left: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { entries: VecDeque::new(), first: 0, units: Vec::new(), free: NONE, bytes: 0, left: 0 }
    }
}

/// A unit as it lies in its chunk.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    pub span: Span<'a>,
    /// One of the pieces of a large value.
    pub piece: bool,
    id: u32,
}

impl<'a> Waiting<'a> {
    /// The last segment: it names the unit's place.
    pub fn last(&self) -> Option<&'a Segment> {
        self.span.segments().last()
    }

    pub fn commands(&self) -> u32 {
        self.span.segments().iter().map(|s| s.commands).sum()
    }

    pub fn bytes(&self) -> usize {
        self.span.chunk.weight(self.span.from, self.span.to)
    }
}

impl Queue {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Units, and what else must be done, that aren't applied.
    pub fn left(&self) -> usize {
        self.left
    }

    /// True when all that was pushed is applied.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Takes in a chunk; [`Queue::append`] adds its units, and [`Queue::close`] ends it.
    pub fn open(&mut self, chunk: &Arc<Chunk>, pieces: bool) {
        self.bytes += chunk.bytes.len();
        self.entries.push_back(Entry { chunk: Some(Arc::clone(chunk)), left: 0, end: None, pieces });
    }

    /// Adds the unit that begins with a segment of the open chunk to its slot's list.
    pub fn append(&mut self, list: &mut List, segment: usize) {
        let Some(entry) = self.entries.back_mut() else { return };
        entry.left += 1;
        self.left += 1;
        let entry = self.first.wrapping_add(self.entries.len() as u32 - 1);
        let id = self.new_unit(entry, segment as u32);
        match self.units.get_mut(list.tail as usize) {
            Some(tail) => tail.next = id,
            None => list.head = id,
        }
        list.tail = id;
    }

    pub fn close(&mut self) {
        if self.entries.back().is_some_and(|entry| entry.left == 0) {
            let chunk = self.entries.pop_back().and_then(|entry| entry.chunk);
            self.bytes -= chunk.map_or(0, |chunk| chunk.bytes.len());
        }
    }

    /// Everything up to `mark` was pushed; `left`: what else must be done before it is reached. Returns its number.
    pub fn mark(&mut self, mark: Mark, left: u32) -> EntryId {
        self.left += left as usize;
        self.entries.push_back(Entry { chunk: None, left, end: Some(mark), pieces: false });
        self.first.wrapping_add(self.entries.len() as u32 - 1)
    }

    /// One thing of an entry is done.
    pub fn done(&mut self, entry: EntryId) {
        let at = entry.wrapping_sub(self.first) as usize;
        let Some(entry) = self.entries.get_mut(at) else { return };
        entry.left -= 1;
        self.left -= 1;
        if entry.left == 0
            && let Some(chunk) = entry.chunk.take()
        {
            self.bytes -= chunk.bytes.len();
        }
    }

    /// The last mark that was reached since the last call.
    pub fn reached(&mut self) -> Option<Mark> {
        let mut reached = None;
        while self.entries.front().is_some_and(|entry| entry.left == 0) {
            let entry = self.entries.pop_front();
            self.first = self.first.wrapping_add(1);
            reached = entry.and_then(|entry| entry.end).or(reached);
        }
        reached
    }

    /// The units of a list in their order.
    pub fn iter(&self, list: List) -> impl Iterator<Item = Waiting<'_>> {
        let mut at = list.head;
        std::iter::from_fn(move || {
            let unit = self.units.get(at as usize)?;
            let id = at;
            at = unit.next;
            let entry = self.entries.get(unit.entry.wrapping_sub(self.first) as usize)?;
            let (chunk, from) = (&**entry.chunk.as_ref()?, unit.segment as usize);
            let to = match chunk.segments.get(from) {
                Some(segment) if segment.last => from + 1,
                _ => chunk.unit_end(from),
            };
            Some(Waiting { span: Span { chunk, from, to }, piece: entry.pieces, id })
        })
    }

    /// The chunk of a list's `nth` unit, to be kept.
    pub fn holder(&self, list: List, nth: usize) -> Option<(Arc<Chunk>, usize, usize)> {
        let found = self.iter(list).nth(nth)?;
        let unit = self.units.get(found.id as usize)?;
        let entry = self.entries.get(unit.entry.wrapping_sub(self.first) as usize)?;
        Some((Arc::clone(entry.chunk.as_ref()?), found.span.from, found.span.to))
    }

    /// The first unit of a list is done with.
    pub fn pop(&mut self, list: &mut List) {
        let id = list.head;
        let Some(unit) = self.units.get(id as usize).copied() else { return };
        list.head = unit.next;
        if list.head == NONE {
            list.tail = NONE;
        }
        self.release(id, unit);
    }

    /// Takes a unit out of the middle of a list.
    pub fn remove(&mut self, list: &mut List, nth: usize) {
        let Some(before) = nth.checked_sub(1).and_then(|n| self.iter(*list).nth(n)).map(|unit| unit.id) else {
            return self.pop(list);
        };
        let id = self.units.get(before as usize).map_or(NONE, |unit| unit.next);
        let Some(unit) = self.units.get(id as usize).copied() else { return };
        if let Some(before) = self.units.get_mut(before as usize) {
            before.next = unit.next;
        }
        if list.tail == id {
            list.tail = before;
        }
        self.release(id, unit);
    }

    /// Drops all units of a list but the first `keep`.
    pub fn cut(&mut self, list: &mut List, keep: usize) {
        let Some(last) = keep.checked_sub(1).and_then(|n| self.iter(*list).nth(n)).map(|unit| unit.id) else {
            while !list.is_empty() {
                self.pop(list);
            }
            return;
        };
        let mut rest = self.units.get_mut(last as usize).map_or(NONE, |unit| std::mem::replace(&mut unit.next, NONE));
        list.tail = last;
        while let Some(unit) = self.units.get(rest as usize).copied() {
            self.release(rest, unit);
            rest = unit.next;
        }
    }

    /// No place in the stream is reached by what is here any more.
    pub fn forget_marks(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.end = None);
    }

    fn new_unit(&mut self, entry: EntryId, segment: u32) -> u32 {
        let unit = Unit { entry, segment, next: NONE };
        let id = self.free;
        match self.units.get_mut(id as usize) {
            Some(place) => {
                self.free = place.next;
                *place = unit;
                id
            }
            None => {
                self.units.push(unit);
                self.units.len() as u32 - 1
            }
        }
    }

    fn release(&mut self, id: u32, unit: Unit) {
        if let Some(place) = self.units.get_mut(id as usize) {
            place.next = self.free;
            self.free = id;
        }
        self.done(unit.entry);
    }
}
