//! The memory of an arena under Miri, which has no `madvise`: all of it is on the heap from the beginning.
//!
//! The types stand in for those of `pagefold_sys::mem`, as far as the arena uses them.

use pagefold_sys::SysError;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// The error number of Linux.
const ENOMEM: i32 = 12;

/// A range of zeroed memory.
pub(crate) struct Reservation {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value only holds the address and the layout of an allocation, which are not bound to a thread.
unsafe impl Send for Reservation {}
// SAFETY: a shared value returns its address, which never changes.
unsafe impl Sync for Reservation {}

impl Reservation {
    pub(crate) fn new(len_bytes: usize) -> Result<Self, SysError> {
        let error = || SysError::new("reserving memory", ENOMEM);
        let layout = Layout::from_size_align(len_bytes.max(1), crate::FRAME_LEN).map_err(|_| error())?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(error)?;
        Ok(Reservation { base, layout })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn populate(&self, offset: usize, len: usize) -> Result<(), SysError> {
        assert!(offset + len <= self.layout.size());
        Ok(())
    }

    /// Fills the parts with bytes that nobody stored, and returns their length.
    ///
    /// # Safety
    /// No live object or reference lies in the parts, which are of this reservation.
    pub(crate) unsafe fn discard_batch(&self, parts: &DiscardBatch) -> usize {
        for &(offset, len) in &parts.0 {
            // SAFETY: the part lies in the allocation (asserted by `push`), and no live object in it (the caller's duty).
            unsafe { self.base.add(offset).write_bytes(0, len) };
        }
        parts.0.iter().map(|(_, len)| len).sum()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout; nothing refers to it any more.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Parts of a reservation: offset and length.
pub(crate) struct DiscardBatch(Vec<(usize, usize)>);

impl DiscardBatch {
    pub(crate) fn new(capacity: usize) -> Self {
        DiscardBatch(Vec::with_capacity(capacity))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn push(&mut self, range: &Reservation, offset: usize, len: usize) {
        assert!(offset + len <= range.layout.size());
        self.0.push((offset, len));
    }
}
