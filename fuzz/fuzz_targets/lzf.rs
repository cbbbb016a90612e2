//! LZF: unpacks into exactly the claimed length or fails; a claim costs no memory that the input doesn't pay for.
#![no_main]

use keyferry::rdb::lzf_decompress;
use keyferry_fuzz::steer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((claim, packed)) = steer::<3>(data) else { return };
    let [a, b, c] = claim;
    let claimed = u64::from(u32::from_le_bytes([a, b, c, 0]));
    if let Ok(plain) = lzf_decompress(packed, claimed) {
        assert_eq!(plain.len() as u64, claimed);
    }
    assert!(lzf_decompress(packed, u64::MAX - claimed).is_err());
});
