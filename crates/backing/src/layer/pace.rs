//! Clocks for layers that take time. Tests have one more, which they move (`testing/clock.rs`).

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// A clock to read and to wait on.
pub trait Clock: Send + Sync {
    /// Time since some moment in the past, the same for all threads.
    fn now(&self) -> Duration;

    /// Returns when it is at least this time.
    fn wait_until(&self, time: Duration);
}

/// How long before a deadline sleeping ends and spinning begins: what a wake-up may cost.
const SPIN: Duration = Duration::from_micros(30);

/// The machine's monotonic clock. Waits are precise to microseconds, at the cost of a short spin.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that is at zero now.
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
    /// Done once for each thread that waits. Where it is refused, waits are less precise, that is all.
    static TIMER_SLACK: () = { let _ = pagefold_sys::timer::set_slack_ns(NonZeroU64::MIN); };
}

impl Clock for SystemClock {
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
