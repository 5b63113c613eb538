//! The counters of writeback.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// zram's `bd_stat`, column by column, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BdStat {
    /// Pages that are written back now.
    pub bd_count: u64,
    /// Pages read back.
    pub bd_reads: u64,
    /// Pages written back since the store was made.
    pub bd_writes: u64,
}

impl fmt::Display for BdStat {
    /// zram's format: three columns, right-aligned to 8 characters, single spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8} {:8} {:8}", self.bd_count, self.bd_reads, self.bd_writes)
    }
}

/// All counters of writeback: pages and bytes since the store was created, unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WritebackStats {
    /// zram's counters.
    pub bd: BdStat,
    /// Bytes of the pages that are written back now, as they are on the medium, without headers.
    pub written_back_bytes: u64,
    /// Bytes of the backing that pages can be written to, free or not.
    pub capacity_bytes: u64,
    /// Bytes of free segments or blocks.
    pub free_bytes: u64,
    /// Bytes of compressed pages in completed writes of passes.
    pub payload_bytes: u64,
    /// Bytes that passes wrote, including headers and padding, without the cleaner's.
    pub written_bytes: u64,
    /// Bytes that the cleaner wrote.
    pub cleaned_bytes: u64,
    /// Bytes that the cleaner read.
    pub cleaner_read_bytes: u64,
    /// Segments that the cleaner emptied.
    pub cleaned_segments: u64,
    /// Write requests, the cleaner's included.
    pub writes: u64,
    /// Pages that stayed in memory because their write failed.
    pub failed_pages: u64,
    /// Pages that were changed or freed while their write was in flight.
    pub changed_pages: u64,
    /// Bytes read back.
    pub read_bytes: u64,
    /// Read requests to the medium for read-back.
    pub reads: u64,
    /// Pages read back from the read-ahead of another page, without a read of the medium.
    pub read_ahead_hits: u64,
    /// Reads that were repeated because the page changed or moved in the meantime.
    pub read_repeats: u64,
    /// Pages that were promoted to memory, after two reads within the window, or because the cleaner had no space for
    /// them.
    pub promoted_pages: u64,
    /// Reads of written-back pages that failed because of the medium.
    pub unreadable_pages: u64,
    /// Reads of written-back pages that failed because the record is corrupt.
    pub corrupt_pages: u64,
}

/// The counters behind [`WritebackStats`]. They are not sharded, because writeback is not on the fast path.
#[derive(Debug, Default)]
pub(crate) struct WritebackCounters {
    pub(crate) written_back: AtomicU64,
    pub(crate) written_back_bytes: AtomicU64,
    pub(crate) page_reads: AtomicU64,
    pub(crate) page_writes: AtomicU64,
    pub(crate) payload_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) cleaned_bytes: AtomicU64,
    pub(crate) cleaned_segments: AtomicU64,
    pub(crate) cleaner_read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) failed_pages: AtomicU64,
    pub(crate) changed_pages: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_ahead_hits: AtomicU64,
    pub(crate) read_repeats: AtomicU64,
    pub(crate) promoted_pages: AtomicU64,
    pub(crate) unreadable_pages: AtomicU64,
    pub(crate) corrupt_pages: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

/// Subtracts from a counter.
pub(crate) fn subtract(counter: &AtomicU64, n: u64) {
    counter.fetch_sub(n, Relaxed);
}

impl WritebackCounters {
    pub(crate) fn snapshot(&self, capacity_bytes: u64, free_bytes: u64) -> WritebackStats {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        WritebackStats {
            bd: BdStat {
                bd_count: count(&self.written_back),
                bd_reads: count(&self.page_reads),
                bd_writes: count(&self.page_writes),
            },
            written_back_bytes: count(&self.written_back_bytes),
            capacity_bytes,
            free_bytes,
            payload_bytes: count(&self.payload_bytes),
            written_bytes: count(&self.written_bytes),
            cleaned_bytes: count(&self.cleaned_bytes),
            cleaner_read_bytes: count(&self.cleaner_read_bytes),
            cleaned_segments: count(&self.cleaned_segments),
            writes: count(&self.writes),
            failed_pages: count(&self.failed_pages),
            changed_pages: count(&self.changed_pages),
            read_bytes: count(&self.read_bytes),
            reads: count(&self.reads),
            read_ahead_hits: count(&self.read_ahead_hits),
            read_repeats: count(&self.read_repeats),
            promoted_pages: count(&self.promoted_pages),
            unreadable_pages: count(&self.unreadable_pages),
            corrupt_pages: count(&self.corrupt_pages),
        }
    }
}
