//! Cutting a list of independent keys.

use super::keys::{KeyAt, SmallKeys};
use super::{KeyRule, Shape, Spec};
use crate::args::{Args, OwnedArgs};

/// True for a command that does to each of its keys what it would do to it alone: DEL, UNLINK, MSET, ….
///
/// `keys` are those of the command.
pub fn is_key_list(spec: &Spec, keys: &SmallKeys) -> bool {
    let independent = matches!(spec.shape, Shape::Own | Shape::Replaces);
    let listed = matches!(spec.keys, KeyRule::Range { .. } | KeyRule::Counted { .. });
    independent && listed && keys.as_slice().len() > 1
}

/// The command with only those of its keys that `keep` names, and with what belongs to them.
///
/// `None` if its keys are not in a list (see [`is_key_list`]).
pub fn cut(args: Args<'_>, spec: &Spec, keys: &SmallKeys, keep: impl Fn(KeyAt) -> bool) -> Option<OwnedArgs> {
    let kept: Vec<usize> = keys.iter().filter(|key| keep(*key)).map(|key| key.index).collect();
    cut_to(args, spec, keys, &kept)
}

/// The same with the keys that are the arguments `kept`, in that order.
pub fn cut_to(args: Args<'_>, spec: &Spec, keys: &SmallKeys, kept: &[usize]) -> Option<OwnedArgs> {
    let (first, step, counted) = match spec.keys {
        KeyRule::Range { first, step, .. } => (first as usize, step as usize, false),
        KeyRule::Counted { count, step, .. } => (usize::from(count) + 1, usize::from(step), true),
        _ => return None,
    };
    let number = kept.len().to_string();
    let mut words: Vec<&[u8]> = args.iter().take(first).collect();
    if counted && let Some(last) = words.last_mut() {
        *last = number.as_bytes();
    }
    let kept = kept.iter().flat_map(|at| *at..*at + step);
    words.extend(kept.filter_map(|at| args.get(at)));
    let end = first + step * keys.as_slice().len();
    words.extend(args.iter().skip(end));
    Some(OwnedArgs::new(&words))
}
