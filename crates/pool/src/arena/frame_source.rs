//! An arena as the pool sees it: charging, taking and releasing frames.

use super::{Arena, READY_MAX, RETURN_BATCH, bytes};
use crate::error::SourceError;
use crate::frame::{Frame, Frames};
use crate::source::{FrameSource, Purpose, Take};
use std::sync::atomic::Ordering::Relaxed;

// SAFETY: frames are numbers below the capacity of this arena, which `arena` returns. Each frame on the ready list
// has been populated or was in use; a frame leaves the list under its lock and comes back to it through `release`.
unsafe impl FrameSource for Arena {
    fn try_take(&self, purpose: Purpose, count: usize) -> Take {
        let mut free = self.free.lock();
        if !free.are_ready(count) || free.waiting > 0 {
            return Take::NotReady;
        }
        // Under the lock and after the check: a charge that is undone at once could make another writer fail.
        if let Err(limit) = self.charge(purpose, count) {
            return Take::Failed(limit);
        }
        let frames = self.pop_ready(&mut free, count);
        if free.reserve_target > 0 && free.ready_len * 2 < free.reserve_target {
            self.ready_changed.notify_all();
        }
        Take::Frames(frames)
    }

    fn charge(&self, purpose: Purpose, count: usize) -> Result<(), SourceError> {
        let count = count as u64;
        if purpose == Purpose::Slots {
            self.slots_in_use.fetch_add(count, Relaxed);
            return Ok(());
        }
        let limit = self.limit.load(Relaxed);
        // A charge of 0 never fails, even if the limit was lowered below the present use.
        let most = if let Purpose::Replacements { frames_max } = purpose { frames_max } else { limit };
        let more = |in_use: u64| Some(in_use + count).filter(|n| *n <= most || count == 0);
        match self.in_use.fetch_update(Relaxed, Relaxed, more) {
            Ok(before) => {
                self.in_use_max.fetch_max(before + count, Relaxed);
                Ok(())
            }
            Err(_) => Err(SourceError::Limit { limit_bytes: bytes(limit) }),
        }
    }

    fn refund(&self, purpose: Purpose, count: usize) {
        match purpose {
            Purpose::Objects | Purpose::Replacements { .. } => self.in_use.fetch_sub(count as u64, Relaxed),
            Purpose::Slots => self.slots_in_use.fetch_sub(count as u64, Relaxed),
        };
    }

    fn obtain(&self, count: usize) -> Result<Frames, SourceError> {
        if self.has_reserve() { self.obtain_reserved(count) } else { self.obtain_unreserved(count) }
    }

    fn release(&self, frame: Frame, purpose: Purpose) {
        let mut free = self.free.lock();
        self.put_back(&mut free, frame);
        self.refund(purpose, 1);
        if free.waiting > 0 {
            self.ready_changed.notify_all();
        }
    }

    fn shrink(&self) {
        let keep = {
            let free = self.free.lock();
            let keep = free.reserve_target + READY_MAX;
            if free.ready_len <= keep {
                return;
            }
            // Leave room for a batch, so that the next freed frames do not come here at once.
            keep - RETURN_BATCH as u32
        };
        // If another thread is returning frames, it or the next caller returns these.
        if let Some(mut returning) = self.returning.try_lock() {
            self.return_by(&mut returning, keep);
        }
    }

    fn arena(&self) -> &Arena {
        self
    }
}
