//! The statistics of a region, in a struct that can grow.

use crate::error::Error;
use crate::guard;
use crate::region::{pf_region, shared};
use pagefold_memory::RegionStats;
use std::ffi::c_int;
use std::mem::size_of;
use std::time::Duration;

macro_rules! region_stats {
    ($of:ident; $($field:ident: $value:expr;)*) => {
        /// The header's `struct pf_region_stats`. Later versions add fields at the end.
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        #[allow(missing_docs, reason = "documented in the header")]
        pub struct pf_region_stats {
            pub size_bytes: usize,
            $(pub $field: u64,)*
        }

        fn convert($of: &RegionStats) -> pf_region_stats {
            pf_region_stats { size_bytes: size_of::<pf_region_stats>(), $($field: $value,)* }
        }
    };
}

region_stats! {
    stats;
    resident_bytes: stats.memory.resident;
    resident_max_bytes: stats.memory.resident_max;
    limit_bytes: stats.memory.limit;
    pool_bytes: stats.memory.pool;
    metadata_max_bytes: stats.memory.metadata_max;
    compressed_only_bytes: stats.folded_bytes;
    stored_bytes: stats.stored_bytes;
    compressed_bytes: stats.compressed_bytes;
    same_filled_pages: stats.pool.same_filled_pages;
    incompressible_pages: stats.pool.stored_incompressible_pages;
    faults_zero: stats.faults.zero;
    faults_compressed: stats.faults.folded;
    faults_staged: stats.faults.staged;
    faults_failed: stats.faults.failed;
    file_reads: stats.faults.file_reads;
    memory_waits: stats.faults.memory_waits;
    fault_ns: ns(stats.faults.time);
    memory_wait_ns: ns(stats.faults.wait_time);
    neighbours_brought: stats.neighbours_brought;
    neighbours_used: stats.neighbours_used;
    evicted_pages: stats.eviction.staged;
    evicted_clean_pages: stats.eviction.clean;
    pool_limit_hit: stats.pool.pool_limit_hit;
    pool_refused_pages: refused_pages(stats);
    file_read_calls: stats.faults.file_read_calls;
    file_rereads: stats.faults.file_rereads;
    metadata_bytes: stats.memory.metadata;
    page_tables_bytes: stats.memory.page_tables;
    unmovable_pages: stats.eviction.unmovable;
}

/// Returns how many pages the pool has refused.
fn refused_pages(stats: &RegionStats) -> u64 {
    stats.pool.reject_alloc_fail + stats.pool.reject_compress_fail + stats.pool.reject_reclaim_fail
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_get_stats(
    region: *const pf_region,
    stats: *mut pf_region_stats,
    size_bytes: usize,
) -> c_int {
    guard::call(|| {
        // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
        let shared = unsafe { shared(region) }?;
        if stats.is_null() || size_bytes < size_of::<usize>() {
            return Err(Error::invalid("pf_region_get_stats takes a struct pf_region_stats and its size"));
        }
        let known = size_bytes.min(size_of::<pf_region_stats>());
        let converted = pf_region_stats { size_bytes: known, ..convert(&shared.region()?.stats()) };
        // SAFETY: the caller guarantees a struct of `size_bytes`, all of whose fields are integers.
        unsafe { guard::fill(stats, &converted, size_bytes) };
        Ok(())
    })
}
