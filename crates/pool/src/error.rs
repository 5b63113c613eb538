//! The reasons why a source of frames returns none.

use pagefold_page::size::Human;

/// The reason why no frame was taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The limit on frames in use is reached.
    #[error("the memory limit of {} is reached", Human(*limit_bytes))]
    Limit {
        /// The limit.
        limit_bytes: u64,
    },
    /// The kernel has no memory.
    #[error("the system has no memory: {0}")]
    NoMemory(#[from] pagefold_sys::SysError),
    /// The reserve is empty and was not refilled in time.
    #[error("the reserve of locked memory is empty")]
    ReserveEmpty,
    /// The address range reserved at creation is used up.
    #[error("the address range of {frames} frames is used up")]
    Exhausted {
        /// Frames in the range.
        frames: u32,
    },
    /// A fault test refused the request.
    #[error("refused by a test")]
    RefusedByTest,
}

impl SourceError {
    /// Whether the reason is the limit on frames for objects, so that freeing objects would help.
    pub fn is_limit(&self) -> bool {
        matches!(self, SourceError::Limit { .. })
    }
}
