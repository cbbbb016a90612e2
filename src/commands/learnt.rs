//! Commands the table lacks, as the target describes them: those of modules and of newer servers.

use std::borrow::Cow;
use std::collections::HashMap;

use super::modules::{correct, lack};
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
    BadRange { command: String, first: i64, last: i64, step: i64 },
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
        self.add(info, |_| {})
    }

    /// Adds a command that the source has told of: the target doesn't have it.
    ///
    /// # Errors
    /// As for [`Learnt::learn`].
    pub fn learn_lacking(&mut self, info: CommandInfo<'_>) -> Result<(), LearntError> {
        self.add(info, lack)
    }

    fn add(&mut self, info: CommandInfo<'_>, then: impl FnOnce(&mut Spec)) -> Result<(), LearntError> {
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
        correct(&mut spec);
        then(&mut spec);
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
        let counted = info.counted.ok_or_else(|| LearntError::MovableKeys { command: info.name.to_owned() })?;
        return Ok(KeyRule::Counted { count: counted.count, step: counted.step.max(1), role });
    }
    if info.first_key == 0 {
        return Ok(KeyRule::None);
    }
    let parts = (u32::try_from(info.first_key), i32::try_from(info.last_key), u32::try_from(info.step));
    match parts {
        (Ok(first), Ok(last), Ok(step)) if last != 0 && step > 0 => Ok(KeyRule::Range { first, last, step, role }),
        _ => Err(LearntError::BadRange {
            command: info.name.to_owned(),
            first: info.first_key,
            last: info.last_key,
            step: info.step,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OwnedArgs;
    use crate::commands::{Rewrite, SmallKeys, keys};

    const MADD: CommandInfo<'static> = CommandInfo {
        name: "ts.madd",
        write: true,
        movable: false,
        first_key: 1,
        last_key: -1,
        step: 3,
        counted: None,
    };

    fn key_indices(learnt: &Learnt, words: &[&str]) -> Option<Vec<usize>> {
        let command = OwnedArgs::new(words);
        let mut out = SmallKeys::new();
        keys(learnt.lookup(command.args())?, command.args(), &mut out).ok()?;
        Some(out.iter().map(|key| key.index).collect())
    }

    #[test]
    fn learnt_range_gives_its_keys_in_any_case() {
        let mut learnt = Learnt::new();
        assert_eq!(learnt.learn(MADD), Ok(()));
        let words = ["Ts.Madd", "a", "1", "2", "b", "1", "2"];
        assert_eq!(key_indices(&learnt, &words), Some(vec![1, 4]));
        assert_eq!(key_indices(&learnt, &["TS.MADD"]), None, "it has at least one key");
        assert_eq!(key_indices(&learnt, &["TS.ADD", "a"]), None);
    }

    #[test]
    fn learnt_keys_are_those_that_modules_dont_tell() {
        let one = CommandInfo { last_key: 1, step: 1, ..MADD };
        let mut learnt = Learnt::new();
        for name in ["ts.createrule", "cms.merge", "ft._createifnx", "ft.sugadd"] {
            assert_eq!(learnt.learn(CommandInfo { name, ..one }), Ok(()));
        }
        let told = |words: &[&str]| key_indices(&learnt, words);
        assert_eq!(told(&["TS.CREATERULE", "a", "b", "AGGREGATION", "avg", "10"]), Some(vec![1, 2]));
        assert_eq!(told(&["CMS.MERGE", "a", "2", "b", "c", "WEIGHTS", "1", "1"]), Some(vec![1, 3, 4]));
        assert_eq!(told(&["FT._CREATEIFNX", "idx", "SCHEMA"]), Some(vec![]));
        assert_eq!(told(&["FT.SUGADD", "k", "x", "1"]), Some(vec![1]));
    }

    #[test]
    fn learnt_commands_that_each_server_runs_its_own_way_are_copied() {
        let one = CommandInfo { last_key: 1, step: 1, ..MADD };
        let mut learnt = Learnt::new();
        for name in ["ts.incrby", "topk.add"] {
            assert_eq!(learnt.learn(CommandInfo { name, ..one }), Ok(()));
        }
        assert_eq!(learnt.learn_lacking(CommandInfo { name: "bf.add", ..one }), Ok(()));
        let caps = crate::commands::TargetCaps {
            valkey: false,
            version: (7, 4, 0),
            expiry_late_ms: 0,
            finds_places_alike: true,
            lacking: crate::commands::Lacking::default(),
        };
        let said = |words: &[&str]| {
            let command = OwnedArgs::new(words);
            let spec = learnt.lookup(command.args()).expect("a row");
            crate::commands::normalise(command.args(), spec, 0, &caps).expect("a good command")
        };
        assert_eq!(said(&["ts.incrby", "k", "3"]), Rewrite::CopyKeys);
        assert_eq!(said(&["ts.incrby", "k", "3", "timestamp", "*"]), Rewrite::CopyKeys);
        assert_eq!(said(&["ts.incrby", "k", "3", "TIMESTAMP", "5", "LABELS", "a", "b"]), Rewrite::AsIs);
        assert_eq!(said(&["TOPK.ADD", "k", "a"]), Rewrite::CopyKeys);
        assert_eq!(said(&["BF.ADD", "k", "a"]), Rewrite::NoModule);
    }

    #[test]
    fn learnt_movable_keys_need_a_count() {
        let movable = CommandInfo { movable: true, ..MADD };
        let mut learnt = Learnt::new();
        let error = learnt.learn(movable).expect_err("its keys can't be told");
        assert!(error.to_string().contains("ts.madd"), "{error}");
        let counted = Some(MovableKeys { count: 2, step: 1 });
        assert_eq!(learnt.learn(CommandInfo { counted, ..movable }), Ok(()));
        assert_eq!(key_indices(&learnt, &["ts.madd", "x", "2", "a", "b", "c"]), Some(vec![3, 4]));
        assert_eq!(key_indices(&learnt, &["ts.madd", "x", "9", "a"]), None);
    }

    #[test]
    fn learnt_odd_ranges_are_refused() {
        for (first_key, last_key, step) in [(-1, 1, 1), (1, 0, 1), (1, -1, 0), (1, i64::MIN, 1), (i64::MAX, 1, 1)] {
            let info = CommandInfo { first_key, last_key, step, ..MADD };
            let learnt = Learnt::new().learn(info);
            assert!(matches!(learnt, Err(LearntError::BadRange { .. })), "{info:?}");
        }
    }

    #[test]
    fn learnt_holds_at_the_limit_and_refuses_beyond() {
        let mut learnt = Learnt::new();
        for nth in 0..LEARNT_MAX {
            assert_eq!(learnt.learn(CommandInfo { name: &format!("m.{nth}"), ..MADD }), Ok(()));
        }
        assert_eq!(learnt.learn(CommandInfo { name: "m.0", ..MADD }), Ok(()));
        assert_eq!(learnt.learn(MADD), Err(LearntError::TooMany));
    }
}
