//! Where a command's keys stand: any arguments behind a known name give positions within them, or an error.
#![no_main]

use keyferry::args::OwnedArgs;
use keyferry::commands::{SmallKeys, keys, known_names, lookup};
use keyferry_fuzz::steer;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| known_names().collect());

fuzz_target!(|data: &[u8]| {
    let Some(([a, b], rest)) = steer::<2>(data) else { return };
    let name = &NAMES[usize::from(u16::from_le_bytes([a, b])) % NAMES.len()];
    // Arguments are what stands between newlines.
    let mut words: Vec<&[u8]> = name.split(['|', ' ']).map(str::as_bytes).collect();
    words.extend(rest.split(|b| *b == b'\n').take(50));
    let command = OwnedArgs::new(&words);
    let Some(spec) = lookup(command.args()) else { return };
    let mut found = SmallKeys::new();
    if keys(spec, command.args(), &mut found).is_ok() {
        for key in found.iter() {
            assert!(key.index > 0 && key.index < words.len(), "{name}: key at {}", key.index);
        }
    }
});
