//! Memory for requests: aligned buffers, and the budget they come from.
//!
//! Direct I/O wants aligned memory, io_uring wants memory that was registered before,
//! and a service wants a bound on both. So there is one region, reserved once and cut
//! into pieces ([`Buffers`]), and one owned type for a piece of it or of the heap
//! ([`Buffer`]). Who must make progress asks with [`Demand::Required`] and always gets
//! a buffer; who only reads ahead asks with [`Demand::BestEffort`] and gives up when
//! there is no room. It does not wait, and it does not clear what it hands out.

mod units;

use crate::BackingError;
use pagefold_sys::mem::Reservation;
use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use units::UnitMap;

/// What every buffer is aligned to, and the unit in which the region is handed out, bytes.
pub const BUFFER_ALIGN_BYTES: usize = 4096;

/// How much a buffer is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Somebody waits for it: taken from the heap when the region is used up.
    Required,
    /// It would be nice: nothing when the region has no room.
    BestEffort,
}

/// What a budget has handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// Bytes in buffers now, those from the heap included; so it can exceed the limit.
    pub in_use_bytes: u64,
    /// Bytes of the region.
    pub limit_bytes: u64,
    /// Required buffers that had to come from the heap, since the beginning.
    pub overflows: u64,
    /// Best-effort requests that got nothing, since the beginning.
    pub refused: u64,
}

/// The buffer budget: one region of memory, cut into buffers. Clones share it.
#[derive(Clone)]
pub struct Buffers(Arc<Shared>);

struct Shared {
    region: Reservation,
    books: Mutex<Books>,
}

struct Books {
    units: UnitMap,
    stats: BufferStats,
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffers {
    /// Reserves a region of `limit_bytes`, rounded up to whole units. It takes memory as it is touched.
    pub fn new(limit_bytes: usize) -> Result<Self, BackingError> {
        let unit_count = limit_bytes.div_ceil(BUFFER_ALIGN_BYTES);
        let limit_bytes = unit_count.saturating_mul(BUFFER_ALIGN_BYTES);
        let region = Reservation::new(limit_bytes)?;
        let stats = BufferStats { limit_bytes: limit_bytes as u64, ..BufferStats::default() };
        let books = Mutex::new(Books { units: UnitMap::new(unit_count), stats });
        Ok(Buffers(Arc::new(Shared { region, books })))
    }

    /// A buffer of `len_bytes`; `None` only for [`Demand::BestEffort`].
    ///
    /// **Its contents are whatever was there before**, as a rule another page's data. Whoever writes only
    /// part of it must clear the rest before the buffer goes to a medium: stale bytes on disk are a leak.
    pub fn get(&self, len_bytes: usize, demand: Demand) -> Option<Buffer> {
        let unit_count = len_bytes.div_ceil(BUFFER_ALIGN_BYTES).max(1);
        let mut books = self.0.books();
        let taken_bytes = unit_count.saturating_mul(BUFFER_ALIGN_BYTES) as u64;
        if let Some(first_unit) = books.units.take(unit_count) {
            books.stats.in_use_bytes += taken_bytes;
            drop(books);
            // SAFETY: `take` returns units of the map, which has as many as the region.
            let bytes = unsafe { self.0.region.base().add(first_unit * BUFFER_ALIGN_BYTES) };
            let home = Home::Region { shared: self.0.clone(), first_unit, unit_count };
            return Some(Buffer { bytes, len_bytes, home });
        }
        if demand == Demand::BestEffort {
            books.stats.refused += 1;
            return None;
        }
        books.stats.overflows += 1;
        books.stats.in_use_bytes += taken_bytes;
        drop(books);
        Some(Buffer::on_heap(len_bytes, Some(self.0.clone())))
    }

    /// What is handed out now, and what was not.
    pub fn stats(&self) -> BufferStats {
        self.0.books().stats
    }

    /// The region, to be registered with the kernel: first byte and length in bytes.
    pub(crate) fn region(&self) -> (NonNull<u8>, usize) {
        (self.0.region.base(), self.0.books().stats.limit_bytes as usize)
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffers").field(&self.stats()).finish()
    }
}

/// Owned bytes, aligned to [`BUFFER_ALIGN_BYTES`]; goes back to its budget, if any, when dropped.
///
/// It keeps the budget's region alive, so it may outlive the [`Buffers`] it came from.
pub struct Buffer {
    bytes: NonNull<u8>,
    len_bytes: usize,
    home: Home,
}

/// Where a buffer's memory goes when it is dropped.
enum Home {
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

    fn on_heap(len_bytes: usize, counted_by: Option<Arc<Shared>>) -> Self {
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
        // SAFETY: as for `deref`; `self` is borrowed exclusively, so nothing else refers to the bytes.
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
                    shared.books().stats.in_use_bytes -= layout.size() as u64;
                }
            }
            Home::Region { shared, first_unit, unit_count } => {
                let mut books = shared.books();
                books.units.give_back(*first_unit, *unit_count);
                books.stats.in_use_bytes -= layout.size() as u64;
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

#[cfg(test)]
mod tests;
