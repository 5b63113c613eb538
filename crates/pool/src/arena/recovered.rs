//! An arena in the memory of a process that has died: which of its frames are taken.

use super::{Arena, LINK_LEN, LINKS_IN_PAGE};
use crate::error::SourceError;
use crate::frame::{FRAME_LEN, FrameId};
use crate::source::Purpose;
use std::sync::atomic::Ordering::Relaxed;

impl Arena {
    /// Makes the frames for which `uses` returns a purpose taken ones, in an arena in which none is taken, and all others
    /// free ones without memory. `uses` knows the frames of numbers below `end`.
    ///
    /// # Safety
    /// Only the frames with a purpose contain anything, and the caller owns them from now on.
    pub(crate) unsafe fn take_used(
        &self,
        end: u32,
        uses: impl Fn(FrameId) -> Option<Purpose>,
    ) -> Result<(), SourceError> {
        let fresh = u64::from(end).next_multiple_of(LINKS_IN_PAGE).min(u64::from(self.capacity)) as u32;
        self.links.populate(0, fresh as usize * LINK_LEN)?;
        let mut free = self.free.lock();
        free.fresh = fresh;
        let mut run_end = self.capacity;
        for frame in (0..fresh).rev().map(FrameId) {
            match uses(frame) {
                Some(purpose) => {
                    self.set_taken(frame, true);
                    // Beyond a limit, as it may have been lowered.
                    match purpose {
                        Purpose::Slots => &self.slots_in_use,
                        Purpose::Objects | Purpose::Replacements { .. } => &self.in_use,
                    }
                    .fetch_add(1, Relaxed);
                    // SAFETY: nothing is in the frames of the run (the caller's duty).
                    unsafe { self.discard_run(frame.0 + 1, run_end) }?;
                    run_end = frame.0;
                }
                None => {
                    self.set_next(frame, free.returned);
                    free.returned = frame;
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.discard_run(0, run_end) }?;
        let links_from = fresh as usize * LINK_LEN;
        // SAFETY: links of frames that nothing uses.
        unsafe { self.links.discard(links_from, self.capacity as usize * LINK_LEN - links_from) }?;
        self.in_use_max.store(self.in_use.load(Relaxed), Relaxed);
        Ok(())
    }

    /// Returns the frames from `first` to before `end` to the kernel.
    ///
    /// # Safety
    /// Nothing is in them.
    unsafe fn discard_run(&self, first: u32, end: u32) -> Result<(), SourceError> {
        let (at, len) = (first as usize * FRAME_LEN, end.saturating_sub(first) as usize * FRAME_LEN);
        // SAFETY: the caller's duty.
        if len > 0 { Ok(unsafe { self.frames.discard(at, len) }?) } else { Ok(()) }
    }
}
