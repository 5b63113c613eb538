//! The clock hand that the evicting threads share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The position of the clock hand, which the threads share.
pub(crate) struct ClockHand {
    /// Chunks visited so far.
    at: AtomicU64,
    /// Batches and chunks that threads are working on.
    busy: AtomicU32,
}

/// Counts this thread as busy until it is dropped.
pub(super) struct BusyGuard<'a>(&'a ClockHand);

impl ClockHand {
    pub(crate) fn new() -> Self {
        ClockHand { at: AtomicU64::new(0), busy: AtomicU32::new(0) }
    }

    pub(super) fn advance(&self) -> u64 {
        self.at.fetch_add(1, Relaxed)
    }

    pub(super) fn busy(&self) -> BusyGuard<'_> {
        self.begin();
        BusyGuard(self)
    }

    /// Counts a thread that is evicting, or that has locked a chunk.
    pub(super) fn begin(&self) {
        self.busy.fetch_add(1, Relaxed);
    }

    pub(super) fn end(&self) {
        self.busy.fetch_sub(1, Relaxed);
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) > 0
    }
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
