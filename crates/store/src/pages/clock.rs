//! The coarse clock of access times.
//!
//! It is read at every access, so it is a number in memory. The threads of a store advance it a few times a second, and
//! each pass when it begins. It stands still in a store that has no such thread.

use crate::slot::AccessTime;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A coarse clock.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    now: AtomicU16,
    /// The period in which the last walk over all slots began; one is due in each.
    walked_period: AtomicU16,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Clock { start: Instant::now(), now: AtomicU16::new(0), walked_period: AtomicU16::new(0) }
    }

    /// Time since the clock was made.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Advances the clock to the present.
    pub(crate) fn tick(&self) -> AccessTime {
        let now = AccessTime::at(self.elapsed());
        // Several threads advance the clock: one that was not scheduled in between must not put it back.
        if AccessTime::from_ticks(self.now.load(Relaxed)).age_ticks(now) > 0 {
            self.now.store(now.ticks(), Relaxed);
        }
        now
    }

    /// Sets the clock, as if time had passed.
    #[cfg(test)]
    pub(crate) fn set(&self, time: AccessTime) {
        self.now.store(time.ticks(), Relaxed);
    }

    /// The time of the last tick.
    #[inline]
    pub(crate) fn now(&self) -> AccessTime {
        AccessTime::from_ticks(self.now.load(Relaxed))
    }

    /// Whether a walk is due: true once in each period of `ticks`.
    pub(crate) fn is_walk_due(&self, ticks: u16) -> bool {
        let period = self.now().ticks() / ticks;
        self.walked_period.swap(period, Relaxed) != period
    }
}
