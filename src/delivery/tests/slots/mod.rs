//! Proof of the machine for a cluster: a model source, model nodes whose slots move and who fail over, and an adversary.

mod cases;
mod node;
mod ops;
mod owner;
mod random;
mod source;
mod world;
