//! The judge against a tiny server: what it lets through keeps a filtered target equal to the filtered source.

use super::*;
use crate::commands::lookup;
use crate::filter::{ScopeSpec, TypeName};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const DATABASES: u32 = 4;
const KEYS: [&str; 6] = ["u:a", "u:b", "u:tmp", "x:a", "x:b", "y"];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Text(String),
    Set(BTreeSet<String>),
    List(VecDeque<String>),
}

impl Value {
    fn type_name(&self) -> TypeName {
        match self {
            Value::Text(_) => TypeName::String,
            Value::Set(_) => TypeName::Set,
            Value::List(_) => TypeName::List,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Value::Text(_) => false,
            Value::Set(set) => set.is_empty(),
            Value::List(list) => list.is_empty(),
        }
    }
}

#[derive(Debug)]
struct WrongType;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Server(BTreeMap<(u32, String), Value>);

impl Server {
    fn set(&self, db: u32, key: &str) -> Result<BTreeSet<String>, WrongType> {
        match self.0.get(&(db, key.to_owned())) {
            None => Ok(BTreeSet::new()),
            Some(Value::Set(set)) => Ok(set.clone()),
            Some(_) => Err(WrongType),
        }
    }

    fn list(&self, db: u32, key: &str) -> Result<VecDeque<String>, WrongType> {
        match self.0.get(&(db, key.to_owned())) {
            None => Ok(VecDeque::new()),
            Some(Value::List(list)) => Ok(list.clone()),
            Some(_) => Err(WrongType),
        }
    }

    fn put(&mut self, db: u32, key: &str, value: Value) {
        if value.is_empty() {
            self.0.remove(&(db, key.to_owned()));
        } else {
            self.0.insert((db, key.to_owned()), value);
        }
    }

    fn rename(&mut self, from: (u32, &str), to: (u32, &str), keep: bool) {
        if let Some(value) = self.0.get(&(from.0, from.1.to_owned())).cloned() {
            if !keep {
                self.0.remove(&(from.0, from.1.to_owned()));
            }
            self.put(to.0, to.1, value);
        }
    }

    fn swap(&mut self, a: u32, b: u32) {
        let swapped = |db: u32| match db {
            db if db == a => b,
            db if db == b => a,
            db => db,
        };
        let old = std::mem::take(&mut self.0);
        let moved = old.into_iter().map(|((db, key), v)| ((swapped(db), key), v));
        self.0 = moved.collect();
    }

    /// Runs a command, which changes nothing when it fails.
    fn run(&mut self, db: u32, words: &[&str]) -> Result<(), WrongType> {
        let has = |server: &Server, db: u32, key: &str| server.0.contains_key(&(db, key.to_owned()));
        let number = |word: &str| word.parse::<u32>().expect("a database");
        match *words {
            ["SET", key, value] => self.put(db, key, Value::Text(value.to_owned())),
            ["MSET", ref pairs @ ..] => {
                pairs.chunks(2).for_each(|pair| self.put(db, pair[0], Value::Text(pair[1].to_owned())))
            }
            ["APPEND", key, more] => {
                let old = match self.0.get(&(db, key.to_owned())) {
                    None => String::new(),
                    Some(Value::Text(text)) => text.clone(),
                    Some(_) => return Err(WrongType),
                };
                self.put(db, key, Value::Text(old + more));
            }
            ["DEL", ref keys @ ..] => keys.iter().for_each(|key| {
                self.0.remove(&(db, (*key).to_owned()));
            }),
            ["RENAME", from, to] => self.rename((db, from), (db, to), false),
            ["COPY", from, to, ref rest @ ..] => {
                let at = rest.iter().position(|word| *word == "DB");
                let other = at.map_or(db, |at| number(rest[at + 1]));
                if rest.contains(&"REPLACE") || !has(self, other, to) {
                    self.rename((db, from), (other, to), true);
                }
            }
            ["MOVE", key, other] => {
                if !has(self, number(other), key) {
                    self.rename((db, key), (number(other), key), false);
                }
            }
            ["FLUSHDB"] => self.0.retain(|(other, _), _| *other != db),
            ["FLUSHALL"] => self.0.clear(),
            ["SWAPDB", a, b] => self.swap(number(a), number(b)),
            _ => self.run_on_elements(db, words)?,
        }
        Ok(())
    }

