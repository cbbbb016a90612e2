//! What servers write of their values: their own files of each version, and what they make of ours.

mod files;
mod live;
mod said;
mod servers;
