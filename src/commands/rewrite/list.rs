//! Lists.

use super::{Call, Rewrite, Since, Words};
use crate::args::OwnedArgs;
use crate::commands::Error;
use crate::commands::parse::{bad_option, is, is_any};

/// How many LMOVEs one LMOVEM may become; above that its result is copied.
const LMOVES_MAX: i64 = 1024;

/// LPUSHX and RPUSHX took one element before 4.0; they found the list, so a plain push does the same.
pub fn pushx(call: &Call<'_>) -> Result<Rewrite, Error> {
    if call.args.len() == 3 || call.caps.knows(Since::redis(4, 0)) {
        return Ok(Rewrite::AsIs);
    }
    Ok(call.renamed(if call.name_is("LPUSHX") { "LPUSH" } else { "RPUSH" }))
}

/// LPOP and RPOP have a count since 6.2; LTRIM takes the same elements away.
pub fn pop(call: &Call<'_>) -> Result<Rewrite, Error> {
    if call.args.len() == 2 || call.caps.knows(Since::redis(6, 2)) {
        return Ok(Rewrite::AsIs);
    }
    let count = call.int(2)?;
    if count < 1 {
        return Ok(Rewrite::Drop);
    }
    let (first, last) = if call.name_is("LPOP") { (count, -1) } else { (0, count.saturating_add(1).saturating_neg()) };
    let words = Words::new("LTRIM").arg(call.arg(1)?);
    Ok(Rewrite::one(words.int(first).int(last)))
}

/// `BRPOPLPUSH src dst timeout`, which did not block.
pub fn brpoplpush(call: &Call<'_>) -> Result<Rewrite, Error> {
    let words = Words::new("RPOPLPUSH").arg(call.arg(1)?);
    Ok(Rewrite::one(words.arg(call.arg(2)?)))
}

/// `LMOVE src dst from to`; of BLMOVE the timeout is left out.
pub fn lmove(call: &Call<'_>) -> Result<Rewrite, Error> {
    call.arg(4)?;
    if call.known() && call.name_is("LMOVE") {
        return Ok(Rewrite::AsIs);
    }
    Ok(one_move(call)?.map_or(Rewrite::CopyKeys, |one| Rewrite::Replace(vec![one])))
}

/// Moves one element as `call` does; `None` where the target can't.
fn one_move(call: &Call<'_>) -> Result<Option<OwnedArgs>, Error> {
    let (src, dst) = (call.arg(1)?, call.arg(2)?);
    let (from, to) = (call.arg(3)?, call.arg(4)?);
    if call.caps.knows(Since::redis(6, 2)) {
        let words = Words::new("LMOVE").arg(src).arg(dst);
        return Ok(Some(words.arg(from).arg(to).build()));
    }
    let pops_right = is(from, "RIGHT") && is(to, "LEFT");
    Ok(pops_right.then(|| Words::new("RPOPLPUSH").arg(src).arg(dst).build()))
}

/// `LMOVEM src dst from to [COUNT|EXACTLY n] [OBO|BULK]`
///
/// One by one moves it is the same as long as the order doesn't turn: with OBO, with different sides, or for one
/// element. A list moved onto itself counts round once it is at its end, so there the number must be exact.
pub fn lmovem(call: &Call<'_>) -> Result<Rewrite, Error> {
    if call.known() {
        return Ok(Rewrite::AsIs);
    }
    let (mut count, mut exact, mut bulk) = (1, true, false);
    let mut at = 5;
    while let Some(word) = call.args.get(at) {
        if is_any(word, &["COUNT", "EXACTLY"]) {
            exact = is(word, "EXACTLY");
            at += 1;
            count = call.int(at)?;
        } else if is_any(word, &["OBO", "BULK"]) {
            bulk = is(word, "BULK");
        } else {
            return Err(bad_option(call.spec, at));
        }
        at += 1;
    }
    let same_side = call.arg(3)?.eq_ignore_ascii_case(call.arg(4)?);
    let keeps_order = !bulk || !same_side || count == 1;
    let counted = exact || call.arg(1)? != call.arg(2)?;
    if !keeps_order || !counted || !(1..=LMOVES_MAX).contains(&count) {
        return Ok(Rewrite::CopyKeys);
    }
    let Some(one) = one_move(call)? else {
        return Ok(Rewrite::CopyKeys);
    };
    Ok(Rewrite::Replace((0..count).map(|_| one.clone()).collect()))
}
