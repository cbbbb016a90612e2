//! Opcodes, and keys up to their values.

use std::borrow::Cow;
use std::ops::Range;

use super::{Decoder, Event, Found, KeyFound, Name, Skipped, State, ValueWalk, Walk};
use crate::rdb::error::{Error, Fault, Step, Stop, escape_key};
use crate::rdb::length::{Head, Reader};
use crate::rdb::opcode::{self, Op, Project, fork, type_row};
use crate::rdb::skip::Skipper;
use crate::rdb::value::hash;

/// A key of an unknown type is named if its name is at most this long: there may be nothing of the sort.
const UNKNOWN_NAME_MAX: u64 = 1024;

/// What opcodes said of the key to come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Attributes {
    pub expires_at_ms: Option<i64>,
    pub idle_s: Option<u64>,
    pub freq: Option<u8>,
    pub has_meta: bool,
}

/// A string in the buffer, or unpacked from it.
pub(super) enum Text {
    Plain(Range<usize>),
    Unpacked(Vec<u8>),
}

/// An item other than a key.
pub(super) enum Item {
    Aux { name: Text, value: Text },
    SelectDb(u32),
    ResizeDb { keys: u64, expires: u64 },
    Function { code: Text },
    FunctionPreGa { name: Text, engine: Text, code: Text },
    Skipped(Skipped),
}

impl Decoder {
    /// Reads one opcode with what belongs to it, or a key.
    #[inline]
    pub(super) fn item(&mut self) -> Step<Option<Found>> {
        let mut r = Reader::at(&self.buf, self.start);
        let code = r.u8()?;
        if code < opcode::HASH_TEMPLATE {
            return self.begin_key(code);
        }
        let attributes = &mut self.attributes;
        match code {
            opcode::EXPIRETIME_MS => attributes.expires_at_ms = Some(r.i64()?),
            opcode::EXPIRETIME => attributes.expires_at_ms = Some(i64::from(r.i32()?) * 1000),
            opcode::IDLE => attributes.idle_s = Some(r.len()?),
            opcode::FREQ => attributes.freq = Some(r.u8()?),
            opcode::EOF => self.state = State::Trailer,
            opcode::AUX | opcode::SELECTDB | opcode::RESIZEDB | opcode::FUNCTION2 | opcode::FUNCTION_PRE_GA => {
                let item = self.short_item(code, &mut r);
                let end = r.pos();
                let item = item?;
                self.start = end;
                return Ok(Some(Found::Item(item)));
            }
            _ => return self.begin_walk(code),
        }
        self.start = r.pos();
        Ok(None)
    }

    /// An item whose bytes must all be here; each of its strings is found by its length, so trying again costs little.
    fn short_item(&self, code: u8, r: &mut Reader<'_>) -> Step<Item> {
        let max = self.limits.item_bytes_max;
        match code {
            opcode::AUX => {
                let item = Item::Aux { name: text(r, max)?, value: text(r, max)? };
                self.refuse_foreign(&item)?;
                Ok(item)
            }
            opcode::SELECTDB => {
                let db = r.len()?;
                let db = u32::try_from(db).map_err(|_| Fault::TooLarge {
                    what: "a database's number",
                    size: db,
                    max: u64::from(u32::MAX),
                })?;
                Ok(Item::SelectDb(db))
            }
            opcode::RESIZEDB => Ok(Item::ResizeDb { keys: r.len()?, expires: r.len()? }),
            opcode::FUNCTION_PRE_GA => {
                let (name, engine) = (text(r, max)?, text(r, max)?);
                if r.len()? != 0 {
                    r.pass_string()?;
                }
                Ok(Item::FunctionPreGa { name, engine, code: text(r, max)? })
            }
            _ => Ok(Item::Function { code: text(r, max)? }),
        }
    }

    /// Dragonfly reuses numbers of Redis's types, so its files are refused by what they say of themselves.
    fn refuse_foreign(&self, item: &Item) -> Result<(), Fault> {
        match item {
            Item::Aux { name, .. } if &*self.text(name) == b"df-ver" => Err(Fault::ForeignFile("Dragonfly")),
            _ => Ok(()),
        }
    }

