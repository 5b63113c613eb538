//! The counters of a region. `stats` makes the statistics of them.

use pagefold_page::ShardedCounters;
use pagefold_sys::cpu;
use std::time::Duration;

/// The index of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    FaultsZero,
    FaultsFolded,
    FaultsStaged,
    FaultsWaited,
    FaultsResident,
    FaultsFailed,
    MemoryWaits,
    FaultNs,
    WaitNs,
    StagedPages,
    FoldedPages,
    CleanPages,
    CopiesDropped,
    Unmovable,
    FileReads,
    FileReadCalls,
    FileRereads,
    DroppedToFile,
    PoolLimitHit,
    RejectAllocFail,
    RejectCompressFail,
    RejectReclaimFail,
    DecompressFail,
    ReadBackFail,
}

const COUNTERS: usize = Counter::ReadBackFail as usize + 1;
const SHARDS: usize = 8;

/// Counters in shards by CPU, so that threads rarely share a cache line.
pub(crate) struct Counters(ShardedCounters<COUNTERS>);

impl Counters {
    pub(crate) fn new() -> Self {
        Counters(ShardedCounters::new(SHARDS))
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        self.0.add(cpu::current(), counter as usize, n as i64);
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.0.get(counter as usize)
    }

    pub(crate) fn time(&self, counter: Counter) -> Duration {
        Duration::from_nanos(self.get(counter))
    }
}
