//! Proof of the motion of sets: a model source whose slots move, a model target, and an adversary between them.
//!
//! `KEYFERRY_PROOF_CASES` sets how many random schedules run, `KEYFERRY_PROOF_SEED` the first one's seed.

mod cases;
mod held;
mod lanes;
mod ops;
mod random;
mod source;
mod world;
