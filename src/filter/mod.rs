//! Which databases, keys, types and commands a job copies.
