//! Records in the target, which anybody may have written: what is read is written the same again, and read the same.
#![no_main]

use keyferry::delivery::guard::Guards;
use keyferry::delivery::motion::State;
use keyferry::delivery::record::Record;
use keyferry::delivery::slots::record::{Floor, SlotRecord};
use keyferry::target::lease::Lease;
use keyferry_fuzz::steer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(([cut], text)) = steer::<1>(data) else { return };
    if let Ok(record) = Record::parse(text) {
        assert_eq!(Record::parse(record.encode().as_bytes()), Ok(record));
    }
    if let Ok(record) = SlotRecord::parse(text) {
        let mut again = Vec::new();
        record.encode(&mut again);
        assert_eq!(SlotRecord::parse(&again), Ok(record));
    }
    if let Ok(floor) = Floor::parse(text) {
        assert_eq!(Floor::parse(floor.encode().as_bytes()), Ok(floor));
    }
    if let Some(state) = State::parse(text) {
        assert_eq!(State::parse(state.encode().as_bytes()), Some(state));
    }
    let lease = Lease::parse(text);
    assert_eq!(Lease::parse(lease.encode().as_bytes()), lease);
    let (field, value) = text.split_at(usize::from(cut).min(text.len()));
    let mut guards = Guards::default();
    guards.read(field, value);
    assert!(guards.keys.len() + guards.databases.len() <= 1);
});
