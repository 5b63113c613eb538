//! The owner's view of the store of a region's folded pages.
//!
//! The pages in the store are the region's memory. A write or discard in the store would change bytes to which the
//! program has references. So the region returns views that cannot touch contents instead of the store: statistics and
//! upkeep here, and writeback in `writeback_view`.
//!
//! Threads that make room for faults need the store's locks. A signal handler may touch the region; if it interrupted
//! its thread under one of these locks, it would wait for a thread that waits for the lock. So every call here that
//! takes a lock blocks signals meanwhile.

use crate::writeback_view::WritebackView;
use pagefold_store::{ClassStats, Stats, Store};
use pagefold_sys::signal;

/// The store of a region's folded pages, without their contents.
///
/// ```compile_fail,E0599
/// # use pagefold_memory::{Region, RegionConfig};
/// let mut region = Region::new(RegionConfig::new(64 << 20, 8 << 20))?;
/// // Bytes that `bytes` lends out cannot be changed through the store.
/// region.store().discard(0, 4096);
/// # Ok::<(), pagefold_memory::RegionError>(())
/// ```
#[derive(Clone, Copy)]
pub struct StoreView<'a> {
    store: &'a Store,
}

impl<'a> StoreView<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        StoreView { store }
    }

    /// Returns the codec's name and level.
    pub fn codec(&self) -> (&'static str, Option<i32>) {
        self.store.codec()
    }

    /// Returns the store's counters.
    pub fn stats(&self) -> Stats {
        let _masked = signal::mask_asynchronous();
        self.store.stats()
    }

    /// Returns the counts of each size class in use.
    pub fn class_stats(&self) -> Vec<ClassStats> {
        let _masked = signal::mask_asynchronous();
        self.store.class_stats()
    }

    /// Sets `mem_used_max` to the present use.
    pub fn reset_mem_used_max(&self) {
        self.store.reset_mem_used_max();
    }

    /// Closes the holes between objects. Returns the bytes that this freed.
    pub fn compact(&self) -> u64 {
        let _masked = signal::mask_asynchronous();
        self.store.compact()
    }

    /// Returns the view of writeback, if the region has a backing.
    pub fn writeback(&self) -> Option<WritebackView<'a>> {
        let writeback = self.store.writeback()?;
        Some(WritebackView::new(self.store, writeback))
    }
}
