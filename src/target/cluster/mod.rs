//! A cluster as a target: what is in it of a job, and the delivery to it.

mod connect;
pub mod driver;
mod link;
pub mod past;
pub mod records;
mod tasks;
