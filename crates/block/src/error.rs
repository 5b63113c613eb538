//! [`BlockError`], the error of a block request, and the errno that an export returns for it.

use pagefold_page::PageIndex;

/// A failed block request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The range does not lie inside the device. Nothing was read or written.
    #[error("bytes {offset}+{len} lie outside the device of {device_len} bytes")]
    OutOfRange {
        /// First byte of the request.
        offset: u64,
        /// Length of the request, bytes.
        len: u64,
        /// Size of the device, bytes.
        device_len: u64,
    },
    /// The memory limit is reached; the page keeps its old contents.
    #[error("page {index}: the device's memory limit is reached; raise mem_limit or discard data")]
    NoSpace {
        /// The page that could not be stored.
        index: PageIndex,
    },
    /// Neither the system nor the pool's reserve had memory; the page keeps its old contents.
    #[error("page {index}: no memory to store it")]
    NoMemory {
        /// The page that could not be stored.
        index: PageIndex,
    },
    /// The codec failed to compress the page; the page keeps its old contents.
    #[error("page {index}: compressing it failed, so it was not stored")]
    Compress {
        /// The page that could not be stored.
        index: PageIndex,
    },
    /// The stored data of a page does not decompress. Its contents are lost; reads fail and return no data.
    #[error("page {index}: stored data is corrupt")]
    Corrupt {
        /// The page.
        index: PageIndex,
    },
    /// A page that was written back cannot be read from the backing. It stays there, and a later read tries again.
    #[error("page {index}: reading it from the backing failed")]
    Unreadable {
        /// The page.
        index: PageIndex,
    },
    /// A thread panicked while it executed the request. Nobody knows how much of it was executed.
    #[error("executing the request panicked")]
    Panicked,
    /// The device refuses writes.
    #[error("the device is read-only")]
    ReadOnly,
}

impl BlockError {
    /// The error number that exports return to the kernel or to a network client.
    pub fn errno(&self) -> i32 {
        match self {
            BlockError::OutOfRange { .. } => libc::EINVAL,
            BlockError::NoSpace { .. } => libc::ENOSPC,
            BlockError::NoMemory { .. } => libc::ENOMEM,
            BlockError::Compress { .. }
            | BlockError::Corrupt { .. }
            | BlockError::Unreadable { .. }
            | BlockError::Panicked => libc::EIO,
            BlockError::ReadOnly => libc::EPERM,
        }
    }
}
