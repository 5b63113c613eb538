//! Where parked pages live: one narrow seam, its media, and layers of faults and delays.
//!
//! A [`Backing`] is a range of bytes that can be read, written, flushed and
//! discarded, one request at a time or many ([`Queue`]: submit many, complete many).
//! A request owns its buffer and comes back with it, whatever became of it, so that
//! whoever parks pages can try again or put the page back. Buffers come from
//! [`Buffers`], whose region a medium may register once with the kernel, or from a [`Budget`] that grants them.
//!
//! It does not know what is in the bytes, keeps no index and no free list, and starts
//! no threads.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod buffer;
mod error;
mod file;
pub mod layer;
mod memory;
mod open;
mod queue;

pub use buffer::{
    Aside, BUFFER_ALIGN_BYTES, Budget, Buffer, BufferStats, Buffers, Charge, Demand, Grant, Reclaim, Refused,
};
pub use error::BackingError;
pub use file::{Direct, FileBacking, FileOptions, Uring};
pub use memory::MemoryBacking;
pub use open::{OpenError, OpenOptions, Opened, PROBE_BYTES, open_backing, open_for_reading};
pub use queue::{Completion, Operation, Queue, Request, SyncQueue};

use std::sync::Arc;

/// A medium of a fixed number of bytes, shared by any number of threads.
///
/// A range that does not lie inside it is refused with [`BackingError::OutOfRange`] and nothing is done.
/// What was never written reads as zeroes. A failed write leaves its range undefined, and everything else
/// as it was, apart from the rest of the blocks ([`Backing::block_bytes`]) at its edges.
pub trait Backing: Send + Sync {
    /// The size in bytes.
    fn len_bytes(&self) -> u64;

    /// Alignment (a power of two, 1 for memory) of offset, length and memory of requests that are served
    /// without a copy.
    ///
    /// Others are served too, by way of a copy. A misaligned write reads, changes and writes the whole
    /// blocks at its edges, and that is **not atomic**: two at once that share a block can lose one's bytes.
    fn block_bytes(&self) -> usize {
        1
    }

    /// Fills `buf` from byte `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError>;

    /// Fills `buf` from byte `offset`, in the calling thread and without allocating, not even for an error,
    /// which is the kernel's number: for a thread that may have been interrupted inside the allocator.
    ///
    /// Offset, length and memory are aligned to [`Backing::block_bytes`]; else EINVAL may be the answer,
    /// since there is no memory for a copy. Goes through [`Backing::read_at`] where a medium has nothing
    /// better, and then keeps the promise if that does.
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> Result<(), i32> {
        self.read_at(offset, buf).map_err(|e| e.errno())
    }

    /// Stores `data` at byte `offset`; durable after the next [`Backing::flush`].
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError>;

    /// Makes every write that has completed durable, as far as the medium can.
    fn flush(&self) -> Result<(), BackingError>;

    /// Says that a range is no longer needed; it may read as anything afterwards.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError>;

    /// A queue for up to `depth` requests in flight.
    ///
    /// Registers the region of `buffers` with the medium where that helps. Buffers from elsewhere are
    /// served as well, at a higher price.
    fn queue<'a>(&'a self, depth: usize, buffers: &'a Buffers) -> Result<Box<dyn Queue + 'a>, BackingError>;

    /// What it is, in a few words for people: "file, direct I/O, io_uring".
    fn describe(&self) -> String;

    /// Checks that a range lies inside the medium.
    fn check_range(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
        match offset.checked_add(len_bytes) {
            Some(end) if end <= self.len_bytes() => Ok(()),
            _ => Err(BackingError::OutOfRange { offset, len_bytes, medium_len_bytes: self.len_bytes() }),
        }
    }
}

/// What a smart pointer points to, so that media and layers can be put together at run time.
macro_rules! through_pointer {
    ($($pointer:ident),*) => { $(
        impl<B: Backing + ?Sized> Backing for $pointer<B> {
            fn len_bytes(&self) -> u64 {
                (**self).len_bytes()
            }

            fn block_bytes(&self) -> usize {
                (**self).block_bytes()
            }

            fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
                (**self).read_at(offset, buf)
            }

            fn read_now(&self, offset: u64, buf: &mut [u8]) -> Result<(), i32> {
                (**self).read_now(offset, buf)
            }

            fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError> {
                (**self).write_at(offset, data)
            }

            fn flush(&self) -> Result<(), BackingError> {
                (**self).flush()
            }

            fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
                (**self).discard(offset, len_bytes)
            }

            fn queue<'a>(
                &'a self,
                depth: usize,
                buffers: &'a Buffers,
            ) -> Result<Box<dyn Queue + 'a>, BackingError> {
                (**self).queue(depth, buffers)
            }

            fn describe(&self) -> String {
                (**self).describe()
            }
        }
    )* };
}

through_pointer!(Arc, Box);
