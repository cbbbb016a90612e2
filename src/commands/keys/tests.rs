use super::*;
use crate::args::OwnedArgs;
use crate::commands::{known_names, lookup};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn command(line: &str) -> OwnedArgs {
    let words: Vec<&str> = line.split(' ').map(|word| if word == "\"\"" { "" } else { word }).collect();
    OwnedArgs::new(&words)
}

fn found(args: Args<'_>) -> Result<String, Error> {
    let spec = lookup(args).unwrap_or_else(|| panic!("no row for {:?}", args.get(0)));
    let mut out = SmallKeys::new();
    keys(spec, args, &mut out)?;
    let mut words: Vec<String> = out
        .iter()
        .map(|key| {
            let role = match key.role {
                Role::Write => "W",
                Role::Read => "R",
                Role::ReadWrite => "RW",
            };
            let db = key.db.map(|db| format!("@{db}")).unwrap_or_default();
            format!("{role}{}{db}", key.index)
        })
        .collect();
    if out.reads_undeclared {
        words.push("?".to_owned());
    }
    if words.is_empty() {
        words.push("-".to_owned());
    }
    Ok(words.join(" "))
}

fn samples() -> impl Iterator<Item = (&'static str, &'static str)> {
    include_str!("samples.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(" => ").expect("a line without =>"))
}

#[test]
fn keys_of_the_samples_are_where_the_samples_say() {
    for (line, expected) in samples() {
        let args = command(line);
        assert_eq!(found(args.args()).as_deref(), Ok(expected), "{line}");
        let lower = command(&line.to_ascii_lowercase());
        assert_eq!(found(lower.args()).as_deref(), Ok(expected), "{line} in lower case");
    }
}

#[test]
fn samples_have_every_row() {
    let seen: BTreeSet<&str> = samples().map(|(line, _)| &*lookup(command(line).args()).expect("a row").name).collect();
    for name in known_names() {
        let name = name.replace('|', " ");
        let container = known_names().any(|other| other.starts_with(&format!("{name}|")));
        assert!(container || seen.contains(&*name), "no sample of {name}");
    }
}

#[test]
fn keys_of_a_cut_command_are_an_error_or_fewer() {
    for (line, _) in samples() {
        let words: Vec<&str> = line.split(' ').collect();
        for end in 1..words.len() {
            let args = OwnedArgs::new(&words[..end]);
            if lookup(args.args()).is_some() {
                let _ = found(args.args());
            }
        }
    }
}

#[test]
fn keys_of_hostile_counts_are_an_error() {
    for line in [
        "MSETEX 3 a 1 b 2",
        "MSETEX -1 a 1",
        "EVAL body 9223372036854775807 a",
        "EVAL body 18446744073709551616 a",
        "EVAL body -1 a",
        "EVAL body x a",
        "ZUNIONSTORE d 3 a b",
        "ZUNIONSTORE d +1 a",
        "LMPOP 2 a",
        "BLMPOP 0 4294967297 a LEFT",
        "XREADGROUP GROUP g c STREAMS",
        "XREADGROUP GROUP g c STREAMS a b c",
        "XREADGROUP GROUP g c COUNT",
        "MOVE a -1",
        "MOVE a 4294967296",
        "COPY a b DB",
        "SORT a STORE",
        "SORT a WHAT",
        "BLPOP 0",
        "DEL",
    ] {
        assert!(found(command(line).args()).is_err(), "{line}");
    }
}

/// §13.4 of the replication reference: flag `write` in COMMAND of redis 8.10.2 and valkey 9.1.2, then what is
/// streamed without it.
const STREAMED: &str = "
APPEND BITFIELD BITOP BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN COPY DECR DECRBY DEL EXPIRE
EXPIREAT FLUSHALL FLUSHDB FUNCTION|DELETE FUNCTION|FLUSH FUNCTION|LOAD FUNCTION|RESTORE GEOADD GEORADIUS
GEORADIUSBYMEMBER GEOSEARCHSTORE GETDEL GETEX GETSET HDEL HEXPIRE HEXPIREAT HGETDEL HGETEX HINCRBY HINCRBYFLOAT
HMSET HPERSIST HPEXPIRE HPEXPIREAT HSET HSETEX HSETNX INCR INCRBY INCRBYFLOAT LINSERT LMOVE LMPOP LPOP LPUSH
LPUSHX LREM LSET LTRIM MIGRATE MOVE MSET MSETEX MSETNX PERSIST PEXPIRE PEXPIREAT PFADD PFDEBUG PFMERGE PSETEX
RENAME RENAMENX RESTORE RESTORE-ASKING RPOP RPOPLPUSH RPUSH RPUSHX SADD SDIFFSTORE SET SETBIT SETEX SETNX
SETRANGE SINTERSTORE SMOVE SORT SPOP SREM SUNIONSTORE SWAPDB UNLINK XACK XADD XAUTOCLAIM XCLAIM XDEL
XGROUP|CREATE XGROUP|CREATECONSUMER XGROUP|DELCONSUMER XGROUP|DESTROY XGROUP|SETID XREADGROUP XSETID XTRIM ZADD
ZDIFFSTORE ZINCRBY ZINTERSTORE ZMPOP ZPOPMAX ZPOPMIN ZRANGESTORE ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK
ZREMRANGEBYSCORE ZUNIONSTORE
ARDEL ARDELRANGE ARINSERT ARMSET ARRING ARSEEK ARSET BLMOVEM DELEX HIMPORT|SET INCREX LMOVEM TRIMSLOTS VADD VREM
VSETATTR XACKDEL XCFGSET XDELEX XIDMPRECORD XNACK
CLUSTER|FLUSHSLOT DELIFEQ
PFCOUNT PUBLISH SPUBLISH EVAL EVALSHA FCALL SCRIPT|LOAD SCRIPT|FLUSH CLUSTER|SYNCSLOTS CLUSTER|SETSLOT
PING REPLCONF SELECT MULTI EXEC OPINFO";

#[test]
fn table_has_what_servers_stream_and_nothing_else() {
    let streamed: BTreeSet<String> = STREAMED.split_whitespace().map(str::to_owned).collect();
    let containers = ["XGROUP", "FUNCTION", "SCRIPT", "CLUSTER", "HIMPORT"];
    let known: BTreeSet<String> = known_names().filter(|name| !containers.contains(&name.as_str())).collect();
    assert_eq!(known, streamed);
    // 138 of redis, 2 only of valkey, 16 without the flag.
    assert_eq!(known.len(), 138 + 2 + 16);
}

#[test]
fn lookup_of_other_names_finds_nothing() {
    for line in ["GET k", "XGROUP", "XGROUP HELP", "SETS k v", "SE", "JSON.SET k $ 1"] {
        assert!(lookup(command(line).args()).is_none(), "{line}");
    }
    assert!(lookup(OwnedArgs::new(&[b""]).args()).is_none());
    assert!(lookup(OwnedArgs::new(&[vec![b'A'; 100]]).args()).is_none());
    assert!(lookup(Args::new(b"", &[])).is_none());
}

proptest! {
    #[test]
    fn keys_of_any_arguments_lie_within_them(
        nth in 0..155usize,
        rest in prop::collection::vec(
            prop::sample::select(&["0", "1", "2", "-1", "99999999999", "STORE", "STREAMS", "KEYS", "DB", "BY",
                "GROUP", "IDS", "FIELDS", "", "k", "CREATE"][..]), 0..9),
    ) {
        let name = STREAMED.split_whitespace().nth(nth).expect("155 names");
        let words: Vec<&str> = name.split('|').chain(rest.iter().copied()).collect();
        let args = OwnedArgs::new(&words);
        let spec = lookup(args.args()).expect("a row");
        let mut out = SmallKeys::new();
        if keys(spec, args.args(), &mut out).is_ok() {
            prop_assert!(out.iter().all(|key| args.args().get(key.index).is_some()));
        }
    }
}
