//! One buffer: owned bytes, and the allocator to which dropping returns them.

use super::{BUFFER_ALIGN_BYTES, Shared};
use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Owned bytes, aligned to [`BUFFER_ALIGN_BYTES`]. Dropping the buffer returns them to its region or the heap.
///
/// It holds a reference to its region, so it may outlive the [`Buffers`](super::Buffers) that it came from.
pub struct Buffer {
    pub(super) bytes: NonNull<u8>,
    pub(super) len_bytes: usize,
    pub(super) origin: Origin,
}

/// Where a buffer's memory came from, and goes when the buffer is dropped.
pub(super) enum Origin {
    Heap { counted_by: Option<Arc<Shared>> },
    Region { shared: Arc<Shared>, first_unit: usize, unit_count: usize },
}

// SAFETY: a buffer is the only owner of its bytes (a heap allocation, or units that the map hands to one buffer at a
// time), and nothing in it is bound to a thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference to a buffer only hands out shared slices of its bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates a buffer of zeroes on the heap, which no budget counts.
    pub fn new(len_bytes: usize) -> Self {
        Buffer::on_heap(len_bytes, None)
    }

    /// Allocates a buffer with these contents on the heap, which no budget counts.
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
        Buffer { bytes, len_bytes, origin: Origin::Heap { counted_by } }
    }
}

/// The layout of a heap buffer: whole units, at least one. An impossible size ends the program as a failed allocation
/// does.
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
        match &self.origin {
            Origin::Heap { counted_by } => {
                // SAFETY: allocated in `on_heap` with the same layout, and not used after this.
                unsafe { std::alloc::dealloc(self.bytes.as_ptr(), layout) };
                if let Some(shared) = counted_by {
                    shared.release_elsewhere(layout.size() as u64);
                }
            }
            Origin::Region { shared, first_unit, unit_count } => {
                // SAFETY: the units are this buffer's, and the buffer is not used after this.
                unsafe { shared.release_units(*first_unit, *unit_count) };
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
