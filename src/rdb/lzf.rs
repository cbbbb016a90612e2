//! LZF: whole strings by the `lzf` crate behind checks, huge ones by a decoder that can stop anywhere.

use super::error::{Fault, Step, Stop};
use super::length::Reader;

/// Three bytes of LZF give at most 264.
const RATIO_MAX: u64 = 88;

/// How far back a reference can reach.
const WINDOW_BYTES: usize = 8192;

/// Refuses a claimed size that `compressed` bytes of LZF can't have, so that nobody allocates for it.
pub(super) fn check_claim(compressed: u64, claimed: u64) -> Result<(), Fault> {
    if compressed.saturating_mul(RATIO_MAX) < claimed || (claimed == 0) != (compressed == 0) {
        return Err(Fault::LzfClaim { compressed, claimed });
    }
    Ok(())
}

/// Unpacks `packed` into exactly `claimed` bytes.
///
/// # Errors
/// `LzfClaim` when `packed` is too short for that, before anything is allocated; `LzfCorrupt` when it is not LZF or unpacks to
/// another size.
pub fn decompress(packed: &[u8], claimed: u64) -> Result<Vec<u8>, Fault> {
    check_claim(packed.len() as u64, claimed)?;
    let corrupt = Fault::LzfCorrupt { claimed };
    if packed.is_empty() {
        return Ok(Vec::new());
    }
    // The crate counts in i32.
    let size = i32::try_from(claimed).map_err(|_| corrupt.clone())? as usize;
    match lzf::decompress(packed, size) {
        Ok(plain) if plain.len() == size => Ok(plain),
        _ => Err(corrupt),
    }
}

/// Unpacks LZF that comes in pieces, keeping only the last 8 KiB of its output.
#[derive(Debug)]
pub(super) struct LzfStream {
    /// Compressed bytes still to come.
    packed_left: u64,
    /// Plain bytes still to be made.
    plain_left: u64,
    claimed: u64,
    window: Vec<u8>,
}

impl LzfStream {
    pub fn new(compressed: u64, plain: u64) -> Self {
        LzfStream { packed_left: compressed, plain_left: plain, claimed: plain, window: Vec::new() }
    }

    pub fn is_done(&self) -> bool {
        self.plain_left == 0 && self.packed_left == 0
    }

    /// Appends plain bytes to `out` until `size` or more were added, or the string ends.
    ///
    /// Each control of the input is read whole, so the reader may be left before a partial one; what was made until then is in
    /// `out` also when this stops. `size` is exceeded by less than one reference, 264 bytes.
    pub fn fill(&mut self, r: &mut Reader<'_>, out: &mut Vec<u8>, size: usize) -> Step<()> {
        let kept = self.window.len();
        let mut work = std::mem::take(&mut self.window);
        let result = self.fill_after(r, &mut work, kept + size);
        let keep_from = work.len().saturating_sub(WINDOW_BYTES);
        self.window.extend_from_slice(work.get(keep_from..).unwrap_or_default());
        out.extend_from_slice(work.get(kept..).unwrap_or_default());
        result
    }

    fn fill_after(&mut self, r: &mut Reader<'_>, out: &mut Vec<u8>, until: usize) -> Step<()> {
        while out.len() < until && !self.is_done() {
            let (from, before) = (r.pos(), out.len());
            match self.control(r, out) {
                Ok(()) => {}
                Err(Stop::More) => {
                    r.rewind();
                    return Err(Stop::More);
                }
                Err(fail) => return Err(fail),
            }
            let corrupt = Fault::LzfCorrupt { claimed: self.claimed };
            let (read, made) = ((r.pos() - from) as u64, (out.len() - before) as u64);
            self.packed_left = self.packed_left.checked_sub(read).ok_or_else(|| corrupt.clone())?;
            self.plain_left = self.plain_left.checked_sub(made).ok_or_else(|| corrupt.clone())?;
            if (self.packed_left == 0) != (self.plain_left == 0) {
                return Err(corrupt.into());
            }
            r.commit();
        }
        Ok(())
    }

    /// One run of literals or one reference.
    fn control(&self, r: &mut Reader<'_>, out: &mut Vec<u8>) -> Step<()> {
        let control = usize::from(r.u8()?);
        if control < 32 {
            out.extend_from_slice(r.take(control as u64 + 1)?);
            return Ok(());
        }
        let mut len = control >> 5;
        if len == 7 {
            len += usize::from(r.u8()?);
        }
        let back = ((control & 31) << 8) + usize::from(r.u8()?) + 1;
        let corrupt = Fault::LzfCorrupt { claimed: self.claimed };
        let from = out.len().checked_sub(back).ok_or(corrupt)?;
        for at in from..from + len + 2 {
            // Within bounds, as `at` follows the end of `out`; an overlap repeats what was just written.
            out.push(out.get(at).copied().unwrap_or_default());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decompress_claim_over_88_times_is_refused_before_allocating() {
        assert!(decompress(&[0; 3], 264).is_err_and(|f| matches!(f, Fault::LzfCorrupt { .. })));
        assert!(matches!(decompress(&[0; 3], 265), Err(Fault::LzfClaim { .. })));
        assert!(matches!(decompress(&[0; 3], u64::MAX), Err(Fault::LzfClaim { .. })));
    }

    #[test]
    fn decompress_to_another_size_than_claimed_is_refused() {
        let packed = [0x01, b'a', b'a', 0xe0, 0x1b, 0x00, 0x01, b'a', b'a'];
        assert_eq!(decompress(&packed, 40).unwrap(), [b'a'; 40]);
        for claimed in [1, 39, 41, 100] {
            assert!(decompress(&packed, claimed).is_err(), "{claimed}");
            let mut stream = LzfStream::new(packed.len() as u64, claimed);
            let mut out = Vec::new();
            assert!(stream.fill(&mut Reader::new(&packed), &mut out, 1000).is_err(), "{claimed}");
        }
    }

    fn stream(packed: &[u8], plain: usize, split: usize, size: usize) -> Vec<u8> {
        let mut lzf = LzfStream::new(packed.len() as u64, plain as u64);
        let (mut all, mut at, mut have) = (Vec::new(), 0, 0);
        while !lzf.is_done() {
            let mut piece = Vec::new();
            let mut r = Reader::at(&packed[..have], at);
            if let Err(Stop::Fail(fault)) = lzf.fill(&mut r, &mut piece, size) {
                panic!("{fault}");
            }
            at = r.pos();
            all.extend(piece);
            have = (have + split).min(packed.len());
        }
        all
    }

    proptest! {
        #[test]
        fn stream_in_any_pieces_equals_the_whole(
            seed in proptest::collection::vec(0u8..4, 30..3000),
            repeat in 1usize..20,
            split in 1usize..500,
            size in 1usize..5000,
        ) {
            let plain = seed.repeat(repeat);
            if let Ok(packed) = lzf::compress(&plain) {
                prop_assert_eq!(&decompress(&packed, plain.len() as u64).unwrap(), &plain);
                prop_assert_eq!(&stream(&packed, plain.len(), split, size), &plain);
            }
        }

        #[test]
        fn decompress_of_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), claimed in 0u64..20_000) {
            let _ = decompress(&bytes, claimed);
            let _ = LzfStream::new(bytes.len() as u64, claimed).fill(&mut Reader::new(&bytes), &mut Vec::new(), 1 << 20);
        }
    }
}
