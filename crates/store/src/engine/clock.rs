//! The time by which accesses are stamped.
//!
//! Read at every access, so it is a number in memory that somebody moves on: parking's
//! upkeep, a few times a second, and every pass when it begins.

use crate::slot::Stamp;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A coarse clock.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    now: AtomicU16,
    /// The stretch of time, of those that walks over all slots are due in, in which the last one began.
    walked: AtomicU16,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Clock { start: Instant::now(), now: AtomicU16::new(0), walked: AtomicU16::new(0) }
    }

    /// Time since the clock was made.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Moves on to the present.
    pub(crate) fn tick(&self) -> Stamp {
        let now = Stamp::at(self.elapsed());
        self.now.store(now.ticks(), Relaxed);
        now
    }

    /// The time of the last tick.
    #[inline]
    pub(crate) fn now(&self) -> Stamp {
        Stamp::from_ticks(self.now.load(Relaxed))
    }

    /// Whether a walk is due, which is so once in each stretch of `ticks`, whoever moved the clock on.
    pub(crate) fn is_walk_due(&self, ticks: u16) -> bool {
        let stretch = self.now().ticks() / ticks;
        self.walked.swap(stretch, Relaxed) != stretch
    }
}
