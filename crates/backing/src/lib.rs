//! Reads and writes the media of written-back pages and of images: files, block devices, memory, and layers over them.
//!
//! A [`ByteSource`] is a range of bytes that can be read, and a [`Backing`] one that can be written, flushed and
//! discarded too:
//!
//! ```
//! use pagefold_backing::{Backing, ByteSource, FileBacking, FileOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("medium");
//! let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
//! file.set_len(1 << 20)?;
//! let medium = FileBacking::new(file, FileOptions::default())?; // direct I/O and io_uring where they work
//! medium.write_at(4096, b"some bytes")?;
//! medium.flush()?;
//! let mut bytes = [0; 10];
//! medium.read_at(4096, &mut bytes)?;
//! assert_eq!(&bytes, b"some bytes");
//! println!("{}", medium.describe());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Queue`] has many requests in flight. A [`Request`] owns its buffer, and its [`Completion`] returns the buffer,
//! failed or not:
//!
//! ```
//! use pagefold_backing::{Backing, Buffer, Buffers, MemoryBacking, Operation, Request};
//!
//! let medium = MemoryBacking::new(1 << 20);
//! let buffers = Buffers::new(1 << 20)?; // registered with the kernel, if the queue is a ring
//! let mut queue = medium.queue(32, &buffers)?;
//! for id in 0..8 {
//!     let buf = Buffer::new(4096);
//!     let request = Request { id, operation: Operation::Read, offset: id * 4096, buf, len_bytes: 4096 };
//!     queue.submit(request).map_err(|_| "the queue is full")?;
//! }
//! queue.start();
//! let mut done = Vec::new();
//! while done.len() < 8 {
//!     queue.complete(1, &mut done);
//! }
//! assert!(done.iter().all(|completion| completion.result.is_ok()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is for
//!
//! Writeback keeps compressed pages on a backing and needs every buffer back, to retry the request or put the page back
//! into the store. Images are read through a [`ByteSource`] into [`BoundedBuffers`]. The crate does not interpret the
//! bytes, and keeps no index and no free list of what is stored.
//!
//! # Limits
//!
//! [`Buffers::get`] falls back to the heap for required buffers, and refuses best-effort requests that do not fit; a full
//! queue returns the request. A failed write or discard
//! leaves its own range undefined, a write also the rest of the blocks at its edges; all else stays as it was.
//!
//! # How it works
//!
//! A request runs through these files: a buffer comes from a region of [`Buffers`] (`buffer/`); a layer, if there
//! is one, delays or fails the request (`layer/`); the medium serves it: plain memory (`memory.rs`), or a file or block
//! device (`file/`) by positioned reads and writes (`file/positioned.rs`) or by an io_uring ring (`file/uring.rs`).
//!
//! The crate starts no threads: a request runs in the thread that calls, or in the kernel. The locks are leaves, held
//! for a few instructions, for one copy or for one `madvise`, never two at once: the state of a region of
//! buffers, the bytes of a [`MemoryBacking`], and the state of each layer.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod buffer;
mod deadline_scope;
mod error;
mod file;
pub mod layer;
mod memory;
mod owned_queue;
mod queue;
mod section;
mod source;

pub use buffer::{BUFFER_ALIGN_BYTES, BoundedBuffers, Buffer, Buffers, Demand};
pub use deadline_scope::DeadlineScope;
pub use error::BackingError;
pub use file::{Direct, FileBacking, FileOptions, Uring, open_for_reading};
pub use memory::MemoryBacking;
pub use owned_queue::OwnedQueue;
pub use queue::{Completion, Operation, Queue, Request, SyncQueue};
pub use section::Section;
pub use source::{ByteSource, Prefetched};

use std::sync::Arc;

/// A medium that can be read and written, of a fixed number of bytes, shared by any number of threads.
///
/// A request whose range does not lie inside the medium fails with [`BackingError::OutOfRange`] and has no effect.
/// Bytes that were never written read as zeroes. A failed write leaves its range undefined, and the rest of the blocks
/// ([`Backing::block_bytes`]) at its edges; everything else stays as it was.
pub trait Backing: ByteSource {
    /// The alignment that a request needs to be served without a copy, for its offset, length and memory. A power of
    /// two; 1 for memory.
    ///
    /// Misaligned requests are served through a bounce buffer. A misaligned write reads, modifies and writes the whole
    /// blocks at its edges, which is **not atomic**: of two concurrent writes to one block, one can be lost.
    fn block_bytes(&self) -> usize {
        1
    }

    /// Fills `buf` from byte `offset` without allocating memory, so that a signal handler can call it: the thread that
    /// it interrupted may have been inside the allocator. The error is the kernel's error number.
    ///
    /// Offset, length and memory must be aligned to [`Backing::block_bytes`]; otherwise the call may fail with EINVAL,
    /// as it cannot allocate a bounce buffer. The default calls [`ByteSource::read_at`]: a medium whose `read_at`
    /// allocates must implement this method itself.
    fn read_signal_safe(&self, offset: u64, buf: &mut [u8]) -> Result<(), i32> {
        self.read_at(offset, buf).map_err(|e| e.errno())
    }

    /// Stores `data` at byte `offset`. It is durable after the next [`Backing::flush`].
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError>;

    /// Makes all completed writes durable, as far as the medium can.
    fn flush(&self) -> Result<(), BackingError>;

    /// Tells the medium that a range is no longer needed; it may read as anything afterwards.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError>;

    /// Makes a queue for up to `depth` requests in flight.
    ///
    /// Registers the region of `buffers` with the kernel if the queue is a ring. Requests with other buffers are served
    /// too, more slowly: the kernel then maps the pages of each request.
    fn queue<'a>(&'a self, depth: usize, buffers: &'a Buffers) -> Result<Box<dyn Queue + 'a>, BackingError>;
}

/// Implements [`Backing`] for a smart pointer to a medium, so that media and layers can be combined at run time.
macro_rules! through_pointer {
    ($($pointer:ident),*) => { $(
        impl<B: Backing + ?Sized> Backing for $pointer<B> {
            fn block_bytes(&self) -> usize {
                (**self).block_bytes()
            }

            fn read_signal_safe(&self, offset: u64, buf: &mut [u8]) -> Result<(), i32> {
                (**self).read_signal_safe(offset, buf)
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
        }
    )* };
}

through_pointer!(Arc, Box);
