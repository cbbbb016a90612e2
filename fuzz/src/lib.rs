//! What the fuzz targets share.

/// Cuts `data` into pieces whose lengths `cuts` says, in turn; so a parser gets its bytes at any split.
pub fn pieces<'a>(cuts: &[u8], data: &'a [u8]) -> Vec<&'a [u8]> {
    let mut rest = data;
    let mut pieces = Vec::new();
    let mut lengths = cuts.iter().cycle();
    while !rest.is_empty() {
        let length = usize::from(lengths.next().copied().unwrap_or(255)).clamp(1, rest.len());
        let (piece, after) = rest.split_at(length);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Splits off the first `n` bytes, which steer the target, from what it is fed.
pub fn steer<const N: usize>(data: &[u8]) -> Option<([u8; N], &[u8])> {
    let (head, rest) = data.split_first_chunk::<N>()?;
    Some((*head, rest))
}
