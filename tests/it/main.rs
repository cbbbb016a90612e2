//! Tests against real servers of many versions (`tests/servers.sh` brings them).
//!
//! The first five modules are the harness: servers, a client, data and load, the comparer, keyferry as a process.

#[macro_use]
mod client;
mod cluster;
mod compare;
mod line;
mod load;
mod proxy;
mod server;
mod tls;
mod tool;
mod wait;

mod acl;
mod cluster_faults;
mod cluster_sync;
mod cluster_target;
mod copy;
mod ends;
mod failpoints;
mod filter;
mod follow;
mod harness;
mod large;
mod links;
mod matrix;
mod mistakes;
mod modules;
mod owner;
mod resume;
mod rules;
mod rules_out;
mod sentinel;
mod settle;
mod shards;
mod side;
mod topology;
mod torture;
