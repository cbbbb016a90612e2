use tokio::sync::mpsc;

use super::*;
use crate::commands::{Lacking, TargetCaps};
use crate::delivery::unit::Item;
use crate::filter::{Scope, ScopeSpec};
use crate::net::Side;
use crate::net::conn::Server;
use crate::net::endpoint::HostPort;
use crate::net::info::Info;
use crate::net::locate::Locator;
use crate::pipeline::ask::Asking;
use crate::pipeline::copy_keys::CopyKeys;
use crate::pipeline::decode::Leftovers;
use crate::pipeline::feed::{Budget, Feed};
use crate::pipeline::learn::Learner;
use crate::pipeline::shard::Leader;
use crate::pipeline::value::ValueWriter;
use crate::route::Router;
use crate::source::{self, Ack};
use crate::status::Status;
use crate::target::nodes::Target;
use std::sync::Arc;

const BATCHES_MAX: usize = 16;

/// A server that nobody asks.
fn nowhere(side: Side) -> Locator {
    let address = HostPort { host: "unasked".into(), port: 1 };
    Server { side, address, user: None, password: None, tls: None }.into()
}

fn parts(batches: mpsc::Sender<Batch>, runtime: &tokio::runtime::Runtime) -> Parts {
    let feed = Arc::new(Feed::new(None, ReplOffset(0), None, &Budget { memory_bytes: 1 << 20, spool: None }));
    let asking = Asking::new(runtime.handle().clone(), Arc::clone(&feed));
    let side = source::side::Side::new(nowhere(Side::Source));
    let status = Arc::new(Status::new("job"));
    Parts {
        feed,
        scope: Arc::new(Scope::new(ScopeSpec::default()).unwrap()),
        writer: ValueWriter::new(&Info::default(), 10, 0, false),
        caps: TargetCaps {
            valkey: false,
            version: (7, 0, 0),
            expiry_late_ms: 0,
            finds_places_alike: true,
            lacking: Lacking::default(),
        },
        copy_keys: CopyKeys::new(side, asking.clone(), None),
        router: Router::new(1),
        batches,
        shard: status.add_shard(0, "source"),
        status,
        ack: Arc::new(Ack::new(false)),
        skip_faults: false,
        kept: None,
        leftovers: Leftovers::None,
        records: "job".into(),
        job: "job".into(),
        slots: None,
        motions: None,
        sources_of: Arc::new(|db| vec![db]),
        number: 0,
        leads: (Leader::default(), 0),
        standing: Standing::default(),
        learner: Learner::new(Target::Standalone(nowhere(Side::Target)), asking, Default::default()),
        modules: Default::default(),
        past: None,
    }
}

/// What goes to the target of a stream: all that is sent, and the last offset.
fn routed(commands: &[&[&str]]) -> (String, ReplOffset) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (batches, mut queue) = mpsc::channel(BATCHES_MAX);
    let mut parts = parts(batches, &runtime);
    let mut stream = Vec::new();
    for command in commands {
        encode::command(&mut stream, command);
    }
    runtime.block_on(parts.feed.stream.append(&stream, 0)).unwrap();
    parts.feed.end();
    Stream::new(&mut parts, 0).run().unwrap();
    drop(parts);
    let (mut sent, mut offset) = (Vec::new(), ReplOffset(0));
    while let Ok(batch) = queue.try_recv() {
        offset = batch.routed;
        for item in batch.lanes.into_iter().flatten() {
            match item {
                Item::Units(chunk) => sent.extend_from_slice(&chunk.bytes),
                other => panic!("{other:?}"),
            }
        }
    }
    (String::from_utf8(sent).unwrap(), offset)
}

#[test]
fn what_servers_say_to_each_other_is_counted_and_not_sent() {
    // ElastiCache tells its replicas the time. A sentinel's hello belongs to its own servers.
    let noise: [&[&str]; 5] = [
        &["REPLCONF", "TIMESTAMP", "1700000000000"],
        &["replconf", "timestamp", "1700000000001"],
        &["PING"],
        &["REPLCONF", "GETACK", "*"],
        &["PUBLISH", "__sentinel__:hello", "10.0.0.1,26379,abc,0,main,10.0.0.2,6379,0"],
    ];
    let set: &[&str] = &["SET", "key", "value"];
    let mut stream = noise.to_vec();
    stream.push(set);
    stream.extend(noise);
    let (sent, offset) = routed(&stream);
    assert_eq!(sent, "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n");
    let mut all = Vec::new();
    stream.iter().for_each(|command| encode::command(&mut all, command));
    assert_eq!(offset, ReplOffset(all.len() as u64));
}
