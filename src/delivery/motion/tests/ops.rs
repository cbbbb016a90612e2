//! What the adversary can do.

use proptest::prelude::*;

use super::source::{KEYS, Kind, SHARDS, SLOTS};

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A client writes: slot, kind, two keys.
    Write(usize, usize, usize, usize),
    /// A slot begins to move to a shard.
    Begin(usize, usize, Kind),
    /// The next key of a slot's move.
    MoveKey(usize),
    Finish(usize),
    /// A whole move, and what the loser removes.
    Move(usize, usize, Kind),
    /// A loser removes what it has of a slot.
    CleanUp(usize),
    /// A move is broken off, openly or not.
    Cancel(usize, bool),
    /// A server learns who owns what.
    Gossip(usize),
    /// An operator empties a slot, or the shard that owns it.
    Flush(usize, bool),
    /// A shard's replica takes over, without so many of the last units.
    Failover(usize, usize),
    /// A shard's thread judges so many units.
    Judge(usize, usize),
    /// It says how far it is.
    Report(usize),
    /// All shards' threads judge everything, and say so.
    JudgeAll,
    /// The next step of a look at the source's servers.
    Look,
    /// All steps of one.
    LookAll,
    /// A shard's thread does the next thing for sets at rest: it asks, or it acts on the answer.
    Work(usize),
    /// A shard's thread does so many of these things.
    WorkOn(usize, usize),
    /// Looks, until what has come to rest is known to.
    Rest,
    /// A lane sends so much, the target takes it, the answer arrives.
    Send(usize, usize),
    Serve(usize),
    Deliver(usize),
    /// All three for all lanes.
    Pump,
    /// An idle lane writes its record.
    Tick(usize),
    /// A shard's connections are lost.
    Cut(usize),
    Connect(usize),
    /// The process dies and another starts.
    Restart,
    /// The target comes back without so many of its last transactions, but with all that its replica has.
    RollBack(usize),
    /// The target's replica has everything.
    Replicate,
    /// A journal gives up what isn't needed.
    Release(usize),
}

pub fn any_op() -> impl Strategy<Value = Op> {
    let slot = 0..SLOTS;
    let shard = 0..SHARDS;
    let key = 0..KEYS;
    let kind = prop_oneof![2 => Just(Kind::Classic), 1 => Just(Kind::Commands), 1 => Just(Kind::Values)];
    let source = prop_oneof![
        12 => (slot.clone(), 0usize..6, key.clone(), key).prop_map(|(s, k, a, b)| Op::Write(s, k, a, b)),
        4 => (slot.clone(), shard.clone(), kind.clone()).prop_map(|(s, n, k)| Op::Begin(s, n, k)),
        6 => (slot.clone(), shard.clone(), kind.clone()).prop_map(|(s, n, k)| Op::Move(s, n, k)),
        5 => slot.clone().prop_map(Op::MoveKey),
        4 => slot.clone().prop_map(Op::Finish),
        2 => slot.clone().prop_map(Op::CleanUp),
        2 => (slot.clone(), any::<bool>()).prop_map(|(s, o)| Op::Cancel(s, o)),
        2 => shard.clone().prop_map(Op::Gossip),
        1 => (slot, any::<bool>()).prop_map(|(s, a)| Op::Flush(s, a)),
        1 => (shard.clone(), 0usize..3).prop_map(|(n, l)| Op::Failover(n, l)),
    ];
    let inside = prop_oneof![
        12 => (shard.clone(), prop_oneof![2 => 1usize..4, 1 => Just(99)]).prop_map(|(n, u)| Op::Judge(n, u)),
        8 => shard.clone().prop_map(Op::Report),
        8 => Just(Op::JudgeAll),
        6 => Just(Op::Rest),
        8 => (shard.clone(), 1usize..7).prop_map(|(n, times)| Op::WorkOn(n, times)),
        5 => Just(Op::Look),
        5 => Just(Op::LookAll),
        12 => shard.clone().prop_map(Op::Work),
        5 => (0..2 * SHARDS, prop_oneof![1 => 1usize..3, 1 => Just(99)]).prop_map(|(l, n)| Op::Send(l, n)),
        4 => (0..2 * SHARDS).prop_map(Op::Serve),
        4 => (0..2 * SHARDS).prop_map(Op::Deliver),
        5 => Just(Op::Pump),
        2 => (0..2 * SHARDS).prop_map(Op::Tick),
        1 => shard.clone().prop_map(Op::Cut),
        3 => shard.clone().prop_map(Op::Connect),
        1 => Just(Op::Restart),
        1 => (1usize..6).prop_map(Op::RollBack),
        1 => Just(Op::Replicate),
        1 => shard.prop_map(Op::Release),
    ];
    prop_oneof![2 => source, 3 => inside]
}
