//! What must change in a command before a target can have it, whatever the job's scope is.
//!
//! A streamed command took effect on the source, so conditions that can only have held are dropped; relative
//! times become absolute; what the target's version lacks is said with commands it has. Where that can't be
//! done exactly, the answer is to copy the keys that the command wrote.

mod expiry;
pub(super) mod hash;
pub(super) mod list;
pub(super) mod stream;
pub(super) mod string;
mod words;

use super::parse::{is, is_any, need, need_count, need_int};
use super::{Error, Group, Since, Spec, TargetCaps};
use crate::args::{Args, OwnedArgs};
use crate::filter::TypeName;
use expiry::Expiry;
use words::Words;

/// What to send for one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rewrite {
    /// The command as it came.
    AsIs,
    /// These instead, in this order and not torn apart.
    Replace(Vec<OwnedArgs>),
    /// Nothing: the target doesn't need it.
    Drop,
    /// A RESTORE whose payload must first get a footer that the target accepts, or be decoded.
    Restore(Restore),
    /// `FUNCTION RESTORE payload policy`, where the payload needs such a footer too. `policy` is REPLACE or FLUSH.
    RestoreFunctions { payload: usize, policy: &'static str },
    /// The target has nothing to say the same with: copy the keys it writes from the source.
    CopyKeys,
    /// The target can't hold what the command brings. These (or nothing) come nearest, for who accepts that.
    Nearest { commands: Vec<OwnedArgs>, lost: Lost },
    /// The target has no such type, so it can't hold the keys that the command writes.
    NoType(TypeName),
    /// It is a module's that the target doesn't have.
    NoModule,
    /// The target has nothing like it, and it has no keys that could be copied instead.
    CannotSend,
}

/// What a command brings that a target may have no place for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    FieldExpiry,
    Idempotency,
}

impl Rewrite {
    fn one(words: Words<'_>) -> Self {
        Rewrite::Replace(vec![words.build()])
    }
}

/// A RESTORE in a stream; the numbers are indices of arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restore {
    pub key: usize,
    pub payload: usize,
    /// Unix time in ms, lateness included; 0: the key doesn't expire. To be sent with ABSTTL, or relative before 5.0.
    pub expiry_ms: i64,
    /// Seconds since its last use.
    pub idle: Option<i64>,
    /// How often it is used, as LFU counts it.
    pub freq: Option<i64>,
}

/// One command on its way through a rewriter.
pub struct Call<'a> {
    pub(super) args: Args<'a>,
    pub(super) spec: &'a Spec,
    pub(super) received_ms: i64,
    pub(super) caps: &'a TargetCaps,
}

impl<'a> Call<'a> {
    fn arg(&self, index: usize) -> Result<&'a [u8], Error> {
        need(self.args, self.spec, index)
    }

    fn int(&self, index: usize) -> Result<i64, Error> {
        need_int(self.args, self.spec, index)
    }

    fn count(&self, index: usize, each: usize) -> Result<usize, Error> {
        need_count(self.args, self.spec, index, each, 1)
    }

    /// The command's name as it came.
    fn name(&self) -> &'a [u8] {
        self.args.get(0).unwrap_or_default()
    }

    fn name_is(&self, word: &str) -> bool {
        is(self.name(), word)
    }

    pub(super) fn rest(&self, from: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let args = self.args;
        (from..args.len()).filter_map(move |index| args.get(index))
    }

    fn known(&self) -> bool {
        self.caps.knows_command(self.spec)
    }

    /// The command as it came, with another name.
    fn renamed(&self, name: &str) -> Rewrite {
        Rewrite::one(Words::new(name).extend(self.rest(1)))
    }
}

/// What to send for `args`, a command that the source's stream brought at `received_ms` (Unix time).
///
/// Relative times count from `received_ms`; every expiry that is written gets the target's lateness.
/// The class of the result ([`super::replayable`]) is that of what is returned, not of `args`.
/// # Errors
/// As [`super::keys`]: arguments that such a command can't have.
pub fn normalise(args: Args<'_>, spec: &Spec, received_ms: i64, caps: &TargetCaps) -> Result<Rewrite, Error> {
    if let Group::Of(name) = spec.group
        && !caps.holds(name)
    {
        // There is nothing to take away from.
        return Ok(if spec.removes_only { Rewrite::Drop } else { Rewrite::NoType(name) });
    }
    let rewrite = match spec.rewrite {
        None => Rewrite::AsIs,
        Some(rewriter) => rewriter(&Call { args, spec, received_ms, caps })?,
    };
    Ok(match rewrite {
        Rewrite::AsIs if !caps.knows_command(spec) => without(spec),
        Rewrite::Replace(list) if !caps.lacking.is_empty() && list.iter().any(|one| is_lacking(one, caps)) => {
            without(spec)
        }
        rewrite => rewrite,
    })
}

