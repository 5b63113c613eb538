//! The seam through which the pool takes memory.

use crate::{Arena, FrameId};
use pagefold_page::size::Human;

/// Why there is no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The limit on frames in use is reached.
    #[error("the memory limit of {} is reached", Human(*limit_bytes))]
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

impl SourceError {
    /// Whether the limit on frames for objects is the reason, so that freed objects would help.
    pub fn is_limit(&self) -> bool {
        matches!(self, SourceError::Limit { .. })
    }
}

/// What a frame is for: only objects count against the limit, as in the kernel's accounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The pool's objects.
    Objects,
    /// The slots of a store, whose number is bounded by the device's size.
    Slots,
}

/// The most frames that one request may ask for: an object straddles two at most.
pub const FRAMES_MAX: usize = 2;

/// Up to [`FRAMES_MAX`] frames that the holder has taken.
///
/// A plain value: whoever drops it without using or giving back its frames leaks them. [`FrameStock`](crate::FrameStock)
/// gives them back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frames {
    ids: [FrameId; FRAMES_MAX],
    len: usize,
}

impl Frames {
    /// No frames.
    #[inline]
    pub const fn none() -> Self {
        Frames { ids: [FrameId::NIL; FRAMES_MAX], len: 0 }
    }

    /// How many frames there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push(&mut self, frame: FrameId) {
        self.ids[self.len] = frame;
        self.len += 1;
    }

    /// Takes one frame out.
    pub fn pop(&mut self) -> Option<FrameId> {
        self.len = self.len.checked_sub(1)?;
        Some(self.ids[self.len])
    }
}

/// The answer to a request for frames that may not sleep.
#[derive(Debug, PartialEq, Eq)]
pub enum Take {
    /// All frames asked for, touched, with arbitrary contents; the taker's until given back.
    Frames(Frames),
    /// Too few are ready. Nothing was charged: release all locks and streams, then take them by
    /// [`PageSource::charge`] and [`PageSource::obtain`], which may sleep.
    NotReady,
    /// There is none to be had.
    Refused(SourceError),
}

/// Where frames come from.
///
/// A request names all the frames that its object needs, and gets all or none: writers that each held one
/// frame and waited for a second would keep each other from both, and a frame charged for a moment would make
/// another writer's request fail at a limit that was not reached.
///
/// [`try_take`](PageSource::try_take) never sleeps, because it is called under locks. A writer for which nothing
/// was ready takes its frames in two steps with no lock held: [`charge`](PageSource::charge) decides against the limit,
/// and [`obtain`](PageSource::obtain) may sleep until the memory is there.
///
/// # Safety
/// Frames are memory that the pool writes to without looking. An implementation hands out only frames of
/// [`arena`](PageSource::arena), which is the same for the life of the source; each is backed by memory, and has
/// exactly one holder from the moment it is handed out until it is given back.
pub unsafe trait PageSource: Send + Sync {
    /// Takes `count` frames, at most [`FRAMES_MAX`], that are ready now, charged to `purpose`: all or none.
    fn try_take(&self, purpose: Purpose, count: usize) -> Take;

    /// Charges `count` frames to `purpose`, all or none. Never sleeps.
    fn charge(&self, purpose: Purpose, count: usize) -> Result<(), SourceError>;

    /// Takes back a charge for which no frame was obtained.
    fn refund(&self, purpose: Purpose, count: usize);

    /// Returns `count` frames, at most [`FRAMES_MAX`], that the caller has charged: all or none. Sleeps as long as
    /// frames are becoming ready for somebody, and for a bounded time when none are.
    fn obtain(&self, count: usize) -> Result<Frames, SourceError>;

    /// Takes a frame back from the purpose it was taken for. Never sleeps and never fails; its contents
    /// are lost.
    fn give(&self, frame: FrameId, purpose: Purpose);

    /// Returns surplus frames to the system. Called with no lock held.
    fn relieve(&self);

    /// The memory that the frames are in.
    fn arena(&self) -> &Arena;
}

// SAFETY: the one source behind the pointer, and its arena, are the same for every clone.
unsafe impl<S: PageSource + ?Sized> PageSource for std::sync::Arc<S> {
    fn try_take(&self, purpose: Purpose, count: usize) -> Take {
        (**self).try_take(purpose, count)
    }

    fn charge(&self, purpose: Purpose, count: usize) -> Result<(), SourceError> {
        (**self).charge(purpose, count)
    }

    fn refund(&self, purpose: Purpose, count: usize) {
        (**self).refund(purpose, count);
    }

    fn obtain(&self, count: usize) -> Result<Frames, SourceError> {
        (**self).obtain(count)
    }

    fn give(&self, frame: FrameId, purpose: Purpose) {
        (**self).give(frame, purpose);
    }

    fn relieve(&self) {
        (**self).relieve();
    }

    fn arena(&self) -> &Arena {
        (**self).arena()
    }
}
