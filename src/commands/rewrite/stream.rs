//! Streams.

use super::{Call, Lost, Rewrite, Since, Words};
use crate::commands::Error;
use crate::commands::parse::{bad_option, is, is_any};

const XIDMPRECORD: Since = Since::redis_only(8, 6, 2);
/// KEEPREF, DELREF and ACKED.
const REFERENCES: Since = Since::redis_only(8, 2, 0);
const MINID: Since = Since::redis(6, 2);
/// ENTRIESREAD, ENTRIESADDED and MAXDELETEDID.
const ENTRIES_COUNTED: Since = Since::redis(7, 0);

/// The words of XADD or XTRIM that not every target has.
#[derive(Default)]
struct StreamOptions<'a> {
    /// Which arguments go along to the target.
    kept: Vec<usize>,
    /// Some did not.
    cut: bool,
    /// Said in a way that the target can't follow at all.
    beyond: bool,
    /// `producer` and, but for IDMPAUTO, `iid`.
    idempotence: Option<(&'a [u8], Option<&'a [u8]>)>,
    /// The first argument that is no option.
    end: usize,
}

/// Reads `[NOMKSTREAM] [KEEPREF|DELREF|ACKED] [IDMPAUTO p|IDMP p i] [MAXLEN|MINID [=|~] n [LIMIT n]]`, in any order.
fn stream_options<'a>(call: &Call<'a>) -> Result<StreamOptions<'a>, Error> {
    let mut found = StreamOptions::default();
    let mut approximate = false;
    let mut at = 2;
    while let Some(word) = call.args.get(at) {
        let mut taken = 1;
        let mut keep = true;
        if is(word, "NOMKSTREAM") {
            // The stream was there.
            keep = call.caps.knows(MINID);
        } else if is_any(word, &["KEEPREF", "DELREF", "ACKED"]) {
            keep = call.caps.knows(REFERENCES);
            found.beyond |= !keep && !is(word, "KEEPREF");
        } else if is(word, "IDMPAUTO") {
            found.idempotence = Some((call.arg(at + 1)?, None));
            (taken, keep) = (2, false);
        } else if is(word, "IDMP") {
            found.idempotence = Some((call.arg(at + 1)?, Some(call.arg(at + 2)?)));
            (taken, keep) = (3, false);
        } else if is_any(word, &["MAXLEN", "MINID"]) {
            found.beyond |= is(word, "MINID") && !call.caps.knows(MINID);
            approximate = is(call.arg(at + 1)?, "~");
            taken = if is_any(call.arg(at + 1)?, &["=", "~"]) { 3 } else { 2 };
        } else if is(word, "LIMIT") {
            // A source makes an exact trim of an approximate one and leaves its LIMIT, which clients may not say then.
            (taken, keep) = (2, approximate && call.caps.knows(MINID));
        } else {
            break;
        }
        if keep {
            found.kept.extend(at..at + taken);
        }
        found.cut |= !keep;
        at += taken;
    }
    found.end = at;
    Ok(found)
}

/// `XADD key [options] id field value …`
///
/// With IDMP or IDMPAUTO and `*` it found a duplicate and added nothing. With an id it may come from a primary only,
/// so an ordinary entry goes, and the record of it where the target keeps such. IDMPAUTO's record is given up: its name
/// is a hash that only servers know to make, and it lapses by itself.
pub fn xadd(call: &Call<'_>) -> Result<Rewrite, Error> {
    if call.args.len() == 5 && call.known() {
        return Ok(Rewrite::AsIs);
    }
    let options = stream_options(call)?;
    let (key, id) = (call.arg(1)?, call.arg(options.end)?);
    if options.idempotence.is_some() && id == b"*" {
        return Ok(Rewrite::Drop);
    }
    if options.beyond || !call.known() {
        return Ok(Rewrite::CopyKeys);
    }
    if !options.cut {
        return Ok(Rewrite::AsIs);
    }
    let kept = options.kept.iter().filter_map(|at| call.args.get(*at));
    let words = Words::new("XADD").arg(key).extend(kept);
    let mut out = vec![words.extend(call.rest(options.end)).build()];
    if options.idempotence.is_some() && !call.caps.knows(XIDMPRECORD) {
        return Ok(Rewrite::Nearest { commands: out, lost: Lost::Idempotency });
    }
    if let Some((producer, Some(iid))) = options.idempotence {
        let words = Words::new("XIDMPRECORD").arg(key).arg(producer);
        out.push(words.arg(iid).arg(id).build());
    }
    Ok(Rewrite::Replace(out))
}

