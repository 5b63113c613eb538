//! Memory for requests: aligned buffers, and the regions from which they are allocated.
//!
//! Direct I/O needs aligned memory, io_uring works best with registered memory, and a server needs a limit on both. So
//! buffers are allocated from one region that is reserved once, in units of 4 KiB, first-fit (`region.rs`). A [`Buffer`]
//! owns a run of units or a heap allocation (`owned.rs`); dropping it frees the memory. Neither kind of region clears a
//! buffer.
//!
//! - [`Buffers`] are those of queues. Only their region is registered with rings; its memory stays until the region is
//!   gone. A required buffer that does not fit comes from the heap: it is for writeback, which frees memory by making
//!   progress. A caller that must make progress passes [`Demand::Required`]; read-ahead passes [`Demand::BestEffort`]
//!   and does without a buffer if none is free.
//! - [`BoundedBuffers`] share a limit with memory that lies elsewhere, and return memory to the kernel to stay within
//!   it. A ring that had registered their region would go on using the old pages, which the region no longer maps. So
//!   they are another type, and no queue takes them.
//!
//! The mutex of a region is a leaf lock that is held for a few instructions and for the `madvise` that returns memory.
//! Any thread may allocate and free.

mod owned;
mod region;

use crate::BackingError;
pub use owned::Buffer;
use region::Region;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// The alignment of every buffer, and the allocation unit of a region, bytes.
pub const BUFFER_ALIGN_BYTES: usize = 4096;

/// Whether the caller can do without the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// The caller needs it: [`Buffers::get`] falls back to the heap.
    Required,
    /// The caller can do without it: the request is refused if the memory is not free.
    BestEffort,
}

/// Request buffers: one region of memory, from which buffers are allocated and which queues register. Clones share it.
#[derive(Clone)]
pub struct Buffers(Arc<Region>);

impl Buffers {
    /// Reserves a region of `limit_bytes`, rounded up to whole units. It takes memory only as it is used.
    pub fn new(limit_bytes: usize) -> Result<Self, BackingError> {
        Ok(Buffers(Region::new(limit_bytes, 1)?))
    }

    /// Allocates a buffer of `len_bytes`; `None` only for [`Demand::BestEffort`].
    ///
    /// **The buffer keeps its old contents**, usually another page's data. A caller that fills only a part must clear
    /// the rest before it writes the buffer to a medium: stale bytes on disk are a leak.
    pub fn get(&self, len_bytes: usize, demand: Demand) -> Option<Buffer> {
        match demand {
            Demand::Required => Some(self.required(len_bytes)),
            Demand::BestEffort => Buffer::in_region(&self.0, len_bytes),
        }
    }

    /// Allocates a buffer as [`Buffers::get`] with [`Demand::Required`] does, which never fails.
    pub fn required(&self, len_bytes: usize) -> Buffer {
        Buffer::counted_by(&self.0, len_bytes)
    }

    /// Bytes in buffers now, those of the heap included: it can exceed the limit.
    pub fn in_use_bytes(&self) -> u64 {
        self.0.in_use_bytes()
    }

    /// The region that a queue registers with the kernel: first byte and length in bytes. Its memory stays in place
    /// until the last clone and the last buffer are gone.
    pub(crate) fn region(&self) -> (NonNull<u8>, usize) {
        (self.0.base(), self.0.limit_bytes())
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffers({} of {} bytes)", self.in_use_bytes(), self.0.limit_bytes())
    }
}

/// Address space of bounded buffers, as a multiple of their limit: buffers of all sizes fragment the region, and a long
/// buffer needs a contiguous run. The limit bounds the memory all the same.
const ADDRESS_SPACE_FACTOR: usize = 4;

/// Buffers under a limit that covers memory elsewhere too. Clones share the region.
///
/// The caller keeps the sum of buffers and other memory within the limit; the region returns the memory of free units to
/// the kernel where that sum would be exceeded otherwise. So no queue registers it; queues take [`Buffers`]:
///
/// ```compile_fail,E0308
/// # use pagefold_backing::{Backing, BackingError, BoundedBuffers, MemoryBacking};
/// let (medium, buffers) = (MemoryBacking::new(8192), BoundedBuffers::new(8192)?);
/// let queue = medium.queue(1, &buffers)?;
/// # drop(queue);
/// # Ok::<(), BackingError>(())
/// ```
///
/// A request of a queue may use such a buffer all the same, as any buffer from elsewhere:
///
/// ```
/// # use pagefold_backing::{Backing, BoundedBuffers, Buffers, MemoryBacking, Operation, Request};
/// let (medium, bounded) = (MemoryBacking::new(8192), BoundedBuffers::new(8192)?);
/// let buffers = Buffers::new(0)?;
/// let mut queue = medium.queue(1, &buffers)?;
/// let buf = bounded.get(8192);
/// let request = Request { id: 1, operation: Operation::Read, offset: 0, len_bytes: buf.len(), buf };
/// assert!(queue.submit(request).is_ok());
/// assert_eq!(queue.complete(1, &mut Vec::new()), 1);
/// # drop(queue);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct BoundedBuffers(Arc<Region>);

impl BoundedBuffers {
    /// Reserves a region for a limit of `limit_bytes`, rounded up to whole units. It takes memory only as it is used.
    pub fn new(limit_bytes: usize) -> Result<Self, BackingError> {
        Ok(BoundedBuffers(Region::new(limit_bytes, ADDRESS_SPACE_FACTOR)?))
    }

    /// The limit, bytes: whole units.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes() as u64
    }

    /// Allocates a buffer, whose contents are undefined, as those of [`Buffers::get`]. If the region is so fragmented
    /// that no run of free units is long enough, the heap serves the buffer. That is rare.
    pub fn get(&self, len_bytes: usize) -> Buffer {
        Buffer::counted_by(&self.0, len_bytes)
    }

    /// Counts memory elsewhere, which its user is about to allocate.
    pub fn add_elsewhere(&self, len_bytes: u64) {
        self.0.add_elsewhere(len_bytes);
    }

    /// Subtracts memory elsewhere that is not used any more.
    pub fn subtract_elsewhere(&self, len_bytes: u64) {
        self.0.subtract_elsewhere(len_bytes);
    }
}

#[cfg(test)]
mod tests;
