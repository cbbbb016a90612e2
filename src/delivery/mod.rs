//! The delivery protocol as a state machine: in go units, replies and breaks, out come flushes.
//!
//! Nothing here knows of sockets or clocks. [`Standalone`] decides what each lane sends next and what an answer
//! means; the pipeline moves the bytes. Words: a *unit* is the smallest thing applied as one, a *lane* one ordered
//! connection, a *flush* what a lane sends in one go, a *record* a key in the target that names the last unit applied.

mod answers;
pub mod copy;
pub mod flight;
pub mod guard;
pub mod parts;
pub mod record;
pub mod refusal;
mod rules;
pub mod settling;
pub mod slots;
pub mod standalone;
#[cfg(test)]
mod tests;
pub mod unit;

pub use slots::Cluster;
pub use standalone::Standalone;
