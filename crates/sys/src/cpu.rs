//! Which CPU runs this thread, and how many there are.

/// The index of the CPU the calling thread is on now; a hint, stale at once.
#[inline]
pub fn current() -> usize {
    // SAFETY: sched_getcpu takes no arguments and touches no memory of ours.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// CPUs that this machine has configured, at least 1.
///
/// Configured rather than online or allowed, so that [`current`] stays below it
/// when CPUs come and go.
pub fn count() -> usize {
    // SAFETY: sysconf takes a constant and touches no memory of ours.
    let n = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(n).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn current_is_below_count() {
        assert!(super::current() < super::count());
    }
}
