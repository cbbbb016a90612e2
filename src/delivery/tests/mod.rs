//! Proof of the delivery machine: a model source, a model target, and an adversary between them.
//!
//! `KEYFERRY_PROOF_CASES` sets how many random schedules run, `KEYFERRY_PROOF_SEED` the first one's seed.

mod cases;
mod ops;
mod owner;
mod random;
mod seeds;
mod server;
mod slots;
mod source;
mod world;
