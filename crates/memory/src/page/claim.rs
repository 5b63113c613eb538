//! The results of page transitions that may fail or have several outcomes.

#[cfg(doc)]
use super::PageWord;
use super::{Frame, State};

/// The result of a fault's attempt to own a page: what the faulting thread has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultClaim {
    /// The page was resident already. The caller owns it, and it is loading only to be looked at again.
    Recheck,
    /// The caller owns the page, which is loading: fill it with zeroes, or with the bytes of the region's file.
    Zero,
    /// The caller owns the page, which is loading: fill it with zeroes, even if the region's file has bytes for it.
    Zeroed,
    /// The caller owns the page, which is loading: load it from the store.
    Load,
    /// The caller owns the page, which is returning: bring it back from this frame.
    Return {
        /// The frame with the page's bytes.
        frame: Frame,
        /// Whether another thread is reading the frame, so that the frame must keep its memory.
        is_folding: bool,
    },
    /// The kernel fills the page by itself, now or in a moment: retry the access.
    Unregistered,
    /// Another thread owns the page: wait, then try again.
    Busy(ObservedWord),
}

/// The value of a word at a moment, for [`PageWord::wait`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedWord(pub(super) u32);

/// The result of [`PageWord::finish_fold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoldResult {
    /// The page is folded, and its frame is free.
    Folded,
    /// A thread is bringing the page back, or has done so. The caller calls [`PageWord::begin_fold`] again, which waits
    /// until no thread uses the frame.
    Returned,
}

/// The result of [`PageWord::refuse_fold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalResult {
    /// The caller owns the page, which is returning: bring it back.
    BringBack,
    /// A thread is bringing the page back, or has done so. The caller calls [`PageWord::begin_fold`] again, which waits
    /// until no thread uses the frame.
    Returned,
}

/// The result of [`PageWord::claim_drop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropClaim {
    /// The caller owns the page, which is taken.
    Taken {
        /// The state before.
        was: State,
        /// Whether the store has a copy.
        has_copy: bool,
    },
    /// The page is untouched: there is nothing to drop.
    Nothing,
    /// The page is pinned.
    Pinned,
    /// The page's chunk has to be registered before.
    Unregistered,
    /// Another thread owns the page or is folding it: wait, then try again.
    Busy(ObservedWord),
}