    fn begin_walk(&mut self, code: u8) -> Step<Option<Found>> {
        let grammar = match (code, self.project) {
            (opcode::MODULE_AUX, _) => opcode::MODULE_AUX_GRAMMAR,
            (opcode::SLOT_INFO, _) => opcode::SLOT_INFO_GRAMMAR,
            (opcode::SLOT_IMPORT, Project::Valkey) => opcode::SLOT_IMPORT_GRAMMAR,
            (opcode::KEY_META, Project::Redis) if self.version >= 13 => opcode::KEY_META_GRAMMAR,
            (opcode::HASH_TEMPLATE, Project::Redis) => opcode::HASH_TEMPLATE_GRAMMAR,
            _ => return Err(Fault::UnknownType(code).into()),
        };
        self.state =
            State::Walk(Walk { opcode: code, walked: 1, dropped: 0, module_id: None, skipper: Skipper::new(grammar) });
        Ok(None)
    }

    /// Goes on with an item that is walked.
    pub(super) fn walk(&mut self) -> Step<Option<Found>> {
        let State::Walk(walk) = &mut self.state else {
            return Ok(None);
        };
        let mut r = Reader::at(&self.buf, self.start + walk.walked);
        let result = walk.skipper.run(&mut r, &self.templates);
        walk.walked = r.pos() - self.start;
        let code = walk.opcode;
        if code == opcode::MODULE_AUX && walk.module_id.is_none() && walk.walked > 1 {
            walk.module_id = Some(Reader::at(&self.buf, self.start + 1).len()?);
        }
        let max = match code {
            opcode::HASH_TEMPLATE => self.limits.template_bytes_max,
            opcode::KEY_META if self.project == Project::Redis => self.limits.item_bytes_max,
            // Its id is still to be read, from where the item begins.
            opcode::MODULE_AUX if walk.module_id.is_none() => self.limits.item_bytes_max,
            _ => {
                // Nothing of it is kept.
                self.start += walk.walked;
                walk.dropped += std::mem::take(&mut walk.walked) as u64;
                u64::MAX
            }
        };
        let size = (walk.walked as u64).saturating_add(walk.skipper.bytes_left());
        if size > max {
            return Err(Fault::TooLarge { what: "an item", size, max }.into());
        }
        let (module_id, dropped) = (walk.module_id, walk.dropped);
        result?;
        let item = Reader::at(&self.buf, self.start).take(size)?;
        let skipped = match (code, self.project) {
            (opcode::KEY_META, Project::Redis) => {
                self.meta.clear();
                self.meta.extend_from_slice(item);
                self.attributes.has_meta = true;
                None
            }
            (opcode::HASH_TEMPLATE, _) => {
                let (id, fields) = template(item, self.limits.template_bytes_max)?;
                self.add_template(id, fields, size)?;
                Some(Skipped::HashTemplate)
            }
            (opcode::MODULE_AUX, _) => {
                Some(Skipped::ModuleAux { module_id: module_id.unwrap_or_default(), bytes: dropped + size })
            }
            (opcode::SLOT_INFO, _) => Some(Skipped::SlotInfo),
            _ => Some(Skipped::SlotImport),
        };
        self.start += size as usize;
        self.state = State::Item;
        Ok(skipped.map(|skipped| Found::Item(Item::Skipped(skipped))))
    }

    /// Reads a key, or its name and as much of its value as there is.
    #[inline]
    fn begin_key(&mut self, value_type: u8) -> Step<Option<Found>> {
        let Some(row) = type_row(self.project, value_type) else {
            return Err(self.unknown_type(value_type));
        };
        let mut r = Reader::at(&self.buf, self.start + 1);
        let max = self.limits.item_bytes_max;
        let name = match r.head()? {
            Head::Plain(n) if n <= max => {
                let at = r.pos() - self.start;
                r.take(n)?;
                Name::Plain(at, r.pos() - self.start)
            }
            head => {
                self.name = r.string_after(head, max)?.into_owned();
                Name::Unpacked
            }
        };
        let value_at = r.pos();
        r.commit();
        let mut skipper = Skipper::new(row.grammar);
        let whole = match row.grammar {
            [Op::Str] => r.pass_string(),
            _ => skipper.run(&mut r, &self.templates),
        };
        match whole {
            Ok(()) if (r.pos() - value_at) as u64 <= self.limits.value_bytes_max => {
                let value = value_at..r.pos();
                let template = self.template_of(value_type, value.clone(), skipper.template)?;
                let found = KeyFound {
                    name,
                    from: self.start,
                    value,
                    value_type,
                    head: std::mem::take(&mut self.attributes),
                    template,
                };
                self.start = r.pos();
                return Ok(Some(Found::Key(found)));
            }
            Ok(()) | Err(Stop::More) => {}
            Err(Stop::Fail(fault)) => return Err(self.bad_value(value_type, name, r.pos(), fault)),
        }
        if let [Op::Str] = row.grammar {
            r.rewind();
        }
        self.state = State::Value(Box::new(ValueWalk {
            value_type,
            name,
            value_at: value_at - self.start,
            walked: r.pos() - value_at,
            bytes_max: self.limits.value_bytes_max,
            head: std::mem::take(&mut self.attributes),
            skipper,
        }));
        Ok(None)
    }

