//! What a node says of its cluster: any answer is a topology whose owners own what they are asked for, or a fault.
#![no_main]

use std::collections::BTreeMap;

use keyferry::net::endpoint::HostPort;
use keyferry::net::topology::{NODES_MAX, Topology, View, from_nodes, from_shards, from_slots};
use keyferry::resp::reply::Reply;
use keyferry::slot::Slot;
use keyferry_fuzz::steer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(([way], answer)) = steer::<1>(data) else { return };
    let asked = HostPort { host: "10.0.0.1".into(), port: 7000 };
    let inside = HostPort { host: "127.0.0.1".into(), port: 7001 };
    let address_map = BTreeMap::from([(inside, asked.clone())]);
    let view = View { asked: &asked, tls: way & 4 != 0, address_map: &address_map };
    let read = match way & 3 {
        0 => from_nodes(&Reply::Bulk(answer.to_vec()), &view),
        form => {
            let Ok(Some((reply, _))) = Reply::parse(answer) else { return };
            if form == 1 { from_shards(&reply, &view) } else { from_slots(&reply, &view) }
        }
    };
    if let Ok(topology) = read {
        hold(&topology);
    }
});

fn hold(topology: &Topology) {
    assert!((1..=NODES_MAX).contains(&topology.primaries().len()));
    let claims = |slot: Slot| topology.primaries().iter().filter(move |primary| primary.slots.contains(slot)).count();
    for slot in Slot::all().step_by(97) {
        match topology.owner(slot) {
            Some(owner) => assert!(owner.slots.contains(slot) && claims(slot) == 1, "{slot:?}"),
            None => assert!(claims(slot) != 1, "{slot:?} has one owner, and none is told"),
        }
    }
    assert_eq!(topology.is_whole(), topology.unowned().is_empty());
    assert!(topology.same_owners(topology));
}
