//! Errors of a backing: failed requests, and failed setup.

use pagefold_sys::SysError;

/// Why a request or the setup of a medium failed. It can be cloned and compared, so that a caller with many requests in
/// flight can keep the first error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackingError {
    /// The range does not lie inside the medium. Nothing was done.
    #[error("bytes {offset}+{len_bytes} lie outside the medium of {medium_len_bytes} bytes")]
    OutOfRange {
        /// First byte of the request.
        offset: u64,
        /// Bytes of the request.
        len_bytes: u64,
        /// Bytes the medium has.
        medium_len_bytes: u64,
    },
    /// A request names more bytes than its buffer has. Nothing was done.
    #[error("a request of {len_bytes} bytes came with a buffer of {buf_len_bytes}")]
    ShortBuffer {
        /// Bytes of the request.
        len_bytes: usize,
        /// Bytes the buffer has.
        buf_len_bytes: usize,
    },
    /// The medium failed.
    #[error("{operation} of {len_bytes} bytes at {offset}: {}", std::io::Error::from_raw_os_error(*errno))]
    Io {
        /// The operation that failed: "read", "write", "flush" or "discard".
        operation: &'static str,
        /// First byte of the request.
        offset: u64,
        /// Bytes of the request.
        len_bytes: u64,
        /// The kernel's error number.
        errno: i32,
    },
    /// The file was made shorter after it was opened: bytes of the request are no longer there.
    #[error("read of {len_bytes} bytes at {offset}: the file was cut off at byte {end} while it was in use")]
    CutOff {
        /// First byte of the request.
        offset: u64,
        /// Bytes of the request.
        len_bytes: u64,
        /// The first byte that is missing.
        end: u64,
    },
    /// The medium has bytes, and they are not the right ones: they differ from a digest, or belong to another version.
    #[error("{what}")]
    Mismatch {
        /// The difference.
        what: String,
    },
    /// The medium is on another machine, and does not serve the request.
    #[error("{what}")]
    Unreachable {
        /// The place and the reason.
        what: String,
    },
    /// The queue has as many requests in flight as it was made for; this one was not accepted.
    #[error("the queue is full: {depth} requests are in flight")]
    QueueFull {
        /// The queue's depth.
        depth: usize,
    },
    /// The setup of a medium or a queue failed, rather than a request.
    #[error(transparent)]
    System(#[from] SysError),
}

impl BackingError {
    /// Makes [`BackingError::Io`] from an error of the standard library; EIO if that carries no error number.
    pub fn io(operation: &'static str, offset: u64, len_bytes: u64, error: &std::io::Error) -> Self {
        BackingError::Io { operation, offset, len_bytes, errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }

    /// Whether the medium's bytes are at fault, rather than access to them.
    pub fn is_mismatch(&self) -> bool {
        matches!(self, BackingError::Mismatch { .. })
    }

    /// The error number for this error: the kernel's own (ENOSPC where the medium is full), EIO for missing and wrong bytes and
    /// for a medium that cannot be reached, EINVAL
    /// for a request that is out of range or longer than its buffer, EAGAIN for a full queue.
    pub fn errno(&self) -> i32 {
        match self {
            BackingError::OutOfRange { .. } | BackingError::ShortBuffer { .. } => libc::EINVAL,
            BackingError::Io { errno, .. } => *errno,
            BackingError::CutOff { .. }
            | BackingError::Mismatch { .. }
            | BackingError::Unreachable { .. } => libc::EIO,
            BackingError::QueueFull { .. } => libc::EAGAIN,
            BackingError::System(e) => e.errno,
        }
    }
}
