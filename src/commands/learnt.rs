//! Commands the table lacks, as the target describes them: those of modules and of newer servers.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Group, KeyRule, Replay, Role, Shape, Spec};
use crate::args::Args;

/// How many commands may be learnt; a server with all known modules has below 600.
pub const LEARNT_MAX: usize = 4096;

/// What COMMAND INFO says of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandInfo<'a> {
    pub name: &'a str,
    /// It has the flag `write`.
    pub write: bool,
    /// It has the flag `movablekeys`: first, last and step don't name all of its keys.
    pub movable: bool,
    /// The first key's argument; 0 when it has none.
    pub first_key: i64,
    /// The last key's argument; negative counts from the end.
    pub last_key: i64,
    pub step: i64,
    /// Where its one key specification is a number of keys and the keys behind it, that.
    pub counted: Option<MovableKeys>,
}

/// A key specification of the kinds `index` and `keynum`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovableKeys {
    /// The argument that says how many keys follow right behind it.
    pub count: u8,
    /// From one key to the next.
    pub step: u8,
}

/// Why a command can't be learnt. The caller stops with its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LearntError {
    #[error("where {command} has its keys depends on its arguments")]
    MovableKeys { command: String },
    #[error("{command}: the target describes its keys as {first}, {last}, {step}")]
    BadRange {
        command: String,
        first: i64,
        last: i64,
        step: i64,
    },
    #[error("more than {LEARNT_MAX} commands to learn")]
    TooMany,
}

/// The commands learnt so far.
#[derive(Debug, Clone, Default)]
pub struct Learnt {
    /// By upper-case name.
    specs: HashMap<Vec<u8>, Spec>,
}

impl Learnt {
    pub fn new() -> Self {
        Learnt::default()
    }

    /// Adds a command; one that is there already is described anew.
    ///
    /// # Errors
    /// When its keys can't be told from what `info` says.
    pub fn learn(&mut self, info: CommandInfo<'_>) -> Result<(), LearntError> {
        let name = info.name.to_ascii_uppercase();
        if self.specs.len() >= LEARNT_MAX && !self.specs.contains_key(name.as_bytes()) {
            return Err(LearntError::TooMany);
        }
        let keys = key_rule(info)?;
        let mut spec = Spec::new("", keys, Replay::OnceOnly, Group::Any, Shape::Module);
        if keys == KeyRule::None && !info.write {
            (spec.group, spec.shape) = (Group::None, Shape::Global);
        }
        spec.name = Cow::Owned(name.clone());
        self.specs.insert(name.into_bytes(), spec);
        Ok(())
    }

    /// The learnt row of `args`, if there is one.
    pub fn lookup(&self, args: Args<'_>) -> Option<&Spec> {
        self.specs.get(&args.get(0)?.to_ascii_uppercase())
    }
}

fn key_rule(info: CommandInfo<'_>) -> Result<KeyRule, LearntError> {
    let role = if info.write { Role::Write } else { Role::Read };
    if info.movable {
        let counted = info.counted.ok_or_else(|| LearntError::MovableKeys {
            command: info.name.to_owned(),
        })?;
        return Ok(KeyRule::Counted {
            count: counted.count,
            step: counted.step.max(1),
            role,
        });
    }
    if info.first_key == 0 {
        return Ok(KeyRule::None);
    }
    let parts = (
        u32::try_from(info.first_key),
        i32::try_from(info.last_key),
        u32::try_from(info.step),
    );
    match parts {
        (Ok(first), Ok(last), Ok(step)) if last != 0 && step > 0 => Ok(KeyRule::Range {
            first,
            last,
            step,
            role,
        }),
        _ => Err(LearntError::BadRange {
            command: info.name.to_owned(),
            first: info.first_key,
            last: info.last_key,
            step: info.step,
        }),
    }
}
