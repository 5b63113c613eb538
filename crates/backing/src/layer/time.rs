//! Time sources for layers that delay requests. Tests have another one, which they advance (`testing/clock.rs`).

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// A clock that can be read and waited on.
pub trait TimeSource: Send + Sync {
    /// The time since a fixed moment in the past, the same for all threads.
    fn now(&self) -> Duration;

    /// Waits until `now` is at least `time`.
    fn wait_until(&self, time: Duration);
}

/// How long before a deadline `wait_until` stops sleeping and spins: the time that a wake-up may take.
const SPIN: Duration = Duration::from_micros(30);

/// The machine's monotonic clock. Waits are precise to microseconds, as they end with a short spin.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// Makes a clock that is at zero now.
    pub fn new() -> Self {
        SystemClock(Instant::now())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

thread_local! {
    /// Sets the timer slack once for each thread that waits. If that is refused, waits are only less precise.
    static TIMER_SLACK: () = { let _ = pagefold_sys::timer::set_slack_ns(NonZeroU64::MIN); };
}

impl TimeSource for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wait_until(&self, time: Duration) {
        let left = time.saturating_sub(self.now());
        if left > SPIN {
            TIMER_SLACK.with(|()| std::thread::sleep(left - SPIN));
        }
        while self.now() < time {
            std::hint::spin_loop();
        }
    }
}
