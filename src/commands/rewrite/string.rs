//! Strings, and the expiry of keys of any type.

use super::{Call, Expiry, Rewrite, Since, Words};
use crate::commands::Error;
use crate::commands::parse::{bad_option, is, is_any};

const SET_PXAT: Since = Since::redis(6, 2);
const SET_KEEPTTL: Since = Since::redis(6, 0);

/// What a SET leaves of the key's expiry.
#[derive(Clone, Copy)]
enum SetExpiry {
    None,
    Keep,
    At(i64),
}

/// The options of SET and MSETEX from some argument on.
struct SetOptions {
    expiry: SetExpiry,
    /// There is something among them that must not be sent as it is.
    changed: bool,
}

/// Reads `[NX|XX|IF… value] [GET] [EX n|PX n|EXAT n|PXAT n|KEEPTTL]`, in any order.
fn set_options(call: &Call<'_>, mut at: usize) -> Result<SetOptions, Error> {
    let mut options = SetOptions { expiry: SetExpiry::None, changed: false };
    while let Some(word) = call.args.get(at) {
        if is(word, "KEEPTTL") {
            options.expiry = SetExpiry::Keep;
            options.changed |= !call.caps.knows(SET_KEEPTTL);
        } else if is_any(word, &["NX", "XX", "GET"]) {
            options.changed = true;
        } else if is_any(word, &["IFEQ", "IFNE", "IFDEQ", "IFDNE"]) {
            call.arg(at + 1)?;
            at += 1;
            options.changed = true;
        } else if Expiry::is_option(word) {
            let value = call.int(at + 1)?;
            let Some(expiry) = Expiry::option(word, value) else {
                return Err(bad_option(call.spec, at));
            };
            let at_ms = call.caps.key_expiry_ms(expiry.at_ms(call.received_ms));
            options.changed |= expiry != Expiry::AtMs(at_ms) || !call.caps.knows(SET_PXAT);
            options.expiry = SetExpiry::At(at_ms);
            at += 1;
        } else {
            return Err(bad_option(call.spec, at));
        }
        at += 1;
    }
    Ok(options)
}

/// Puts the commands that set `key` to `value` behind `out`; false where the target has none.
fn push_set<'a>(
    call: &Call<'_>,
    (key, value): (&'a [u8], &'a [u8]),
    expiry: SetExpiry,
    out: &mut Vec<crate::args::OwnedArgs>,
) -> bool {
    let set = Words::new("SET").arg(key).arg(value);
    match expiry {
        SetExpiry::None => out.push(set.build()),
        SetExpiry::Keep if !call.caps.knows(SET_KEEPTTL) => return false,
        SetExpiry::Keep => out.push(set.word("KEEPTTL").build()),
        SetExpiry::At(ms) if call.caps.knows(SET_PXAT) => {
            out.push(set.word("PXAT").int(ms).build());
        }
        SetExpiry::At(ms) => {
            out.push(set.build());
            out.push(Words::new("PEXPIREAT").arg(key).int(ms).build());
        }
    }
    true
}

fn one_set(call: &Call<'_>, value: &[u8], expiry: SetExpiry) -> Result<Rewrite, Error> {
    let mut out = Vec::with_capacity(1);
    let said = push_set(call, (call.arg(1)?, value), expiry, &mut out);
    Ok(if said { Rewrite::Replace(out) } else { Rewrite::CopyKeys })
}

pub fn set(call: &Call<'_>) -> Result<Rewrite, Error> {
    if call.args.len() == 3 {
        return Ok(Rewrite::AsIs);
    }
    let value = call.arg(2)?;
    let options = set_options(call, 3)?;
    if !options.changed {
        return Ok(Rewrite::AsIs);
    }
    one_set(call, value, options.expiry)
}

pub fn setnx(call: &Call<'_>) -> Result<Rewrite, Error> {
    one_set(call, call.arg(2)?, SetExpiry::None)
}

