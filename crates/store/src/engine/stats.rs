//! What a store tells about itself. Names and meanings of zram's `mm_stat` and `io_stat`.

use pagefold_codec::StreamWaits;
use std::fmt;

/// zram's `mm_stat`, column by column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MmStat {
    /// Bytes of the pages stored, uncompressed; same-filled pages count.
    pub orig_data_size: u64,
    /// Bytes of all objects; same-filled pages have none, raw pages 4096.
    pub compr_data_size: u64,
    /// Bytes of memory the pool holds for objects, owner words and gaps included; slots not.
    pub mem_used_total: u64,
    /// The limit on `mem_used_total`, bytes; 0 is none.
    pub mem_limit: u64,
    /// The highest `mem_used_total` since the last reset.
    pub mem_used_max: u64,
    /// Same-filled pages held.
    pub same_pages: u64,
    /// Frames freed by compaction on request.
    pub pages_compacted: u64,
    /// Raw pages held.
    pub huge_pages: u64,
    /// Raw pages ever stored.
    pub huge_pages_since: u64,
}

impl fmt::Display for MmStat {
    /// zram's format: nine columns, right-aligned to 8 characters, single spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:8} {:8} {:8} {:8} {:8} {:8} {:8} {:8} {:8}",
            self.orig_data_size,
            self.compr_data_size,
            self.mem_used_total,
            self.mem_limit,
            self.mem_used_max,
            self.same_pages,
            self.pages_compacted,
            self.huge_pages,
            self.huge_pages_since,
        )
    }
}

/// zram's `io_stat`, column by column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoStat {
    /// Page reads that failed.
    pub failed_reads: u64,
    /// Page writes that failed; the page kept its old contents.
    pub failed_writes: u64,
    /// Requests outside the store.
    pub invalid_io: u64,
    /// Whole pages discarded or written with zeroes on request, held or not.
    pub notify_free: u64,
}

impl fmt::Display for IoStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:8} {:8} {:8} {:8}",
            self.failed_reads, self.failed_writes, self.invalid_io, self.notify_free
        )
    }
}

/// All memory of a store, in bytes, by what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryStats {
    /// Frames that hold objects: `mem_used_total`.
    pub objects: u64,
    /// Frames that hold slots.
    pub slots: u64,
    /// The array that chains frames.
    pub links: u64,
    /// Free frames kept ready, the reserve included.
    pub ready: u64,
}

impl MemoryStats {
    /// The sum.
    pub fn total(&self) -> u64 {
        self.objects + self.slots + self.links + self.ready
    }
}

/// Everything a store counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// zram's memory counters.
    pub mm: MmStat,
    /// zram's I/O counters.
    pub io: IoStat,
    /// Memory by purpose.
    pub memory: MemoryStats,
    /// Detours to other CPUs' streams.
    pub streams: StreamWaits,
    /// Writes that found no frame ready, waited for one and compressed again.
    pub slow_writes: u64,
    /// Objects moved to keep classes dense.
    pub objects_moved: u64,
}
