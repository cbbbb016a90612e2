//! Arguments that nobody looks into on their way.

use super::parse::is_any;
use crate::args::Args;

/// Commands with one key, then data that is passed on as it is.
const AFTER_KEY: &[&str] = &[
    "SET",
    "APPEND",
    "SETRANGE",
    "GETSET",
    "SETNX",
    "SETEX",
    "PSETEX",
    "LPUSH",
    "RPUSH",
    "LPUSHX",
    "RPUSHX",
    "LSET",
    "LINSERT",
    "SADD",
    "SREM",
    "HSET",
    "HMSET",
    "HSETNX",
    "ZADD",
    "XADD",
    "PFADD",
    "JSON.SET",
    "JSON.MERGE",
    "JSON.ARRAPPEND",
    "JSON.STRAPPEND",
];

/// Commands of pairs, a key and its value.
const PAIRS: &[&str] = &["MSET", "MSETNX"];

/// Whether argument `index` of a command, of which only the arguments before it are here, is data that is passed on
/// without a look into it.
pub fn is_opaque(args: Args<'_>, index: usize) -> bool {
    let name = args.get(0).unwrap_or_default();
    index >= 2 && (is_any(name, AFTER_KEY) || index.is_multiple_of(2) && is_any(name, PAIRS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OwnedArgs;

    #[test]
    fn opaque_are_values_and_never_keys() {
        let told = |words: &[&str], index| is_opaque(OwnedArgs::new(words).args(), index);
        assert!(told(&["set", "k"], 2) && !told(&["SET"], 1) && !told(&[], 0));
        assert!(told(&["MSET", "k"], 2) && !told(&["MSET", "k", "v"], 3) && told(&["MSET", "k", "v", "l"], 4));
        assert!(!told(&["RESTORE", "k", "0"], 3) && !told(&["EVAL"], 2), "these are looked into");
    }
}
