//! The scope of a job: what of the source it is about.

use std::collections::{BTreeMap, BTreeSet};

use regex::bytes::{RegexSet, RegexSetBuilder};

use super::{Error, Glob, TypeName};
use crate::args::Args;
use crate::commands;

/// How many patterns and expressions a scope may have, all kinds together.
pub const PATTERNS_MAX: usize = 1024;

/// A scope as it is asked for. The default is all of the source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeSpec {
    /// Source databases; `None`: all.
    pub databases: Option<Vec<u32>>,
    /// Source database to target database; what isn't there keeps its number.
    pub database_map: BTreeMap<u32, u32>,
    /// A key passes if one of these or of `key_regexes` matches, or there are none of either.
    pub keys: Vec<Vec<u8>>,
    /// Beats `keys` and `key_regexes`.
    pub not_keys: Vec<Vec<u8>>,
    /// On the key's raw bytes, anywhere within it.
    pub key_regexes: Vec<String>,
    pub not_key_regexes: Vec<String>,
    /// `None`: all.
    pub types: Option<Vec<TypeName>>,
    /// Command names in any case; a subcommand is `xgroup|create`, and a container's name stands for all of its.
    pub not_commands: Vec<String>,
}

/// What a job copies, and where to.
///
/// keyferry's own records are not its concern: they aren't in a source's data, unless that was a target before.
#[derive(Debug, Clone)]
pub struct Scope {
    /// Sorted, without doubles.
    databases: Option<Vec<u32>>,
    /// Without databases that keep their number.
    map: BTreeMap<u32, u32>,
    keys: KeySet,
    not_keys: KeySet,
    /// A bit for each type that is in.
    types: Option<u16>,
    /// Upper case, subcommands as `XGROUP|CREATE`.
    not_commands: BTreeSet<String>,
    whole: bool,
    fingerprint: u64,
}

#[derive(Debug, Clone)]
struct KeySet {
    globs: Vec<Glob>,
    regexes: Option<RegexSet>,
}

impl KeySet {
    fn new(globs: &[Vec<u8>], regexes: &[String]) -> Result<Self, Error> {
        let globs = globs.iter().map(|pattern| {
            Glob::new(pattern)
                .map_err(|why| Error::BadGlob { pattern: String::from_utf8_lossy(pattern).into_owned(), why })
        });
        let globs = globs.collect::<Result<_, _>>()?;
        let compile = |patterns: &[String]| {
            // Keys are bytes: a dot is any of them, whether that makes valid UTF-8 or not.
            RegexSetBuilder::new(patterns).unicode(false).build()
        };
        for pattern in regexes {
            // One by one first: the set's error doesn't say which of them is bad.
            compile(std::slice::from_ref(pattern)).map_err(|why| bad_regex(pattern, &why))?;
        }
        let set = compile(regexes).map_err(|why| bad_regex(&regexes.join(" "), &why))?;
        let regexes = (!regexes.is_empty()).then_some(set);
        Ok(KeySet { globs, regexes })
    }

    fn is_empty(&self) -> bool {
        self.globs.is_empty() && self.regexes.is_none()
    }

    fn matches(&self, key: &[u8]) -> bool {
        self.globs.iter().any(|glob| glob.matches(key)) || self.regexes.as_ref().is_some_and(|set| set.is_match(key))
    }
}

fn bad_regex(pattern: &str, why: &regex::Error) -> Error {
    Error::BadRegex { pattern: pattern.to_owned(), why: why.to_string() }
}

impl Scope {
    /// # Errors
    /// Names the pattern, type, command or database that can't be followed, and what was probably meant.
    pub fn new(spec: ScopeSpec) -> Result<Self, Error> {
        let patterns = spec.keys.len() + spec.not_keys.len() + spec.key_regexes.len() + spec.not_key_regexes.len();
        if patterns > PATTERNS_MAX {
            return Err(Error::TooManyPatterns(patterns));
        }
        let databases = match spec.databases {
            Some(list) if list.is_empty() => return Err(Error::NoDatabases),
            Some(list) => Some(list.into_iter().collect::<BTreeSet<_>>()),
            None => None,
        };
        if let Some(chosen) = &databases {
            let outside = spec.database_map.keys().find(|db| !chosen.contains(db));
            outside.map_or(Ok(()), |db| Err(Error::MappedOutside(*db)))?;
        }
        let types = match spec.types {
            Some(list) if list.is_empty() => return Err(Error::NoTypes),
            Some(list) => Some(list.iter().fold(0, |bits, name| bits | name.bit())),
            None => None,
        };
        let not_commands = spec.not_commands.iter().map(|word| command_name(word));
        let mut map = spec.database_map;
        map.retain(|from, to| from != to);
        let mut scope = Scope {
            databases: databases.map(|set| set.into_iter().collect()),
            map,
            keys: KeySet::new(&spec.keys, &spec.key_regexes)?,
            not_keys: KeySet::new(&spec.not_keys, &spec.not_key_regexes)?,
            types,
            not_commands: not_commands.collect::<Result<_, _>>()?,
            whole: false,
            fingerprint: 0,
        };
        scope.whole = scope.holds_all_data() && scope.map.is_empty() && scope.not_commands.is_empty();
        let globs = [sorted(&spec.keys), sorted(&spec.not_keys)];
        let regexes = [sorted(&spec.key_regexes), sorted(&spec.not_key_regexes)];
        scope.fingerprint = scope.hash(&globs, &regexes);
        Ok(scope)
    }