/// SETEX and PSETEX: `key time value`.
pub fn setex(call: &Call<'_>) -> Result<Rewrite, Error> {
    let time = call.int(2)?;
    let expiry = if call.name_is("SETEX") { Expiry::Seconds(time) } else { Expiry::Ms(time) };
    let at_ms = call.caps.key_expiry_ms(expiry.at_ms(call.received_ms));
    one_set(call, call.arg(3)?, SetExpiry::At(at_ms))
}

pub fn msetnx(call: &Call<'_>) -> Result<Rewrite, Error> {
    Ok(call.renamed("MSET"))
}

/// `MSETEX n key value … [NX|XX] [EX n|PX n|EXAT n|PXAT n|KEEPTTL]`: all its keys were set, or it wasn't streamed.
pub fn msetex(call: &Call<'_>) -> Result<Rewrite, Error> {
    let keys = call.count(1, 2)?;
    let options = set_options(call, 2 + 2 * keys)?;
    if call.known() {
        if !options.changed {
            return Ok(Rewrite::AsIs);
        }
        let words = Words::new("MSETEX").extend(call.rest(1).take(1 + 2 * keys));
        return Ok(Rewrite::one(match options.expiry {
            SetExpiry::None => words,
            SetExpiry::Keep => words.word("KEEPTTL"),
            SetExpiry::At(ms) => words.word("PXAT").int(ms),
        }));
    }
    let mut out = Vec::with_capacity(keys);
    for nth in 0..keys {
        let pair = (call.arg(2 + 2 * nth)?, call.arg(3 + 2 * nth)?);
        if !push_set(call, pair, options.expiry, &mut out) {
            return Ok(Rewrite::CopyKeys);
        }
    }
    Ok(Rewrite::Replace(out))
}

/// GETDEL and DELIFEQ: the key is gone.
pub fn getdel(call: &Call<'_>) -> Result<Rewrite, Error> {
    Ok(Rewrite::one(Words::new("DEL").arg(call.arg(1)?)))
}

/// `DELEX key [IF… value]`
pub fn delex(call: &Call<'_>) -> Result<Rewrite, Error> {
    if call.args.len() == 2 && call.known() {
        return Ok(Rewrite::AsIs);
    }
    getdel(call)
}

/// `GETEX key [EX n|PX n|EXAT n|PXAT n|PERSIST]`
pub fn getex(call: &Call<'_>) -> Result<Rewrite, Error> {
    let key = call.arg(1)?;
    let Some(word) = call.args.get(2) else {
        return Ok(Rewrite::Drop);
    };
    if is(word, "PERSIST") {
        return Ok(Rewrite::one(Words::new("PERSIST").arg(key)));
    }
    let expiry = Expiry::option(word, call.int(3)?).ok_or_else(|| bad_option(call.spec, 2))?;
    pexpireat(call, key, expiry)
}

/// EXPIRE, PEXPIRE, EXPIREAT and PEXPIREAT: `key time [NX|XX|GT|LT]`.
///
/// The condition held, so it isn't sent.
pub fn expire(call: &Call<'_>) -> Result<Rewrite, Error> {
    let time = call.int(2)?;
    let expiry = match &*call.spec.name {
        "EXPIRE" => Expiry::Seconds(time),
        "PEXPIRE" => Expiry::Ms(time),
        "EXPIREAT" => Expiry::AtSeconds(time),
        _ => Expiry::AtMs(time),
    };
    let absolute = matches!(expiry, Expiry::AtSeconds(_) | Expiry::AtMs(_));
    if absolute && call.args.len() == 3 && call.caps.expiry_late_ms == 0 {
        return Ok(Rewrite::AsIs);
    }
    pexpireat(call, call.arg(1)?, expiry)
}

fn pexpireat(call: &Call<'_>, key: &[u8], expiry: Expiry) -> Result<Rewrite, Error> {
    let at_ms = call.caps.key_expiry_ms(expiry.at_ms(call.received_ms));
    Ok(Rewrite::one(Words::new("PEXPIREAT").arg(key).int(at_ms)))
}
