//! Counters sharded by CPU.
//!
//! A thread adds to the shard of its CPU; reading sums the shards. A sum is exact when
//! nothing is running and at worst as old as the reading itself. No limit is
//! checked against these.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// `N` counters in shards, each shard on cache lines that no other shard has.
#[derive(Debug)]
pub struct ShardedCounters<const N: usize> {
    /// A power of two of them.
    shards: Box<[CachePadded<[AtomicU64; N]>]>,
}

impl<const N: usize> ShardedCounters<N> {
    /// Counters at zero for `cpu_count` CPUs; more CPUs share shards.
    pub fn new(cpu_count: usize) -> Self {
        let shard = || CachePadded::new([const { AtomicU64::new(0) }; N]);
        let shard_count = cpu_count.max(1).next_power_of_two();
        ShardedCounters { shards: (0..shard_count).map(|_| shard()).collect() }
    }

    /// Adds `n`, which may be negative, to a counter below `N`. `cpu` is the caller's, or any number.
    #[inline]
    pub fn add(&self, cpu: usize, counter: usize, n: i64) {
        if n != 0 {
            // Wraps: a shard may be below zero while the sum is not.
            self.shards[cpu & (self.shards.len() - 1)][counter].fetch_add(n as u64, Relaxed);
        }
    }

    /// The sum over all shards. 0 if it is below zero, as it may be for a moment while threads add.
    pub fn get(&self, counter: usize) -> u64 {
        let sum = self.shards.iter().fold(0u64, |sum, shard| sum.wrapping_add(shard[counter].load(Relaxed)));
        u64::try_from(sum as i64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_cpu_adds_another_may_take_away() {
        let counters = ShardedCounters::<2>::new(3);
        counters.add(0, 1, 10);
        counters.add(7, 1, -4);
        counters.add(2, 0, -1);
        assert_eq!((counters.get(0), counters.get(1)), (0, 6));
    }

    #[test]
    fn threads_lose_nothing() {
        let counters = ShardedCounters::<1>::new(2);
        std::thread::scope(|s| {
            for cpu in 0..4 {
                let counters = &counters;
                s.spawn(move || (0..10_000).for_each(|_| counters.add(cpu, 0, 1)));
            }
        });
        assert_eq!(counters.get(0), 40_000);
    }
}
