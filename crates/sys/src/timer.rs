//! How late the kernel may wake a sleeping thread.

use crate::SysError;
use std::num::NonZeroU64;

/// Sets the slack of the calling thread's timers, nanoseconds. The kernel's default is 50 000.
pub fn set_slack_ns(slack_ns: NonZeroU64) -> Result<(), SysError> {
    rustix::thread::set_current_timer_slack(Some(slack_ns))
        .map_err(|e| SysError::new("setting the slack of a thread's timers", e.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_is_the_threads_own() {
        let in_thread = std::thread::spawn(|| {
            set_slack_ns(NonZeroU64::MIN).unwrap();
            rustix::thread::current_timer_slack().unwrap()
        });
        assert_eq!(in_thread.join().unwrap(), 1);
        assert_ne!(rustix::thread::current_timer_slack().unwrap(), 1);
    }
}
