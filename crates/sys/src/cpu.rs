//! The CPU that runs this thread, the CPUs on which it may run, the number of CPUs, and the CPU time of a thread.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
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

/// The CPUs on which the calling thread may run, in order; none if the kernel has more than 1024.
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Lets the calling thread run on these CPUs only. Returns false if the kernel refuses: none of them may be used.
pub fn run_on(cpus: &[usize]) -> bool {
    let mut set = CpuSet::new();
    // The set panics beyond its end.
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    sched_setaffinity(None, &set).is_ok()
}

/// Lets the calling thread run on one CPU only. Returns false if the kernel refuses: the CPU may not be used any more.
pub fn pin(cpu: usize) -> bool {
    run_on(&[cpu])
}

/// Makes the calling thread one that interrupts no other when it wakes up (SCHED_BATCH): it runs when the CPU is free or
/// its turn has come. Returns false, and changes nothing, if the program has chosen a class for it (a real-time one,
/// SCHED_IDLE) or the kernel refuses.
pub fn wake_without_preempting() -> bool {
    // The kernel's struct sched_param. musl has no functions for these calls, which POSIX defines for processes.
    let priority: libc::c_int = 0;
    let batch = libc::c_long::from(libc::SCHED_BATCH);
    // SAFETY: the calls take numbers and read the structure, and change only how the calling thread is scheduled.
    unsafe {
        libc::syscall(libc::SYS_sched_getscheduler, 0) == libc::SCHED_OTHER.into()
            && libc::syscall(libc::SYS_sched_setscheduler, 0, batch, &raw const priority) == 0
    }
}

/// The CPU time of the calling thread, in user space and in the kernel.
pub fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_pinned_thread_runs_on_its_cpu() {
        for cpu in super::allowed() {
            let pinned = std::thread::spawn(move || (super::pin(cpu), super::allowed(), super::current()));
            assert_eq!(pinned.join().unwrap(), (true, vec![cpu], cpu));
        }
        assert!(!super::pin(rustix::thread::CpuSet::MAX_CPU) && !super::run_on(&[]));
    }

    #[test]
    fn a_thread_that_preempts_no_other_is_one_of_the_batch_class() {
        // SAFETY: the call takes a number, 0 for the calling thread.
        let class = || unsafe { libc::sched_getscheduler(0) };
        // The tests may run in a class that somebody has chosen for them, which is kept.
        let (before, is_plain) = (class(), class() == libc::SCHED_OTHER);
        let thread = std::thread::spawn(move || {
            (super::wake_without_preempting(), class(), super::wake_without_preempting())
        });
        let expected = if is_plain { libc::SCHED_BATCH } else { before };
        assert_eq!(thread.join().unwrap(), (is_plain, expected, false));
        assert_eq!(class(), before);
    }

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
