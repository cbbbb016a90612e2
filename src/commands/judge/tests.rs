use super::*;
use crate::commands::{CommandInfo, Learnt, lookup};
use crate::filter::scope_of;

fn unquoted(word: &str) -> &str {
    if word == "\"\"" { "" } else { word }
}

fn words(args: Args<'_>) -> String {
    let words: Vec<_> = args.iter().map(String::from_utf8_lossy).collect();
    words.join(" ")
}

fn said(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Pass => "pass".to_owned(),
        Verdict::Drop(why) => format!("drop {why:?}").to_lowercase(),
        Verdict::Replace(with) => format!("send {}", words(with.args())),
        Verdict::Copy(list) => {
            let list: Vec<_> =
                list.iter().map(|copy| format!("{}:{}", copy.db, String::from_utf8_lossy(&copy.key))).collect();
            format!("copy {}", list.join(" "))
        }
        Verdict::Flush(Databases::All) => "flush all".to_owned(),
        Verdict::Flush(Databases::These(list)) => {
            let list: Vec<_> = list.iter().map(u32::to_string).collect();
            format!("flush {}", list.join(" "))
        }
        Verdict::Swap { a, b } => format!("swap {a} {b}"),
        Verdict::FlushSlot(slot) => format!("flushslot {slot}"),
        Verdict::Refuse => "refuse".to_owned(),
    }
}

fn check_verdict(scope: &Scope, line: &str, expected: &str) -> Result<(), String> {
    let (db, command) = line.split_once(' ').expect("a database");
    let words: Vec<&str> = command.split(' ').map(unquoted).collect();
    let command = OwnedArgs::new(&words);
    let spec = lookup(command.args()).ok_or("no row")?;
    let db = db.parse().expect("a database number");
    let verdict = judge(command.args(), spec, db, scope, &mut SmallKeys::new());
    let verdict = said(&verdict.map_err(|e| e.to_string())?);
    if verdict == expected { Ok(()) } else { Err(verdict) }
}

fn check(scope: &Scope, line: &str) -> Result<(), String> {
    if let Some((command, expected)) = line.split_once(" => ") {
        return check_verdict(scope, command, expected);
    }
    let parts: Vec<&str> = line.split(' ').collect();
    let holds = match parts[..] {
        ["whole"] => scope.is_whole(),
        ["partial"] => !scope.is_whole(),
        ["merged"] => scope.databases_merged(),
        ["apart"] => !scope.databases_merged(),
        [side, db, key] => {
            let db = db.parse().expect("a database number");
            (side == "in") == scope.key_in(db, unquoted(key).as_bytes())
        }
        _ => panic!("not a case: {line}"),
    };
    holds.then_some(()).ok_or("no".to_owned())
}

#[test]
fn scopes_and_verdicts_are_as_the_cases_say() {
    let mut scope = scope_of("");
    let mut wrong = Vec::new();
    let cases = include_str!("../../../tests/data/filter.txt");
    for (number, line) in cases.lines().enumerate() {
        if let Some(options) = line.strip_prefix("scope") {
            scope = scope_of(options);
        } else if !line.is_empty()
            && !line.starts_with('#')
            && let Err(instead) = check(&scope, line)
        {
            wrong.push(format!("line {}: {line}: {instead}", number + 1));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn learnt(info: CommandInfo<'_>) -> Learnt {
    let mut learnt = Learnt::new();
    learnt.learn(info).expect("keys that can be told");
    learnt
}

const JSON_SET: CommandInfo<'static> =
    CommandInfo { name: "json.mset", write: true, movable: false, first_key: 1, last_key: -1, step: 3, counted: None };

#[test]
fn learnt_commands_pass_inside_and_copy_across() {
    let learnt = learnt(JSON_SET);
    let verdict = |scope: &str, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let command = OwnedArgs::new(&words);
        let spec = learnt.lookup(command.args()).expect("learnt");
        let verdict = judge(command.args(), spec, 0, &scope_of(scope), &mut SmallKeys::new());
        said(&verdict.expect("a good command"))
    };
    assert_eq!(verdict("key=u*", "JSON.MSET u1 $ 1 u2 $ 2"), "pass");
    assert_eq!(verdict("key=u*", "json.mset u1 $ 1 x $ 2"), "copy 0:u1");
    assert_eq!(verdict("key=u*", "JSON.MSET x $ 1"), "drop key");
    assert_eq!(verdict("type=set", "JSON.MSET x $ 1"), "copy 0:x");
    assert_eq!(verdict("not-command=json.mset", "JSON.MSET x $ 1"), "drop command");
}

#[test]
fn learnt_commands_without_keys_are_refused_under_a_filter() {
    let learnt = learnt(CommandInfo { first_key: 0, last_key: 0, step: 0, ..JSON_SET });
    let command = OwnedArgs::new(&["JSON.MSET", "x"]);
    let spec = learnt.lookup(command.args()).expect("learnt");
    let mut scratch = SmallKeys::new();
    let refused = judge(command.args(), spec, 0, &scope_of("key=u*"), &mut scratch);
    assert_eq!(refused, Ok(Verdict::Refuse));
    let passed = judge(command.args(), spec, 0, &scope_of("db=0"), &mut scratch);
    assert_eq!(passed, Ok(Verdict::Pass));
}

#[test]
fn judge_of_damaged_arguments_is_an_error() {
    for line in ["SWAPDB 1", "SWAPDB a b", "CLUSTER FLUSHSLOT 16384", "SMOVE u x", "MOVE u z", "EVAL b 9 u"] {
        let words: Vec<&str> = line.split(' ').collect();
        let command = OwnedArgs::new(&words);
        let verdict = judge_u(&command);
        assert!(verdict.is_err(), "{line}: {verdict:?}");
    }
}

/// The verdict on a command of database 0 where keys that begin with u are in scope.
fn judge_u(command: &OwnedArgs) -> Result<Verdict, Error> {
    let spec = lookup(command.args()).expect("a row");
    judge(command.args(), spec, 0, &scope_of("key=u*"), &mut SmallKeys::new())
}

#[test]
fn cut_of_a_long_list_is_linear() {
    let mut words = vec!["DEL".to_owned()];
    words.extend((0..200_000).map(|n| if n % 2 == 0 { format!("u{n}") } else { format!("x{n}") }));
    let command = OwnedArgs::new(&words);
    let verdict = judge_u(&command);
    let Ok(Verdict::Replace(cut)) = verdict else {
        panic!("not cut");
    };
    assert_eq!(cut.args().len(), 100_001);
}