fn is_lacking(command: &OwnedArgs, caps: &TargetCaps) -> bool {
    super::lookup(command.args()).is_some_and(|spec| caps.lacking.lacks(spec))
}

/// What is left for a command the target doesn't know and that has no other words.
fn without(spec: &Spec) -> Rewrite {
    match spec.group {
        Group::None => Rewrite::CannotSend,
        Group::Of(_) | Group::Any => Rewrite::CopyKeys,
    }
}

/// Servers stream the effects of these; should one come all the same, only its result can be had.
pub(super) fn effects(_: &Call<'_>) -> Result<Rewrite, Error> {
    Ok(Rewrite::CopyKeys)
}

/// PING, REPLCONF and the like; PFCOUNT only refreshes a cached count.
pub(super) fn discard(_: &Call<'_>) -> Result<Rewrite, Error> {
    Ok(Rewrite::Drop)
}

pub(super) fn unlink(call: &Call<'_>) -> Result<Rewrite, Error> {
    Ok(if call.known() { Rewrite::AsIs } else { call.renamed("DEL") })
}

pub(super) fn renamenx(call: &Call<'_>) -> Result<Rewrite, Error> {
    Ok(call.renamed("RENAME"))
}

/// It found no key in the way, or had REPLACE: so it may always have it.
pub(super) fn copy(call: &Call<'_>) -> Result<Rewrite, Error> {
    if !call.known() {
        return Ok(Rewrite::CopyKeys);
    }
    if call.rest(3).any(|arg| is(arg, "REPLACE")) {
        return Ok(Rewrite::AsIs);
    }
    let words = Words::new("COPY").extend(call.rest(1)).word("REPLACE");
    Ok(Rewrite::one(words))
}

/// `RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME s] [FREQ n]`
pub(super) fn restore(call: &Call<'_>) -> Result<Rewrite, Error> {
    let (mut absolute, mut idle, mut freq) = (false, None, None);
    call.arg(3)?;
    let mut at = 4;
    while let Some(word) = call.args.get(at) {
        if is(word, "ABSTTL") {
            absolute = true;
        } else if is(word, "IDLETIME") {
            at += 1;
            idle = Some(call.int(at)?);
        } else if is(word, "FREQ") {
            at += 1;
            freq = Some(call.int(at)?);
        } else if !is(word, "REPLACE") {
            return Err(super::parse::bad_option(call.spec, at));
        }
        at += 1;
    }
    let expiry_ms = match call.int(2)? {
        0 => 0,
        ttl if absolute => call.caps.key_expiry_ms(ttl),
        ttl => call.caps.key_expiry_ms(Expiry::Ms(ttl).at_ms(call.received_ms)),
    };
    Ok(Rewrite::Restore(Restore { key: 1, payload: 3, expiry_ms, idle, freq }))
}

pub(super) fn flush(call: &Call<'_>) -> Result<Rewrite, Error> {
    let keeps_word = match call.args.get(1) {
        None => true,
        Some(word) => is(word, "ASYNC") && call.caps.knows(Since::redis(4, 0)),
    };
    Ok(if keeps_word { Rewrite::AsIs } else { Rewrite::one(Words::new(&call.spec.name)) })
}

pub(super) fn script_flush(call: &Call<'_>) -> Result<Rewrite, Error> {
    Ok(if call.args.len() == 2 || call.caps.knows(Since::redis(6, 2)) {
        Rewrite::AsIs
    } else {
        Rewrite::one(Words::new("SCRIPT").word("FLUSH"))
    })
}

/// Sentinels announce the source to each other over this channel; a target's Sentinels would believe it.
const SENTINEL_CHANNEL: &[u8] = b"__sentinel__:hello";

pub(super) fn publish(call: &Call<'_>) -> Result<Rewrite, Error> {
    // Who lacks SPUBLISH has no subscribers to shard channels either.
    Ok(if call.arg(1)? == SENTINEL_CHANNEL || !call.known() { Rewrite::Drop } else { Rewrite::AsIs })
}

