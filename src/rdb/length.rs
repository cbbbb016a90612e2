//! Lengths, strings and fixed-width numbers: a cursor that knows when it needs more bytes.

use std::borrow::Cow;

use super::error::{Fault, Step, Stop};
use super::lzf;

/// A cursor over the bytes at hand.
///
/// What it reads becomes final with [`Reader::commit`]; [`Reader::rewind`] goes back to the last commit, so that a step that
/// ran out of bytes can be repeated whole when more have come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    buf: &'a [u8],
    pos: usize,
    mark: usize,
}

/// The head of an RDB string: what its payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    Plain(u64),
    /// An integer of this many bytes, 1, 2 or 4.
    Int(u8),
    Lzf {
        compressed: u64,
        plain: u64,
    },
}

impl<'a> Reader<'a> {
    pub fn new(buf: &'a [u8]) -> Self {
        Reader { buf, pos: 0, mark: 0 }
    }

    /// Begins `pos` bytes into `buf`, which must not be longer than it.
    pub fn at(buf: &'a [u8], pos: usize) -> Self {
        assert!(pos <= buf.len(), "a reader begins inside its bytes");
        Reader { buf, pos, mark: pos }
    }

    pub fn pos(&self) -> usize {
        self.pos
    }

    pub fn commit(&mut self) {
        self.mark = self.pos;
    }

    pub fn rewind(&mut self) {
        self.pos = self.mark;
    }

    pub fn rest(&self) -> &'a [u8] {
        self.buf.get(self.pos..).unwrap_or_default()
    }

    /// The bytes from `from` to the cursor.
    pub fn since(&self, from: usize) -> &'a [u8] {
        self.buf.get(from..self.pos).unwrap_or_default()
    }

    /// Passes at most `n` bytes; returns how many there were.
    pub fn pass_up_to(&mut self, n: u64) -> u64 {
        let here = (self.buf.len() - self.pos).min(usize::try_from(n).unwrap_or(usize::MAX));
        self.pos += here;
        here as u64
    }

    #[inline]
    pub fn take(&mut self, n: u64) -> Step<&'a [u8]> {
        let end = usize::try_from(n).ok().and_then(|n| self.pos.checked_add(n));
        let bytes = end.and_then(|end| self.buf.get(self.pos..end)).ok_or(Stop::More)?;
        self.pos += bytes.len();
        Ok(bytes)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let bytes = self.rest().first_chunk().ok_or(Stop::More)?;
        self.pos += N;
        Ok(*bytes)
    }

    #[inline]
    pub fn u8(&mut self) -> Step<u8> {
        let byte = *self.buf.get(self.pos).ok_or(Stop::More)?;
        self.pos += 1;
        Ok(byte)
    }

    pub fn i16(&mut self) -> Step<i16> {
        self.array().map(i16::from_le_bytes)
    }

    pub fn i32(&mut self) -> Step<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub fn i64(&mut self) -> Step<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub fn u64_be(&mut self) -> Step<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn f64(&mut self) -> Step<f64> {
        self.array().map(f64::from_le_bytes)
    }

    /// Reads an RDB length: 6, 14, 32 or 64 bits, big-endian after the first byte.
    ///
    /// Source: redis 7.0 src/rdb.c, rdbLoadLenByRef.
    #[inline]
    pub fn len(&mut self) -> Step<u64> {
        let first = self.u8()?;
        self.len_after(first)
    }

    #[inline]
    fn len_after(&mut self, first: u8) -> Step<u64> {
        match first {
            0x00..=0x3f => Ok(u64::from(first)),
            0x40..=0x7f => Ok(u64::from(first & 0x3f) << 8 | u64::from(self.u8()?)),
            0x80 => Ok(u64::from(self.array().map(u32::from_be_bytes)?)),
            0x81 => self.u64_be(),
            _ => Err(Fault::BadLength(first).into()),
        }
    }

    /// Reads a string's head, up to its payload.
    #[inline]
    pub fn head(&mut self) -> Step<Head> {
        match self.u8()? {
            first @ 0..=0xbf => self.len_after(first).map(Head::Plain),
            0xc0 => Ok(Head::Int(1)),
            0xc1 => Ok(Head::Int(2)),
            0xc2 => Ok(Head::Int(4)),
            0xc3 => {
                let compressed = self.len()?;
                let plain = self.len()?;
                lzf::check_claim(compressed, plain)?;
                Ok(Head::Lzf { compressed, plain })
            }
            first => Err(Fault::BadString(first).into()),
        }
    }

    /// Reads a string, unpacked; at most `max` bytes long, packed or not.
    pub fn string(&mut self, max: u64) -> Step<Cow<'a, [u8]>> {
        let head = self.head()?;
        self.string_after(head, max)
    }

    pub fn string_after(&mut self, head: Head, max: u64) -> Step<Cow<'a, [u8]>> {
        match head {
            Head::Plain(n) => {
                check_max(n, max)?;
                self.take(n).map(Cow::Borrowed)
            }
            Head::Int(width) => self.int(width).map(|n| Cow::Owned(n.to_string().into_bytes())),
            Head::Lzf { compressed, plain } => {
                check_max(compressed.max(plain), max)?;
                let packed = self.take(compressed)?;
                Ok(Cow::Owned(lzf::decompress(packed, plain)?))
            }
        }
    }

    fn int(&mut self, width: u8) -> Step<i64> {
        match width {
            1 => self.u8().map(|byte| i64::from(byte as i8)),
            2 => self.i16().map(i64::from),
            _ => self.i32().map(i64::from),
        }
    }

    /// Passes a string without unpacking it.
    #[inline]
    pub fn pass_string(&mut self) -> Step<()> {
        let n = self.head()?.payload_bytes();
        self.take(n).map(|_| ())
    }
}

