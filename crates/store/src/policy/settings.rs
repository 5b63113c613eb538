//! The settings and the condition of automatic writeback, shared by the writeback thread and its users.

use super::throttle::{Throttle, Throttled};
use crossbeam_utils::atomic::AtomicCell;
use pagefold_backing::BackingError;
use pagefold_sys::signal;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The default pressure above which automatic writeback and automatic recompression wait, per cent.
pub(crate) const BUSY_PERCENT: u32 = 40;

/// The settings of automatic writeback, which may change at any time, and its condition.
#[derive(Debug)]
pub struct Policy {
    /// High and low mark in one word, so that a reader never sees one of each pair.
    marks: AtomicU32,
    /// The age, seconds without access, from which pages are written back even below the marks; 0 means never. Ages above
    /// 8192 s are treated as 8192 s.
    pub age_s: AtomicCell<u64>,
    /// The most bytes per second that automatic writeback and the cleaner write; 0 is no bound.
    pub rate_bytes_per_s: AtomicCell<u64>,
    /// The budget of bytes written within 24 hours; when it is used up, automatic writeback stops until older writes
    /// leave the 24 hours. 0 is no bound. Passes on request and the cleaner count too, but only automatic writeback
    /// stops. The count starts with the store.
    pub daily_bytes: AtomicCell<u64>,
    /// The pressure (share of stalled time in the last ten seconds, per cent) above which writeback waits, unless
    /// memory is nearly used up; 0 means that writeback never waits for it.
    pub busy_percent: AtomicCell<u32>,
    condition: Mutex<Condition>,
    throttle: Throttle,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            marks: AtomicU32::new(pair(90, 80)),
            age_s: AtomicCell::new(0),
            rate_bytes_per_s: AtomicCell::new(0),
            daily_bytes: AtomicCell::new(0),
            busy_percent: AtomicCell::new(BUSY_PERCENT),
            condition: Mutex::default(),
            throttle: Throttle::default(),
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

    /// The present condition of automatic writeback. The lock is held only to copy, with signals blocked: a signal handler
    /// may wait for the writeback thread, which takes this lock, so the interrupted thread must not hold it.
    pub fn condition(&self) -> Condition {
        let _masked = signal::mask_asynchronous();
        self.condition.lock().clone()
    }

    /// Publishes the condition.
    pub(super) fn set_condition(&self, condition: Condition) {
        *self.condition.lock() = condition;
    }

    /// Counts the writes that waited for memory, and their time.
    pub fn throttled(&self) -> Throttled {
        self.throttle.stats()
    }

    /// The throttle, where writers wait for memory and the writeback thread for work.
    pub(crate) fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// A policy with another throttle.
    #[cfg(test)]
    pub(super) fn with_throttle(throttle: Throttle) -> Self {
        Policy { throttle, ..Policy::default() }
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
