//! Job files: any text gives settings or a mistake with a line that the file has.
#![no_main]

use keyferry::config::{Error, file};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    if let Err(Error::File { line, .. }) = file::parse(Path::new("job.toml"), text) {
        assert!(line >= 1 && line <= text.lines().count().max(1) + 1, "line {line}");
    }
});