    fn run_on_elements(&mut self, db: u32, words: &[&str]) -> Result<(), WrongType> {
        match *words {
            ["SADD", key, member] => {
                let mut set = self.set(db, key)?;
                set.insert(member.to_owned());
                self.put(db, key, Value::Set(set));
            }
            ["SREM", key, member] => {
                let mut set = self.set(db, key)?;
                set.remove(member);
                self.put(db, key, Value::Set(set));
            }
            ["SMOVE", from, to, member] => {
                let (mut left, _) = (self.set(db, from)?, self.set(db, to)?);
                if left.remove(member) {
                    self.put(db, from, Value::Set(left));
                    self.run(db, &["SADD", to, member])?;
                }
            }
            ["SUNIONSTORE", dst, ref sources @ ..] => {
                let mut all = BTreeSet::new();
                for key in sources {
                    all.extend(self.set(db, key)?);
                }
                self.put(db, dst, Value::Set(all));
            }
            ["LPUSH", key, value] => {
                let mut list = self.list(db, key)?;
                list.push_front(value.to_owned());
                self.put(db, key, Value::List(list));
            }
            [pop @ ("LPOP" | "RPOP"), key] => {
                let mut list = self.list(db, key)?;
                if pop == "LPOP" {
                    list.pop_front()
                } else {
                    list.pop_back()
                };
                self.put(db, key, Value::List(list));
            }
            ["LMOVE", from, to, side, other] => {
                let (mut left, _) = (self.list(db, from)?, self.list(db, to)?);
                let moved = if side == "LEFT" { left.pop_front() } else { left.pop_back() };
                if let Some(moved) = moved {
                    self.put(db, from, Value::List(left));
                    let mut right = self.list(db, to)?;
                    if other == "LEFT" {
                        right.push_front(moved)
                    } else {
                        right.push_back(moved)
                    };
                    self.put(db, to, Value::List(right));
                }
            }
            _ => panic!("the model has no {words:?}"),
        }
        Ok(())
    }

    /// What of it a target under `scope` is to hold.
    fn within(&self, scope: &Scope) -> Server {
        let inside = self
            .0
            .iter()
            .filter(|((db, key), value)| scope.key_in(*db, key.as_bytes()) && scope.type_in(value.type_name()));
        Server(inside.map(|((db, key), v)| ((scope.target_database(*db), key.clone()), v.clone())).collect())
    }
}

/// Makes the keys in scope of source database `db` on the target equal to the source's.
fn copy_database(source: &Server, target: &mut Server, scope: &Scope, db: u32) {
    if !scope.database_in(db) {
        return;
    }
    let to = scope.target_database(db);
    target.0.retain(|(at, key), _| *at != to || !scope.key_matches(key.as_bytes()));
    let fresh = source.within(scope).0.into_iter().filter(|((at, _), _)| *at == to);
    target.0.extend(fresh);
}

fn apply(verdict: Verdict, db: u32, words: &[&str], source: &Server, target: &mut Server, scope: &Scope) {
    let to = scope.target_database(db);
    match verdict {
        Verdict::Pass => target.run(to, words).expect("a passed command fits the target"),
        Verdict::Drop(_) => {}
        Verdict::Replace(with) => {
            let with: Vec<String> = with.args().iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            let with: Vec<&str> = with.iter().map(String::as_str).collect();
            target.run(to, &with).expect("a replacement fits the target");
        }
        Verdict::Copy(list) => {
            for CopyKey { db, key } in list {
                let key = String::from_utf8(key).expect("a key of ours");
                assert!(scope.key_in(db, key.as_bytes()), "{key} is not in scope");
                let value = source.0.get(&(db, key.clone()));
                let value = value.filter(|value| scope.type_in(value.type_name()));
                let at = (scope.target_database(db), key);
                match value {
                    Some(value) => target.0.insert(at, value.clone()),
                    None => target.0.remove(&at),
                };
            }
        }
        Verdict::Flush(databases) => {
            let list = match databases {
                Databases::All => (0..DATABASES).collect(),
                Databases::These(list) => list,
            };
            list.iter().for_each(|db| copy_database(&Server::default(), target, scope, *db));
        }
        Verdict::Swap { a, b } => {
            copy_database(source, target, scope, a);
            copy_database(source, target, scope, b);
        }
        Verdict::FlushSlot(_) | Verdict::Refuse => panic!("no such command in the model"),
    }
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(&KEYS[..]).prop_map(str::to_owned)
}

