//! Time series that are copied from the source: DUMP has no compaction rules, and RESTORE takes away those that were there.
//! So all series that hang together are copied at one offset, and the rules are made again.

use super::Stream;
use crate::args::OwnedArgs;
use crate::commands::CopyKey;
use crate::pipeline::decode::Error;
use crate::resp::reply::Reply;
use crate::source::side::Found;

/// The module whose values these are.
const MODULE: &str = "timeseries";

/// Most series that are copied along with one.
const TOGETHER_MAX: usize = 64;

/// A compaction rule: what of a series goes into another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    db: u32,
    from: Vec<u8>,
    to: Vec<u8>,
    /// Aggregation, bucket and alignment, as TS.CREATERULE takes them.
    words: [Vec<u8>; 3],
}

impl Stream<'_> {
    /// Adds to keys that are to be copied the series that belong to them, and returns the rules among all of these.
    pub(super) fn with_rules(&mut self, wanted: &mut Vec<(u32, Vec<u8>)>) -> Result<Vec<Rule>, Error> {
        let mut rules: Vec<Rule> = Vec::new();
        if !self.is_of_module || !self.parts.modules.has(MODULE) {
            return Ok(rules);
        }
        for (db, key) in wanted.clone() {
            let Some(info) = self.parts.copy_keys.series_info(db, &key)? else { continue };
            let (root, info) = match field(&info, b"sourceKey").and_then(Reply::bytes) {
                Some(root) => (root.to_vec(), self.parts.copy_keys.series_info(db, root)?),
                None => (key, Some(info)),
            };
            let of_root = info.map(|info| rules_of(db, &root, &info)).unwrap_or_default();
            for rule in of_root.into_iter().take(TOGETHER_MAX) {
                if !rules.contains(&rule) && self.can_be_made(&rule) {
                    rules.push(rule);
                }
            }
        }
        for name in rules.iter().flat_map(|rule| [(rule.db, rule.from.clone()), (rule.db, rule.to.clone())]) {
            if !wanted.contains(&name) {
                wanted.push(name);
            }
        }
        Ok(rules)
    }

    /// Whether the target has both ends, at one place, and gets them with this unit.
    fn can_be_made(&self, rule: &Rule) -> bool {
        let router = &self.parts.router;
        let apart = router.is_by_slot() && router.lane_of(&rule.from) != router.lane_of(&rule.to);
        let stays = |key: &Vec<u8>| {
            let key = CopyKey { db: rule.db, key: key.clone() };
            !self.parts.scope.key_in(key.db, &key.key) || self.is_kept(&key) || self.has_passed(&key.key)
        };
        !apart && !stays(&rule.from) && !stays(&rule.to)
    }

    /// Makes the rules between series that were just put again. A bucket that is open now has only what comes behind.
    pub(super) fn put_rules(&mut self, rules: &[Rule], keys: &[(u32, Vec<u8>)], found: &[Found]) {
        let is_there = |db: u32, key: &[u8]| {
            let of = keys.iter().zip(found).find(|((of, name), _)| *of == db && name == key);
            of.is_some_and(|(_, found)| found.payload.is_some())
        };
        for rule in rules.iter().filter(|rule| is_there(rule.db, &rule.from) && is_there(rule.db, &rule.to)) {
            let [aggregation, bucket, alignment] = &rule.words;
            let words = [b"TS.CREATERULE", &rule.from[..], &rule.to, b"AGGREGATION", aggregation, bucket, alignment];
            let router = &self.parts.router;
            let place = match router.is_by_slot() {
                true => router.place_of(&rule.from),
                false => router.place_of(&rule.from).with(router.place_of(&rule.to)),
            };
            let db = self.parts.scope.target_database(rule.db);
            self.unit.command(db, place, OwnedArgs::new(&words).args().raw());
            if self.parts.status.lost("the open bucket of a compaction rule") {
                let key = crate::target::escape_key(&rule.from);
                tracing::warn!(
                    key,
                    "a time series was copied by itself, and its compaction rules are made again: what its open buckets \
                     have so far is not in them"
                );
            }
        }
    }
}

/// The rules that TS.INFO tells of a series: target, bucket, aggregation, alignment (since 1.8).
fn rules_of(db: u32, from: &[u8], info: &Reply) -> Vec<Rule> {
    let rows = field(info, b"rules").and_then(Reply::array).unwrap_or_default();
    let rule = |row: &Reply| {
        let row = row.array()?;
        let number = |at: usize| row.get(at).and_then(Reply::integer).map(|n| n.to_string().into_bytes());
        let aggregation = row.get(2)?.bytes()?.to_vec();
        let words = [aggregation, number(1)?, number(3).unwrap_or_else(|| b"0".to_vec())];
        Some(Rule { db, from: from.to_vec(), to: row.first()?.bytes()?.to_vec(), words })
    };
    rows.iter().filter_map(rule).collect()
}

/// A field of a list of names and values.
fn field<'a>(list: &'a Reply, name: &[u8]) -> Option<&'a Reply> {
    list.array()?.chunks_exact(2).find(|pair| pair.first().and_then(Reply::bytes) == Some(name))?.get(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_from_what_the_source_says_of_a_series() {
        let word = |w: &str| Reply::Bulk(w.into());
        let row = Reply::Array(vec![word("to"), Reply::Integer(60_000), word("AVG"), Reply::Integer(7)]);
        let old = Reply::Array(vec![word("old"), Reply::Integer(5), word("SUM")]);
        let odd = Reply::Array(vec![Reply::Null]);
        let info = Reply::Array(vec![word("sourceKey"), Reply::Null, word("rules"), Reply::Array(vec![row, old, odd])]);
        let rules = rules_of(3, b"from", &info);
        let words: Vec<_> = rules.iter().map(|rule| (rule.to.as_slice(), rule.words.concat())).collect();
        assert_eq!(words, [(&b"to"[..], b"AVG600007".to_vec()), (&b"old"[..], b"SUM50".to_vec())]);
        assert!(rules_of(0, b"k", &Reply::Null).is_empty());
    }
}
