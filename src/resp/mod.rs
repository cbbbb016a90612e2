//! RESP, the wire format of Redis and Valkey: commands of the replication stream, replies, and encoding.

pub mod command;
pub mod encode;
pub mod limits;
pub mod reply;
