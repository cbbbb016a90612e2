#![no_main]
//! Any pattern on any key: no panic, and never a key that the pattern's own plain text rules out.

use keyferry::filter::Glob;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (pattern, key) = input;
    let Ok(glob) = Glob::new(pattern) else {
        return;
    };
    let matched = glob.matches(key);
    if !pattern.iter().any(|byte| b"*?[\\".contains(byte)) {
        assert_eq!(matched, pattern == key, "a pattern of plain bytes is the key itself");
    }
});
