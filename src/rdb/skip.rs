//! Walks a value's bytes without decoding them, and can stop and go on anywhere.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::{Fault, Step, Stop};
use super::length::{Reader, write_len};
use super::opcode::Op;
use super::pack::{Kind, Pack};

/// How deep repeats nest in the deepest grammar, a stream's: value, group, consumer, pending id.
const DEPTH_MAX: usize = 4;

/// The field names of a template hash are read whole; servers would not make more of them.
pub(super) const NAMES_BYTES_MAX: u64 = 16 << 20;

/// A file's record of field names that many of its hashes share (opcode 242).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Field names, ascending by length, then bytes.
    pub fields: Vec<Vec<u8>>,
    /// What a payload of type 29 or 31 has in place of the template's id: `01`, the number of fields, the fields.
    pub names: Vec<u8>,
}

impl Template {
    /// # Errors
    /// `Corrupt` when there is no field, or they are not strictly ascending by length, then bytes.
    pub(super) fn new(fields: Vec<Vec<u8>>) -> Result<Self, Fault> {
        check_fields(&fields)?;
        let mut names = vec![1];
        write_len(&mut names, fields.len() as u64);
        for field in &fields {
            super::length::write_string(&mut names, field);
        }
        Ok(Template { fields, names })
    }
}

/// Field names of a template are strictly ascending by length, then bytes, and there is at least one.
pub(super) fn check_fields(fields: &[Vec<u8>]) -> Result<(), Fault> {
    if fields.is_empty() {
        return Err(Fault::Corrupt("a hash template without a field"));
    }
    let ascending = |a: &Vec<u8>, b: &Vec<u8>| (a.len(), a) < (b.len(), b);
    if !fields.is_sorted_by(ascending) {
        return Err(Fault::Corrupt("a hash template's fields are not in ascending order"));
    }
    Ok(())
}

pub(super) type Templates = HashMap<u64, Arc<Template>>;

/// Where in a grammar the walk is.
#[derive(Debug, Clone, Copy)]
struct Frame {
    ops: &'static [Op],
    at: usize,
    /// Rounds to go, this one included.
    left: u64,
}

const NO_FRAME: Frame = Frame { ops: &[], at: 0, left: 0 };
const ONE_STRING: &[Op] = &[Op::Str];
const ONE_ITEM: &[Op] = &[Op::ArrayItem];

/// A walk through one value's bytes.
///
/// [`Skipper::run`] passes what is there; when it says `More`, everything before the reader's position is done with and is
/// not looked at again.
#[derive(Debug)]
pub(super) struct Skipper {
    frames: [Frame; DEPTH_MAX],
    depth: usize,
    /// Bytes of the current step still to pass.
    bytes_left: u64,
    /// The template's id of a value that refers to one.
    pub template: Option<u64>,
}

impl Skipper {
    pub fn new(grammar: &'static [Op]) -> Self {
        let mut frames = [NO_FRAME; DEPTH_MAX];
        if let Some(first) = frames.first_mut() {
            *first = Frame { ops: grammar, at: 0, left: 1 };
        }
        Skipper { frames, depth: 1, bytes_left: 0, template: None }
    }

    /// Bytes that certainly follow those that were passed.
    pub fn bytes_left(&self) -> u64 {
        self.bytes_left
    }

    /// Walks on to the end of the value.
    pub fn run(&mut self, r: &mut Reader<'_>, templates: &Templates) -> Step<()> {
        loop {
            if self.bytes_left > 0 {
                self.bytes_left -= r.pass_up_to(self.bytes_left);
                r.commit();
                if self.bytes_left > 0 {
                    return Err(Stop::More);
                }
            }
            let Some(frame) = self.depth.checked_sub(1).and_then(|top| self.frames.get_mut(top)) else {
                return Ok(());
            };
            let Some(&op) = frame.ops.get(frame.at) else {
                frame.at = 0;
                frame.left -= 1;
                if frame.left == 0 {
                    self.depth -= 1;
                }
                continue;
            };
            match step(op, r, templates) {
                Ok(Next { bytes, stay, repeat, template }) => {
                    r.commit();
                    self.bytes_left = bytes;
                    frame.at += usize::from(!stay);
                    self.template = template.or(self.template);
                    self.push(repeat);
                }
                Err(stop) => {
                    r.rewind();
                    return Err(stop);
                }
            }
        }
    }

