//! What can go wrong with a block request, and the errno a door reports for it.

use pagefold_page::PageIndex;

/// A failed block request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The range does not lie inside the device. Nothing was done.
    #[error("bytes {offset}+{len} lie outside the device of {device_len} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes the device has.
        device_len: u64,
    },
    /// The memory limit is reached; the page keeps its old contents.
    #[error("page {index}: the device's memory limit is reached; raise mem_limit or discard data")]
    NoSpace {
        /// The page that could not be stored.
        index: PageIndex,
    },
    /// The system or the reserve had no memory; the page keeps its old contents.
    #[error("page {index}: no memory to store it")]
    NoMemory {
        /// The page that could not be stored.
        index: PageIndex,
    },
    /// A stored page does not decode; its contents are lost and are not made up.
    #[error("page {index}: stored data is corrupt")]
    Corrupt {
        /// The page.
        index: PageIndex,
    },
    /// A page that was moved to the backing cannot be read back; it stays there.
    #[error("page {index}: the backing does not give it back")]
    Unreadable {
        /// The page.
        index: PageIndex,
    },
    /// The device refuses writes.
    #[error("the device is read-only")]
    ReadOnly,
}

impl BlockError {
    /// The error number that a kernel or network client is told.
    pub fn errno(&self) -> i32 {
        match self {
            BlockError::OutOfRange { .. } => libc::EINVAL,
            BlockError::NoSpace { .. } => libc::ENOSPC,
            BlockError::NoMemory { .. } => libc::ENOMEM,
            BlockError::Corrupt { .. } | BlockError::Unreadable { .. } => libc::EIO,
            BlockError::ReadOnly => libc::EPERM,
        }
    }
}
