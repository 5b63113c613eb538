//! How late the kernel may wake a sleeping thread.

use crate::SysError;
use std::num::NonZeroU64;

/// Sets the slack of the calling thread's timers, nanoseconds. The kernel's default is 50 000.
pub fn set_slack_ns(slack_ns: NonZeroU64) -> Result<(), SysError> {
    rustix::thread::set_current_timer_slack(Some(slack_ns))
        .map_err(|e| SysError::new("setting the slack of a thread's timers", e.raw_os_error()))
}
