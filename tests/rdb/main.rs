//! What servers write of their values, and what they make of ours.

mod live;
mod servers;
