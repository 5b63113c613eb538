//! One buffer: owned bytes, and where they go back to.

use super::{BUFFER_ALIGN_BYTES, Shared};
use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Owned bytes, aligned to [`BUFFER_ALIGN_BYTES`]; goes back to its budget, if any, when dropped.
///
/// It keeps the budget's region alive, so it may outlive the [`Buffers`](super::Buffers) it came from.
pub struct Buffer {
    pub(super) bytes: NonNull<u8>,
    pub(super) len_bytes: usize,
    pub(super) home: Home,
}

/// Where a buffer's memory goes when it is dropped.
pub(super) enum Home {
    Heap { counted_by: Option<Arc<Shared>> },
    Region { shared: Arc<Shared>, first_unit: usize, unit_count: usize },
}

// SAFETY: a buffer is the only owner of its bytes (a heap allocation, or units that the map gives to
// one buffer at a time), and nothing in it is bound to a thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer only gives out shared slices of its bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of zeroes from the heap, of no budget.
    pub fn new(len_bytes: usize) -> Self {
        Buffer::on_heap(len_bytes, None)
    }

    /// A buffer from the heap with this content, of no budget.
    pub fn copy_of(data: &[u8]) -> Self {
        let mut buffer = Buffer::new(data.len());
        buffer.copy_from_slice(data);
        buffer
    }

    pub(super) fn on_heap(len_bytes: usize, counted_by: Option<Arc<Shared>>) -> Self {
        let layout = heap_layout(len_bytes);
        // SAFETY: the layout's size is not zero.
        let bytes = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let Some(bytes) = bytes else { std::alloc::handle_alloc_error(layout) };
        Buffer { bytes, len_bytes, home: Home::Heap { counted_by } }
    }
}

/// Whole units, at least one; an impossible size is reported as the allocator reports its own.
fn heap_layout(len_bytes: usize) -> Layout {
    let size = len_bytes.div_ceil(BUFFER_ALIGN_BYTES).max(1).saturating_mul(BUFFER_ALIGN_BYTES);
    match Layout::from_size_align(size, BUFFER_ALIGN_BYTES) {
        Ok(layout) => layout,
        Err(_) => std::alloc::handle_alloc_error(Layout::new::<usize>()),
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len_bytes` bytes from `bytes` are this buffer's own, initialised (zeroed heap, or an
        // anonymous mapping, which reads as zeroes until written), and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len_bytes` bytes from `bytes` are this buffer's own and initialised (zeroed heap, or an anonymous
        // mapping, which reads as zeroes until written). `self` is borrowed exclusively for as long as the slice
        // lives, so nothing else refers to them.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len_bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let layout = heap_layout(self.len_bytes);
        match &self.home {
            Home::Heap { counted_by } => {
                // SAFETY: allocated in `on_heap` with the same layout, and not used after this.
                unsafe { std::alloc::dealloc(self.bytes.as_ptr(), layout) };
                if let Some(shared) = counted_by {
                    shared.release(layout.size() as u64);
                }
            }
            Home::Region { shared, first_unit, unit_count } => {
                // SAFETY: the units are this buffer's, which ends here.
                unsafe { shared.give_back(*first_unit, *unit_count) };
            }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len_bytes)
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}
