//! A pull parser: feed it an RDB's bytes as they come, take events out.

mod event;
mod item;

use std::sync::Arc;

pub use event::{Event, Key, KeyHead, Limits, RawValue, Skipped};

use self::item::Attributes;
use super::crc::crc64;
use super::error::{Error, Fault, Step, Stop, escape_key};
use super::length::Reader;
use super::opcode::{Project, type_row};
use super::skip::{Skipper, Template, Templates};
use super::value::{Lookup, Piece, Unpacker};

/// Consumed bytes are moved out of the way when there are this many of them and more than of the others.
const COMPACT_BYTES: usize = 64 << 10;

/// What the buffer may keep in reserve.
const KEPT_BYTES_MAX: usize = 32 << 20;

/// Reads an RDB that comes in pieces.
///
/// ```
/// use keyferry::rdb::{Decoder, Event, Limits};
///
/// let mut decoder = Decoder::new(Limits::default());
/// decoder.feed(b"REDIS0003\x00\x01k\x01v\xff");
/// let mut keys = 0;
/// while let Some(event) = decoder.next()? {
///     match event {
///         Event::Key(key) => {
///             assert_eq!((key.name, key.value.bytes), (&b"k"[..], &b"\x01v"[..]));
///             keys += 1;
///         }
///         Event::End { .. } => break,
///         _ => {}
///     }
/// }
/// assert_eq!(keys, 1);
/// # Ok::<(), keyferry::rdb::Error>(())
/// ```
///
/// Time is linear in the input however it is split, and memory is bounded by [`Limits`] and the size of one feed.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    buf: Vec<u8>,
    /// Where in `buf` the unconsumed bytes begin.
    start: usize,
    /// Up to where in `buf` the checksum was carried.
    summed: usize,
    crc: u64,
    /// Offset in the file of the first byte of `buf`.
    base: u64,
    project: Project,
    version: u16,
    state: State,
    attributes: Attributes,
    /// Raw KEY_META bytes of the key that is being read, or was last.
    meta: Vec<u8>,
    /// The key's name, where it is not plain in `buf`.
    name: Vec<u8>,
    templates: Templates,
    template_bytes: u64,
}

#[derive(Debug)]
enum State {
    Magic,
    /// Before an opcode or a type byte.
    Item,
    /// In a KEY_META, a template or an item that is passed over; `start` is where the item begins.
    Walk(Walk),
    /// In a key's value; `start` is at its type byte.
    Value(Box<ValueWalk>),
    /// A value over the limit: the caller is to say what becomes of it. `start` is where the value begins.
    Undecided(Box<ValueWalk>),
    /// Dropping a value over the limit.
    Dropping(Box<ValueWalk>),
    Streaming(Box<Streaming>),
    Trailer,
    End,
    Failed(Box<Error>),
}

/// A resumable walk over an item that is no key.
#[derive(Debug)]
struct Walk {
    opcode: u8,
    /// Bytes walked so far and kept, from the opcode.
    walked: usize,
    /// Bytes of it that were dropped.
    dropped: u64,
    /// The module that a MODULE_AUX is of, once known.
    module_id: Option<u64>,
    skipper: Skipper,
}

/// A walk over a value that was not here whole at first.
#[derive(Debug)]
struct ValueWalk {
    value_type: u8,
    name: Name,
    /// Where the value begins, counted from `start`.
    value_at: usize,
    /// Bytes of it walked so far.
    walked: usize,
    /// Bytes of it that may be buffered.
    bytes_max: u64,
    head: Attributes,
    skipper: Skipper,
}

#[derive(Debug)]
struct Streaming {
    value_type: u8,
    unpacker: Unpacker,
}

/// Where a key's name is.
#[derive(Debug, Clone, Copy)]
enum Name {
    /// In the buffer, counted from `start`.
    Plain(usize, usize),
    /// In the decoder's own `name`.
    Unpacked,
}

/// What one step of the decoder came to; ranges are places in `buf`.
enum Found {
    Header,
    Item(item::Item),
    Key(KeyFound),
    Big { value_type: u8, head: Attributes },
    Piece(Piece),
    BigEnd,
    End { crc_checked: bool },
}

