//! Arrays (28): sparse, of strings.

use super::pieces::Left;
use crate::rdb::error::{Fault, Step};
use crate::rdb::length::Reader;

/// 2^64-1 is not an index.
const INDEX_MAX: u64 = u64::MAX - 1;
const SHORT_BYTES_MAX: usize = 7;

/// An array, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Array {
    /// Index and text of each element there is.
    pub items: Vec<(u64, Vec<u8>)>,
    /// The index that ARINSERT wrote last.
    pub cursor: Option<u64>,
}

#[derive(Debug)]
pub(super) struct ArrayItems {
    /// `None` before the head was read.
    left: Option<Left>,
    cursor: Option<u64>,
    bytes_max: u64,
}

impl ArrayItems {
    pub fn new(bytes_max: u64) -> Self {
        ArrayItems { left: None, cursor: None, bytes_max }
    }

    pub fn take_cursor(&mut self) -> Option<u64> {
        self.cursor.take()
    }

    pub fn next(&mut self, r: &mut Reader<'_>) -> Step<Option<(u64, Vec<u8>)>> {
        let left = match &mut self.left {
            Some(left) => left,
            None => {
                let count = r.len()?;
                self.cursor = match r.len()? {
                    0 => None,
                    1 => Some(index(r)?),
                    _ => {
                        return Err(Fault::Corrupt("an array's cursor flag is neither 0 nor 1").into());
                    }
                };
                r.commit();
                self.left.insert(Left::known(count))
            }
        };
        if !left.any(r)? {
            return Ok(None);
        }
        let item = (index(r)?, text(r, self.bytes_max)?);
        left.took(r);
        Ok(Some(item))
    }
}

fn index(r: &mut Reader<'_>) -> Step<u64> {
    match r.len()? {
        index @ 0..=INDEX_MAX => Ok(index),
        _ => Err(Fault::Corrupt("an array's index is 2^64-1").into()),
    }
}

/// An element's tag and what it is the tag of.
fn text(r: &mut Reader<'_>, bytes_max: u64) -> Step<Vec<u8>> {
    match r.len()? {
        0 => Ok(r.string(bytes_max)?.into_owned()),
        1 => Ok(r.i64()?.to_string().into_bytes()),
        2 => float_text(r.f64()?),
        3 => match r.string(bytes_max)? {
            short if short.len() <= SHORT_BYTES_MAX => Ok(short.into_owned()),
            _ => Err(Fault::Corrupt("an array's short element is over 7 bytes").into()),
        },
        _ => Err(Fault::Corrupt("an array element's tag is above 3").into()),
    }
}

/// The shortest decimal that reads back the same, without exponent, with a point.
fn float_text(n: f64) -> Step<Vec<u8>> {
    if !n.is_finite() {
        return Err(Fault::Corrupt("an array's float is not finite").into());
    }
    let mut text = n.to_string();
    if !text.contains('.') {
        text.push_str(".0");
    }
    Ok(text.into_bytes())
}