/// `FUNCTION LOAD [REPLACE] code`
pub(super) fn function_load(call: &Call<'_>) -> Result<Rewrite, Error> {
    if is(call.arg(2)?, "REPLACE") && call.args.len() > 3 {
        return Ok(Rewrite::AsIs);
    }
    if !call.known() {
        return Ok(Rewrite::CannotSend);
    }
    let words = Words::new("FUNCTION").word("LOAD").word("REPLACE");
    Ok(Rewrite::one(words.extend(call.rest(2))))
}

/// `FUNCTION RESTORE payload [FLUSH|APPEND|REPLACE]`
pub(super) fn function_restore(call: &Call<'_>) -> Result<Rewrite, Error> {
    call.arg(2)?;
    if !call.known() {
        return Ok(Rewrite::CannotSend);
    }
    let flush = call.args.get(3).is_some_and(|word| is(word, "FLUSH"));
    Ok(Rewrite::RestoreFunctions { payload: 2, policy: if flush { "FLUSH" } else { "REPLACE" } })
}

/// Sends `call` as it is where `fits`, else has its result copied.
fn as_is_or_copy(fits: bool) -> Result<Rewrite, Error> {
    Ok(if fits { Rewrite::AsIs } else { Rewrite::CopyKeys })
}

pub(super) fn bitop(call: &Call<'_>) -> Result<Rewrite, Error> {
    let plain = is_any(call.arg(1)?, &["AND", "OR", "XOR", "NOT"]);
    as_is_or_copy(plain || call.caps.knows(Since::redis_only(8, 2, 0)))
}

/// ZADD and GEOADD.
///
/// What is streamed took effect: with one member that is what the command says, whatever its conditions were.
pub(super) fn zadd(call: &Call<'_>) -> Result<Rewrite, Error> {
    let options: Vec<&[u8]> =
        call.rest(2).take_while(|arg| is_any(arg, &["NX", "XX", "GT", "LT", "CH", "INCR"])).collect();
    let has = |words: &[&str]| options.iter().any(|option| is_any(option, words));
    let needed = if has(&["GT", "LT"]) { Since::redis(6, 2) } else { Since::redis(3, 0) };
    if options.is_empty() || call.caps.knows(needed) {
        return Ok(Rewrite::AsIs);
    }
    let first = 2 + options.len();
    let is_one = call.args.len() == first + 2;
    let name = match has(&["INCR"]) {
        true if is_one => "ZINCRBY",
        false if is_one || !has(&["NX", "XX", "GT", "LT"]) => "ZADD",
        _ => return Ok(Rewrite::CopyKeys),
    };
    if call.spec.name != "ZADD" {
        return Ok(Rewrite::CopyKeys);
    }
    Ok(Rewrite::one(Words::new(name).arg(call.arg(1)?).extend(call.rest(first))))
}

/// ZUNIONSTORE and ZINTERSTORE: AGGREGATE COUNT is newer than the commands.
pub(super) fn zstore(call: &Call<'_>) -> Result<Rewrite, Error> {
    let keys = need_count(call.args, call.spec, 2, 1, 0)?;
    let mut options = call.rest(3 + keys);
    let mut counts = false;
    while let Some(word) = options.next() {
        if is(word, "AGGREGATE") {
            counts |= options.next().is_some_and(|how| is(how, "COUNT"));
        }
    }
    as_is_or_copy(!counts || call.caps.knows(Since::redis_only(8, 8, 0)))
}

/// GEORADIUS and GEORADIUSBYMEMBER, which are streamed where they store.
pub(super) fn georadius(call: &Call<'_>) -> Result<Rewrite, Error> {
    as_is_or_copy(call.caps.finds_places_alike)
}

pub(super) fn geosearchstore(call: &Call<'_>) -> Result<Rewrite, Error> {
    let polygon = call.rest(3).any(|arg| is(arg, "BYPOLYGON"));
    let known = !polygon || call.caps.knows(Since::valkey_only(9, 0));
    as_is_or_copy(known && call.caps.finds_places_alike)
}

/// ZPOPMIN and ZPOPMAX: before 5.0 the same by rank.
pub(super) fn zpop(call: &Call<'_>) -> Result<Rewrite, Error> {
    if call.known() {
        return Ok(Rewrite::AsIs);
    }
    let count = match call.args.get(2) {
        None => 1,
        Some(_) => call.int(2)?,
    };
    if count < 1 {
        return Ok(Rewrite::Drop);
    }
    let (first, last) = if call.name_is("ZPOPMIN") { (0, count - 1) } else { (-count, -1) };
    let words = Words::new("ZREMRANGEBYRANK").arg(call.arg(1)?);
    Ok(Rewrite::one(words.int(first).int(last)))
}

#[cfg(test)]
mod tests;
