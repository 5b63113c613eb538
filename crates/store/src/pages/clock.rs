//! The coarse clock of access times.
//!
//! It is read at every access, so it is a number in memory. The threads of automatic writeback and of automatic
//! recompression advance it a few times a second; each pass, and each marking of idle pages, does so when it begins. In
//! a store without such a thread it stands still in between.

use crate::slot::{AccessTime, ticks};
use pagefold_sys::timer;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A coarse clock.
#[derive(Debug)]
pub(crate) struct Clock {
    /// When it began, by [`timer::monotonic`].
    start: Duration,
    /// Seconds by which tests have let it leap.
    leapt_s: AtomicU64,
    /// Ticks since the start, without a wrap-around: of two numbers the later one is the greater one.
    now: AtomicU64,
    /// The period in which the last walk over all slots began; one is due in each.
    walked_period: AtomicU64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self::resumed(timer::monotonic(), 0)
    }

    /// The clock of a process that has died: when it began, and its last ticks.
    pub(crate) fn resumed(start: Duration, ticks: u64) -> Self {
        Clock {
            start,
            leapt_s: AtomicU64::new(0),
            now: AtomicU64::new(ticks),
            walked_period: AtomicU64::new(0),
        }
    }

    /// When it began, by [`timer::monotonic`].
    pub(crate) fn start(&self) -> Duration {
        self.start
    }

    /// Its ticks, without a wrap-around.
    pub(crate) fn ticks(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// Time since the clock was made, and what it has leapt over.
    pub(crate) fn elapsed(&self) -> Duration {
        timer::monotonic().saturating_sub(self.start) + Duration::from_secs(self.leapt_s.load(Relaxed))
    }

    /// Makes all later times later, as if the process had been stopped.
    #[cfg(feature = "testing")]
    pub(crate) fn leap(&self, time: Duration) {
        self.leapt_s.fetch_add(time.as_secs(), Relaxed);
    }

    /// Advances the clock to `elapsed` after the start. Several threads do so: one that was not scheduled since it read
    /// `elapsed` does not put the clock back.
    pub(super) fn advance(&self, elapsed: Duration) -> AccessTime {
        let ticks = ticks(elapsed);
        AccessTime::from_ticks(self.now.fetch_max(ticks, Relaxed).max(ticks) as u16)
    }

    /// Ticks by which the clock is behind `elapsed` after the start.
    pub(super) fn ticks_behind(&self, elapsed: Duration) -> u64 {
        ticks(elapsed).saturating_sub(self.now.load(Relaxed))
    }

    /// Advances the clock by so many ticks. The caller makes sure that no other thread does.
    pub(super) fn step(&self, ticks: u64) {
        self.now.fetch_add(ticks, Relaxed);
    }

    /// The time of the last tick.
    #[inline]
    pub(crate) fn now(&self) -> AccessTime {
        AccessTime::from_ticks(self.now.load(Relaxed) as u16)
    }

    /// Whether a walk is due: true once in each period of `ticks`.
    pub(super) fn is_walk_due(&self, ticks: u64) -> bool {
        let period = self.now.load(Relaxed) / ticks;
        self.walked_period.fetch_max(period, Relaxed) < period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back_and_advances_after_any_time_without_ticks() {
        let s = Duration::from_secs;
        let clock = Clock::new();
        let mut now_s = 0;
        // Up to several times the range of an access time, 16384 s.
        for later_s in [1, 8_000, 12_000, 12_300, 16_000, 16_384, 40_000, 1_000_000] {
            now_s += later_s;
            assert_eq!(clock.advance(s(now_s)), AccessTime::at(s(now_s)), "{later_s} s later");
            assert_eq!(clock.now(), AccessTime::at(s(now_s)), "{later_s} s later");
            assert_eq!(clock.advance(s(now_s - 1)), AccessTime::at(s(now_s)), "a late thread");
            assert_eq!(clock.now(), AccessTime::at(s(now_s)), "a late thread");
        }
    }

    #[test]
    fn a_walk_is_due_once_in_each_period() {
        let clock = Clock::new();
        let mut is_due_at = |s| {
            clock.advance(Duration::from_secs(s));
            clock.is_walk_due(400)
        };
        let due = [0, 99, 100, 101, 199, 200, 950, 951, 20_000].map(&mut is_due_at);
        assert_eq!(due, [false, false, true, false, false, true, true, false, true]);
    }
}