    fn push(&mut self, repeat: Option<(&'static [Op], u64)>) {
        let Some((ops, left)) = repeat.filter(|&(_, left)| left > 0) else {
            return;
        };
        let frame = self.frames.get_mut(self.depth);
        assert!(frame.is_some(), "no grammar nests deeper than {DEPTH_MAX}");
        if let Some(frame) = frame {
            *frame = Frame { ops, at: 0, left };
            self.depth += 1;
        }
    }
}

/// What follows a step whose head was read.
struct Next {
    /// Bytes to pass before the next step.
    bytes: u64,
    /// Whether the same step comes again.
    stay: bool,
    repeat: Option<(&'static [Op], u64)>,
    template: Option<u64>,
}

const DONE: Next = Next { bytes: 0, stay: false, repeat: None, template: None };

/// Reads the head of `op`.
#[inline]
fn step(op: Op, r: &mut Reader<'_>, templates: &Templates) -> Step<Next> {
    match op {
        Op::Str => Ok(Next { bytes: r.head()?.payload_bytes(), ..DONE }),
        Op::Len => r.len().map(|_| DONE),
        Op::Fixed(n) => Ok(Next { bytes: u64::from(n), ..DONE }),
        Op::Repeat(ops) => Ok(Next { repeat: Some((ops, r.len()?)), ..DONE }),
        Op::OldDouble => match r.u8()? {
            253..=255 => Ok(DONE),
            n => Ok(Next { bytes: u64::from(n), ..DONE }),
        },
        Op::Module => module_step(r),
        Op::Array => {
            let count = r.len()?;
            match r.len()? {
                0 => {}
                1 => _ = r.len()?,
                _ => return Err(Fault::Corrupt("an array's cursor flag is neither 0 nor 1").into()),
            }
            Ok(Next { repeat: Some((ONE_ITEM, count)), ..DONE })
        }
        Op::ArrayItem => {
            r.len()?;
            match r.len()? {
                0 | 3 => Ok(Next { bytes: r.head()?.payload_bytes(), ..DONE }),
                1 | 2 => Ok(Next { bytes: 8, ..DONE }),
                _ => Err(Fault::Corrupt("an array element's tag is above 3").into()),
            }
        }
        Op::Names => pass_names(r).map(|_| DONE),
        Op::NamesAndValues => Ok(Next { repeat: Some((ONE_STRING, pass_names(r)?)), ..DONE }),
        Op::ReferredValues => {
            let id = r.len()?;
            let template = templates.get(&id).ok_or(Fault::UnknownTemplate(id))?;
            Ok(Next { repeat: Some((ONE_STRING, template.fields.len() as u64)), template: Some(id), ..DONE })
        }
    }
}

fn module_step(r: &mut Reader<'_>) -> Step<Next> {
    let bytes = match r.len()? {
        0 => return Ok(DONE),
        1 | 2 => {
            r.len()?;
            0
        }
        3 => 4,
        4 => 8,
        5 => r.head()?.payload_bytes(),
        other => return Err(Fault::BadModuleOpcode(other).into()),
    };
    Ok(Next { bytes, stay: true, ..DONE })
}

/// Passes a template hash's names, which must be here whole; returns how many there are.
fn pass_names(r: &mut Reader<'_>) -> Step<u64> {
    match r.len()? {
        0 => {
            let blob = r.string(NAMES_BYTES_MAX)?;
            let mut pack = Pack::new(Kind::Listpack, &blob)?;
            let mut n = 0;
            while pack.next(&blob)?.is_some() {
                n += 1;
            }
            Ok(n)
        }
        1 => {
            let (n, from) = (r.len()?, r.pos());
            for _ in 0..n {
                r.pass_string()?;
                let size = (r.pos() - from) as u64;
                if size > NAMES_BYTES_MAX {
                    return Err(Fault::TooLarge { what: "a hash's field names", size, max: NAMES_BYTES_MAX }.into());
                }
            }
            Ok(n)
        }
        _ => Err(Fault::Corrupt("a template hash's names have an unknown form").into()),
    }
}
