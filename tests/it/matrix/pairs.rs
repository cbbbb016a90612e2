//! Which pairs are tried, and what each loses of what its source holds.

use super::losses::Loss::{
    self, Arrays, FieldExpiry, Functions, Idempotency, Nacked, StreamCounters, Streams, VectorSets,
};

pub struct Pair {
    pub source: &'static str,
    pub target: &'static str,
    pub losses: &'static [Loss],
}

const fn pair(source: &'static str, target: &'static str, losses: &'static [Loss]) -> Pair {
    Pair { source, target, losses }
}

/// Those that every run of the tests takes: the quick servers, each as a source and as a target.
pub const QUICK: &[(&str, &str)] = &[
    ("redis-8.6", "redis-6.0"),
    ("redis-8.6", "valkey-9.1"),
    ("valkey-9.1", "redis-8.0"),
    ("valkey-9.1", "redis-7.0"),
    ("redis-6.0", "redis-8.6"),
    ("redis-8.0", "valkey-8.1"),
];

#[rustfmt::skip]
pub const PAIRS: &[Pair] = &[
    // Up
    pair("redis-2.8", "redis-2.8", &[]),
    pair("redis-2.8", "redis-7.0", &[]),
    pair("redis-2.8", "redis-8.10", &[]),
    pair("redis-2.8", "valkey-9.1", &[]),
    pair("redis-3.0", "redis-5.0", &[]),
    pair("redis-3.0", "redis-8.6", &[]),
    pair("redis-3.2", "redis-6.2", &[]),
    pair("redis-3.2", "valkey-8.1", &[]),
    pair("redis-5.0", "redis-8.10", &[]),
    pair("redis-5.0", "valkey-9.1", &[]),
    pair("redis-6.0", "redis-8.6", &[]),
    pair("redis-6.2", "redis-8.10", &[]),
    pair("redis-7.0", "redis-8.10", &[]),
    pair("redis-7.0", "valkey-9.1", &[]),
    pair("stack-7.2", "stack-7.4", &[]),
    pair("stack-7.2", "valkey-8.0", &[]),
    pair("stack-7.4", "redis-8.2", &[]),
    pair("redis-8.0", "redis-8.6", &[]),
    pair("redis-8.2", "redis-8.10", &[]),
    pair("redis-8.6", "redis-8.10", &[]),
    pair("redis-8.10", "redis-8.10", &[]),
    pair("valkey-8.0", "valkey-9.0", &[]),
    pair("valkey-8.1", "valkey-9.1", &[]),
    pair("valkey-9.0", "valkey-9.1", &[]),
    pair("valkey-9.1", "valkey-9.1", &[]),
    // Down
    pair("redis-8.10", "redis-8.6", &[Arrays, Nacked]),
    pair("redis-8.10", "redis-8.2", &[Arrays, Nacked, Idempotency]),
    pair("redis-8.10", "stack-7.4", &[Arrays, Nacked, Idempotency, VectorSets]),
    pair("redis-8.10", "stack-7.2", &[Arrays, Nacked, Idempotency, VectorSets, FieldExpiry]),
    pair("redis-8.10", "redis-7.0", &[Arrays, Nacked, Idempotency, VectorSets, FieldExpiry]),
    pair("redis-8.10", "redis-6.2", &[Arrays, Nacked, Idempotency, VectorSets, FieldExpiry, Functions, StreamCounters]),
    pair("redis-8.10", "redis-6.0", &[Arrays, Nacked, Idempotency, VectorSets, FieldExpiry, Functions, StreamCounters]),
    pair("redis-8.10", "redis-5.0", &[Arrays, Nacked, Idempotency, VectorSets, FieldExpiry, Functions, StreamCounters]),
    pair("redis-8.10", "redis-3.2", &[Arrays, VectorSets, FieldExpiry, Functions, Streams]),
    pair("redis-8.10", "redis-3.0", &[Arrays, VectorSets, FieldExpiry, Functions, Streams]),
    pair("redis-8.10", "redis-2.8", &[Arrays, VectorSets, FieldExpiry, Functions, Streams]),
    pair("redis-8.6", "redis-6.0", &[Idempotency, VectorSets, FieldExpiry, Functions, StreamCounters]),
    pair("redis-8.2", "redis-7.0", &[VectorSets, FieldExpiry]),
    pair("stack-7.4", "redis-6.2", &[FieldExpiry, Functions, StreamCounters]),
    pair("redis-7.0", "redis-5.0", &[Functions, StreamCounters]),
    pair("redis-6.2", "redis-3.2", &[Streams]),
    pair("redis-6.0", "redis-2.8", &[Streams]),
    pair("redis-5.0", "redis-3.0", &[Streams]),
    pair("redis-3.2", "redis-2.8", &[]),
    pair("valkey-9.1", "valkey-8.1", &[FieldExpiry]),
    // Across
    pair("redis-8.10", "valkey-9.1", &[Arrays, Nacked, Idempotency, VectorSets]),
    pair("redis-8.10", "valkey-9.0", &[Arrays, Nacked, Idempotency, VectorSets]),
    pair("redis-8.10", "valkey-8.0", &[Arrays, Nacked, Idempotency, VectorSets, FieldExpiry]),
    pair("redis-8.6", "valkey-9.1", &[Idempotency, VectorSets]),
    pair("redis-8.0", "valkey-8.1", &[VectorSets, FieldExpiry]),
    pair("stack-7.4", "valkey-9.0", &[]),
    pair("valkey-9.1", "redis-8.10", &[]),
    pair("valkey-9.1", "redis-8.6", &[]),
    pair("valkey-9.1", "redis-8.0", &[]),
    pair("valkey-9.1", "stack-7.4", &[]),
    pair("valkey-9.1", "redis-7.0", &[FieldExpiry]),
    pair("valkey-9.1", "redis-6.0", &[FieldExpiry, Functions, StreamCounters]),
    pair("valkey-9.1", "redis-3.2", &[FieldExpiry, Functions, Streams]),
    pair("valkey-9.0", "redis-8.2", &[]),
    pair("valkey-8.1", "redis-8.6", &[]),
    pair("valkey-8.0", "redis-7.0", &[]),
];
