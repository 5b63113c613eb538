//! The settings and the condition of automatic writeback, shared by the writeback thread and its users.

use super::throttle::{Throttle, Throttled};
use pagefold_backing::BackingError;
use pagefold_sys::signal;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The default pressure above which automatic writeback and automatic recompression wait, per cent.
pub(crate) const BUSY_PERCENT: u32 = 40;

/// The settings of automatic writeback, which may change at any time, and its condition.
#[derive(Debug)]
pub struct Policy {
    /// High and low mark in one word, so that a reader never sees one of each pair.
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
            busy_percent: AtomicU32::new(BUSY_PERCENT),
            state: PolicyState::default(),
        }
    }
}

fn pair(high: u32, low: u32) -> u32 {
    high << 16 | low
}

impl Policy {
    /// The high and the low mark, per cent of the memory limit: above the high mark writeback starts, at the low mark
    /// it stops.
    pub fn marks_percent(&self) -> (u32, u32) {
        let marks = self.marks.load(Relaxed);
        (marks >> 16, marks & 0xffff)
    }

    /// Sets both marks; requires 1 <= low <= high <= 100. Otherwise returns false and changes nothing.
    pub fn set_marks_percent(&self, high: u32, low: u32) -> bool {
        let fits = 1 <= low && low <= high && high <= 100;
        if fits {
            self.marks.store(pair(high, low), Relaxed);
        }
        fits
    }

    /// The age, seconds without access, from which pages are written back even below the marks; 0 means never.
    pub fn age_s(&self) -> u64 {
        self.age_s.load(Relaxed)
    }

    /// Sets the age. Ages above 8192 s are treated as 8192 s.
    pub fn set_age_s(&self, age_s: u64) {
        self.age_s.store(age_s, Relaxed);
    }

    /// The most bytes per second that automatic writeback and the cleaner write; 0 is no bound.
    pub fn rate_bytes_per_s(&self) -> u64 {
        self.rate_bytes_per_s.load(Relaxed)
    }

    /// Sets the rate.
    pub fn set_rate_bytes_per_s(&self, rate: u64) {
        self.rate_bytes_per_s.store(rate, Relaxed);
    }

    /// The budget of bytes written within 24 hours; when it is used up, automatic writeback stops until older writes
    /// leave the 24 hours. 0 is no bound. Passes on request and the cleaner count too, but only automatic writeback
    /// stops. The count starts with the store.
    pub fn daily_bytes(&self) -> u64 {
        self.daily_bytes.load(Relaxed)
    }

    /// Sets the daily budget.
    pub fn set_daily_bytes(&self, bytes: u64) {
        self.daily_bytes.store(bytes, Relaxed);
    }

    /// The pressure (share of stalled time in the last ten seconds, per cent) above which writeback waits, unless
    /// memory is nearly used up; 0 means that writeback never waits for it.
    pub fn busy_percent(&self) -> u32 {
        self.busy_percent.load(Relaxed)
    }

    /// Sets the pressure.
    pub fn set_busy_percent(&self, percent: u32) {
        self.busy_percent.store(percent, Relaxed);
    }

    /// The present condition of automatic writeback.
    pub fn condition(&self) -> Condition {
        self.state.condition()
    }

    /// Counts the writes that waited for memory, and their time.
    pub fn throttled(&self) -> Throttled {
        self.state.throttle().stats()
    }

    /// A policy with another throttle.
    #[cfg(test)]
    pub(super) fn with_throttle(throttle: Throttle) -> Self {
        Policy { state: PolicyState::with_throttle(throttle), ..Policy::default() }
    }

    /// The part that the writeback thread shares with the write path.
    pub(crate) fn state(&self) -> &PolicyState {
        &self.state
    }
}

/// The condition of automatic writeback, for users.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Condition {
    /// There is no writeback thread.
    #[default]
    Off,
    /// Nothing to do.
    Idle,
    /// It writes pages back.
    Writeback,
    /// Waiting because the machine is busy.
    Busy,
    /// The backing is full.
    Full,
    /// The budget of the last 24 hours is used up.
    DailySpent,
    /// `writeback_limit` is used up.
    LimitSpent,
    /// The medium fails; writeback retries after a while.
    Failing(BackingError),
}

impl Condition {
    /// Whether writeback can be expected to free memory in this condition.
    pub fn can_free_memory(&self) -> bool {
        matches!(self, Condition::Idle | Condition::Writeback | Condition::Busy)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Off => f.write_str("off: pages are written back on request only"),
            Condition::Idle => f.write_str("nothing to write back"),
            Condition::Writeback => f.write_str("writing back"),
            Condition::Busy => f.write_str("waiting: the machine is busy"),
            Condition::Full => {
                f.write_str("the backing, or the file system under it, is full: pages stay in memory")
            }
            Condition::DailySpent => f.write_str(
                "the budget for 24 hours is used up: pages stay in memory until older writes no longer count",
            ),
            Condition::LimitSpent => {
                f.write_str("writeback_limit is used up: pages stay in memory until it is raised")
            }
            Condition::Failing(e) => {
                write!(f, "the backing fails: pages stay in memory; writeback retries soon ({e})")
            }
        }
    }
}

/// The part of a policy that the writeback thread shares with the write path.
#[derive(Debug, Default)]
pub(crate) struct PolicyState {
    condition: Mutex<Condition>,
    throttle: Throttle,
}

impl PolicyState {
    /// A state with another throttle.
    #[cfg(test)]
    pub(super) fn with_throttle(throttle: Throttle) -> Self {
        PolicyState { throttle, ..PolicyState::default() }
    }

    /// The present condition. The lock is held only to copy, with signals blocked: a signal handler may wait for the
    /// writeback thread, which takes this lock, so the interrupted thread must not hold it.
    pub(crate) fn condition(&self) -> Condition {
        let _masked = signal::mask_asynchronous();
        self.condition.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes the condition.
    pub(super) fn set_condition(&self, condition: Condition) {
        *self.condition.lock().unwrap_or_else(PoisonError::into_inner) = condition;
    }

    /// The throttle, where writers wait for memory and the writeback thread for work.
    pub(crate) fn throttle(&self) -> &Throttle {
        &self.throttle
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
