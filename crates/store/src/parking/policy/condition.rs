//! How automatic parking is, where everybody can see it at any time.

use super::throttle::Throttle;
use pagefold_backing::BackingError;
use pagefold_sys::signal;
use std::fmt;
use std::sync::{Mutex, PoisonError};

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

impl Condition {
    /// Whether memory can be expected to become free in this condition.
    pub fn is_hopeful(&self) -> bool {
        matches!(self, Condition::Idle | Condition::Parking | Condition::Busy)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Off => f.write_str("off: pages are parked on request only"),
            Condition::Idle => f.write_str("nothing to park"),
            Condition::Parking => f.write_str("parking"),
            Condition::Busy => f.write_str("waiting: the machine is busy"),
            Condition::Full => {
                f.write_str("the backing, or the file system under it, is full: pages stay in memory")
            }
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

/// What the parker's thread shares with everybody else.
#[derive(Debug, Default)]
pub(crate) struct PolicyState {
    condition: Mutex<Condition>,
    throttle: Throttle,
}

impl PolicyState {
    /// One whose writers have another patience.
    #[cfg(test)]
    pub(super) fn with_throttle(throttle: Throttle) -> Self {
        PolicyState { throttle, ..PolicyState::default() }
    }

    /// How it is. The lock is only ever held to copy, and never by a thread that a signal handler interrupted: the parker
    /// takes it, and the handler may wait for what the parker does.
    pub(crate) fn condition(&self) -> Condition {
        let _masked = signal::mask_all();
        self.condition.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says how it is.
    pub(super) fn set_condition(&self, condition: Condition) {
        *self.condition.lock().unwrap_or_else(PoisonError::into_inner) = condition;
    }

    /// Where writers wait for room, and the parker for work.
    pub(crate) fn throttle(&self) -> &Throttle {
        &self.throttle
    }
}
