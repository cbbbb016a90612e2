//! Hashes, and the expiry of their fields.

use super::{Call, Expiry, Lost, Rewrite, Since, Words};
use crate::args::OwnedArgs;
use crate::commands::Error;
use crate::commands::parse::{bad_option, is, is_any};

/// HSET takes several fields since 4.0.
pub fn hset(call: &Call<'_>) -> Result<Rewrite, Error> {
    Ok(if call.args.len() == 4 || call.caps.knows(Since::redis(4, 0)) { Rewrite::AsIs } else { call.renamed("HMSET") })
}

pub fn hsetnx(call: &Call<'_>) -> Result<Rewrite, Error> {
    Ok(call.renamed("HSET"))
}

/// `HGETDEL key FIELDS n field …`: HDEL takes the same fields away, and more targets know it.
pub fn hgetdel(call: &Call<'_>) -> Result<Rewrite, Error> {
    let fields = call.count(3, 1)?;
    let words = Words::new("HDEL").arg(call.arg(1)?);
    Ok(Rewrite::one(words.extend(call.rest(4).take(fields))))
}

/// HEXPIRE, HPEXPIRE, HEXPIREAT and HPEXPIREAT: `key time [NX|XX|GT|LT] FIELDS n field …`.
///
/// Valkey streams the condition together with fields for which it did not hold [T: 9.1], so it is sent too.
pub fn hexpire(call: &Call<'_>) -> Result<Rewrite, Error> {
    if !call.caps.expires_fields() {
        return Ok(without_expiry(vec![]));
    }
    if !call.known() {
        return Ok(Rewrite::CopyKeys);
    }
    let time = call.int(2)?;
    let expiry = match &*call.spec.name {
        "HEXPIRE" => Expiry::Seconds(time),
        "HPEXPIRE" => Expiry::Ms(time),
        "HEXPIREAT" => Expiry::AtSeconds(time),
        _ => Expiry::AtMs(time),
    };
    let at_ms = call.caps.field_expiry_ms(expiry.at_ms(call.received_ms));
    if expiry == Expiry::AtMs(at_ms) {
        return Ok(Rewrite::AsIs);
    }
    let words = Words::new("HPEXPIREAT").arg(call.arg(1)?).int(at_ms);
    Ok(Rewrite::one(words.extend(call.rest(3))))
}

/// What is left of a command that lets fields expire where they can't.
fn without_expiry(commands: Vec<OwnedArgs>) -> Rewrite {
    Rewrite::Nearest { commands, lost: Lost::FieldExpiry }
}

/// `HGETEX key [EX n|PX n|EXAT n|PXAT n|PERSIST] FIELDS n field …`
pub fn hgetex(call: &Call<'_>) -> Result<Rewrite, Error> {
    let (key, word) = (call.arg(1)?, call.arg(2)?);
    if is(word, "FIELDS") {
        return Ok(Rewrite::Drop);
    }
    if !call.caps.expires_fields() {
        return Ok(if is(word, "PERSIST") { Rewrite::CopyKeys } else { without_expiry(vec![]) });
    }
    if is(word, "PERSIST") {
        let words = Words::new("HPERSIST").arg(key);
        return Ok(Rewrite::one(words.extend(call.rest(3))));
    }
    let expiry = Expiry::option(word, call.int(3)?).ok_or_else(|| bad_option(call.spec, 2))?;
    let at_ms = call.caps.field_expiry_ms(expiry.at_ms(call.received_ms));
    let words = Words::new("HPEXPIREAT").arg(key).int(at_ms);
    Ok(Rewrite::one(words.extend(call.rest(4))))
}

/// What HSETEX says of the expiry of its fields.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldExpiry {
    None,
    Keep,
    At(i64),
}

/// `HSETEX key [NX|XX] [FNX|FXX] [EX n|PX n|EXAT n|PXAT n|KEEPTTL] FIELDS n field value …`
///
/// FNX and FXX hold for all its fields or for none, so they aren't sent; nor are Valkey's NX and XX, of the key.
pub fn hsetex(call: &Call<'_>) -> Result<Rewrite, Error> {
    let (mut expiry, mut changed) = (FieldExpiry::None, false);
    let mut at = 2;
    loop {
        let word = call.arg(at)?;
        if is(word, "FIELDS") {
            break;
        } else if is_any(word, &["FNX", "FXX", "NX", "XX"]) {
            changed = true;
        } else if is(word, "KEEPTTL") {
            expiry = FieldExpiry::Keep;
        } else {
            at += 1;
            let given = Expiry::option(word, call.int(at)?);
            let given = given.ok_or_else(|| bad_option(call.spec, at - 1))?;
            let at_ms = call.caps.field_expiry_ms(given.at_ms(call.received_ms));
            changed |= given != Expiry::AtMs(at_ms);
            expiry = FieldExpiry::At(at_ms);
        }
        at += 1;
    }
    let fields = call.count(at + 1, 2)?;
    if !call.known() {
        return hset_then_expire(call, at + 2, fields, expiry);
    }
    if !changed {
        return Ok(Rewrite::AsIs);
    }
    let words = Words::new("HSETEX").arg(call.arg(1)?);
    let words = match expiry {
        FieldExpiry::None => words,
        FieldExpiry::Keep => words.word("KEEPTTL"),
        FieldExpiry::At(ms) => words.word("PXAT").int(ms),
    };
    Ok(Rewrite::one(words.extend(call.rest(at))))
}

/// HSETEX for a target without it: `fields` pairs stand from `first` on.
///
/// HSET takes away a field's expiry, so KEEPTTL can be said only where fields have none.
fn hset_then_expire(call: &Call<'_>, first: usize, fields: usize, expiry: FieldExpiry) -> Result<Rewrite, Error> {
    let fields_expire = call.caps.expires_fields();
    let key = call.arg(1)?;
    let name = if call.caps.knows(Since::redis(4, 0)) { "HSET" } else { "HMSET" };
    let pairs = call.rest(first).take(2 * fields);
    let mut out = vec![Words::new(name).arg(key).extend(pairs).build()];
    match expiry {
        FieldExpiry::None => {}
        FieldExpiry::Keep if !fields_expire => {}
        FieldExpiry::At(ms) if fields_expire => {
            let words = Words::new("HPEXPIREAT").arg(key).int(ms).word("FIELDS");
            let names = call.rest(first).take(2 * fields).step_by(2);
            out.push(words.int(fields as i64).extend(names).build());
        }
        FieldExpiry::At(_) => return Ok(without_expiry(out)),
        FieldExpiry::Keep => return Ok(Rewrite::CopyKeys),
    }
    Ok(Rewrite::Replace(out))
}
