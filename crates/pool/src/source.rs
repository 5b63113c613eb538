//! The interface through which the pool takes memory.

use crate::{Arena, Frame};
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

/// The use of a frame. Only frames for objects count against the limit, as in zram's accounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The pool's objects.
    Objects,
    /// An object that replaces a longer one, which is freed next. Counted as `Objects`, but compared with another
    /// limit: at the limit there would be no memory to free memory with.
    Replacements {
        /// Frames in use for objects up to which the charge succeeds.
        frames_max: u64,
    },
    /// The slots of a store, whose number is bounded by the device's size.
    Slots,
}

/// Frames by which replacements may exceed the limit, all of them together. Recompression may exceed the present use by
/// as many if that is higher, because the limit was lowered.
pub const REPLACEMENT_FRAMES_MAX: u64 = 16;

/// The most frames per request: an object straddles at most two.
pub const FRAMES_MAX: usize = 2;

/// Up to [`FRAMES_MAX`] frames that the owner of the value has taken.
///
/// A value without a destructor, that cannot be copied: dropping it leaks its frames.
/// [`BackedFrames`](crate::BackedFrames) releases them.
#[derive(Debug, PartialEq, Eq)]
pub struct Frames([Option<Frame>; FRAMES_MAX]);

impl Frames {
    /// An empty set.
    #[inline]
    pub const fn none() -> Self {
        Frames([const { None }; FRAMES_MAX])
    }

    /// The number of frames.
    pub fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Adds a frame. Panics if there is no room for it.
    pub(crate) fn push(&mut self, frame: Frame) {
        let len = self.len();
        self.0[len] = Some(frame);
    }

    /// Takes one frame out.
    pub fn pop(&mut self) -> Option<Frame> {
        self.0.iter_mut().rev().find_map(Option::take)
    }

    /// The numbers of the frames.
    pub fn ids(&self) -> impl Iterator<Item = crate::FrameId> + '_ {
        self.0.iter().flatten().map(Frame::id)
    }
}

/// The result of a request for frames that must not sleep.
#[derive(Debug, PartialEq, Eq)]
pub enum Take {
    /// All requested frames, backed by memory, with arbitrary contents; the caller owns them until it releases them.
    Frames(Frames),
    /// Too few frames are ready. Nothing was charged. The caller releases all locks and streams, and then takes
    /// frames with [`FrameSource::charge`] and [`FrameSource::obtain`], which may sleep.
    NotReady,
    /// No frame can be taken.
    Failed(SourceError),
}

/// A source of frames.
///
/// A request is for all the frames of an object, and gets all or none. If writers could take one frame and wait for
/// the second, they could keep each other from both; and a frame that is charged for a moment could make another
/// writer fail at a limit that was not reached.
///
/// [`try_take`](FrameSource::try_take) never sleeps, because it is called under locks. A writer for which too few
/// frames were ready takes them in two steps with no lock held: [`charge`](FrameSource::charge) checks the limit, and
/// [`obtain`](FrameSource::obtain) may sleep until the memory is there.
///
/// # Safety
/// The pool writes to frames through raw pointers. An implementation returns only frames of
/// [`arena`](FrameSource::arena), which is the same for the life of the source; each is backed by memory, and has
/// exactly one owner from the moment it is taken until it is released.
pub unsafe trait FrameSource: Send + Sync {
    /// Takes `count` frames, at most [`FRAMES_MAX`], that are ready now, charged to `purpose`: all or none.
    fn try_take(&self, purpose: Purpose, count: usize) -> Take;

    /// Charges `count` frames to `purpose`, all or none. Never sleeps.
    fn charge(&self, purpose: Purpose, count: usize) -> Result<(), SourceError>;

    /// Undoes a charge for which no frame was obtained.
    fn refund(&self, purpose: Purpose, count: usize);

    /// Returns `count` frames, at most [`FRAMES_MAX`], that the caller has charged: all or none. Sleeps while frames
    /// are being made ready, and for a bounded time if none are.
    fn obtain(&self, count: usize) -> Result<Frames, SourceError>;

    /// Releases a frame that was taken for `purpose`; its contents are lost. Never sleeps and never fails.
    fn release(&self, frame: Frame, purpose: Purpose);

    /// Returns surplus ready frames to the kernel. Makes system calls that interrupt other CPUs, so the caller holds
    /// no lock.
    fn shrink(&self);

    /// The arena that contains the frames.
    fn arena(&self) -> &Arena;
}

// SAFETY: all clones of the pointer refer to one source, and so to one arena.
unsafe impl<S: FrameSource + ?Sized> FrameSource for std::sync::Arc<S> {
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

    fn release(&self, frame: Frame, purpose: Purpose) {
        (**self).release(frame, purpose);
    }

    fn shrink(&self) {
        (**self).shrink();
    }

    fn arena(&self) -> &Arena {
        (**self).arena()
    }
}
