//! Job files and URLs: nothing that somebody writes may panic, and no password may show.

#![no_main]

use std::path::Path;

use keyferry::config::file;
use keyferry::config::valid::{Environment, Job, RunFlags};
use keyferry::net::endpoint::Place;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = Place::parse(text);
    if let Ok(Place::Server(endpoint)) = Place::parse(&format!("redis://u:Zq#Zq#Zq@{text}")) {
        // A second `@` makes more of the text the password; what is shown may hold neither.
        assert!(!endpoint.to_string().contains("Zq#Zq#Zq"));
    }
    // A job file may name password files: the fuzzer shall not read the machine's.
    if text.contains("password_file") {
        return;
    }
    if let Ok(raw) = file::parse(Path::new("job.toml"), text) {
        let _ = Job::new(raw, RunFlags::default(), &Environment::default());
    }
});
