//! One buffer: owned bytes, and the allocator to which dropping returns them.

use super::BUFFER_ALIGN_BYTES;
use super::region::Region;
use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Owned bytes, aligned to [`BUFFER_ALIGN_BYTES`]. Dropping the buffer returns them to its region or the heap.
///
/// It holds a reference to its region, so it may outlive the [`Buffers`](super::Buffers) that it came from.
pub struct Buffer {
    bytes: NonNull<u8>,
    len_bytes: usize,
    origin: Origin,
}

/// Where a buffer's memory came from, and goes when the buffer is dropped.
enum Origin {
    Heap { counted_by: Option<Arc<Region>> },
    Region { region: Arc<Region>, first_unit: usize, unit_count: usize },
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

    /// The bytes that a buffer of this length takes: whole units.
    pub fn footprint(len_bytes: usize) -> u64 {
        (unit_count(len_bytes) as u64).saturating_mul(BUFFER_ALIGN_BYTES as u64)
    }

    /// Allocates a buffer from a region, if a run of free units is long enough.
    pub(super) fn in_region(region: &Arc<Region>, len_bytes: usize) -> Option<Self> {
        let unit_count = unit_count(len_bytes);
        let (first_unit, bytes) = region.take_units(unit_count)?;
        let origin = Origin::Region { region: region.clone(), first_unit, unit_count };
        Some(Buffer { bytes, len_bytes, origin })
    }

    /// Allocates a buffer from a region, or else from the heap.
    pub(super) fn counted_by(region: &Arc<Region>, len_bytes: usize) -> Self {
        Buffer::in_region(region, len_bytes).unwrap_or_else(|| {
            region.add_heap(Buffer::footprint(len_bytes));
            Buffer::on_heap(len_bytes, Some(region.clone()))
        })
    }

    fn on_heap(len_bytes: usize, counted_by: Option<Arc<Region>>) -> Self {
        let layout = heap_layout(len_bytes);
        // SAFETY: the layout's size is not zero.
        let bytes = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let Some(bytes) = bytes else { std::alloc::handle_alloc_error(layout) };
        Buffer { bytes, len_bytes, origin: Origin::Heap { counted_by } }
    }
}

/// The number of units of a buffer of this length.
fn unit_count(len_bytes: usize) -> usize {
    len_bytes.div_ceil(BUFFER_ALIGN_BYTES).max(1)
}

/// The layout of a heap buffer: whole units, at least one. An impossible size ends the program as a failed allocation
/// does.
fn heap_layout(len_bytes: usize) -> Layout {
    let size = unit_count(len_bytes).saturating_mul(BUFFER_ALIGN_BYTES);
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
                if let Some(region) = counted_by {
                    region.subtract_heap(layout.size() as u64);
                }
            }
            Origin::Region { region, first_unit, unit_count } => {
                // SAFETY: the units are this buffer's, and the buffer is not used after this.
                unsafe { region.release_units(*first_unit, *unit_count) };
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
