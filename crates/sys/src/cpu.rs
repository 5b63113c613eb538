//! The CPU that runs this thread, the number of CPUs, and the CPU time of a thread.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The index of the CPU that runs the calling thread. A hint: the thread may move at any moment.
#[inline]
pub fn current() -> usize {
    // SAFETY: sched_getcpu takes no arguments and touches no memory of ours.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// The number of configured CPUs of this machine, at least 1.
///
/// Configured rather than online or allowed, so that [`current`] stays below it when CPUs go offline and online.
pub fn count() -> usize {
    // SAFETY: sysconf takes a constant and touches no memory of ours.
    let n = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(n).unwrap_or(1).max(1)
}

/// The CPU time of the calling thread, in user space and in the kernel.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn thread_time_advances_with_work_only() {
        let before = super::thread_time();
        let mut x = 1u64;
        while super::thread_time() == before {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(super::thread_time() > before);
    }

    #[test]
    fn current_is_below_count() {
        assert!(super::current() < super::count());
    }
}
