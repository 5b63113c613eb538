//! What can go wrong with a medium.

use pagefold_sys::SysError;

/// A failed request. Comparable and cheap to copy, so that whoever waits for several can keep it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackingError {
    /// The range does not lie inside the medium. Nothing was done.
    #[error("bytes {offset}+{len_bytes} lie outside the medium of {medium_len_bytes} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len_bytes: u64,
        /// Bytes the medium has.
        medium_len_bytes: u64,
    },
    /// A request names more bytes than its buffer has. Nothing was done.
    #[error("a request of {len_bytes} bytes came with a buffer of {buf_len_bytes}")]
    ShortBuffer {
        /// Bytes asked for.
        len_bytes: usize,
        /// Bytes the buffer has.
        buf_len_bytes: usize,
    },
    /// The medium failed.
    #[error("{operation} of {len_bytes} bytes at {offset}: {}", std::io::Error::from_raw_os_error(*errno))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// Where.
        offset: u64,
        /// How much.
        len_bytes: u64,
        /// The system's answer.
        errno: i32,
    },
    /// More requests were submitted than the queue was made for; the request was not taken.
    #[error("the queue is full: {depth} requests are in flight")]
    QueueFull {
        /// The queue's depth.
        depth: usize,
    },
    /// Setting up, rather than a request, failed.
    #[error(transparent)]
    System(#[from] SysError),
}

impl BackingError {
    /// A failed request, from an error of the standard library; EIO if it carries no number.
    pub fn io(operation: &'static str, offset: u64, len_bytes: u64, error: &std::io::Error) -> Self {
        BackingError::Io { operation, offset, len_bytes, errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }

    /// The kernel's number for it: ENOSPC where the medium is full, EINVAL for a request that makes no
    /// sense, EAGAIN for a full queue.
    pub fn errno(&self) -> i32 {
        match self {
            BackingError::OutOfRange { .. } | BackingError::ShortBuffer { .. } => libc::EINVAL,
            BackingError::Io { errno, .. } => *errno,
            BackingError::QueueFull { .. } => libc::EAGAIN,
            BackingError::System(e) => e.errno,
        }
    }
}
