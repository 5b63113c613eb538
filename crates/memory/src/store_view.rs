//! What the owner of a region can do with the store of its folded pages.
//!
//! The pages in the store are the region's memory: whoever wrote or discarded one there would change bytes that the
//! program has references to. So the store itself is not handed out, but views of it that cannot touch contents:
//! statistics and upkeep here, and writing pages back in `writeback_view`.
//!
//! The store's locks are needed by the threads that make room for faults. A signal handler may touch the region; if it
//! interrupted its thread under one of these locks, it would wait for a thread that waits for the lock. So every
//! call here that takes a lock masks signals meanwhile.

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
        let _masked = signal::mask_all();
        self.store.stats()
    }

    /// Returns the counts of each size class in use.
    pub fn class_stats(&self) -> Vec<ClassStats> {
        let _masked = signal::mask_all();
        self.store.class_stats()
    }

    /// Starts `mem_used_max` anew from what is used now.
    pub fn reset_mem_used_max(&self) {
        self.store.reset_mem_used_max();
    }

    /// Closes the holes between objects. Returns the bytes that this freed.
    pub fn compact(&self) -> u64 {
        let _masked = signal::mask_all();
        self.store.compact()
    }

    /// Returns the view of write-back, if the region has a backing.
    pub fn writeback(&self) -> Option<WritebackView<'a>> {
        let parking = self.store.parking()?;
        Some(WritebackView::new(self.store, parking))
    }
}
