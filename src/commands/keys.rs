//! Which arguments of a command are keys.

use super::parse::{bad_option, is, is_any, need, need_count, need_database, need_int};
use super::{Error, KeyRule, Spec};
use crate::args::Args;

/// What a command does with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is changed.
    Write,
    /// Only its value is used.
    Read,
    /// It is changed, and what it held goes to another key (the source of RENAME).
    ReadWrite,
}

impl Role {
    pub fn writes(self) -> bool {
        self != Role::Read
    }

    pub fn reads(self) -> bool {
        self != Role::Write
    }
}

/// One key of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyAt {
    /// Which argument it is.
    pub index: usize,
    pub role: Role,
    /// The database it is in, where that is another than the command's own (COPY DB, MOVE).
    pub db: Option<u32>,
}

/// The keys of one command, in the order [`keys`] finds them. Kept and filled again for every command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmallKeys {
    list: Vec<KeyAt>,
    /// It also reads keys that it does not name (SORT with BY or GET, scripts).
    pub reads_undeclared: bool,
}

impl SmallKeys {
    pub fn new() -> Self {
        SmallKeys::default()
    }

    pub fn clear(&mut self) {
        self.list.clear();
        self.reads_undeclared = false;
    }

    pub fn as_slice(&self) -> &[KeyAt] {
        &self.list
    }

    pub fn iter(&self) -> impl Iterator<Item = KeyAt> + '_ {
        self.list.iter().copied()
    }

    fn push(&mut self, index: usize, role: Role) {
        self.list.push(KeyAt { index, role, db: None });
    }
}

/// Fills `out` with the keys of `args`, a command of which `spec` is the row.
///
/// A key named twice is found twice. `out` is emptied first.
/// # Errors
/// `TooShort`, `BadNumkeys`, `BadNumber` or `BadOption` when the arguments are not such a command's.
pub fn keys(spec: &Spec, args: Args<'_>, out: &mut SmallKeys) -> Result<(), Error> {
    out.clear();
    match spec.keys {
        KeyRule::None => {}
        KeyRule::One { at, role } => {
            let at = usize::from(at);
            need(args, spec, at)?;
            out.push(at, role);
        }
        KeyRule::Two(first, second) => {
            need(args, spec, 2)?;
            out.push(1, first);
            out.push(2, second);
        }
        KeyRule::Range { first, last, step, role } => range(spec, args, (first, last, step), role, out)?,
        KeyRule::Store { dst, own } => {
            let dst = usize::from(dst);
            need(args, spec, dst)?;
            out.push(dst, if own { Role::ReadWrite } else { Role::Write });
            (dst + 1..args.len()).for_each(|index| out.push(index, Role::Read));
        }
        KeyRule::StoreCounted => {
            out.push(1, Role::Write);
            counted(spec, args, (2, 1), Role::Read, out)?;
        }
        KeyRule::Counted { count, step, role } => {
            out.reads_undeclared = spec.shape == super::Shape::Script;
            counted(spec, args, (usize::from(count), usize::from(step)), role, out)?;
        }
        KeyRule::Sort => sort(spec, args, out)?,
        KeyRule::GeoStore { options } => geo_store(spec, args, usize::from(options), out)?,
        KeyRule::Copy => copy(spec, args, out)?,
        KeyRule::Move => {
            let db = need_database(args, spec, 2)?;
            out.push(1, Role::ReadWrite);
            out.list.push(KeyAt { index: 1, role: Role::Write, db: Some(db) });
        }
        KeyRule::Streams => streams(spec, args, out)?,
        KeyRule::Migrate => migrate(spec, args, out)?,
    }
    Ok(())
}

fn range(
    spec: &Spec,
    args: Args<'_>,
    (first, last, step): (u32, i32, u32),
    role: Role,
    out: &mut SmallKeys,
) -> Result<(), Error> {
    let first = first as usize;
    let end = match usize::try_from(last) {
        Ok(last) => last.saturating_add(1).min(args.len()),
        Err(_) => args.len().saturating_sub(last.unsigned_abs() as usize - 1),
    };
    if first >= end {
        need(args, spec, args.len().max(first))?;
    }
    (first..end).step_by(step.max(1) as usize).for_each(|index| out.push(index, role));
    Ok(())
}

