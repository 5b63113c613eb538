//! The interface through which the pool takes memory.

use crate::arena::Arena;
use crate::error::SourceError;
use crate::frame::{Frame, Frames};

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
    /// Takes `count` frames, at most [`FRAMES_MAX`](crate::FRAMES_MAX), that are ready now, charged to `purpose`: all or
    /// none.
    fn try_take(&self, purpose: Purpose, count: usize) -> Take;

    /// Charges `count` frames to `purpose`, all or none. Never sleeps.
    fn charge(&self, purpose: Purpose, count: usize) -> Result<(), SourceError>;

    /// Undoes a charge for which no frame was obtained.
    fn refund(&self, purpose: Purpose, count: usize);

    /// Returns `count` frames, at most [`FRAMES_MAX`](crate::FRAMES_MAX), that the caller has charged: all or none. Sleeps
    /// while frames are being made ready, and for a bounded time if none are.
    fn obtain(&self, count: usize) -> Result<Frames, SourceError>;

    /// Releases a frame that was taken for `purpose`; its contents are lost. Never sleeps and never fails.
    fn release(&self, frame: Frame, purpose: Purpose);

    /// Returns surplus ready frames to the kernel. Makes system calls that interrupt other CPUs, so the caller holds
    /// no lock.
    fn shrink(&self);

    /// The arena that contains the frames.
    fn arena(&self) -> &Arena;
}
