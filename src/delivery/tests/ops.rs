//! What the adversary can do.

use proptest::prelude::*;

/// What the adversary does next. Lanes are taken modulo their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The router hands over so many units more.
    Push(usize),
    /// The lane sends what it may.
    Send(usize),
    /// The target takes so many bytes of the lane.
    Serve(usize, usize),
    /// So many bytes of the target's answers arrive.
    Deliver(usize, usize),
    /// Send, serve and deliver all.
    Pump(usize),
    /// It is time to write an idle lane's record.
    Tick(usize),
    /// The wait after a refusal is over.
    Resume(usize),
    /// This lane's connection is lost.
    Cut(usize),
    Connect,
    /// The target takes bytes of closed connections.
    Late(usize),
    /// A command is refused for a reason that passes, with so many going through before.
    Refuse(u32, &'static str),
    /// A command fails inside EXEC.
    Fail(u32),
    /// The next task ends halfway.
    TaskFails,
    /// The process dies and another starts.
    Restart,
    /// Another process takes the job over while this one still runs.
    SecondOwner,
    /// What is queued can't be trusted any more, and the connections are closed.
    Distrust,
    /// The target goes down and comes back without the last things that it executed.
    RollBack(usize),
    /// The same, but the connections live, to a server that takes no writes.
    Demote(usize),
}

pub const REFUSALS: [&str; 6] = [
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script.",
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "MISCONF Errors writing to the AOF file",
    "NOPERM this user has no permissions to run the command",
];

pub fn any_op() -> impl Strategy<Value = Op> {
    let lane = 0usize..3;
    prop_oneof![
        8 => (1usize..5).prop_map(Op::Push),
        10 => lane.clone().prop_map(Op::Send),
        10 => (lane.clone(), prop_oneof![2 => Just(usize::MAX), 1 => 1usize..400]).prop_map(|(l, n)| Op::Serve(l, n)),
        10 => (lane.clone(), prop_oneof![2 => Just(usize::MAX), 1 => 1usize..60]).prop_map(|(l, n)| Op::Deliver(l, n)),
        14 => lane.clone().prop_map(Op::Pump),
        6 => lane.clone().prop_map(Op::Tick),
        4 => lane.clone().prop_map(Op::Resume),
        3 => lane.clone().prop_map(Op::Cut),
        5 => Just(Op::Connect),
        3 => lane.prop_map(Op::Late),
        3 => (0u32..8, 0usize..REFUSALS.len()).prop_map(|(n, r)| Op::Refuse(n, REFUSALS[r])),
        1 => (0u32..8).prop_map(Op::Fail),
        1 => Just(Op::TaskFails),
        1 => Just(Op::Restart),
        1 => Just(Op::SecondOwner),
        1 => Just(Op::Distrust),
        1 => (0usize..6).prop_map(Op::RollBack),
        1 => (0usize..4).prop_map(Op::Demote),
    ]
}