impl Head {
    pub fn payload_bytes(self) -> u64 {
        match self {
            Head::Plain(n) => n,
            Head::Int(width) => u64::from(width),
            Head::Lzf { compressed, .. } => compressed,
        }
    }
}

fn check_max(size: u64, max: u64) -> Result<(), Fault> {
    if size > max {
        return Err(Fault::TooLarge { what: "a string", size, max });
    }
    Ok(())
}

/// Appends `n` as an RDB length in its shortest form.
pub(super) fn write_len(out: &mut Vec<u8>, n: u64) {
    match n {
        0..=0x3f => out.push(n as u8),
        0x40..=0x3fff => out.extend_from_slice(&(0x4000 | n as u16).to_be_bytes()),
        0x4000..=0xffff_ffff => {
            out.push(0x80);
            out.extend_from_slice(&(n as u32).to_be_bytes());
        }
        _ => {
            out.push(0x81);
            out.extend_from_slice(&n.to_be_bytes());
        }
    }
}

/// Appends `bytes` as a plain RDB string.
pub(super) fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    write_len(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn len_written_at_every_edge_reads_back() {
        for n in [0, 63, 64, 0x3fff, 0x4000, 0xffff_ffff, 0x1_0000_0000, u64::MAX] {
            let mut bytes = Vec::new();
            write_len(&mut bytes, n);
            assert_eq!(Reader::new(&bytes).len().unwrap(), n);
            let cut = &bytes[..bytes.len() - 1];
            assert!(matches!(Reader::new(cut).len(), Err(Stop::More)));
        }
    }

    #[test]
    fn len_of_unknown_form_is_refused() {
        for first in [0x82u8, 0xbf, 0xc0, 0xff] {
            assert!(matches!(
                Reader::new(&[first; 9]).len(),
                Err(Stop::Fail(Fault::BadLength(byte))) if byte == first
            ));
        }
    }

    #[test]
    fn string_over_the_limit_is_refused_before_its_bytes_came() {
        let mut bytes = Vec::new();
        write_len(&mut bytes, 11);
        assert!(matches!(Reader::new(&bytes).string(10), Err(Stop::Fail(Fault::TooLarge { .. }))));
        assert!(matches!(Reader::new(&bytes).string(11), Err(Stop::More)));
    }

    #[test]
    fn string_of_each_integer_width_is_its_decimal_text() {
        for (bytes, text) in
            [(&[0xc0, 0xfb][..], "-5"), (&[0xc1, 0xe8, 0x03], "1000"), (&[0xc2, 0x60, 0x79, 0xfe, 0xff], "-100000")]
        {
            assert_eq!(&*Reader::new(bytes).string(16).unwrap(), text.as_bytes());
        }
    }
}
