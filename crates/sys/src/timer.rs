//! The timer slack of a thread, which is how late the kernel may wake it from a sleep, and the time since boot.

use crate::SysError;
use rustix::time::{ClockId, clock_gettime};
use std::num::NonZeroU64;
use std::time::Duration;

/// Sets the timer slack of the calling thread, nanoseconds. The kernel's default is 50 000.
pub fn set_slack_ns(slack_ns: NonZeroU64) -> Result<(), SysError> {
    rustix::thread::set_current_timer_slack(Some(slack_ns))
        .map_err(|e| SysError::new("setting the timer slack of a thread", e.raw_os_error()))
}

/// The time since the machine has booted, including the time that it was suspended.
pub fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

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
