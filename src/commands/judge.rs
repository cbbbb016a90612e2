//! What of a streamed command is in the job's scope.
//!
//! The rule behind every answer: after it, the keys in scope on the target equal those on the source. Where a
//! command brings something over the edge of the scope, that part is said with a command of its own if its
//! arguments suffice (RENAME out of the scope is a DEL), and else its keys are copied from the source.
//!
//! Of two source databases that go to the same target database, the later write wins.

use super::cut::cut;
use super::keys::{KeyAt, SmallKeys, keys};
use super::parse::{is, need, need_database};
use super::{Error, Group, KeyRule, Shape, Spec};
use crate::args::{Args, OwnedArgs};
use crate::filter::{Scope, TypeName};

/// What to do with one command under a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Send it as it is, in the target database that its own goes to.
    Pass,
    /// Nothing of it is to be sent.
    Drop(Why),
    /// Send this instead, in that database too.
    Replace(OwnedArgs),
    /// Make these keys equal to the source's; one that is gone there is deleted. Each is in scope, types apart.
    Copy(Vec<CopyKey>),
    /// Delete what is in scope of these source databases, and no more.
    Flush(Databases),
    /// These source databases change places, and the target's can't simply do the same: what is in scope of either
    /// is copied again, from both sides.
    Swap { a: u32, b: u32 },
    /// Delete what is in scope of this hash slot.
    FlushSlot(u16),
    /// It may change keys that it doesn't name, so nobody can tell what of it is in scope: stop with its name.
    Refuse,
}

/// Why nothing of a command is sent; counted by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// The command is left out by name.
    Command,
    /// Its database is not in scope.
    Database,
    /// None of the keys it changes is in scope.
    Key,
    /// It works on a type that is not in scope.
    Type,
    /// It changes nothing on the target: it only reads, or moves between databases that are one there.
    NoEffect,
}

/// A key to copy: where it is on the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CopyKey {
    pub db: u32,
    pub key: Vec<u8>,
}

/// Source databases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Databases {
    All,
    These(Vec<u32>),
}

/// Decides about `args`, a command of which `spec` is the row, in source database `db`.
///
/// `scratch` is overwritten. A scope that is whole ([`Scope::is_whole`]) passes everything; ask it first.
///
/// - FUNCTION, SCRIPT, PUBLISH and SPUBLISH belong to no database and pass; only their name can leave them out.
/// - Scripts (streamed by sources up to 4.0) may change keys that they don't declare. With keys or types chosen,
///   the declared keys in scope are copied and others are missed; a script that declares none is refused.
/// - With types chosen, a command of another type is dropped, or becomes a DEL where it replaces a key. What has no
///   type of its own (DEL, EXPIRE) passes; what brings a value from elsewhere (RENAME, COPY, MOVE, RESTORE) is a
///   copy, which sees the type.
/// # Errors
/// As [`keys`]: arguments that such a command can't have.
pub fn judge(args: Args<'_>, spec: &Spec, db: u32, scope: &Scope, scratch: &mut SmallKeys) -> Result<Verdict, Error> {
    if !scope.command_in(args) {
        return Ok(Verdict::Drop(Why::Command));
    }
    match spec.shape {
        Shape::Global | Shape::Infrastructure => return Ok(Verdict::Pass),
        Shape::FlushAll => return Ok(flush_all(scope)),
        Shape::FlushDb => return Ok(flush_db(db, scope)),
        Shape::SwapDb => return swap_db(args, spec, scope),
        Shape::FlushSlot => return flush_slot(args, spec),
        Shape::Copy | Shape::Move => {}
        _ if !scope.database_in(db) => return Ok(Verdict::Drop(Why::Database)),
        _ => {}
    }
    keys(spec, args, scratch)?;
    Case { args, spec, db, scope, keys: scratch }.judge()
}

fn flush_all(scope: &Scope) -> Verdict {
    match scope.databases() {
        Some(list) => Verdict::Flush(Databases::These(list.to_vec())),
        None if scope.holds_all_data() && !scope.maps_databases() => Verdict::Pass,
        None => Verdict::Flush(Databases::All),
    }
}

fn flush_db(db: u32, scope: &Scope) -> Verdict {
    if !scope.database_in(db) {
        Verdict::Drop(Why::Database)
    } else if scope.database_whole(db) {
        Verdict::Pass
    } else {
        Verdict::Flush(Databases::These(vec![db]))
    }
}

