//! Motion: the threads and tasks between a source and a target.

pub mod value;
