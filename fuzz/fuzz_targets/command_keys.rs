#![no_main]
//! Any command through the whole layer: no panic, and every key is one of its arguments.

use keyferry::args::OwnedArgs;
use keyferry::commands::{
    Rewrite, SmallKeys, TargetCaps, judge, keys, known_names, lookup, normalise, replayable,
};
use keyferry::filter::{Scope, ScopeSpec, TypeName};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| known_names().collect());

static SCOPES: LazyLock<Vec<Scope>> = LazyLock::new(|| {
    let prefix = ScopeSpec {
        keys: vec![b"a*".to_vec()],
        ..ScopeSpec::default()
    };
    let mapped = ScopeSpec {
        databases: Some(vec![0, 1]),
        database_map: [(1, 3)].into(),
        types: Some(vec![TypeName::Set]),
        ..ScopeSpec::default()
    };
    [prefix, mapped].into_iter().filter_map(|spec| Scope::new(spec).ok()).collect()
});

fuzz_target!(|input: (u8, u8, i64, Vec<&[u8]>)| {
    let (nth, target, received_ms, rest) = input;
    let name = &NAMES[usize::from(nth) % NAMES.len()];
    let words: Vec<&[u8]> = name.split('|').map(str::as_bytes).chain(rest).collect();
    let owned = OwnedArgs::new(&words);
    let args = owned.args();
    let Some(spec) = lookup(args) else {
        return;
    };
    let mut found = SmallKeys::new();
    if keys(spec, args, &mut found).is_ok() {
        assert!(found.iter().all(|key| args.get(key.index).is_some()));
    }
    for scope in SCOPES.iter() {
        let _ = judge(args, spec, u32::from(target & 3), scope, &mut found);
    }
    let caps = TargetCaps {
        valkey: target & 1 == 1,
        version: (u16::from(target >> 4), u16::from(target & 15), 0),
        expiry_late_ms: i64::from(target) * 1000,
    };
    if let Ok(Rewrite::Replace(list)) = normalise(args, spec, received_ms, &caps) {
        assert!(list.iter().all(|one| lookup(one.args()).is_some()), "it sends what it doesn't know");
    }
    let _ = replayable(spec, args);
});
