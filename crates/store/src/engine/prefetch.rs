//! Prefetch hints for pages that are about to be loaded.
//!
//! In a large store neither the slot nor the object of a page is in a CPU cache, and a load waits for memory twice:
//! for the slot, then for the object that it points to. A fault handler knows the page some time before it loads it,
//! so it can prefetch the slot first and the object later, with other work in between.
//!
//! The hints take no lock, change nothing, and are valid for any page at any time. They may read an outdated slot;
//! then they prefetch a useless cache line, or read a frame link that was never written, for which the kernel maps
//! the zero page.

use crate::engine::store::Store;
use pagefold_page::PageIndex;
use pagefold_pool::Handle;
use pagefold_sys::prefetch;

impl Store {
    /// Prefetches the page's slot: the first hint.
    #[inline]
    pub fn prefetch_slot(&self, index: PageIndex) {
        if self.pages.table.page_count().contains(index)
            && let Some(slot) = self.pages.table.get(index)
        {
            prefetch::line(std::ptr::from_ref(slot).cast());
        }
    }

    /// Prefetches the page's object, if the slot in memory points to one: the second hint.
    #[inline]
    pub fn prefetch_object(&self, index: PageIndex) {
        if self.pages.table.page_count().contains(index)
            && let Some(slot) = self.pages.table.get(index)
            && let Some((handle, len_bytes)) = slot.object_hint()
        {
            self.pages.pool.prefetch(Handle::from_bits(handle), len_bytes);
        }
    }
}
