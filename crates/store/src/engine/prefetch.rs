//! Prefetching: a page that is about to be loaded, on its way from memory while the caller does something else.
//!
//! In a large store what a load reads is in no cache, and each step waits for memory before it knows where the next
//! one is: slot, then object. Who serves a fault knows the page some time before it loads it, and knows the pages that
//! it will load after it; the two steps are hinted at separately, with other work between.
//!
//! Hints only: they take no lock, change nothing, and may be given of any page at any time. What they see of a slot
//! may be old, and the worst of that is that something is read that nobody wanted: a line, or a link of a frame that was
//! never used, for which the kernel maps its page of zeroes.

use crate::engine::store::Store;
use pagefold_page::PageIndex;
use pagefold_pool::Handle;
use pagefold_sys::prefetch;

impl Store {
    /// First hint: the page's slot, from which the second takes what to ask for.
    #[inline]
    pub fn prefetch_slot(&self, index: PageIndex) {
        if self.table.page_count().contains(index)
            && let Some(slot) = self.table.get(index)
        {
            prefetch::line(std::ptr::from_ref(slot).cast());
        }
    }

    /// Second hint: the page's object, if it has one in memory.
    #[inline]
    pub fn prefetch_object(&self, index: PageIndex) {
        if self.table.page_count().contains(index)
            && let Some(slot) = self.table.get(index)
            && let Some((handle, len_bytes)) = slot.peek_object()
        {
            self.pool.prefetch(Handle::from_bits(handle), len_bytes);
        }
    }
}
