//! What can go wrong with a medium.

/// A failed request.
#[derive(Debug, thiserror::Error)]
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
    /// The medium failed.
    #[error("{operation} of {len_bytes} bytes at {offset}: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// Where.
        offset: u64,
        /// How much.
        len_bytes: u64,
        /// The system's answer.
        source: std::io::Error,
    },
    /// More requests were submitted than the queue was made for; the request was not taken.
    #[error("the queue is full: {depth} requests are in flight")]
    QueueFull {
        /// The queue's depth.
        depth: usize,
    },
}
