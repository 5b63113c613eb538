//! The statistics of a region, as plain data.
//!
//! Programs can keep, compare and send these structs. Later versions may add fields, but a field keeps its name, unit
//! and meaning.

use crate::counters::Counter;
use crate::pager::Pager;
use pagefold_page::PAGE_SIZE;
use pagefold_sys::signal;
use std::time::Duration;

/// Bytes of a slot of the store.
const SLOT_BYTES: u64 = 16;

/// Counts of accesses to pages that were not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
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
    /// Pages read from the region's file, neighbours included.
    pub file_reads: u64,
    /// Reads of the region's file that brought those pages in: adjacent pages are read together.
    pub file_read_calls: u64,
    /// Of those pages, the ones that had been read before, and were dropped because the pool was full.
    pub file_rereads: u64,
    /// Faults that failed: the page's contents are lost or cannot be read back.
    pub failed: u64,
    /// Loads of written-back pages and of pages of the region's file, neighbours included, that failed because the
    /// medium failed or the file was changed.
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
#[non_exhaustive]
pub struct EvictionStats {
    /// Pages moved to the staging area.
    pub staged: u64,
    /// Of those, pages that were compressed (or kept as a word).
    pub folded: u64,
    /// Of those, pages that still equalled their copy in the store and were dropped.
    pub clean: u64,
    /// Copies of resident pages dropped, because the page was written or will probably be, or memory was short.
    pub copies_dropped: u64,
    /// Pages dropped because the store refused them and the region's file has the same bytes.
    pub dropped_to_file: u64,
    /// Pages that could not be moved because the kernel or a device uses them.
    pub unmovable: u64,
}

/// zswap's counters, by zswap's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
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

/// Memory of a region, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Pages of the range and frames of the staging area that have memory.
    pub resident: u64,
    /// The highest value of `resident` so far, where parts that the kernel fills by itself count in full
    /// ([`RegionConfig::register_late`](crate::RegionConfig::register_late)).
    pub resident_max: u64,
    /// The limit on `resident`.
    pub limit: u64,
    /// Memory of the pool.
    pub pool: u64,
    /// Page words, hashes and slots in use. They are not given back, and the limit counts those of pages in the store
    /// only as far as these lie together.
    pub metadata: u64,
    /// Page words, hashes and slots, if all of them are in use.
    pub metadata_max: u64,
    /// The kernel's page tables of the range and of the staging area, about: 4 KiB for each 2 MiB that have or had a page.
    /// The limit does not count them. Where the kernel frees some on a `discard`, they stay in this number.
    pub page_tables: u64,
}

/// Everything a region counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
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

/// Whether a region is under pressure, from few counters: for a look many times a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Pressure {
    /// Pages that the pool refused so far: because it was full, had no memory, or the codec failed.
    pub refused_pages: u64,
    /// Whether more is resident than the limit allows.
    pub is_over_limit: bool,
}

/// Looks whether a region is under pressure.
pub(crate) fn pressure(pager: &Pager) -> Pressure {
    let refused = [Counter::RejectAllocFail, Counter::RejectCompressFail, Counter::RejectReclaimFail];
    let (in_use, limit) = (pager.budget.in_use(), pager.budget.limit());
    Pressure {
        refused_pages: refused.into_iter().map(|counter| pager.counters.get(counter)).sum(),
        // Pages that are charged and have no memory take a walk to count. They matter only beyond the limit.
        is_over_limit: in_use > limit && in_use.saturating_sub(pager.charged_without_memory()) > limit,
    }
}

/// Returns about the memory of the kernel's page tables for the range and the staging area.
fn page_tables(pager: &Pager) -> u64 {
    /// Memory that one page table maps.
    const MAPPED_BYTES: u64 = 2 << 20;
    let staging = (pager.staging.memory().len_bytes() as u64).div_ceil(MAPPED_BYTES);
    // A page that was staged needs at most one.
    let staging = staging.min(pager.counters.get(Counter::StagedPages));
    (pager.table.touched().page_tables + staging) * PAGE_SIZE as u64
}

/// Collects the statistics of a region.
pub(crate) fn collect(pager: &Pager) -> RegionStats {
    // The store's locks are taken below. A thread that makes room for a fault may need them, and a handler that
    // interrupted this thread could fault.
    let _masked = signal::mask_asynchronous();
    let bytes = |pages: u64| pages * PAGE_SIZE as u64;
    let count = |counter| pager.counters.get(counter);
    let time = |counter| pager.counters.time(counter);
    let store = pager.store.stats();
    let (neighbours_brought, neighbours_used) = pager.readahead.counts();
    let slots = store.memory.slots + store.memory.links;
    let written_back = pager.store.writeback().map_or(0, |writeback| writeback.stats().bd.bd_writes);
    RegionStats {
        memory: MemoryStats {
            resident: bytes(pager.budget.in_use().saturating_sub(pager.charged_without_memory())),
            resident_max: bytes(pager.resident_max()),
            limit: bytes(pager.budget.limit()),
            pool: store.mm.mem_used_total,
            metadata: bytes(pager.table.touched().table_pages) + slots,
            metadata_max: pager.table.len_bytes_max() + slots.max(pager.table.page_count().0 * SLOT_BYTES),
            page_tables: page_tables(pager),
        },
        folded_bytes: bytes(pager.table.folded()),
        stored_bytes: store.mm.orig_data_size,
        compressed_bytes: store.mm.compr_data_size,
        faults: FaultStats {
            zero: count(Counter::FaultsZero),
            folded: count(Counter::FaultsFolded),
            staged: count(Counter::FaultsStaged),
            waited: count(Counter::FaultsWaited),
            already_resident: count(Counter::FaultsResident),
            file_reads: count(Counter::FileReads),
            file_read_calls: count(Counter::FileReadCalls),
            file_rereads: count(Counter::FileRereads),
            failed: count(Counter::FaultsFailed),
            unreadable: count(Counter::ReadBackFail),
            memory_waits: count(Counter::MemoryWaits),
            time: time(Counter::FaultNs),
            wait_time: time(Counter::WaitNs),
        },
        neighbours_brought,
        neighbours_used,
        eviction: EvictionStats {
            staged: count(Counter::StagedPages),
            folded: count(Counter::FoldedPages),
            clean: count(Counter::CleanPages),
            copies_dropped: count(Counter::CopiesDropped),
            dropped_to_file: count(Counter::DroppedToFile),
            unmovable: count(Counter::Unmovable),
        },
        pool: PoolStats {
            pool_total_size: store.mm.mem_used_total,
            stored_pages: store.mm.orig_data_size / PAGE_SIZE as u64,
            same_filled_pages: store.mm.same_pages,
            stored_incompressible_pages: store.mm.huge_pages,
            pool_limit_hit: count(Counter::PoolLimitHit),
            written_back_pages: written_back,
            reject_alloc_fail: count(Counter::RejectAllocFail),
            reject_compress_fail: count(Counter::RejectCompressFail),
            reject_compress_poor: 0,
            reject_reclaim_fail: count(Counter::RejectReclaimFail),
            decompress_fail: count(Counter::DecompressFail),
        },
    }
}
