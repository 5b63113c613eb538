//! What can be set of automatic parking.

use super::condition::{Condition, PolicyState};
use super::throttle::Throttled;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The settings of automatic parking, each of which may change at any time, and how it is.
#[derive(Debug)]
pub struct Policy {
    /// High and low in one word, so that nobody sees one of an old pair and one of a new.
    marks: AtomicU32,
    age_s: AtomicU64,
    rate_bytes_per_s: AtomicU64,
    daily_bytes: AtomicU64,
    busy_percent: AtomicU32,
    state: PolicyState,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            marks: AtomicU32::new(pair(90, 80)),
            age_s: AtomicU64::new(0),
            rate_bytes_per_s: AtomicU64::new(0),
            daily_bytes: AtomicU64::new(0),
            busy_percent: AtomicU32::new(40),
            state: PolicyState::default(),
        }
    }
}

fn pair(high: u32, low: u32) -> u32 {
    high << 16 | low
}

impl Policy {
    /// Share of the memory limit from which on pages are parked, and down to which, per cent.
    pub fn marks_percent(&self) -> (u32, u32) {
        let marks = self.marks.load(Relaxed);
        (marks >> 16, marks & 0xffff)
    }

    /// Sets both: 1 <= low <= high <= 100. Returns false, and changes nothing, for others.
    pub fn set_marks_percent(&self, high: u32, low: u32) -> bool {
        let fits = 1 <= low && low <= high && high <= 100;
        if fits {
            self.marks.store(pair(high, low), Relaxed);
        }
        fits
    }

    /// Pages not accessed for so long are parked below the marks too, seconds; 0 is never.
    pub fn age_s(&self) -> u64 {
        self.age_s.load(Relaxed)
    }

    /// Sets it. Ages are told up to 8192 seconds, so more than that means that.
    pub fn set_age_s(&self, age_s: u64) {
        self.age_s.store(age_s, Relaxed);
    }

    /// Most bytes a second that automatic parking and the cleaner write; 0 is no bound.
    pub fn rate_bytes_per_s(&self) -> u64 {
        self.rate_bytes_per_s.load(Relaxed)
    }

    /// Sets it.
    pub fn set_rate_bytes_per_s(&self, rate: u64) {
        self.rate_bytes_per_s.store(rate, Relaxed);
    }

    /// Bytes written within 24 hours at which automatic parking stops, until some of them are longer ago; 0 is
    /// no bound. Passes that were asked for, and the cleaner, count, but only automatic work stops. A store
    /// that is made anew begins anew.
    pub fn daily_bytes(&self) -> u64 {
        self.daily_bytes.load(Relaxed)
    }

    /// Sets it.
    pub fn set_daily_bytes(&self, bytes: u64) {
        self.daily_bytes.store(bytes, Relaxed);
    }

    /// Pressure (stalled share of the last ten seconds, per cent) above which parking waits unless memory
    /// is nearly used up; 0 is never wait.
    pub fn busy_percent(&self) -> u32 {
        self.busy_percent.load(Relaxed)
    }

    /// Sets it.
    pub fn set_busy_percent(&self, percent: u32) {
        self.busy_percent.store(percent, Relaxed);
    }

    /// How automatic parking is now.
    pub fn condition(&self) -> Condition {
        self.state.condition()
    }

    /// Writes that waited for room, and how long.
    pub fn throttled(&self) -> Throttled {
        self.state.throttle().counted()
    }

    /// One whose writers have another patience.
    #[cfg(test)]
    pub(super) fn with_throttle(throttle: super::throttle::Throttle) -> Self {
        Policy { state: PolicyState::with_throttle(throttle), ..Policy::default() }
    }

    /// What the parker's thread shares with the write path.
    pub(crate) fn state(&self) -> &PolicyState {
        &self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_ordered_and_within_the_limit() {
        let policy = Policy::default();
        assert_eq!(policy.marks_percent(), (90, 80));
        for (high, low, fits) in
            [(100, 100, true), (1, 1, true), (0, 0, false), (50, 51, false), (101, 5, false), (70, 60, true)]
        {
            assert_eq!(policy.set_marks_percent(high, low), fits, "{high} {low}");
        }
        assert_eq!(policy.marks_percent(), (70, 60));
    }
}
