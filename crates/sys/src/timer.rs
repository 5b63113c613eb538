//! The timer slack of a thread, which is how late the kernel may wake it from a sleep, the time since boot, and deadlines.

use crate::{SysError, failed};
use rustix::time::{ClockId, clock_gettime};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// Sets the timer slack of the calling thread, nanoseconds. The kernel's default is 50 000.
pub fn set_slack_ns(slack_ns: NonZeroU64) -> Result<(), SysError> {
    rustix::thread::set_current_timer_slack(Some(slack_ns))
        .map_err(failed("setting the timer slack of a thread"))
}

/// The time since the machine has booted, including the time that it was suspended.
pub fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// The time of the clock of [`Instant`], which is the same for all processes of the machine.
pub fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// Returns the time that is `after` later than `from`, or a century if `after` is longer: the type of the clock ends
/// somewhere, and its addition panics there. For durations that a caller chooses, who may mean "never".
pub fn deadline(from: Instant, after: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    from + after.min(CENTURY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_duration_is_too_long_for_a_deadline() {
        let now = Instant::now();
        assert_eq!(deadline(now, Duration::from_secs(5)), now + Duration::from_secs(5));
        assert!(deadline(now, Duration::MAX) > now + Duration::from_secs(86_400 * 365 * 50));
        assert!(deadline(deadline(now, Duration::MAX), Duration::MAX) > now);
    }

    #[test]
    fn the_slack_of_one_thread_leaves_others_alone() {
        let in_thread = std::thread::spawn(|| {
            set_slack_ns(NonZeroU64::MIN).unwrap();
            rustix::thread::current_timer_slack().unwrap()
        });
        assert_eq!(in_thread.join().unwrap(), 1);
        assert_ne!(rustix::thread::current_timer_slack().unwrap(), 1);
    }
}
