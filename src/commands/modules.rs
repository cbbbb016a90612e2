//! Commands of modules of which servers don't say all that must be known.

use super::parse::is;
use super::rewrite::{Call, Rewrite};
use super::{Error, Group, KeyRule, Role, Shape, Spec};

/// Commands of Search whose first argument is a key, unlike the name of an index.
const SEARCH_KEYS: &[&str] = &["FT.SUGADD", "FT.SUGDEL", "FT.ADD", "FT.SAFEADD", "FT.ADDHASH", "FT.DEL"];

/// Puts right what COMMAND INFO says of a command. Sources: RedisTimeSeries 1.12, RedisBloom 2.8, RediSearch 2.10.
pub(super) fn correct(spec: &mut Spec) {
    match &*spec.name {
        // Only the first key is told.
        "TS.CREATERULE" | "TS.DELETERULE" => spec.keys = KeyRule::Two(Role::ReadWrite, Role::ReadWrite),
        "CMS.MERGE" | "TDIGEST.MERGE" => spec.keys = KeyRule::StoreCounted,
        "TS.INCRBY" | "TS.DECRBY" => spec.rewrite = Some(at_a_time),
        // Which counts decay is drawn by lot, on each server anew.
        "TOPK.ADD" | "TOPK.INCRBY" => spec.rewrite = Some(|_| Ok(Rewrite::CopyKeys)),
        // Indexes, aliases and dictionaries belong to the server; what is told as a key is the name of one.
        name if name.starts_with("FT.") && !SEARCH_KEYS.contains(&name) => {
            (spec.keys, spec.group, spec.shape) = (KeyRule::None, Group::None, Shape::Global);
        }
        _ => {}
    }
}

/// What to do about a command of a module that the target doesn't have.
pub(super) fn lack(spec: &mut Spec) {
    spec.rewrite = Some(|_| Ok(Rewrite::NoModule));
}

/// `TS.INCRBY key value [TIMESTAMP ms] …` is streamed as it came: without a time each server takes that of its own clock.
fn at_a_time(call: &Call<'_>) -> Result<Rewrite, Error> {
    let mut words = call.rest(3).skip_while(|word| !is(word, "TIMESTAMP")).skip(1);
    Ok(match words.next() {
        Some(time) if time != b"*" => Rewrite::AsIs,
        _ => Rewrite::CopyKeys,
    })
}