    /// Everything of the source goes to the same place on the target, whatever the command.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Every key of every database is in; databases may be mapped and commands left out.
    pub fn holds_all_data(&self) -> bool {
        self.databases.is_none() && self.all_keys_in()
    }

    /// Neither keys nor types are chosen, only databases at most.
    pub fn all_keys_in(&self) -> bool {
        self.keys.is_empty() && self.not_keys.is_empty() && self.types.is_none()
    }

    pub fn database_in(&self, db: u32) -> bool {
        self.databases.as_ref().is_none_or(|list| list.binary_search(&db).is_ok())
    }

    /// The source databases that are in, sorted; `None`: all.
    pub fn databases(&self) -> Option<&[u32]> {
        self.databases.as_deref()
    }

    /// Whether some database changes its number.
    pub fn maps_databases(&self) -> bool {
        !self.map.is_empty()
    }

    /// Where source database `db` goes.
    pub fn target_database(&self, db: u32) -> u32 {
        self.map.get(&db).copied().unwrap_or(db)
    }

    /// Whether some target database may get the keys of two source databases.
    ///
    /// With all databases in, each is taken to exist.
    pub fn databases_merged(&self) -> bool {
        match &self.databases {
            Some(list) => list.iter().any(|db| self.database_shared(*db)),
            None => self.map.keys().any(|db| self.database_shared(*db)),
        }
    }

    /// Whether another source database in scope goes to where `db` goes.
    pub fn database_shared(&self, db: u32) -> bool {
        let target = self.target_database(db);
        let goes_there = |other: u32| other != db && self.database_in(other) && self.target_database(other) == target;
        goes_there(target) || self.map.keys().any(|other| goes_there(*other))
    }

    /// Every key of `db` is in, and its target database gets nothing else.
    pub fn database_whole(&self, db: u32) -> bool {
        self.database_in(db) && self.all_keys_in() && !self.database_shared(db)
    }

    pub fn key_in(&self, db: u32, key: &[u8]) -> bool {
        self.database_in(db) && self.key_matches(key)
    }

    /// Whether `key` is in, in whatever database that is.
    pub fn key_matches(&self, key: &[u8]) -> bool {
        (self.keys.is_empty() || self.keys.matches(key)) && !self.not_keys.matches(key)
    }

    pub fn type_in(&self, name: TypeName) -> bool {
        self.types.is_none_or(|types| types & name.bit() != 0)
    }

    /// Whether types are chosen at all.
    pub fn types_chosen(&self) -> bool {
        self.types.is_some()
    }

    /// Whether the command may be sent at all, going by its name.
    pub fn command_in(&self, args: Args<'_>) -> bool {
        let name = args.get(0).unwrap_or_default();
        !self.not_commands.iter().any(|left_out| {
            let left_out = left_out.as_bytes();
            // A command's name has no bar, so what is behind one is a subcommand's.
            match memchr::memchr(b'|', left_out).and_then(|bar| left_out.split_at_checked(bar)) {
                None => left_out.eq_ignore_ascii_case(name),
                Some((container, sub)) => {
                    container.eq_ignore_ascii_case(name)
                        && args
                            .get(1)
                            .is_some_and(|word| sub.get(1..).is_some_and(|sub| sub.eq_ignore_ascii_case(word)))
                }
            }
        })
    }

    /// A number that is the same in every run for scopes of the same meaning, and else another.
    ///
    /// The order and repetition of patterns, databases, types and commands don't matter to it.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn hash(&self, globs: &[Vec<&[u8]>], regexes: &[Vec<&[u8]>]) -> u64 {
        let mut hash = Fnv::new();
        let numbers = |hash: &mut Fnv, list: &[u32]| {
            hash.number(list.len() as u64);
            list.iter().for_each(|n| hash.number(u64::from(*n)));
        };
        hash.number(u64::from(self.databases.is_some()));
        numbers(&mut hash, self.databases.as_deref().unwrap_or_default());
        let pairs: Vec<u32> = self.map.iter().flat_map(|(a, b)| [*a, *b]).collect();
        numbers(&mut hash, &pairs);
        for list in globs.iter().chain(regexes) {
            hash.number(list.len() as u64);
            list.iter().for_each(|pattern| hash.bytes(pattern));
        }
        hash.number(self.types.map_or(u64::MAX, u64::from));
        hash.number(self.not_commands.len() as u64);
        let names = self.not_commands.iter();
        names.for_each(|name| hash.bytes(name.as_bytes()));
        hash.0
    }
}

fn sorted<T: AsRef<[u8]>>(list: &[T]) -> Vec<&[u8]> {
    let set: BTreeSet<&[u8]> = list.iter().map(AsRef::as_ref).collect();
    set.into_iter().collect()
}

/// The table's writing of a command that is to be left out.
///
/// A name with a dot is a module's, and taken as it is: the table can't know those.
fn command_name(word: &str) -> Result<String, Error> {
    let name = word.trim().to_ascii_uppercase().replace(' ', "|");
    if name.contains('.') || commands::is_known_name(&name) {
        return Ok(name);
    }
    let nearest = commands::known_names().min_by_key(|known| strsim::osa_distance(&name, known));
    Err(Error::UnknownCommand { word: word.to_owned(), nearest: nearest.unwrap_or_default().to_ascii_lowercase() })
}

/// FNV-1a over 64 bits: the standard library's hashes may change between versions, this one is written to records.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xCBF2_9CE4_8422_2325)
    }

    fn number(&mut self, number: u64) {
        self.raw(&number.to_le_bytes());
    }

    /// The length goes first, so that the ends of neighbours can't be mistaken.
    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    fn raw(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