fn counted(
    spec: &Spec,
    args: Args<'_>,
    (count, step): (usize, usize),
    role: Role,
    out: &mut SmallKeys,
) -> Result<(), Error> {
    let keys = need_count(args, spec, count, step, 0)?;
    (0..keys).for_each(|nth| out.push(count + 1 + nth * step, role));
    Ok(())
}

/// Source: redis 7.0 src/db.c, sortGetKeys; the options are walked as sortCommand walks them.
fn sort(spec: &Spec, args: Args<'_>, out: &mut SmallKeys) -> Result<(), Error> {
    need(args, spec, 1)?;
    out.push(1, Role::Read);
    let mut store = None;
    let mut at = 2;
    while let Some(word) = args.get(at) {
        at += if is_any(word, &["ASC", "DESC", "ALPHA"]) {
            1
        } else if is(word, "LIMIT") {
            3
        } else if is(word, "STORE") {
            need(args, spec, at + 1)?;
            store = Some(at + 1);
            2
        } else if is_any(word, &["BY", "GET"]) {
            let pattern = need(args, spec, at + 1)?;
            // A pattern without a star names no key: `BY nosort`, `GET #`.
            out.reads_undeclared |= pattern.contains(&b'*');
            2
        } else {
            return Err(bad_option(spec, at));
        };
    }
    if let Some(store) = store {
        out.push(store, Role::Write);
    }
    Ok(())
}

fn geo_store(spec: &Spec, args: Args<'_>, options: usize, out: &mut SmallKeys) -> Result<(), Error> {
    need(args, spec, options - 1)?;
    out.push(1, Role::Read);
    let mut store = None;
    let mut at = options;
    while let Some(word) = args.get(at) {
        if is_any(word, &["STORE", "STOREDIST"]) {
            need(args, spec, at + 1)?;
            store = Some(at + 1);
        }
        at += if is_any(word, &["STORE", "STOREDIST", "COUNT"]) { 2 } else { 1 };
    }
    if let Some(store) = store {
        out.push(store, Role::Write);
    }
    Ok(())
}

fn copy(spec: &Spec, args: Args<'_>, out: &mut SmallKeys) -> Result<(), Error> {
    need(args, spec, 2)?;
    let mut db = None;
    let mut at = 3;
    while let Some(word) = args.get(at) {
        if is(word, "DB") {
            db = Some(need_database(args, spec, at + 1)?);
            at += 2;
        } else if is(word, "REPLACE") {
            at += 1;
        } else {
            return Err(bad_option(spec, at));
        }
    }
    out.push(1, Role::Read);
    out.list.push(KeyAt { index: 2, role: Role::Write, db });
    Ok(())
}

/// `XREADGROUP GROUP g c [COUNT n] [BLOCK ms] [CLAIM ms] [NOACK] STREAMS key… id…`
fn streams(spec: &Spec, args: Args<'_>, out: &mut SmallKeys) -> Result<(), Error> {
    let mut at = 1;
    loop {
        let word = need(args, spec, at)?;
        if is(word, "STREAMS") {
            break;
        }
        at += if is(word, "GROUP") {
            3
        } else if is_any(word, &["COUNT", "BLOCK", "CLAIM"]) {
            2
        } else if is(word, "NOACK") {
            1
        } else {
            return Err(bad_option(spec, at));
        };
    }
    let rest = args.len() - (at + 1);
    if rest == 0 || !rest.is_multiple_of(2) {
        need(args, spec, args.len())?;
    }
    (at + 1..at + 1 + rest / 2).for_each(|index| out.push(index, Role::Write));
    Ok(())
}

/// `MIGRATE host port key|"" db timeout [COPY] [REPLACE] [AUTH p] [AUTH2 u p] [KEYS key…]`
fn migrate(spec: &Spec, args: Args<'_>, out: &mut SmallKeys) -> Result<(), Error> {
    let key = need(args, spec, 3)?;
    need_int(args, spec, 5)?;
    if !key.is_empty() {
        out.push(3, Role::Write);
        return Ok(());
    }
    let mut at = 6;
    while let Some(word) = args.get(at) {
        if is(word, "KEYS") {
            (at + 1..args.len()).for_each(|index| out.push(index, Role::Write));
            return Ok(());
        }
        at += if is(word, "AUTH2") {
            3
        } else if is(word, "AUTH") {
            2
        } else {
            1
        };
    }
    out.push(3, Role::Write);
    Ok(())
}

#[cfg(test)]
mod tests;