/// `XTRIM key MAXLEN|MINID [=|~] n [LIMIT n] [KEEPREF|DELREF|ACKED]`
pub fn xtrim(call: &Call<'_>) -> Result<Rewrite, Error> {
    let options = stream_options(call)?;
    if options.end < call.args.len() {
        return Err(bad_option(call.spec, options.end));
    }
    if options.beyond || !call.known() {
        return Ok(Rewrite::CopyKeys);
    }
    if !options.cut {
        return Ok(Rewrite::AsIs);
    }
    let kept = options.kept.iter().filter_map(|at| call.args.get(*at));
    Ok(Rewrite::one(Words::new("XTRIM").arg(call.arg(1)?).extend(kept)))
}

/// The ids of `[KEEPREF|DELREF|ACKED] IDS n id …` from `at` on; `None` where other references would go too.
fn ids_keeping_references<'a>(call: &Call<'a>, mut at: usize) -> Result<Option<Vec<&'a [u8]>>, Error> {
    let mut keeps = true;
    while !is(call.arg(at)?, "IDS") {
        keeps &= is(call.arg(at)?, "KEEPREF");
        at += 1;
    }
    let ids = call.count(at + 1, 1)?;
    Ok(keeps.then(|| call.rest(at + 2).take(ids).collect()))
}

pub fn xdelex(call: &Call<'_>) -> Result<Rewrite, Error> {
    if call.known() {
        return Ok(Rewrite::AsIs);
    }
    let Some(ids) = ids_keeping_references(call, 2)? else {
        return Ok(Rewrite::CopyKeys);
    };
    let words = Words::new("XDEL").arg(call.arg(1)?);
    Ok(Rewrite::one(words.extend(ids.into_iter())))
}

/// `XACKDEL key group [KEEPREF|DELREF|ACKED] IDS n id …`
///
/// It leaves an entry alone that isn't pending in the group [T: 8.6], which XDEL would delete. Of one id alone it is
/// known that it was pending.
pub fn xackdel(call: &Call<'_>) -> Result<Rewrite, Error> {
    if call.known() {
        return Ok(Rewrite::AsIs);
    }
    let (key, group) = (call.arg(1)?, call.arg(2)?);
    Ok(match ids_keeping_references(call, 3)?.as_deref() {
        Some([id]) => Rewrite::Replace(vec![
            Words::new("XACK").arg(key).arg(group).arg(id).build(),
            Words::new("XDEL").arg(key).arg(id).build(),
        ]),
        _ => Rewrite::CopyKeys,
    })
}

/// XCFGSET and XIDMPRECORD: a target without them has no such bookkeeping.
pub fn bookkeeping(call: &Call<'_>) -> Result<Rewrite, Error> {
    let nothing = Rewrite::Nearest { commands: vec![], lost: Lost::Idempotency };
    Ok(if call.known() { Rewrite::AsIs } else { nothing })
}

/// `XSETID key id [ENTRIESADDED n] [MAXDELETEDID id]`
pub fn xsetid(call: &Call<'_>) -> Result<Rewrite, Error> {
    if call.args.len() == 3 || call.caps.knows(ENTRIES_COUNTED) {
        return Ok(Rewrite::AsIs);
    }
    if !call.known() {
        return Ok(Rewrite::CopyKeys);
    }
    let words = Words::new("XSETID").arg(call.arg(1)?);
    Ok(Rewrite::one(words.arg(call.arg(2)?)))
}

/// `XGROUP CREATE key group id [MKSTREAM] [ENTRIESREAD n]` and `XGROUP SETID key group id [ENTRIESREAD n]`
pub fn xgroup(call: &Call<'_>) -> Result<Rewrite, Error> {
    call.arg(4)?;
    let counted = call.rest(5).any(|arg| is(arg, "ENTRIESREAD"));
    if !counted || !call.known() || call.caps.knows(ENTRIES_COUNTED) {
        return Ok(Rewrite::AsIs);
    }
    let words = Words::new("XGROUP").extend(call.rest(1).take(4));
    let makes = call.rest(5).any(|arg| is(arg, "MKSTREAM"));
    Ok(Rewrite::one(if makes { words.word("MKSTREAM") } else { words }))
}

/// `XGROUP CREATECONSUMER key group consumer`: before 6.2 a consumer is made by reading its own, empty, history.
pub fn createconsumer(call: &Call<'_>) -> Result<Rewrite, Error> {
    let (key, group, consumer) = (call.arg(2)?, call.arg(3)?, call.arg(4)?);
    if call.known() {
        return Ok(Rewrite::AsIs);
    }
    if !call.caps.knows(Since::redis(5, 0)) {
        return Ok(Rewrite::CopyKeys);
    }
    let words = Words::new("XREADGROUP").word("GROUP").arg(group);
    let words = words.arg(consumer).word("STREAMS").arg(key).word("0");
    Ok(Rewrite::one(words))
}