    /// The error for a value that is bad at `pos` of the buffer.
    #[cold]
    fn bad_value(&mut self, value_type: u8, name: Name, pos: usize, fault: Fault) -> Stop {
        let error = Error::new(self.base + pos as u64, fault.clone());
        self.state = State::Failed(Box::new(error.in_value(value_type, Some(self.name_at(name, self.start)))));
        Stop::Fail(fault)
    }

    /// The id of the template that a value refers to: type 30 has it in its listpack, the walk of type 32 met it.
    pub(super) fn template_of(&self, value_type: u8, value: Range<usize>, walked: Option<u64>) -> Step<Option<u64>> {
        if value_type != opcode::HASH_TMPL_LP_REF {
            return Ok(walked);
        }
        let bytes = self.buf.get(value).unwrap_or_default();
        let blob = Reader::new(bytes).string(self.limits.element_bytes_max)?;
        let id = hash::template_id(&blob)?;
        match self.templates.contains_key(&id) {
            true => Ok(Some(id)),
            false => Err(Fault::UnknownTemplate(id).into()),
        }
    }

    /// The error for a type that can't even be skipped, naming the key if its name is here.
    fn unknown_type(&mut self, value_type: u8) -> Stop {
        let fault = match fork(value_type) {
            Some(product) => Fault::Fork { product, code: value_type },
            None => Fault::UnknownType(value_type),
        };
        let mut error = Error::new(self.position(), fault.clone()).in_value(value_type, None);
        match Reader::at(&self.buf, self.start + 1).string(UNKNOWN_NAME_MAX) {
            Ok(name) => error.key = Some(escape_key(&name)),
            Err(Stop::More) => return Stop::More,
            Err(Stop::Fail(_)) => {}
        }
        self.state = State::Failed(Box::new(error));
        Stop::Fail(fault)
    }

    fn text<'a>(&'a self, text: &'a Text) -> Cow<'a, [u8]> {
        match text {
            Text::Plain(range) => Cow::Borrowed(self.buf.get(range.clone()).unwrap_or_default()),
            Text::Unpacked(bytes) => Cow::Borrowed(bytes),
        }
    }

    fn text_of(&self, text: Text) -> Cow<'_, [u8]> {
        match text {
            Text::Plain(range) => Cow::Borrowed(self.buf.get(range).unwrap_or_default()),
            Text::Unpacked(bytes) => Cow::Owned(bytes),
        }
    }

    pub(super) fn item_event(&self, item: Item) -> Event<'_> {
        match item {
            Item::Aux { name, value } => Event::Aux { name: self.text_of(name), value: self.text_of(value) },
            Item::SelectDb(db) => Event::SelectDb(db),
            Item::ResizeDb { keys, expires } => Event::ResizeDb { keys, expires },
            Item::Function { code } => Event::Function { code: self.text_of(code) },
            Item::FunctionPreGa { name, engine, code } => Event::FunctionPreGa {
                name: self.text_of(name),
                engine: self.text_of(engine),
                code: self.text_of(code),
            },
            Item::Skipped(skipped) => Event::Skipped(skipped),
        }
    }
}

fn text(r: &mut Reader<'_>, max: u64) -> Step<Text> {
    match r.head()? {
        Head::Plain(n) if n <= max => {
            let at = r.pos();
            r.take(n)?;
            Ok(Text::Plain(at..r.pos()))
        }
        head => Ok(Text::Unpacked(r.string_after(head, max)?.into_owned())),
    }
}

/// A template's id and fields, from its whole record.
fn template(record: &[u8], max: u64) -> Step<(u64, Vec<Vec<u8>>)> {
    let mut r = Reader::at(record, 1);
    let (id, n) = (r.len()?, r.len()?);
    let mut fields = Vec::new();
    for _ in 0..n {
        fields.push(r.string(max)?.into_owned());
    }
    Ok((id, fields))
}
