use super::*;
use crate::args::OwnedArgs;

/// The scope of a `scope` line of tests/data/filter.txt, without that word.
pub(crate) fn scope_of(line: &str) -> Scope {
    let mut spec = ScopeSpec::default();
    for option in line.split_whitespace() {
        let (name, value) = option.split_once('=').expect("name=value");
        match name {
            "db" => spec.databases = Some(value.split(',').map(number).collect()),
            "map" => {
                let pairs = value.split(',').map(|pair| pair.split_once(':').expect("a:b"));
                spec.database_map = pairs.map(|(a, b)| (number(a), number(b))).collect();
            }
            "key" => spec.keys.push(value.into()),
            "not-key" => spec.not_keys.push(value.into()),
            "regex" => spec.key_regexes.push(value.to_owned()),
            "not-regex" => spec.not_key_regexes.push(value.to_owned()),
            "type" => {
                let named = TypeName::NAMED.iter().find(|(name, _)| *name == value).expect("a type");
                spec.types.get_or_insert_default().push(named.1);
            }
            "not-command" => spec.not_commands.push(value.to_owned()),
            other => panic!("no option {other}"),
        }
    }
    Scope::new(spec).expect("a good scope")
}

fn number(word: &str) -> u32 {
    word.parse().expect("a database number")
}

fn error(change: impl FnOnce(&mut ScopeSpec)) -> String {
    let mut spec = ScopeSpec::default();
    change(&mut spec);
    Scope::new(spec).expect_err("a bad scope").to_string()
}

#[test]
fn scope_of_bad_words_names_them_and_what_was_meant() {
    let said = error(|spec| spec.not_commands.push("flusall".to_owned()));
    assert!(said.contains("\"flusall\"") && said.contains("\"flushall\""), "{said}");
    let said = error(|spec| spec.not_commands.push("xgroup|creat".to_owned()));
    assert!(said.contains("\"xgroup|create\""), "{said}");
    let said = error(|spec| spec.not_commands.push("get".to_owned()));
    assert!(said.contains("\"get\""), "{said}");
    let said = error(|spec| spec.key_regexes = vec!["ok".to_owned(), "(".to_owned()]);
    assert!(said.contains("\"(\""), "{said}");
    let said = error(|spec| spec.not_keys.push(vec![b'a'; super::super::PATTERN_BYTES_MAX + 1]));
    assert!(said.contains("longer than"), "{said}");
    assert!(error(|spec| spec.databases = Some(vec![])).contains("no databases"));
    assert!(error(|spec| spec.types = Some(vec![])).contains("no types"));
    let said = error(|spec| {
        spec.databases = Some(vec![1]);
        spec.database_map.insert(2, 0);
    });
    assert!(said.contains("database 2"), "{said}");
}

#[test]
fn patterns_hold_at_the_limit_and_refuse_beyond() {
    let of = |count: usize| {
        Scope::new(ScopeSpec {
            keys: vec![b"a*".to_vec(); count - 1],
            not_key_regexes: vec!["b".to_owned()],
            ..ScopeSpec::default()
        })
    };
    assert!(of(PATTERNS_MAX).is_ok());
    assert_eq!(of(PATTERNS_MAX + 1).err(), Some(Error::TooManyPatterns(PATTERNS_MAX + 1)));
}

#[test]
fn expressions_see_bytes() {
    let scope = scope_of("regex=^.x$");
    assert!(scope.key_in(0, b"\xffx") && scope.key_in(0, b"ax"));
    assert!(!scope.key_in(0, "äx".as_bytes()), "a dot is one byte");
    assert!(scope_of("regex=ä").key_in(0, "bär".as_bytes()));
}

#[test]
fn fingerprint_changes_with_the_meaning_only() {
    let of = |line: &str| scope_of(line).fingerprint();
    assert_eq!(of(""), 0x086A_0A3A_9BAA_5E3D, "it is written to records: never change it");
    for (a, b) in [
        ("key=a* key=b*", "key=b* key=a* key=b*"),
        ("db=1,0", "db=0,1,1"),
        ("map=3:3", ""),
        ("type=set type=hash", "type=hash type=set"),
        ("not-command=flushall", "not-command=FLUSHALL"),
    ] {
        assert_eq!(of(a), of(b), "{a} and {b}");
    }
    let different = [
        "",
        "key=a*",
        "not-key=a*",
        "regex=a*",
        "not-regex=a*",
        "key=a key=b",
        "key=ab",
        "db=0",
        "db=0,1",
        "map=0:1",
        "db=0 map=0:1",
        "map=1:0",
        "type=set",
        "type=string",
        "not-command=set",
        "not-command=flushall",
    ];
    let seen: BTreeSet<u64> = different.iter().map(|line| of(line)).collect();
    assert_eq!(seen.len(), different.len());
}

#[test]
fn command_in_goes_by_name_and_by_subcommand() {
    let scope = scope_of("not-command=xgroup|create not-command=function");
    let inside = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        scope.command_in(OwnedArgs::new(&words).args())
    };
    assert!(!inside("XGROUP CREATE k g 0") && inside("XGROUP DESTROY k g"));
    assert!(!inside("function load code") && inside("SET function v") && inside("XGROUP"));
}