struct KeyFound {
    name: Name,
    /// `start` while the key was read.
    from: usize,
    value: std::ops::Range<usize>,
    value_type: u8,
    head: Attributes,
    template: Option<u64>,
}

impl Decoder {
    pub fn new(limits: Limits) -> Self {
        Decoder {
            limits,
            buf: Vec::new(),
            start: 0,
            summed: 0,
            crc: 0,
            base: 0,
            project: Project::Redis,
            version: 0,
            state: State::Magic,
            attributes: Attributes::default(),
            meta: Vec::new(),
            name: Vec::new(),
            templates: Templates::new(),
            template_bytes: 0,
        }
    }

    /// Appends the bytes that came. Any split will do; call [`Decoder::next`] until it has no more events before the next feed,
    /// as what is fed stays in memory until it is consumed.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.sum_consumed();
        let unconsumed = self.buf.len() - self.start;
        if unconsumed == 0 || (self.start >= COMPACT_BYTES && self.start >= unconsumed) {
            self.base += self.start as u64;
            self.buf.drain(..self.start);
            self.start = 0;
            self.summed = 0;
            if self.buf.capacity() > KEPT_BYTES_MAX {
                // A big value is over.
                self.buf.shrink_to(KEPT_BYTES_MAX);
            }
        }
        self.buf.extend_from_slice(bytes);
    }

    /// The next event, or `None` when more bytes are needed.
    ///
    /// # Errors
    /// Every fault of the file, a wrong checksum among them. The decoder is of no use afterwards: it repeats the error.
    #[allow(clippy::should_implement_trait)] // an event borrows from the decoder
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Error> {
        loop {
            match self.step() {
                Ok(None) => {}
                Ok(Some(found)) => return Ok(Some(self.event(found))),
                Err(Stop::More) => return Ok(None),
                Err(Stop::Fail(fault)) => return Err(self.fail(fault)),
            }
        }
    }

    /// Bytes consumed since the magic's first.
    pub fn position(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Bytes that were fed but not consumed. After [`Event::End`] they are no part of the RDB.
    pub fn remaining(&self) -> &[u8] {
        self.buf.get(self.start..).unwrap_or_default()
    }

    /// After [`Event::BigKey`]: drop the value's bytes as they come. No event tells of its end.
    pub fn skip_value(&mut self) {
        self.decide(State::Dropping);
    }

    /// After [`Event::BigKey`]: give the value in pieces, then [`Event::BigEnd`].
    ///
    /// # Errors
    /// `NotDecodable` for a type that has no pieces (a module's, GCRA): skip or buffer it. The choice stays open then.
    pub fn stream_value(&mut self) -> Result<(), Error> {
        let State::Undecided(walk) = &self.state else {
            return Ok(());
        };
        let unpacker = Unpacker::new(self.project, walk.value_type, &self.limits, Lookup::File(&self.templates))
            .map_err(|fault| Error::new(self.position(), fault).in_value(walk.value_type, Some(&self.name)))?;
        self.state = State::Streaming(Box::new(Streaming { value_type: walk.value_type, unpacker }));
        Ok(())
    }

    /// After [`Event::BigKey`]: buffer up to `bytes_max` of it, and give it as an ordinary [`Event::Key`]. A value over that is
    /// told as `BigKey` again.
    pub fn buffer_value(&mut self, bytes_max: u64) {
        self.decide(|mut walk| {
            walk.bytes_max = bytes_max;
            State::Value(walk)
        });
    }

    fn decide(&mut self, then: impl FnOnce(Box<ValueWalk>) -> State) {
        match std::mem::replace(&mut self.state, State::Item) {
            State::Undecided(walk) => self.state = then(walk),
            other => self.state = other,
        }
    }

    fn fail(&mut self, fault: Fault) -> Error {
        if let State::Failed(error) = &self.state {
            return (**error).clone();
        }
        let mut error = Error::new(self.position(), fault);
        match &self.state {
            State::Value(walk) => {
                error.value_type = Some(walk.value_type);
                error.key = Some(escape_key(self.name_at(walk.name, self.start)));
                error.offset += (walk.value_at + walk.walked) as u64;
            }
            State::Undecided(walk) | State::Dropping(walk) => error = error.in_value(walk.value_type, Some(&self.name)),
            State::Streaming(streaming) => error = error.in_value(streaming.value_type, Some(&self.name)),
            State::Walk(walk) => error.offset += walk.walked as u64,
            _ => {}
        }
        self.state = State::Failed(Box::new(error.clone()));
        error
    }

    fn step(&mut self) -> Step<Option<Found>> {
        match &self.state {
            State::Item => self.item(),
            State::Value(_) => self.value(),
            State::Magic => self.magic(),
            State::Walk(_) => self.walk(),
            State::Dropping(_) => self.dropping(),
            State::Streaming(_) => self.streaming(),
            State::Trailer => self.trailer(),
            State::Undecided(_) => Err(Fault::Undecided.into()),
            State::End => Err(Stop::More),
            State::Failed(error) => Err(error.fault.clone().into()),
        }
    }

    fn magic(&mut self) -> Step<Option<Found>> {
        let mut r = Reader::at(&self.buf, self.start);
        let (project, digits) = match r.take(9) {
            Ok([b'R', b'E', b'D', b'I', b'S', digits @ ..]) => (Project::Redis, digits),
            Ok([b'V', b'A', b'L', b'K', b'E', b'Y', digits @ ..]) => (Project::Valkey, digits),
            Ok(_) => return Err(Fault::BadMagic.into()),
            Err(stop) => {
                let here = self.remaining();
                let n = here.len().min(5);
                let may_be = b"REDIS".starts_with(here.get(..n).unwrap_or_default())
                    || b"VALKEY".starts_with(here.get(..n).unwrap_or_default());
                return Err(if may_be { stop } else { Fault::BadMagic.into() });
            }
        };
        let mut version = 0;
        for digit in digits {
            if !digit.is_ascii_digit() {
                return Err(Fault::BadMagic.into());
            }
            version = version * 10 + u16::from(digit - b'0');
        }
        // 80 and above are Valkey's, those below are Redis's.
        if version == 0 || (version >= 80) != (project == Project::Valkey) {
            return Err(Fault::BadVersion(version).into());
        }
        (self.project, self.version) = (project, version);
        self.start += 9;
        self.state = State::Item;
        Ok(Some(Found::Header))
    }

    /// Goes on with a value that was not here whole before.
    fn value(&mut self) -> Step<Option<Found>> {
        let State::Value(walk) = &mut self.state else {
            return Ok(None);
        };
        let value_at = self.start + walk.value_at;
        let mut r = Reader::at(&self.buf, value_at + walk.walked);
        let result = walk.skipper.run(&mut r, &self.templates);
        walk.walked = r.pos() - value_at;
        let done = match result {
            Ok(()) => true,
            Err(Stop::More) => false,
            Err(fail) => return Err(fail),
        };
        if (walk.walked as u64).saturating_add(walk.skipper.bytes_left()) > walk.bytes_max {
            return Ok(self.big());
        }
        if !done {
            return Err(Stop::More);
        }
        let (value, end) = (value_at..r.pos(), r.pos());
        let (value_type, name, head, template) = (walk.value_type, walk.name, walk.head, walk.skipper.template);
        let template = self.template_of(value_type, value.clone(), template)?;
        let found = KeyFound { name, from: self.start, value, value_type, head, template };
        self.start = end;
        self.state = State::Item;
        Ok(Some(Found::Key(found)))
    }

    /// Keeps what is known of a value over the limit, consumes the bytes before it, and leaves the choice to the caller.
    fn big(&mut self) -> Option<Found> {
        let State::Value(mut walk) = std::mem::replace(&mut self.state, State::Item) else {
            return None;
        };
        if let Name::Plain(..) = walk.name {
            self.name = self.name_at(walk.name, self.start).to_vec();
            walk.name = Name::Unpacked;
        }
        self.start += walk.value_at;
        walk.value_at = 0;
        let found = Found::Big { value_type: walk.value_type, head: walk.head };
        self.state = State::Undecided(walk);
        Some(found)
    }

    fn dropping(&mut self) -> Step<Option<Found>> {
        let State::Dropping(walk) = &mut self.state else {
            return Ok(None);
        };
        let mut r = Reader::at(&self.buf, self.start + walk.walked);
        let result = walk.skipper.run(&mut r, &self.templates);
        self.start = r.pos();
        walk.walked = 0;
        result?;
        self.state = State::Item;
        Ok(None)
    }

    fn streaming(&mut self) -> Step<Option<Found>> {
        let State::Streaming(streaming) = &mut self.state else {
            return Ok(None);
        };
        let mut r = Reader::at(&self.buf, self.start);
        let result = streaming.unpacker.piece(&mut r);
        self.start = r.pos();
        if let Some(piece) = result? {
            return Ok(Some(Found::Piece(piece)));
        }
        self.state = State::Item;
        Ok(Some(Found::BigEnd))
    }

    fn trailer(&mut self) -> Step<Option<Found>> {
        self.sum_consumed();
        let mut crc_checked = false;
        if self.version >= 5 {
            let stored = Reader::at(&self.buf, self.start).u64_be()?.swap_bytes();
            if stored != 0 && stored != self.crc {
                return Err(Fault::BadCrc { stored, computed: self.crc }.into());
            }
            crc_checked = stored != 0;
            self.start += 8;
        }
        self.summed = self.start;
        self.state = State::End;
        Ok(Some(Found::End { crc_checked }))
    }

    fn sum_consumed(&mut self) {
        if matches!(self.state, State::End) {
            self.summed = self.start;
        } else if let Some(run) = self.buf.get(self.summed..self.start) {
            self.crc = crc64(self.crc, run);
            self.summed = self.start;
        }
    }

    fn name_at(&self, name: Name, from: usize) -> &[u8] {
        match name {
            Name::Plain(at, end) => self.buf.get(from + at..from + end).unwrap_or_default(),
            Name::Unpacked => &self.name,
        }
    }

    fn event(&self, found: Found) -> Event<'_> {
        match found {
            Found::Key(key) => Event::Key(self.key(key)),
            Found::Item(item) => self.item_event(item),
            Found::Header => Event::Header { project: self.project, version: self.version },
            Found::Big { value_type, head } => Event::BigKey(KeyHead {
                name: &self.name,
                value_type,
                type_name: type_row(self.project, value_type).map_or("", |row| row.name),
                project: self.project,
                expires_at_ms: head.expires_at_ms,
                idle_s: head.idle_s,
                freq: head.freq,
                meta: head.has_meta.then_some(&self.meta),
            }),
            Found::Piece(piece) => Event::BigPiece(piece),
            Found::BigEnd => Event::BigEnd,
            Found::End { crc_checked } => Event::End { crc_checked },
        }
    }

    #[inline]
    fn key(&self, found: KeyFound) -> Key<'_> {
        Key {
            name: self.name_at(found.name, found.from),
            expires_at_ms: found.head.expires_at_ms,
            idle_s: found.head.idle_s,
            freq: found.head.freq,
            meta: found.head.has_meta.then_some(&self.meta),
            value: RawValue {
                value_type: found.value_type,
                bytes: self.buf.get(found.value).unwrap_or_default(),
                project: self.project,
                template: found.template.and_then(|id| self.templates.get(&id)),
            },
        }
    }

    /// Remembers a template, within the limits.
    fn add_template(&mut self, id: u64, fields: Vec<Vec<u8>>, size: u64) -> Result<(), Fault> {
        let template = Template::new(fields)?;
        self.template_bytes += size;
        let max = self.limits.template_bytes_max;
        if self.template_bytes > max {
            return Err(Fault::TooLarge { what: "the hash templates", size: self.template_bytes, max });
        }
        let (count, max) = (self.templates.len() as u64 + 1, self.limits.templates_max);
        if count > max {
            return Err(Fault::TooLarge { what: "the number of hash templates", size: count, max });
        }
        match self.templates.insert(id, Arc::new(template)) {
            None => Ok(()),
            Some(_) => Err(Fault::RepeatedTemplate(id)),
        }
    }
}
