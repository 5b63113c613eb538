//! The staging area: frames for pages on their way from the region to the store, and free frames that keep their
//! memory.
//!
//! It is a range of 4096-byte frames in *batches* of 64. A batch is in one of these places:
//!
//! - *empty*: no frame has memory;
//! - owned by an evictor, which fills it and enqueues it;
//! - *queued*: pages wait in it to be used again or to be folded, oldest batch first;
//! - *backed and free*: no page waits in it, but frames have memory that a fault can fill and move to the region;
//! - owned by a thread that uses such memory.
//!
//! Faults take backed free batches inside a signal handler, so the sets of empty and of backed free batches are bit
//! sets that need no lock. Only evictors use the queue, which has a mutex that is held for one queue operation.

mod bitset;

use crate::page::Frame;
use bitset::AtomicBitSet;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_sys::SysError;
use pagefold_sys::mem::Reservation;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Frames of a batch.
pub(crate) const BATCH_FRAMES: usize = 64;
/// Most batches, because a frame's number has 16 bits.
const BATCHES_MAX: usize = 1023;
/// Most wanted frames that are remembered.
const WANTED_MAX: u32 = 4096;

/// A batch, by number. The thread that has the value owns the batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FrameBatch(u16);

/// The state of a batch.
struct BatchState {
    /// The page that is or was in each frame.
    pages: [AtomicU64; BATCH_FRAMES],
    /// Frames that have memory, one bit each.
    backed: AtomicU64,
    /// Number of frames filled, from the first on.
    filled: AtomicU32,
}

/// The staging area of a region.
pub(crate) struct Staging {
    memory: Reservation,
    batches: Box<[BatchState]>,
    empty: AtomicBitSet,
    backed_free: AtomicBitSet,
    /// Frames with memory in backed free batches.
    backed_free_frames: AtomicU32,
    queue: Mutex<VecDeque<FrameBatch>>,
    queued: AtomicU32,
    /// Frames with memory that faults could have used and that were not available.
    wanted: AtomicU32,
}

impl Staging {
    /// Makes an area of `batches` batches, at most 1023.
    pub(crate) fn new(batches: usize) -> Result<Self, SysError> {
        let batches = batches.clamp(2, BATCHES_MAX);
        let memory = Reservation::movable(batches * BATCH_FRAMES * PAGE_SIZE, PAGE_SIZE)?;
        // SAFETY: only the pager touches it, which does nothing in a child (`Pager::fork_mark`) and is not dropped
        // there.
        unsafe { memory.keep_from_children() }?;
        let state = || BatchState {
            pages: [const { AtomicU64::new(0) }; BATCH_FRAMES],
            backed: AtomicU64::new(0),
            filled: AtomicU32::new(0),
        };
        Ok(Staging {
            memory,
            batches: (0..batches).map(|_| state()).collect(),
            empty: AtomicBitSet::full(batches),
            backed_free: AtomicBitSet::empty(batches),
            backed_free_frames: AtomicU32::new(0),
            queue: Mutex::new(VecDeque::with_capacity(batches)),
            queued: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
        })
    }

    pub(crate) fn memory(&self) -> &Reservation {
        &self.memory
    }

    pub(crate) fn batch_count(&self) -> usize {
        self.batches.len()
    }

    /// Returns the address of a frame.
    pub(crate) fn address(&self, frame: Frame) -> *mut u8 {
        assert!(usize::from(frame.0) < self.batches.len() * BATCH_FRAMES);
        self.memory.base().as_ptr().wrapping_add(usize::from(frame.0) * PAGE_SIZE)
    }

    /// Returns the frame at an index of a batch.
    pub(crate) fn frame(&self, batch: &FrameBatch, at: usize) -> Frame {
        Frame(batch.0 * BATCH_FRAMES as u16 + at as u16)
    }

    fn state(&self, batch: &FrameBatch) -> &BatchState {
        &self.batches[usize::from(batch.0)]
    }

    /// Returns whether a batch can be taken at this moment.
    pub(crate) fn has_free_batch(&self) -> bool {
        !self.empty.is_empty() || !self.backed_free.is_empty()
    }

    /// Takes an empty batch, if there is one.
    pub(crate) fn take_empty(&self) -> Option<FrameBatch> {
        self.empty.take().map(FrameBatch)
    }

    /// Puts back a batch whose frames have no memory.
    pub(crate) fn put_empty(&self, batch: FrameBatch) {
        debug_assert_eq!(self.backed(&batch), 0);
        self.empty.insert(batch.0);
    }

