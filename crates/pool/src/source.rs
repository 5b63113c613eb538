//! The seam through which the pool takes memory.

use crate::{Arena, FrameId};

/// Why there is no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The limit on frames in use is reached.
    #[error("the memory limit of {limit_bytes} bytes is reached")]
    Limit {
        /// The limit.
        limit_bytes: u64,
    },
    /// The kernel has no memory to give.
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
    /// A fault test's refusal.
    #[error("refused by a test")]
    Refused,
}

/// What a frame is for: only objects count against the limit, as in the kernel's accounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The pool's objects.
    Objects,
    /// The slots of a store, whose number is bounded by the device's size.
    Slots,
}

/// The answer to a request for a frame that may not sleep.
#[derive(Debug, PartialEq, Eq)]
pub enum Take {
    /// A frame, touched, with arbitrary contents; the taker's until given back.
    Frame(FrameId),
    /// None is ready: put down what you hold, call [`PageSource::refill`], try again.
    Dry,
    /// There is none to be had.
    Refused(SourceError),
}

/// Where frames come from.
///
/// Two steps, because taking happens under locks and getting memory from the kernel may sleep:
/// [`try_take`](PageSource::try_take) never sleeps, [`refill`](PageSource::refill) may and is called
/// with nothing held.
pub trait PageSource: Send + Sync {
    /// A frame that is ready now, charged against the limit if it is for objects.
    fn try_take(&self, purpose: Purpose) -> Take;

    /// Makes frames ready; may sleep, for a bounded time.
    fn refill(&self) -> Result<(), SourceError>;

    /// Takes a frame back from the purpose it was taken for. Never sleeps and never fails; its contents
    /// are lost.
    fn give(&self, frame: FrameId, purpose: Purpose);

    /// Returns surplus frames to the system. Called with no lock held.
    fn relieve(&self);

    /// The memory that the frames are in.
    fn arena(&self) -> &Arena;
}
