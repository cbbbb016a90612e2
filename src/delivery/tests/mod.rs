//! Proof of the delivery machine: a model source, a model target, and an adversary between them.

mod cases;
mod random;
mod server;
mod source;
mod world;