    /// Notes that a page waits in the next frame of a batch.
    pub(crate) fn put(&self, batch: &FrameBatch, page: PageIndex) {
        let state = self.state(batch);
        let at = state.filled.load(Relaxed);
        state.pages[at as usize].store(page.0, Relaxed);
        state.backed.fetch_or(1 << at, Relaxed);
        state.filled.store(at + 1, Release);
    }

    /// Returns how many frames of a batch are filled.
    pub(crate) fn filled(&self, batch: &FrameBatch) -> usize {
        self.state(batch).filled.load(Acquire) as usize
    }

    /// Returns the page that waits, or waited, in a filled frame.
    pub(crate) fn page(&self, batch: &FrameBatch, at: usize) -> PageIndex {
        PageIndex(self.state(batch).pages[at].load(Relaxed))
    }

    /// Returns the frames of a batch that have memory, one bit each.
    pub(crate) fn backed(&self, batch: &FrameBatch) -> u64 {
        self.state(batch).backed.load(Acquire)
    }

    /// Notes that frames of a batch have memory, though no page waits there. Returns how many had none before.
    pub(crate) fn note_backed(&self, batch: &FrameBatch, frames: Range<usize>) -> u32 {
        let bits = frames.fold(0, |bits, at| bits | 1 << at);
        let before = self.state(batch).backed.fetch_or(bits, AcqRel);
        (bits & !before).count_ones()
    }

    /// Notes that a frame's memory was moved to the region.
    pub(crate) fn note_moved(&self, frame: Frame) {
        let state = &self.batches[usize::from(frame.0) / BATCH_FRAMES];
        state.backed.fetch_and(!(1 << (usize::from(frame.0) % BATCH_FRAMES)), AcqRel);
    }

    /// Appends a filled batch to the queue.
    pub(crate) fn enqueue(&self, batch: FrameBatch) {
        self.queue.lock().push_back(batch);
        self.queued.fetch_add(1, Relaxed);
    }

    /// Removes the oldest batch of the queue.
    pub(crate) fn dequeue(&self) -> Option<FrameBatch> {
        let batch = self.queue.lock().pop_front()?;
        self.queued.fetch_sub(1, Relaxed);
        Some(batch)
    }

    /// Returns the length of the queue.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Relaxed) as usize
    }

    /// Notes that no page waits in the batch any more.
    pub(crate) fn reset(&self, batch: &FrameBatch) {
        self.state(batch).filled.store(0, Relaxed);
    }

    /// Notes that no frame of a batch has memory.
    pub(crate) fn set_unbacked(&self, batch: &FrameBatch) {
        self.state(batch).backed.store(0, Release);
    }

    /// Puts back a batch whose frames have memory.
    pub(crate) fn put_backed(&self, batch: FrameBatch) {
        self.backed_free_frames.fetch_add(self.backed(&batch).count_ones(), AcqRel);
        self.backed_free.insert(batch.0);
    }

    /// Takes a backed free batch, if there is one.
    pub(crate) fn take_backed(&self) -> Option<FrameBatch> {
        let batch = FrameBatch(self.backed_free.take()?);
        self.backed_free_frames.fetch_sub(self.backed(&batch).count_ones(), AcqRel);
        Some(batch)
    }

    /// Notes that so many more frames with memory would have been of use.
    pub(crate) fn want(&self, frames: u32) {
        if self.wanted.load(Relaxed) < WANTED_MAX {
            self.wanted.fetch_add(frames, Relaxed);
        }
    }

    /// Returns whether frames with memory are wanted. If so, subtracts `frames`, which the caller is about to provide.
    pub(crate) fn is_wanted(&self, frames: u32) -> bool {
        let take = |wanted: u32| (wanted > 0).then(|| wanted.saturating_sub(frames));
        self.wanted.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    /// Returns the number of frames with memory in backed free batches.
    pub(crate) fn backed_free_frames(&self) -> u32 {
        self.backed_free_frames.load(Relaxed)
    }
}

/// Returns the longest run of set bits: its first index and its length.
pub(crate) fn longest_run(bits: u64) -> (usize, usize) {
    let (mut best, mut at) = ((0, 0), 0);
    while at < 64 {
        let rest = bits >> at;
        at += rest.trailing_zeros().min(64 - at as u32) as usize;
        if at >= 64 {
            break;
        }
        let len = (!(bits >> at)).trailing_zeros().min(64 - at as u32) as usize;
        if len > best.1 {
            best = (at, len);
        }
        at += len;
    }
    best
}

#[cfg(test)]
mod tests;
