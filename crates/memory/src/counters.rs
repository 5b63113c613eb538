//! The counters of a region, and the statistics made of them.

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
    SameFilledStored,
    SameFilledLoaded,
    StoreNs,
    LoadNs,
    SameFilledStoreNs,
    SameFilledLoadNs,
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

/// Counts of accesses to pages that were not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultStats {
    /// Pages touched for the first time.
    pub zero: u64,
    /// Pages brought back from the store.
    pub folded: u64,
    /// Pages brought back from the staging area, before they were folded.
    pub staged: u64,
    /// Faults that waited for another thread that owned the page.
    pub waited: u64,
    /// Faults on pages that were resident by the time the fault was served.
    pub already_resident: u64,
    /// Faults that failed: the page's contents are lost or cannot be read back.
    pub failed: u64,
    /// Loads of written-back pages, neighbours included, that failed because the medium failed.
    pub unreadable: u64,
    /// Faults that waited because the limit was reached.
    pub memory_waits: u64,
    /// Time that threads spent serving faults.
    pub time: Duration,
    /// The part of that time in which they waited for memory.
    pub wait_time: Duration,
}

/// Counts of pages that left the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvictionStats {
    /// Pages moved to the staging area.
    pub staged: u64,
    /// Of those, pages that were compressed (or kept as a word).
    pub folded: u64,
    /// Of those, pages that still equalled their copy in the store and were dropped.
    pub clean: u64,
    /// Copies of resident pages dropped, because the page was written or memory was short.
    pub copies_dropped: u64,
    /// Pages that could not be moved because the kernel or a device uses them.
    pub unmovable: u64,
}

/// zswap's counters, by zswap's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Memory of folded pages, bytes.
    pub pool_total_size: u64,
    /// Pages in the store, copies of resident pages included.
    pub stored_pages: u64,
    /// Of those, pages kept as a word.
    pub same_filled_pages: u64,
    /// Of those, pages kept uncompressed.
    pub stored_incompressible_pages: u64,
    /// Times that the pool reached its limit.
    pub pool_limit_hit: u64,
    /// Pages written back to the backing so far.
    pub written_back_pages: u64,
    /// Pages refused because the pool had no memory.
    pub reject_alloc_fail: u64,
    /// Pages refused because the codec failed.
    pub reject_compress_fail: u64,
    /// Pages refused because they compress poorly: always 0, the store keeps them uncompressed.
    pub reject_compress_poor: u64,
    /// Pages refused because the pool was full and writeback made no room.
    pub reject_reclaim_fail: u64,
    /// Folded pages that failed to decompress.
    pub decompress_fail: u64,
}

/// Time spent on single pages, by how the store keeps them: what zswap's developers measured as store and load. The
/// time to read the clock is subtracted. Same-filled pages are those that are kept as a word; there are none if the
/// check for them is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageTimes {
    /// Same-filled pages stored.
    pub same_filled_stored: u64,
    /// Same-filled pages loaded.
    pub same_filled_loaded: u64,
    /// Time in storing same-filled pages.
    pub same_filled_store: Duration,
    /// Time in loading same-filled pages.
    pub same_filled_load: Duration,
    /// Time in storing the other pages.
    pub store: Duration,
    /// Time in loading the other pages.
    pub load: Duration,
}

/// Memory of a region, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryStats {
    /// Pages of the range and frames of the staging area that have memory.
    pub resident: u64,
    /// The highest value of `resident` so far.
    pub resident_max: u64,
    /// The limit on `resident`.
    pub limit: u64,
    /// Memory of the pool.
    pub pool: u64,
    /// Page words, hashes and slots, if all of them are in use.
    pub metadata_max: u64,
}

/// Everything a region counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RegionStats {
    /// Memory by purpose.
    pub memory: MemoryStats,
    /// Bytes of pages that are in the store and not in the range.
    pub folded_bytes: u64,
    /// Bytes of all pages in the store, uncompressed, copies of resident pages included.
    pub stored_bytes: u64,
    /// Compressed size of those pages.
    pub compressed_bytes: u64,
    /// Accesses to pages that were not mapped.
    pub faults: FaultStats,
    /// Neighbours brought in by readahead.
    pub neighbours_brought: u64,
    /// Neighbours that are known to have been used.
    pub neighbours_used: u64,
    /// Pages that left the range.
    pub eviction: EvictionStats,
    /// zswap's counters.
    pub pool: PoolStats,
    /// Times by kind of page; zero unless [`RegionConfig::measure_pages`](crate::RegionConfig::measure_pages) is set.
    pub times: PageTimes,
}

impl RegionStats {
    /// Returns the uncompressed size of all pages in the store divided by their compressed size; 0 if there are none.
    pub fn ratio(&self) -> f64 {
        match self.compressed_bytes {
            0 => 0.0,
            compressed => self.stored_bytes as f64 / compressed as f64,
        }
    }
}
