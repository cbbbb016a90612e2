//! Which commands may run again, together with those behind them, without another end.

use super::parse::{is, is_any};
use super::{Replay, Spec};
use crate::args::Args;

/// Whether `args`, as they are sent, may go bare to a cluster target (`delivery.md`).
///
/// True only for what replaces a whole key, or assigns one element or the expiry, whatever was there before,
/// and can't empty a collection. In doubt, and for a command that only conditionally does so, false.
pub fn replayable(spec: &Spec, args: Args<'_>) -> bool {
    match spec.replay {
        Replay::Replayable => true,
        Replay::OnceOnly => false,
        Replay::ByOptions => by_options(spec, args),
    }
}

fn by_options(spec: &Spec, args: Args<'_>) -> bool {
    match &*spec.name {
        "SET" => set_options(args, 3),
        // Without a condition it is a DEL.
        "DELEX" => args.len() == 2,
        "MSETEX" => args
            .get(1)
            .and_then(super::parse::int)
            .and_then(|keys| usize::try_from(keys).ok()?.checked_mul(2)?.checked_add(2))
            .is_some_and(|options| options <= args.len() && set_options(args, options)),
        "EXPIREAT" | "PEXPIREAT" => args.len() == 3,
        "RESTORE" => restore(args),
        "BITFIELD" => bitfield_only_sets(args),
        "ZADD" | "GEOADD" => zadd_is_plain(args),
        "HSETEX" => !fields_options(args, &["FNX", "FXX", "EX", "PX"]),
        "HEXPIREAT" | "HPEXPIREAT" => args.get(3).is_some_and(|arg| is(arg, "FIELDS")),
        "XGROUP SETID" => args.get(4).is_some_and(|id| id != b"$"),
        _ => false,
    }
}

/// Whether the options of SET from `at` on give it an absolute expiry, keep the present one, or take it away.
fn set_options(args: Args<'_>, mut at: usize) -> bool {
    while let Some(word) = args.get(at) {
        at += if is_any(word, &["PXAT", "EXAT"]) {
            2
        } else if is(word, "KEEPTTL") {
            1
        } else {
            return false;
        };
    }
    true
}

fn restore(args: Args<'_>) -> bool {
    let has = |word| args.iter().skip(4).any(|arg| is(arg, word));
    has("REPLACE") && (has("ABSTTL") || args.get(2) == Some(b"0"))
}

fn bitfield_only_sets(args: Args<'_>) -> bool {
    let mut at = 2;
    while let Some(word) = args.get(at) {
        at += if is(word, "SET") {
            4
        } else if is(word, "GET") {
            3
        } else if is(word, "OVERFLOW") {
            2
        } else {
            return false;
        };
    }
    true
}

fn zadd_is_plain(args: Args<'_>) -> bool {
    let first = args.iter().skip(2).find(|arg| !is(arg, "CH"));
    first.is_some_and(|arg| !is_any(arg, &["NX", "XX", "GT", "LT", "INCR"]))
}

/// Whether one of `words` stands among the options before FIELDS.
fn fields_options(args: Args<'_>, words: &[&str]) -> bool {
    args.iter().skip(2).take_while(|arg| !is(arg, "FIELDS")).any(|arg| is_any(arg, words))
}
