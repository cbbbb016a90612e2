//! The replication protocol, seen from a replica: handshake, resync, and what the stream says.

pub mod handshake;
pub mod resync;
