//! What the source has and the target can't hold, as far as INFO tells it.

use crate::commands::TargetCaps;
use crate::filter::{Scope, TypeName};
use crate::net::info::Info;

/// Commands that make values of a type that not every server has.
const MAKERS: &[(TypeName, &[&str])] = &[
    (TypeName::Stream, &["xadd", "xgroup", "xgroup|create"]),
    (TypeName::VectorSet, &["vadd", "VADD"]),
    (TypeName::Array, &["arset", "armset", "arinsert", "arring"]),
];

/// What the source has that the target can't hold, each in words.
///
/// `info`: what the source says of itself; `used`: its INFO commandstats, where values show only by what made them.
pub fn cannot_hold(info: &Info, used: &Info, scope: &Scope, caps: &TargetCaps) -> Vec<String> {
    let mut all = Vec::new();
    for (name, makers) in MAKERS {
        let calls: u64 = makers.iter().filter_map(|maker| calls(used, maker)).sum();
        if calls > 0 && !caps.holds(*name) && scope.type_in(*name) {
            let name = name.as_str();
            all.push(format!("values of type {name}, which {calls} commands have written since it started"));
        }
    }
    let databases = info.keyspace().into_iter().map(|(db, _)| db).filter(|db| scope.database_in(*db));
    let expiring: u64 = databases.map(|db| info.expiring_hashes(db)).sum();
    if expiring > 0 && !caps.expires_fields() && scope.type_in(TypeName::Hash) {
        all.push(format!("{expiring} hashes with fields that expire (--lossy leaves that out)"));
    }
    let libraries = info.number("number_of_libraries").unwrap_or(0);
    if libraries > 0 && !caps.has_functions() {
        all.push(format!("{libraries} function libraries (--not-command function leaves them out)"));
    }
    all
}

/// How often a command was called: `cmdstat_xadd:calls=3,usec=…`.
fn calls(used: &Info, command: &str) -> Option<u64> {
    used.get(&format!("cmdstat_{command}"))?.strip_prefix("calls=")?.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Lacking;
    use crate::filter::ScopeSpec;

    #[test]
    fn what_the_target_lacks_is_named_where_the_source_has_it() {
        let info = Info::parse(b"number_of_libraries:2\r\ndb0:keys=9,expires=0,subexpiry=3\r\n");
        let used = Info::parse(b"cmdstat_xadd:calls=7,usec=1\r\ncmdstat_vadd:calls=1,usec=1\r\n");
        let caps = |version| TargetCaps {
            valkey: false,
            version,
            expiry_late_ms: 0,
            finds_places_alike: true,
            lacking: Lacking::default(),
        };
        let scope = Scope::new(ScopeSpec::default()).unwrap();
        let told = |version| cannot_hold(&info, &used, &scope, &caps(version)).len();
        assert_eq!([(8, 0, 0), (7, 4, 0), (7, 0, 0), (6, 0, 0), (3, 2, 0)].map(told), [0, 1, 2, 3, 4]);
        assert!(cannot_hold(&Info::default(), &Info::default(), &scope, &caps((2, 8, 0))).is_empty());
        let strings = ScopeSpec { types: Some(vec![TypeName::String]), ..ScopeSpec::default() };
        let scope = Scope::new(strings).unwrap();
        let told = cannot_hold(&info, &used, &scope, &caps((3, 2, 0)));
        assert_eq!(told, ["2 function libraries (--not-command function leaves them out)"]);
    }
}
