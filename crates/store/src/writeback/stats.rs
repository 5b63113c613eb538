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

/// Defines [`WritebackStats`] and the counters from which it is taken.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// All counters of writeback: pages and bytes since the store was created, unless stated otherwise.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct WritebackStats {
            /// zram's counters.
            pub bd: BdStat,
            /// Bytes of the backing that pages can be written to, free or not.
            pub capacity_bytes: u64,
            /// Bytes of free segments or blocks.
            pub free_bytes: u64,
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters behind [`WritebackStats`]. They are not sharded, because writeback is not on the fast path.
        #[derive(Debug, Default)]
        pub(crate) struct WritebackCounters {
            pub(crate) written_back: AtomicU64,
            pub(crate) page_reads: AtomicU64,
            pub(crate) page_writes: AtomicU64,
            $(pub(crate) $name: AtomicU64,)*
        }

        impl WritebackCounters {
            pub(crate) fn snapshot(&self, capacity_bytes: u64, free_bytes: u64) -> WritebackStats {
                let bd = BdStat {
                    bd_count: self.written_back.load(Relaxed),
                    bd_reads: self.page_reads.load(Relaxed),
                    bd_writes: self.page_writes.load(Relaxed),
                };
                WritebackStats { bd, capacity_bytes, free_bytes, $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Bytes of the pages that are written back now, as they are on the medium, without headers.
    written_back_bytes,
    /// Bytes of compressed pages in completed writes of passes.
    payload_bytes,
    /// Bytes that passes wrote, including headers and padding, without the cleaner's.
    written_bytes,
    /// Bytes that the cleaner wrote.
    cleaned_bytes,
    /// Bytes that the cleaner read.
    cleaner_read_bytes,
    /// Segments that the cleaner emptied.
    cleaned_segments,
    /// Write requests, the cleaner's included.
    writes,
    /// Pages that stayed in memory because their write failed.
    failed_pages,
    /// Pages that were changed or freed while their write was in flight.
    changed_pages,
    /// Bytes read back.
    read_bytes,
    /// Read requests to the medium for read-back.
    reads,
    /// Pages read back from the read-ahead of another page, without a read of the medium.
    read_ahead_hits,
    /// Reads that were repeated because the page changed or moved in the meantime.
    read_repeats,
    /// Pages that were promoted to memory, after two reads within the window, or because the cleaner had no space for
    /// them.
    promoted_pages,
    /// Reads of written-back pages that failed because of the medium.
    unreadable_pages,
    /// Reads of written-back pages that failed because the record is corrupt.
    corrupt_pages,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

/// Subtracts from a counter.
pub(crate) fn subtract(counter: &AtomicU64, n: u64) {
    counter.fetch_sub(n, Relaxed);
}
