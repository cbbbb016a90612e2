//! Sorted sets: scores as text (3) or binary (5), or everything in a ziplist (12) or listpack (17).

use super::pieces::{Left, Packed, once};
use crate::rdb::error::{Fault, Step};
use crate::rdb::length::Reader;
use crate::rdb::opcode;
use crate::rdb::pack::{Entry, Kind};

/// A member of a sorted set.
#[derive(Debug, Clone, PartialEq)]
pub struct ZsetMember {
    pub member: Vec<u8>,
    /// Never NaN.
    pub score: f64,
}

#[derive(Debug)]
pub(super) struct Zsets {
    form: Form,
    left: Left,
    pack: Option<Packed>,
    bytes_max: u64,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Text,
    Binary,
    Packed(Kind),
}

impl Zsets {
    pub fn new(value_type: u8, bytes_max: u64) -> Self {
        let form = match value_type {
            opcode::ZSET => Form::Text,
            opcode::ZSET_2 => Form::Binary,
            opcode::ZSET_ZIPLIST => Form::Packed(Kind::Ziplist),
            _ => Form::Packed(Kind::Listpack),
        };
        Zsets { form, left: Left::default(), pack: None, bytes_max }
    }

    pub fn next(&mut self, r: &mut Reader<'_>) -> Step<Option<ZsetMember>> {
        let kind = match self.form {
            Form::Packed(kind) => kind,
            Form::Text | Form::Binary => return self.plain(r),
        };
        let max = self.bytes_max;
        let pack = once(&mut self.pack, r, |r| Packed::read(r, kind, max))?;
        let Some(member) = pack.next()?.map(Entry::to_vec) else {
            return Ok(None);
        };
        let score = match pack.need("a sorted set's last member has no score")? {
            Entry::Int(n) => n as f64,
            Entry::Str(text) => parse_score(text).ok_or(BAD_SCORE)?,
        };
        Ok(Some(ZsetMember { member, score }))
    }

    fn plain(&mut self, r: &mut Reader<'_>) -> Step<Option<ZsetMember>> {
        if !self.left.any(r)? {
            return Ok(None);
        }
        let member = r.string(self.bytes_max)?.into_owned();
        let score = match self.form {
            Form::Text => old_double(r)?,
            _ => r.f64()?,
        };
        if score.is_nan() {
            return Err(Fault::Corrupt("a score is not a number").into());
        }
        self.left.took(r);
        Ok(Some(ZsetMember { member, score }))
    }
}

const BAD_SCORE: Fault = Fault::Corrupt("a score is not a number");

/// A byte count and so many characters, or one of three special values.
fn old_double(r: &mut Reader<'_>) -> Step<f64> {
    match r.u8()? {
        253 => Err(BAD_SCORE.into()),
        254 => Ok(f64::INFINITY),
        255 => Ok(f64::NEG_INFINITY),
        n => {
            let text = r.take(u64::from(n))?;
            let is_decimal = text.iter().all(|c| matches!(c, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
            parse_score(text).filter(|_| is_decimal).ok_or(BAD_SCORE.into())
        }
    }
}

fn parse_score(text: &[u8]) -> Option<f64> {
    let score: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!score.is_nan()).then_some(score)
}