fn command() -> impl Strategy<Value = Vec<String>> {
    let text = prop::sample::select(&["1", "2", "3"][..]).prop_map(str::to_owned);
    let database = (0..DATABASES).prop_map(|db| db.to_string());
    let side = prop::sample::select(&["LEFT", "RIGHT"][..]).prop_map(str::to_owned);
    let with =
        |name: &'static str| move |rest: Vec<String>| std::iter::once(name.to_owned()).chain(rest).collect::<Vec<_>>();
    prop_oneof![
        4 => (key(), text.clone()).prop_map(|(k, v)| vec!["SET".into(), k, v]),
        2 => (key(), text.clone()).prop_map(|(k, v)| vec!["APPEND".into(), k, v]),
        6 => (key(), text.clone()).prop_map(|(k, v)| vec!["SADD".into(), k, v]),
        6 => (key(), text.clone()).prop_map(|(k, v)| vec!["LPUSH".into(), k, v]),
        2 => (key(), text.clone()).prop_map(|(k, v)| vec!["SREM".into(), k, v]),
        2 => prop::collection::vec(key(), 1..4).prop_map(with("DEL")),
        3 => prop::collection::vec((key(), text.clone()), 1..4).prop_map(move |pairs| {
            with("MSET")(pairs.into_iter().flat_map(|(k, v)| [k, v]).collect())
        }),
        4 => (key(), key()).prop_map(|(a, b)| vec!["RENAME".into(), a, b]),
        3 => (key(), key(), database.clone()).prop_map(|(a, b, db)| {
            vec!["COPY".into(), a, b, "DB".into(), db, "REPLACE".into()]
        }),
        3 => (key(), database.clone()).prop_map(|(a, db)| vec!["MOVE".into(), a, db]),
        5 => (key(), key(), text).prop_map(|(a, b, v)| vec!["SMOVE".into(), a, b, v]),
        5 => (key(), key(), side.clone(), side).prop_map(|(a, b, f, t)| vec!["LMOVE".into(), a, b, f, t]),
        5 => prop::collection::vec(key(), 2..4).prop_map(with("SUNIONSTORE")),
        1 => Just(vec!["FLUSHDB".to_owned()]),
        1 => (database.clone(), database).prop_map(|(a, b)| vec!["SWAPDB".into(), a, b]),
    ]
}

/// Scopes that send no two databases to one place.
fn scope() -> impl Strategy<Value = Scope> {
    let keys = prop::sample::subsequence(&["u:*", "x:a", "*:a", "y"][..], 0..3);
    let not_keys = prop::sample::subsequence(&["u:tmp", "x:*"][..], 0..2);
    let types = prop::option::weighted(
        0.3,
        prop::sample::subsequence(&[TypeName::String, TypeName::Set, TypeName::List][..], 1..3),
    );
    let databases = prop::option::weighted(0.4, prop::sample::subsequence(vec![0, 1, 2, 3], 1..4));
    let places = prop::option::weighted(0.4, Just(vec![0, 1, 2, 3]).prop_shuffle());
    (keys, not_keys, types, databases, places).prop_map(|(keys, not_keys, types, databases, places)| {
        let inside = |db: &u32| databases.as_ref().is_none_or(|list| list.contains(db));
        let places = places.unwrap_or_else(|| (0..DATABASES).collect());
        let map = (0..DATABASES).zip(places).filter(|(db, _)| inside(db));
        let bytes = |list: Vec<&str>| list.into_iter().map(|glob| glob.as_bytes().to_vec()).collect();
        Scope::new(ScopeSpec {
            database_map: map.collect(),
            databases: databases.clone(),
            keys: bytes(keys),
            not_keys: bytes(not_keys),
            types,
            ..ScopeSpec::default()
        })
        .expect("a good scope")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn target_equals_the_source_in_scope_after_every_command(
        scope in scope(),
        commands in prop::collection::vec((0..DATABASES, command()), 1..40),
    ) {
        let (mut source, mut target) = (Server::default(), Server::default());
        for (db, command) in commands {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let before = source.clone();
            // Only what took effect is streamed.
            if source.run(db, &words).is_err() || source == before {
                continue;
            }
            let owned = OwnedArgs::new(&words);
            let spec = lookup(owned.args()).expect("a row");
            let verdict = judge(owned.args(), spec, db, &scope, &mut SmallKeys::new());
            let verdict = verdict.expect("a good command");
            let told = format!("{words:?} in {db}: {verdict:?}");
            apply(verdict, db, &words, &source, &mut target, &scope);
            prop_assert_eq!(&target, &source.within(&scope), "{}", told);
        }
    }
}
