//! The counters of a store, with the names and meanings of zram's `mm_stat` and `io_stat`.

use crate::pages::FURTHER_CODECS_MAX;
use pagefold_codec::StreamWaits;
use std::fmt;

/// zram's `mm_stat`, column by column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MmStat {
    /// Bytes of the pages stored, uncompressed; same-filled pages count.
    pub orig_data_size: u64,
    /// Bytes of all objects: the compressed length, 4096 for a raw page, 0 for a same-filled page.
    pub compr_data_size: u64,
    /// Bytes of memory that the pool uses for objects, including owner words and gaps, without the slots.
    pub mem_used_total: u64,
    /// The limit on `mem_used_total`, bytes; 0 means no limit.
    pub mem_limit: u64,
    /// The highest `mem_used_total` since the last reset.
    pub mem_used_max: u64,
    /// Same-filled pages now.
    pub same_pages: u64,
    /// Frames freed by compaction on request.
    pub pages_compacted: u64,
    /// Raw pages now.
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
    /// Whole pages discarded or overwritten with zeroes by a request, whether they were empty or not.
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

/// The memory of a store by purpose, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryStats {
    /// Frames that hold objects: `mem_used_total`.
    pub objects: u64,
    /// Frames that hold slots.
    pub slots: u64,
    /// The array of links between frames.
    pub links: u64,
    /// Free frames that are backed by memory, including the reserve.
    pub ready: u64,
}

impl MemoryStats {
    /// The sum.
    pub fn total(&self) -> u64 {
        self.objects + self.slots + self.links + self.ready
    }
}

/// The counters of recompression: pages and bytes since the store was created, unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecompressStats {
    /// Pages that got a smaller object.
    pub recompressed_pages: u64,
    /// Bytes by which their objects became shorter.
    pub saved_bytes: u64,
    /// Pages that were tried and would not have become smaller.
    pub not_smaller_pages: u64,
    /// Pages that are objects of the further codecs now, by priority: that of priority 1 first.
    pub pages_now: [u64; FURTHER_CODECS_MAX],
}

/// All counters of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// zram's memory counters.
    pub mm: MmStat,
    /// zram's I/O counters.
    pub io: IoStat,
    /// Recompression.
    pub recompress: RecompressStats,
    /// Memory by purpose.
    pub memory: MemoryStats,
    /// How often a thread had to use the stream of another CPU.
    pub streams: StreamWaits,
    /// Writes that found no frame ready, waited for one and compressed the page again.
    pub slow_writes: u64,
    /// Objects moved to keep classes dense.
    pub objects_moved: u64,
}
