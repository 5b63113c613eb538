//! The memory of a batch after its pages have left it: kept for later use, or returned to the kernel.
//!
//! A free frame with memory serves a fault that brings in many pages at once, or a page that is copied out. Such
//! frames are charged like resident pages. So they are kept only up to a small part of the limit, or as many as faults
//! wanted, and frames from before the limit was lowered are released.
//!
//! Memory that was moved out of the range is not used for other pages if system calls may use memory of the region: a pipe
//! (vmsplice) or a socket (MSG_ZEROCOPY) may still refer to it, and would send the bytes of another page. Such references
//! are no pins, so the kernel moves the page all the same. Released memory stays theirs until they are done.

use super::page_out::Method;
use crate::pager::Pager;
use crate::staging::{BATCH_FRAMES, FrameBatch, longest_run};
use pagefold_page::PAGE_SIZE;

/// The shortest run of frames with memory that is worth keeping.
const RUN_MIN: usize = 16;
/// Most batches with memory that are kept.
const BACKED_FREE_BATCHES_MAX: u64 = 16;

impl Pager {
    /// Takes a batch to fill: one without memory for pages that are moved, preferably one with memory for pages that
    /// are copied. Returns `None` if other threads have all of them, or pages wait in them.
    pub(super) fn take_batch(&self, method: Method) -> Option<FrameBatch> {
        match method {
            Method::Move => self.staging.take_empty().or_else(|| self.take_backed_and_return_memory()),
            Method::Copy => self.staging.take_backed().or_else(|| self.staging.take_empty()),
        }
    }

    /// Releases a batch in which no page waits any more: keeps its memory or returns it to the kernel.
    pub(super) fn release(&self, batch: FrameBatch) {
        self.staging.reset(&batch);
        let backed = self.staging.backed(&batch);
        let is_wanted = self.reuses_frames
            && longest_run(backed).1 >= RUN_MIN
            && !self.budget.is_over_limit()
            && (self.has_room_for_backed(backed.count_ones()) || self.staging.is_wanted(backed.count_ones()));
        match is_wanted || backed == 0 {
            true => self.recycle_batch(batch),
            false => {
                self.release_frames(batch, backed);
            }
        }
    }

    /// Returns the memory of one free batch to the kernel. Returns false if there is none.
    pub(super) fn trim_free_frames(&self) -> bool {
        let Some(batch) = self.staging.take_backed() else { return false };
        let backed = self.staging.backed(&batch);
        self.release_frames(batch, backed)
    }

    /// Takes a batch with memory and returns that memory to the kernel. Faults may have wanted so many frames that
    /// every batch has memory; without this no page could be moved out until faults had used them up.
    fn take_backed_and_return_memory(&self) -> Option<FrameBatch> {
        let batch = self.staging.take_backed()?;
        let backed = self.staging.backed(&batch);
        if self.try_release_frames(&batch, backed) {
            return Some(batch);
        }
        self.recycle_batch(batch);
        None
    }

    /// Returns whether so many frames more can be kept. A batch has 64 frames whatever the limit is, so under a small
    /// limit even the first batch may be too much.
    fn has_room_for_backed(&self, frames: u32) -> bool {
        let most = (self.budget.limit() / 32).min(BACKED_FREE_BATCHES_MAX * BATCH_FRAMES as u64);
        u64::from(self.staging.backed_free_frames() + frames) <= most
    }

    /// Returns the memory of a batch to the kernel, and recycles the batch. Returns false if the kernel does not take
    /// the memory; then it can be used again.
    fn release_frames(&self, batch: FrameBatch, backed: u64) -> bool {
        let is_done = self.try_release_frames(&batch, backed);
        self.recycle_batch(batch);
        is_done
    }

    /// Returns the memory of a batch to the kernel. Returns false if the kernel does not take it.
    fn try_release_frames(&self, batch: &FrameBatch, backed: u64) -> bool {
        let offset = usize::from(self.staging.frame(batch, 0).0) * PAGE_SIZE;
        // SAFETY: no page waits in the batch, and this thread alone owns it.
        let dropped = unsafe { self.staging.memory().discard(offset, BATCH_FRAMES * PAGE_SIZE) };
        if dropped.is_ok() {
            self.staging.set_unbacked(batch);
            self.budget.uncharge(backed.count_ones());
        }
        dropped.is_ok()
    }
}
