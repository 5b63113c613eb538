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
}

impl Clock {
    pub(crate) fn new() -> Self {
        Clock { start: Instant::now(), now: AtomicU16::new(0) }
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
}
