//! Settings of a process that serves a swap device.
//!
//! A server that holds the system's swapped pages must never wait for memory that only swapping could free: that would
//! be a deadlock. Three settings of the process prevent it, and one keeps the process alive:
//!
//! - lock limit: the limit of locked memory is removed, so that the kernel never refuses a mapping for exceeding it;
//! - locked memory: none of the process's pages is ever swapped out or dropped, so serving a request never reads one
//!   back;
//! - I/O flusher: when the kernel allocates memory for these threads, it starts no I/O to free memory, and does not
//!   throttle their writes behind the writers that they serve;
//! - out-of-memory protection: the kernel does not choose this process as the one to kill.
//!
//! Each may be refused for a different reason (a container, a missing capability), so each is reported separately. See
//! mlockall(2), PR_SET_IO_FLUSHER(2const), proc_pid_oom_score_adj(5).

use crate::{SysError, failed};
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, Rlimit};

/// The result of each setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapReport {
    /// The limit of locked memory (RLIMIT_MEMLOCK) is removed. New mappings are locked too, so with a limit the kernel
    /// would refuse them once the process has dropped `CAP_IPC_LOCK`: then no memory is locked.
    pub lock_limit: Result<(), SysError>,
    /// Memory is locked: existing mappings at once, later mappings page by page when they are first used.
    pub memory_locked: Result<(), SysError>,
    /// The calling thread, and the threads that it starts from now on, are I/O flushers.
    pub io_flusher: Result<(), SysError>,
    /// The kernel does not kill this process when memory runs out.
    pub oom_protected: Result<(), SysError>,
}

impl SwapReport {
    /// The settings that failed. If there are none, these settings make swapping to this process safe.
    pub fn refused(&self) -> Vec<&SysError> {
        let all = [&self.lock_limit, &self.memory_locked, &self.io_flusher, &self.oom_protected];
        let mut refused: Vec<_> = all.into_iter().filter_map(|r| r.as_ref().err()).collect();
        // Without the limit, the lock was not tried.
        refused.dedup();
        refused
    }
}

/// Applies all settings; the report says which of them failed. Memory is locked only if its limit is removed: a process that
/// drops its capabilities could map nothing more otherwise.
///
/// Call it before the process starts other threads: the I/O flusher setting belongs to a thread, and only threads that
/// this thread starts later inherit it.
pub fn for_swap() -> SwapReport {
    let lock_limit = lift_lock_limit();
    SwapReport {
        memory_locked: lock_limit.clone().and_then(|()| lock_memory()),
        lock_limit,
        io_flusher: set_io_flusher(),
        oom_protected: protect_from_oom(),
    }
}

/// Locks the memory of a process whose parent has called [`for_swap`]: it has inherited the other settings, and may have no
/// capability to make them again. Fails if the limit of locked memory was not removed.
pub fn lock_memory_again() -> Result<(), SysError> {
    match rustix::process::getrlimit(Resource::Memlock).current {
        None => lock_memory(),
        Some(_) => Err(SysError::new("locking memory below a limit (RLIMIT_MEMLOCK)", libc::EPERM)),
    }
}

fn lift_lock_limit() -> Result<(), SysError> {
    let unlimited = Rlimit { current: None, maximum: None };
    rustix::process::setrlimit(Resource::Memlock, unlimited)
        .map_err(failed("lifting the limit of locked memory (RLIMIT_MEMLOCK)"))
}

/// Locks existing mappings at once, so that the code of the program and its libraries is in memory before a request
/// needs it. Later mappings are locked page by page on first use, because a store reserves far more address space than
/// it uses.
fn lock_memory() -> Result<(), SysError> {
    let on_fault = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    for flags in [MlockAllFlags::CURRENT, on_fault] {
        rustix::mm::mlockall(flags).map_err(|e| {
            let what = "locking memory (mlockall; needs CAP_IPC_LOCK or RLIMIT_MEMLOCK)";
            SysError::new(what, e.raw_os_error())
        })?;
    }
    Ok(())
}

fn set_io_flusher() -> Result<(), SysError> {
    rustix::process::configure_io_flusher_behavior(true).map_err(|e| {
        SysError::new("becoming an I/O flusher (PR_SET_IO_FLUSHER; needs CAP_SYS_RESOURCE)", e.raw_os_error())
    })
}

fn protect_from_oom() -> Result<(), SysError> {
    let what =
        "protecting the process from the out-of-memory killer (oom_score_adj -1000; needs CAP_SYS_RESOURCE)";
    std::fs::write("/proc/self/oom_score_adj", "-1000").map_err(|e| SysError::io(what, &e))
}

/// Whether the calling thread is an I/O flusher. False if the kernel does not report it.
pub fn is_io_flusher() -> bool {
    rustix::process::is_io_flusher().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_lists_each_failure() {
        let [error, other] = ["x", "y"].map(|what| SysError::new(what, libc::EPERM));
        let report = SwapReport {
            lock_limit: Ok(()),
            memory_locked: Err(error.clone()),
            io_flusher: Ok(()),
            oom_protected: Err(other.clone()),
        };
        assert_eq!(report.refused(), [&error, &other]);
    }

    #[test]
    fn io_flusher_is_inherited_by_threads_started_later_only() {
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let earlier = std::thread::spawn(move || asked.recv().map(|()| is_io_flusher()));
        let made = std::thread::spawn(|| {
            set_io_flusher().map(|()| {
                let child = std::thread::spawn(is_io_flusher).join().unwrap();
                (is_io_flusher(), child)
            })
        });
        let made = made.join().unwrap();
        ask.send(()).unwrap();
        assert_eq!(earlier.join().unwrap(), Ok(false));
        match made {
            Ok(seen) => assert_eq!(seen, (true, true)),
            Err(e) => {
                pagefold_testkit::skipped!("io_flusher_is_inherited_by_threads_started_later_only: {e}")
            }
        }
    }
}
