//! Any bytes as an RDB in any split, every value decoded, and every big one streamed.
#![no_main]

use keyferry::rdb::{Decoder, Event, Limits, Project, Restorer, TargetCaps, commands, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[split, big], rdb)) = data.split_first_chunk() else {
        return;
    };
    let limits = Limits {
        value_bytes_max: u64::from(big) * 4,
        element_bytes_max: 1 << 20,
        ..Limits::default()
    };
    let mut decoder = Decoder::new(limits);
    for chunk in rdb.chunks(usize::from(split) + 1) {
        decoder.feed(chunk);
        loop {
            match decoder.next() {
                Ok(Some(Event::Key(key))) => {
                    let restorer = Restorer::new(Project::Redis, (8, 10, 2), 15);
                    if let Ok(Some(payload)) = restorer.payload(&key.value, key.meta) {
                        assert_eq!(payload.to_vec().len(), payload.len());
                    }
                    if let Ok(value) = decode(&key.value, &limits) {
                        let target = TargetCaps::new(Project::Redis, (8, 10, 2));
                        let _ = commands(key.name, &value, key.expires_at_ms, &target, &mut |_| {});
                    }
                }
                Ok(Some(Event::BigKey(_))) => {
                    if decoder.stream_value().is_err() {
                        decoder.skip_value();
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});
