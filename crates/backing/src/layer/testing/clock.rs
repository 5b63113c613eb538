//! A clock that tests advance.

use super::TimeSource;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A clock for tests. Its time changes only by [`ManualClock::advance`], and by waits, which advance it at once.
#[derive(Debug, Default)]
pub struct ManualClock(Mutex<Duration>);

impl ManualClock {
    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }
}

impl TimeSource for ManualClock {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the clock to `time`, if that is later than now.
    fn wait_until(&self, time: Duration) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now = time.max(*now);
    }
}