fn swap_db(args: Args<'_>, spec: &Spec, scope: &Scope) -> Result<Verdict, Error> {
    let a = need_database(args, spec, 1)?;
    let b = need_database(args, spec, 2)?;
    let target = (scope.target_database(a), scope.target_database(b));
    let in_scope = (scope.database_in(a), scope.database_in(b));
    Ok(match in_scope {
        (false, false) => Verdict::Drop(Why::Database),
        (true, true) if target.0 == target.1 => Verdict::Drop(Why::NoEffect),
        (true, true) if scope.database_whole(a) && scope.database_whole(b) => {
            if target == (a, b) {
                Verdict::Pass
            } else {
                let (a, b) = (target.0.to_string(), target.1.to_string());
                Verdict::Replace(OwnedArgs::new(&["SWAPDB", &a, &b]))
            }
        }
        _ => Verdict::Swap { a, b },
    })
}

/// `CLUSTER FLUSHSLOT slot [ASYNC|SYNC]`
fn flush_slot(args: Args<'_>, spec: &Spec) -> Result<Verdict, Error> {
    let slot = need_database(args, spec, 2)?;
    let slot = u16::try_from(slot).ok().filter(|s| *s < crate::slot::SLOTS);
    slot.map(Verdict::FlushSlot).ok_or_else(|| super::parse::bad_number(spec, 2))
}

/// A command with keys, and what is needed to judge it.
struct Case<'a> {
    args: Args<'a>,
    spec: &'a Spec,
    db: u32,
    scope: &'a Scope,
    keys: &'a SmallKeys,
}

impl<'a> Case<'a> {
    fn judge(&self) -> Result<Verdict, Error> {
        if self.keys.as_slice().is_empty() {
            // A script without keys, or a module's command that writes who knows where.
            return Ok(if self.scope.all_keys_in() { Verdict::Pass } else { Verdict::Refuse });
        }
        let mut writes = false;
        let (mut written_in, mut all_in) = (false, true);
        for key in self.keys.iter() {
            let inside = self.is_in(key);
            writes |= key.role.writes();
            written_in |= inside && key.role.writes();
            all_in &= inside;
        }
        if !written_in {
            return Ok(Verdict::Drop(if writes { self.why_out() } else { Why::NoEffect }));
        }
        if self.scope.types_chosen()
            && let Some(verdict) = self.by_type()?
        {
            return Ok(verdict);
        }
        if !all_in {
            return self.across();
        }
        if self.keys.reads_undeclared && !self.scope.all_keys_in() {
            return self.copy();
        }
        self.pass()
    }

    fn is_in(&self, key: KeyAt) -> bool {
        let db = key.db.unwrap_or(self.db);
        self.args.get(key.index).is_some_and(|bytes| self.scope.key_in(db, bytes))
    }

    fn why_out(&self) -> Why {
        let mut databases = self.keys.iter().filter(|key| key.role.writes());
        if databases.any(|key| self.scope.database_in(key.db.unwrap_or(self.db))) { Why::Key } else { Why::Database }
    }

    /// The answer where the types that are chosen decide; `None` where they don't.
    fn by_type(&self) -> Result<Option<Verdict>, Error> {
        let type_in = match self.spec.group {
            Group::Of(name) => self.scope.type_in(name),
            Group::Any | Group::None => true,
        };
        let verdict = match self.spec.shape {
            Shape::Rename | Shape::Copy | Shape::Move => match self.leaves() {
                Some(key) => delete(&[key]),
                None => self.copy()?,
            },
            Shape::Replaces | Shape::Store if !type_in => delete(&self.written_in()),
            Shape::Replaces if self.spec.group == Group::Any => self.copy()?,
            Shape::Store if !self.sources_have_types_in() => self.copy()?,
            Shape::Script | Shape::Module => self.copy()?,
            _ if !type_in => Verdict::Drop(Why::Type),
            _ => return Ok(None),
        };
        Ok(Some(verdict))
    }

    /// Whether every type that a *STORE command may read is in.
    fn sources_have_types_in(&self) -> bool {
        let all = |names: &[TypeName]| names.iter().all(|name| self.scope.type_in(*name));
        match self.spec.keys {
            KeyRule::Sort => {
                all(&[TypeName::List, TypeName::Set, TypeName::Zset])
                    && (!self.keys.reads_undeclared || all(&[TypeName::String, TypeName::Hash]))
            }
            KeyRule::StoreCounted => all(&[TypeName::Set, TypeName::Zset]),
            _ => true,
        }
    }

