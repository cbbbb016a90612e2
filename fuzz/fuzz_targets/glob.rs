//! Globs: any pattern on any key answers in bounded time, and a quoted key matches itself only.
#![no_main]

use keyferry::filter::Glob;
use keyferry_fuzz::steer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(([cut], rest)) = steer::<1>(data) else { return };
    let (pattern, key) = rest.split_at(usize::from(cut).min(rest.len()));
    if let Ok(glob) = Glob::new(pattern) {
        let matches = glob.matches(key);
        assert!(matches || !glob.is_all());
        if !pattern.iter().any(|b| b"*?[\\".contains(b)) {
            assert_eq!(matches, pattern == key);
        }
    }
    let quoted: Vec<u8> = key.iter().flat_map(|b| [b'\\', *b]).collect();
    if let Ok(glob) = Glob::new(&quoted) {
        assert!(glob.matches(key));
    }
});
