//! The advice of the program on its future accesses, for each chunk of the range.
//!
//! Faulting threads, perhaps inside a signal handler, read the table, so it is made of atomic bytes. As long as nobody
//! gives any advice, a fault reads one flag.

use crate::table::CHUNK_PAGES;
use pagefold_page::{PageCount, PageIndex};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// How a program is going to use a part of a region. No advice changes contents.
///
/// The first three are kept for 4 MiB of the region at a time: a part that begins or ends inside such a chunk changes
/// the advice for all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// In some way that the region finds out: neighbours are brought in where faults are sequential or strided. This is
    /// the default.
    Normal,
    /// From lower to higher addresses, once: each fault brings in as many neighbours as possible, and pages that were
    /// passed are evicted first.
    Sequential,
    /// In no order: a fault brings in its page only.
    Random,
    /// Soon: compressed pages of the part are brought in now, by the calling thread, up to half of the limit. This is
    /// much faster than as many faults. Pages that cannot be read back are left out.
    WillNeed,
}

/// The advice that is kept for a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Access {
    Normal = 0,
    Sequential = 1,
    Random = 2,
}

/// The advice of all chunks.
pub(crate) struct AccessTable {
    /// Whether the region finds out for all faults which neighbours to bring in: it is to do so, and there is no
    /// advice.
    is_automatic: AtomicBool,
    chunks: Box<[AtomicU8]>,
}

impl AccessTable {
    /// Makes a table without advice. `neighbours` says whether faults without advice bring in neighbours.
    pub(crate) fn new(page_count: PageCount, neighbours: bool) -> Self {
        let chunks = page_count.0.div_ceil(CHUNK_PAGES);
        AccessTable {
            is_automatic: AtomicBool::new(neighbours),
            chunks: (0..chunks).map(|_| AtomicU8::new(Access::Normal as u8)).collect(),
        }
    }

    /// Returns whether all faults bring in the neighbours that the region finds out.
    #[inline]
    pub(crate) fn is_automatic(&self) -> bool {
        self.is_automatic.load(Relaxed)
    }

    /// Returns the advice for a page.
    pub(crate) fn get(&self, page: PageIndex) -> Access {
        let chunk = self.chunks.get((page.0 / CHUNK_PAGES) as usize);
        match chunk.map_or(0, |chunk| chunk.load(Relaxed)) {
            1 => Access::Sequential,
            2 => Access::Random,
            _ => Access::Normal,
        }
    }

    /// Keeps advice for all chunks that have some of the pages.
    pub(crate) fn set(&self, pages: Range<u64>, access: Access) {
        if pages.is_empty() {
            return;
        }
        let chunks = pages.start / CHUNK_PAGES..pages.end.div_ceil(CHUNK_PAGES);
        for chunk in self.chunks.iter().take(chunks.end as usize).skip(chunks.start as usize) {
            chunk.store(access as u8, Relaxed);
        }
        // Normal advice to a part is no reason for all faults to read the table.
        if access != Access::Normal {
            self.is_automatic.store(false, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_kept_for_the_chunks_that_a_part_touches() {
        let table = AccessTable::new(PageCount(3 * CHUNK_PAGES + 5), true);
        assert!(!AccessTable::new(PageCount(1), false).is_automatic());
        let of = |chunk: u64| table.get(PageIndex(chunk * CHUNK_PAGES + 3));
        let all = || [0, 1, 2, 3].map(of);
        use Access::{Normal, Random, Sequential};
        table.set(0..1, Normal);
        table.set(CHUNK_PAGES..CHUNK_PAGES, Random);
        assert!(table.is_automatic());
        table.set(CHUNK_PAGES..2 * CHUNK_PAGES, Random);
        assert!(!table.is_automatic());
        assert_eq!(all(), [Normal, Random, Normal, Normal]);
        table.set(2 * CHUNK_PAGES - 1..3 * CHUNK_PAGES + 1, Sequential);
        assert_eq!(all(), [Normal, Sequential, Sequential, Sequential]);
        table.set(CHUNK_PAGES + 7..CHUNK_PAGES + 8, Normal);
        assert_eq!(all(), [Normal, Normal, Sequential, Sequential]);
        assert_eq!(table.get(PageIndex(100 * CHUNK_PAGES)), Normal);
    }
}
