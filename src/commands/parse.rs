//! Words and numbers within a command's arguments, read as the servers read them.

use super::{Error, Spec};
use crate::args::Args;

/// Whether `arg` is the option `word` (upper case), in any case.
pub(super) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Whether `arg` is one of the options `words`, in any case.
pub(super) fn is_any(arg: &[u8], words: &[&str]) -> bool {
    words.iter().any(|word| is(arg, word))
}

/// Reads a decimal integer: an optional minus, then digits, nothing else.
pub(super) fn int(arg: &[u8]) -> Option<i64> {
    if arg.len() > 20 || arg.first() == Some(&b'+') {
        return None;
    }
    std::str::from_utf8(arg).ok()?.parse().ok()
}

/// Argument `index` of a command that must have it.
///
/// # Errors
/// `TooShort` when the command ends before it.
pub(super) fn need<'a>(args: Args<'a>, spec: &Spec, index: usize) -> Result<&'a [u8], Error> {
    args.get(index).ok_or_else(|| Error::TooShort {
        command: spec.name.to_string(),
        arguments: args.len(),
        missing: index,
    })
}

/// Argument `index` as a number.
///
/// # Errors
/// `TooShort` when it is missing, `BadNumber` when it is not a decimal integer.
pub(super) fn need_int(args: Args<'_>, spec: &Spec, index: usize) -> Result<i64, Error> {
    int(need(args, spec, index)?).ok_or_else(|| bad_number(spec, index))
}

/// Argument `index` as a database number.
///
/// # Errors
/// As [`need_int`]; a negative number is a `BadNumber` too.
pub(super) fn need_database(args: Args<'_>, spec: &Spec, index: usize) -> Result<u32, Error> {
    let number = need_int(args, spec, index)?;
    u32::try_from(number).map_err(|_| bad_number(spec, index))
}

/// Reads a count of items at `index` and checks that `each` arguments per item follow it.
///
/// # Errors
/// `BadNumkeys` when the count is below `min` or promises more arguments than there are.
pub(super) fn need_count(args: Args<'_>, spec: &Spec, index: usize, each: usize, min: i64) -> Result<usize, Error> {
    let claimed = need_int(args, spec, index)?;
    let room = args.len().saturating_sub(index + 1) / each.max(1);
    match usize::try_from(claimed) {
        Ok(count) if claimed >= min && count <= room => Ok(count),
        _ => Err(Error::BadNumkeys { command: spec.name.to_string(), claimed, room }),
    }
}

pub(super) fn bad_number(spec: &Spec, index: usize) -> Error {
    Error::BadNumber { command: spec.name.to_string(), index }
}

pub(super) fn bad_option(spec: &Spec, index: usize) -> Error {
    Error::BadOption { command: spec.name.to_string(), index }
}
