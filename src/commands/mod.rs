//! What each Redis and Valkey command does to keys, and what becomes of it on the way to the target.
//!
//! A streamed command goes through four questions, each answered by one function:
//!
//! | question | answer |
//! |---|---|
//! | which command is it? | [`lookup`], or [`Learnt::lookup`] for a module's |
//! | which keys does it name, and how? | [`keys`] |
//! | what of it is in the job's scope? | [`judge`] |
//! | what must be changed before it is sent? | [`normalise`], then [`replayable`] of what it gave |
//!
//! A command that does not change in the last two steps is sent as it came, without copying it.
//! The judge comes first, on the command as the source sent it; what it puts in its place is looked up and normalised
//! like any other. A command is normalised once only: lateness would be added twice.
//!
//! FLUSHALL, FLUSHDB, SWAPDB and CLUSTER FLUSHSLOT are told by their [`Shape`] even under a whole scope: keyferry's own
//! records must survive them.
//! Names are compared without regard to case; everything else is bytes.

mod caps;
mod cut;
mod judge;
mod keys;
mod learnt;
mod modules;
mod opaque;
mod parse;
mod replay;
mod rewrite;
mod rows;
mod table;

pub use caps::{Lacking, Since, TargetCaps};
pub use cut::{cut, cut_to, is_key_list};
pub use judge::{CopyKey, Databases, Verdict, Why, judge};
pub use keys::{KeyAt, Role, SmallKeys, keys};
pub use learnt::{CommandInfo, Learnt, LearntError, MovableKeys};
pub use opaque::is_opaque;
pub use replay::replayable;
pub use rewrite::{Lost, Restore, Rewrite, normalise};
pub use table::{Group, KeyRule, Replay, Shape, Spec, is_known_name, known_names, lookup};

/// A command whose arguments are not what its name demands: the stream is damaged, or the table is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{command} with {arguments} arguments lacks argument {missing}")]
    TooShort { command: String, arguments: usize, missing: usize },
    #[error("{command}: argument {index} is not a number in range")]
    BadNumber { command: String, index: usize },
    #[error("{command} names {claimed} keys and has arguments for {room}")]
    BadNumkeys { command: String, claimed: i64, room: usize },
    #[error("{command}: argument {index} is no option of it")]
    BadOption { command: String, index: usize },
}