    /// The key in scope that the command takes away to where nothing is in scope.
    fn leaves(&self) -> Option<&'a [u8]> {
        let inside = |key: &KeyAt| self.is_in(*key);
        let mut written = self.keys.iter().filter(|key| key.role.writes());
        let (from, to) = (written.next()?, written.next()?);
        (inside(&from) && !inside(&to)).then(|| self.args.get(from.index)).flatten()
    }

    /// Some keys are in scope, of those that are written at least one, and some are not.
    fn across(&self) -> Result<Verdict, Error> {
        let leaves = self.leaves();
        match (self.spec.shape, leaves) {
            (Shape::Own | Shape::Replaces, _) => self.cut(),
            (Shape::Rename | Shape::Move, Some(key)) => Ok(delete(&[key])),
            (Shape::Smove, Some(key)) => {
                let member = need(self.args, self.spec, 3)?;
                Ok(replace(&[b"SREM", key, member]))
            }
            (Shape::Smove, None) => {
                let (key, member) = (need(self.args, self.spec, 2)?, need(self.args, self.spec, 3)?);
                Ok(replace(&[b"SADD", key, member]))
            }
            (Shape::ListMove, Some(key)) => self.pop(key),
            _ => self.copy(),
        }
    }

    /// The list move took from `key` what goes out of scope.
    fn pop(&self, key: &[u8]) -> Result<Verdict, Error> {
        let from_left = match self.args.get(3) {
            Some(from) if !self.spec.name.ends_with("RPOPLPUSH") => is(from, "LEFT"),
            _ => false,
        };
        let pop: &[u8] = if from_left { b"LPOP" } else { b"RPOP" };
        let mut words = vec![pop, key];
        if self.spec.name == "LMOVEM" {
            let counted = (5..self.args.len()).find(|at| {
                let word = self.args.get(*at).unwrap_or_default();
                is(word, "COUNT") || is(word, "EXACTLY")
            });
            if let Some(at) = counted {
                words.push(need(self.args, self.spec, at + 1)?);
            }
        }
        Ok(replace(&words))
    }

    /// Leaves out the keys that are not in scope, with what belongs to them.
    fn cut(&self) -> Result<Verdict, Error> {
        match cut(self.args, self.spec, self.keys, |key| self.is_in(key)) {
            Some(part) => Ok(Verdict::Replace(part)),
            None => self.copy(),
        }
    }

    fn written_in(&self) -> Vec<&'a [u8]> {
        self.keys
            .iter()
            .filter(|key| key.role.writes() && self.is_in(*key))
            .filter_map(|key| self.args.get(key.index))
            .collect()
    }

    /// Every written key in scope, once.
    fn copy(&self) -> Result<Verdict, Error> {
        let mut copies: Vec<CopyKey> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for key in self.keys.iter() {
            let db = key.db.unwrap_or(self.db);
            let bytes = need(self.args, self.spec, key.index)?;
            if key.role.writes() && self.is_in(key) && seen.insert((db, bytes)) {
                copies.push(CopyKey { db, key: bytes.to_vec() });
            }
        }
        Ok(Verdict::Copy(copies))
    }

    /// Everything is in scope; only the numbers of databases may have to change.
    fn pass(&self) -> Result<Verdict, Error> {
        let Some((to, key)) = self.keys.iter().find_map(|key| key.db.map(|db| (db, key.index))) else {
            return Ok(Verdict::Pass);
        };
        let target = self.scope.target_database(to);
        let same_database = target == self.scope.target_database(self.db);
        if same_database && self.args.get(1) == self.args.get(key) {
            return Ok(Verdict::Drop(Why::NoEffect));
        }
        if target == to {
            return Ok(Verdict::Pass);
        }
        let number = target.to_string();
        let (from, to) = (need(self.args, self.spec, 1)?, need(self.args, self.spec, 2)?);
        Ok(match self.spec.shape {
            Shape::Move => replace(&[b"MOVE", from, number.as_bytes()]),
            // It found no key in the way or had REPLACE, so REPLACE is right.
            _ => replace(&[b"COPY", from, to, b"DB", number.as_bytes(), b"REPLACE"]),
        })
    }
}

fn replace(words: &[&[u8]]) -> Verdict {
    Verdict::Replace(OwnedArgs::new(words))
}

fn delete(keys: &[&[u8]]) -> Verdict {
    let words: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(keys.iter().copied()).collect();
    replace(&words)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
