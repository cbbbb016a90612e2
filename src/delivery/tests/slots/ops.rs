//! What the adversary can do.

use proptest::prelude::*;

use crate::delivery::tests::ops::REFUSALS;

/// What the adversary does next. Nodes, connections and slots are taken modulo their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The router hands over so many units more.
    Push(usize),
    Send(usize),
    /// The node takes so many bytes of the connection.
    Serve(usize, usize),
    /// So many bytes of the answers arrive.
    Deliver(usize, usize),
    /// Send, serve and deliver all.
    Pump(usize),
    /// It is time for the node's floor.
    Floor(usize),
    /// It is time to renew the slot's record.
    Refresh(usize),
    /// The wait after a refusal is over.
    Resume(usize),
    /// So many milliseconds pass.
    Time(i64),
    /// The node's connections are lost.
    Cut(usize),
    /// Whatever isn't connected is, and what must be read is read.
    Connect,
    /// A node takes bytes of closed connections.
    Late(usize),
    Refuse(u32, &'static str),
    Fail(u32),
    /// The next task ends halfway.
    TaskFails,
    Restart,
    SecondOwner,
    Distrust,
    /// The node goes down, and a replica takes over that lacks the last things.
    RollBack(usize, usize),
    /// The same, but the connections live, to a server that takes no writes.
    Demote(usize, usize),
    /// A slot begins to move to a node.
    Move(usize, usize),
    /// One more key of it goes.
    MoveKey,
    /// The rest goes, and the slot is the other node's.
    MoveEnd,
}

pub fn any_op() -> impl Strategy<Value = Op> {
    let n = 0usize..6;
    prop_oneof![
        8 => (1usize..5).prop_map(Op::Push),
        8 => n.clone().prop_map(Op::Send),
        8 => (n.clone(), prop_oneof![2 => Just(usize::MAX), 1 => 1usize..400]).prop_map(|(l, b)| Op::Serve(l, b)),
        8 => (n.clone(), prop_oneof![2 => Just(usize::MAX), 1 => 1usize..60]).prop_map(|(l, b)| Op::Deliver(l, b)),
        18 => n.clone().prop_map(Op::Pump),
        6 => n.clone().prop_map(Op::Floor),
        4 => n.clone().prop_map(Op::Refresh),
        3 => n.clone().prop_map(Op::Resume),
        4 => (10i64..400).prop_map(Op::Time),
        2 => n.clone().prop_map(Op::Cut),
        7 => Just(Op::Connect),
        3 => n.clone().prop_map(Op::Late),
        3 => (0u32..8, 0usize..REFUSALS.len()).prop_map(|(a, r)| Op::Refuse(a, REFUSALS[r])),
        1 => (0u32..8).prop_map(Op::Fail),
        1 => Just(Op::TaskFails),
        1 => Just(Op::Restart),
        1 => Just(Op::SecondOwner),
        1 => Just(Op::Distrust),
        2 => (n.clone(), 0usize..6).prop_map(|(l, c)| Op::RollBack(l, c)),
        1 => (n.clone(), 0usize..4).prop_map(|(l, c)| Op::Demote(l, c)),
        2 => (n.clone(), n).prop_map(|(s, t)| Op::Move(s, t)),
        4 => Just(Op::MoveKey),
        2 => Just(Op::MoveEnd),
    ]
}
