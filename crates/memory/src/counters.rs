//! What a region counts, and what it tells.

use crossbeam_utils::CachePadded;
use pagefold_sys::cpu;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    FaultsZero,
    FaultsFolded,
    FaultsStaged,
    FaultsWaited,
    FaultsThere,
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

/// Counters that threads add to without meeting.
pub(crate) struct Counters(Box<[CachePadded<[AtomicU64; COUNTERS]>]>);

impl Counters {
    pub(crate) fn new() -> Self {
        let shard = || CachePadded::new([const { AtomicU64::new(0) }; COUNTERS]);
        Counters((0..SHARDS).map(|_| shard()).collect())
    }

    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        self.0[cpu::current() % SHARDS][counter as usize].fetch_add(n, Relaxed);
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.0.iter().map(|shard| shard[counter as usize].load(Relaxed)).sum()
    }

    pub(crate) fn time(&self, counter: Counter) -> Duration {
        Duration::from_nanos(self.get(counter))
    }
}

/// What became of accesses that found no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultStats {
    /// Pages touched for the first time.
    pub zero: u64,
    /// Pages brought back from the store.
    pub folded: u64,
    /// Pages brought back from the staging area, before they were folded.
    pub staged: u64,
    /// Faults that waited for another thread that was at the page.
    pub waited: u64,
    /// Faults on pages that were there by then.
    pub there: u64,
    /// Faults that could not be served: the page's contents are lost or cannot be read back.
    pub failed: u64,
    /// Loads of parked pages that failed because the medium did; neighbours' too.
    pub unreadable: u64,
    /// Faults that found no memory left and waited for some.
    pub memory_waits: u64,
    /// Time that threads spent in serving faults.
    pub time: Duration,
    /// Of that, the time in which they waited for memory.
    pub wait_time: Duration,
}

/// What became of pages on their way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvictionStats {
    /// Pages moved to the staging area.
    pub staged: u64,
    /// Of those, pages that were compressed (or kept as a word).
    pub folded: u64,
    /// Of those, pages that still equalled their copy, and were dropped.
    pub clean: u64,
    /// Copies of resident pages dropped, because the page was written or memory was short.
    pub copies_dropped: u64,
    /// Pages that could not be moved, because the kernel or a device uses them.
    pub unmovable: u64,
}

/// zswap's counters, by zswap's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Memory of folded pages, bytes.
    pub pool_total_size: u64,
    /// Pages that the store has, copies of resident pages included.
    pub stored_pages: u64,
    /// Of those, pages kept as a word.
    pub same_filled_pages: u64,
    /// Of those, pages kept as they are.
    pub stored_incompressible_pages: u64,
    /// Times that the limit was reached.
    pub pool_limit_hit: u64,
    /// Pages parked on the backing so far.
    pub written_back_pages: u64,
    /// Pages refused for want of memory.
    pub reject_alloc_fail: u64,
    /// Pages refused because the codec failed.
    pub reject_compress_fail: u64,
    /// Pages refused because they compress poorly: always 0, they are kept as they are.
    pub reject_compress_poor: u64,
    /// Pages refused because the pool was full and parking made no room.
    pub reject_reclaim_fail: u64,
    /// Folded pages that did not decode.
    pub decompress_fail: u64,
}

/// Time spent on pages, by how the store keeps them: what zswap's patch measured as store and load. What reading the
/// clock takes is taken off. Same-filled pages are those that are kept as a word: none, with the check for them off.
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
    /// The highest that was.
    pub resident_max: u64,
    /// The limit on it.
    pub limit: u64,
    /// Objects of the pool.
    pub pool: u64,
    /// Words, hashes and slots, if all of them are in use.
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
    /// Bytes they take there, compressed.
    pub compressed_bytes: u64,
    /// Accesses that found no memory.
    pub faults: FaultStats,
    /// Neighbours brought in.
    pub neighbours_brought: u64,
    /// Neighbours that are known to have been used.
    pub neighbours_used: u64,
    /// Pages on their way out.
    pub eviction: EvictionStats,
    /// zswap's counters.
    pub pool: PoolStats,
    /// Times by kind of page; only where [`measured`](crate::RegionConfig::measure_pages).
    pub times: PageTimes,
}

impl RegionStats {
    /// Uncompressed bytes by compressed bytes of all pages in the store; 0 if there are none.
    pub fn ratio(&self) -> f64 {
        match self.compressed_bytes {
            0 => 0.0,
            compressed => self.stored_bytes as f64 / compressed as f64,
        }
    }
}
