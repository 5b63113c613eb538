//! Counters that threads add to without meeting.
//!
//! Each CPU adds to its own shard; reading sums the shards. A sum is exact when
//! nothing is running and at worst as old as the reading itself. Limits are never
//! checked against these.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    PagesStored,
    CompressedBytes,
    SamePages,
    HugePages,
    HugePagesSince,
    FailedReads,
    FailedWrites,
    InvalidIo,
    NotifyFree,
    SlowWrites,
}

const COUNTER_COUNT: usize = Counter::SlowWrites as usize + 1;

/// One shard per CPU.
pub(crate) struct Counters(Box<[CachePadded<[AtomicI64; COUNTER_COUNT]>]>);

impl Counters {
    pub(crate) fn new(cpu_count: usize) -> Self {
        Counters((0..cpu_count.max(1)).map(|_| CachePadded::default()).collect())
    }

    #[inline]
    pub(crate) fn add(&self, cpu: usize, counter: Counter, n: i64) {
        if n != 0 {
            self.0[cpu % self.0.len()][counter as usize].fetch_add(n, Relaxed);
        }
    }

    /// The sum over all shards. Never negative, though shards may be.
    pub(crate) fn get(&self, counter: Counter) -> u64 {
        let sum: i64 = self.0.iter().map(|shard| shard[counter as usize].load(Relaxed)).sum();
        u64::try_from(sum).unwrap_or(0)
    }
}
