//! Where parked pages live: one narrow seam, and its memory implementation.
//!
//! A [`Backing`] is a range of bytes that can be read, written, flushed and
//! discarded, one request at a time or many ([`Queue`]: submit many, complete many).
//! A request owns its buffer and comes back with it, whatever became of it, so that
//! whoever parks pages can try again or put the page back. Faults, delays and rates
//! are layers that implement the same seam.
//!
//! It does not know what is in the bytes, keeps no index and no free list, and starts
//! no threads. Files, block devices and object stores are implementations to come.

mod error;
mod memory;
mod queue;

pub use error::BackingError;
pub use memory::MemoryBacking;
pub use queue::{Completion, Operation, Queue, Request, SyncQueue};

/// A medium of a fixed number of bytes, shared by any number of threads.
///
/// A range that does not lie inside it is refused with [`BackingError::OutOfRange`] and nothing is done.
/// What was never written reads as zeroes. A failed write leaves its range undefined and everything else
/// as it was.
pub trait Backing: Send + Sync {
    /// The size in bytes.
    fn len_bytes(&self) -> u64;

    /// Fills `buf` from byte `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError>;

    /// Stores `data` at byte `offset`; durable after the next [`Backing::flush`].
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError>;

    /// Makes every write that has completed durable, as far as the medium can.
    fn flush(&self) -> Result<(), BackingError>;

    /// Says that a range is no longer needed; it may read as anything afterwards.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError>;

    /// A queue for up to `depth` requests in flight.
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue + '_>, BackingError>;

    /// Checks that a range lies inside the medium.
    fn check_range(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
        match offset.checked_add(len_bytes) {
            Some(end) if end <= self.len_bytes() => Ok(()),
            _ => Err(BackingError::OutOfRange { offset, len_bytes, medium_len_bytes: self.len_bytes() }),
        }
    }
}
