//! What of modules the target can have: values of their types, and what is said of the rest.

use std::collections::BTreeMap;

use crate::net::info::Info;
use crate::rdb::{ModuleType, Unsupported};
use crate::status::Status;

/// The first Redis that answers an error to a value whose module it hasn't, rather than exits.
const SURVIVES: (u16, u16, u16) = (6, 2, 0);

/// What a module writes beside the keys that has nothing to say: an empty list before and behind.
const EMPTY_DATA_BYTES_MAX: u64 = 20;

/// The built-in module of vector sets: told of by its type.
const VECTOR_SETS: &str = "vectorset";

/// The modules of the target.
#[derive(Debug, Clone, Default)]
pub struct Modules {
    /// By name, with their versions.
    loaded: BTreeMap<String, u64>,
    /// A value that it doesn't know ends the target.
    fragile: bool,
}

impl Modules {
    /// `info`: what the target says of itself; `loaded`: the modules that each of its primaries has.
    pub fn new(info: &Info, loaded: BTreeMap<String, u64>) -> Self {
        Modules { loaded, fragile: !info.is_valkey() && info.version() < SURVIVES }
    }

    /// Whether the target may be given a value of this type. It may refuse it all the same, if its module is older.
    ///
    /// # Errors
    /// When it has no module that knows it.
    pub fn hold(&self, of: ModuleType) -> Result<(), Unsupported> {
        let homes = of.homes();
        let known = homes.iter().any(|home| self.loaded.contains_key(*home));
        // A type that nobody here knows may be any module's.
        let perhaps = homes.is_empty() && !self.loaded.is_empty() && !self.fragile;
        if known || perhaps { Ok(()) } else { Err(Unsupported::Module(of)) }
    }

    /// Whether the target has a module.
    pub fn has(&self, name: &str) -> bool {
        self.loaded.contains_key(name)
    }

    /// What the source's modules have that the target can't hold, or may refuse.
    pub fn lacking(&self, source: &Info) -> Vec<String> {
        let mut all = Vec::new();
        for (name, version) in source.modules().into_iter().filter(|(name, _)| name != VECTOR_SETS) {
            match self.loaded.get(&name) {
                None => all.push(format!("values and commands of module {name}, which isn't loaded there")),
                Some(older) if *older < version => {
                    all.push(format!(
                        "all of module {name} perhaps, of which it has version {older} and not {version}"
                    ));
                }
                Some(_) => {}
            }
        }
        all
    }
}

/// Counts what a module keeps beside the keys, which only a snapshot that a server loads can carry, and tells of it.
pub fn leave_out_data(status: &Status, of: ModuleType, bytes: u64) {
    if bytes <= EMPTY_DATA_BYTES_MAX {
        return;
    }
    status.lost("data that modules keep beside keys");
    let what = match of.homes() {
        ["search"] => {
            "indexes, aliases and dictionaries of Search: create them on the target (FT.CREATE finds what is there)"
        }
        _ => "what a module keeps beside keys",
    };
    tracing::warn!(module_type = %of, bytes, "not copied: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: ModuleType = ModuleType(0x45e2_5238_df91_2c03);
    const UNKNOWN: ModuleType = ModuleType(1);

    fn target(text: &str) -> Modules {
        let info = Info::parse(text.as_bytes());
        Modules::new(&info, info.modules())
    }

    #[test]
    fn values_are_held_where_their_module_is_loaded() {
        let with = target("redis_version:7.4.1\nmodule:name=ReJSON,ver=2\n");
        assert_eq!((with.hold(JSON), with.hold(UNKNOWN)), (Ok(()), Ok(())));
        let old = target("redis_version:6.0.0\nmodule:name=ReJSON,ver=2\n");
        assert_eq!((old.hold(JSON), old.hold(UNKNOWN)), (Ok(()), Err(Unsupported::Module(UNKNOWN))));
        let without = target("redis_version:7.4.1\n");
        assert_eq!(without.hold(JSON), Err(Unsupported::Module(JSON)));
        let words = Unsupported::Module(JSON).to_string();
        assert_eq!(words, "the target has no module that knows type ReJSON-RL (module ReJSON, encoding 3)");
    }

    #[test]
    fn modules_that_the_target_lacks_are_named() {
        let source = Info::parse(b"module:name=bf,ver=3\nmodule:name=ReJSON,ver=3\nmodule:name=vectorset,ver=1\n");
        let told = target("redis_version:7.4.1\nmodule:name=ReJSON,ver=2\n").lacking(&source);
        assert_eq!(told.len(), 2);
        assert!(told[0].contains("version 2 and not 3") && told[1].contains("module bf"), "{told:?}");
    }

    #[test]
    fn empty_data_of_modules_is_not_told_of() {
        let status = Status::new("job");
        leave_out_data(&status, JSON, EMPTY_DATA_BYTES_MAX);
        assert!(status.lost("data that modules keep beside keys"));
        leave_out_data(&status, JSON, EMPTY_DATA_BYTES_MAX + 1);
        assert!(!status.lost("data that modules keep beside keys"));
    }
}
