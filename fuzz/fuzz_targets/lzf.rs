//! Any bytes as LZF: either exactly the size that is claimed comes out, or an error.
#![no_main]

use keyferry::rdb::lzf_decompress;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let (claimed, packed) = input;
    if let Ok(plain) = lzf_decompress(packed, u64::from(claimed)) {
        assert_eq!(plain.len(), usize::from(claimed));
    }
});
