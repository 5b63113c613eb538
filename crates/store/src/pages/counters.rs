//! The counters of a store's hot paths, in shards by CPU.

use super::FURTHER_CODECS_MAX;
use pagefold_page::ShardedCounters;

/// The names of the counters; their meanings are those of the fields of `engine::Stats`.
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
    Recompressed,
    RecompressSavedBytes,
    RecompressNotSmaller,
    Priority1,
    Priority2,
    Priority3,
    SlowWrites,
}

impl Counter {
    /// The counters of pages that are objects of the further codecs, by priority.
    pub(crate) const PRIORITIES: [Counter; FURTHER_CODECS_MAX] =
        [Counter::Priority1, Counter::Priority2, Counter::Priority3];

    /// The counter of pages that are objects of `priority`; priority 0 has none.
    pub(crate) fn of_priority(priority: u8) -> Option<Counter> {
        Counter::PRIORITIES.get(usize::from(priority).wrapping_sub(1)).copied()
    }
}

/// The counters, in shards by CPU.
pub(crate) struct Counters(ShardedCounters<{ Counter::SlowWrites as usize + 1 }>);

impl Counters {
    pub(crate) fn new(cpu_count: usize) -> Self {
        Counters(ShardedCounters::new(cpu_count))
    }

    #[inline]
    pub(crate) fn add(&self, cpu: usize, counter: Counter, n: i64) {
        self.0.add(cpu, counter as usize, n);
    }

    /// The sum over all shards.
    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter as usize)
    }
}
