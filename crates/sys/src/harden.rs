//! What a process needs before the kernel may swap to it.
//!
//! A server that holds the system's swapped pages must never wait for memory that only swapping could
//! free. Three settings of the process keep it from that, and one keeps it alive:
//!
//! - locked memory: none of its own pages is ever swapped out or dropped, so serving a request never
//!   reads one back;
//! - I/O flusher: memory the kernel allocates on behalf of these threads does not start I/O to get it,
//!   and their writes are not throttled behind the writers they serve;
//! - out-of-memory protection: the kernel does not choose it as the process to kill.
//!
//! Each may be refused for its own reason (a container, a missing capability), so each is reported
//! alone. See mlockall(2), PR_SET_IO_FLUSHER(2const), proc_pid_oom_score_adj(5).

use crate::SysError;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, Rlimit};

/// Which settings were made. An error names what was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapReport {
    /// The limit of locked memory is lifted. Without that, a process that gives up `CAP_IPC_LOCK` later
    /// finds every new mapping refused, because new mappings are locked too.
    pub lock_limit: Result<(), SysError>,
    /// Memory is locked: what was mapped then at once, later mappings as they are touched.
    pub memory_locked: Result<(), SysError>,
    /// The calling thread, and threads it starts from now on, are I/O flushers.
    pub io_flusher: Result<(), SysError>,
    /// The kernel does not kill this process when memory runs out.
    pub oom_protected: Result<(), SysError>,
}

impl SwapReport {
    /// What was refused; empty if swapping to this process is safe as far as these settings go.
    pub fn refused(&self) -> Vec<&SysError> {
        let all = [&self.lock_limit, &self.memory_locked, &self.io_flusher, &self.oom_protected];
        all.into_iter().filter_map(|r| r.as_ref().err()).collect()
    }
}

/// Makes all the settings, as far as allowed.
///
/// Call it before the first other thread is started: the I/O flusher setting belongs to a thread and
/// is inherited by the threads it starts, not given to those that run already.
pub fn for_swap() -> SwapReport {
    SwapReport {
        lock_limit: lift_lock_limit(),
        memory_locked: lock_memory(),
        io_flusher: set_io_flusher(),
        oom_protected: protect_from_oom(),
    }
}

fn lift_lock_limit() -> Result<(), SysError> {
    let unlimited = Rlimit { current: None, maximum: None };
    rustix::process::setrlimit(Resource::Memlock, unlimited)
        .map_err(|e| SysError::new("lifting the limit of locked memory (RLIMIT_MEMLOCK)", e.raw_os_error()))
}

/// What is mapped now, at once: the program and its libraries, so that no line of code is first read
/// from disk, or from swap, when a request needs it. What is mapped later, on fault: a store reserves
/// far more address space than it will ever use.
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
    let what = "asking not to be killed when memory runs out (oom_score_adj -1000; needs CAP_SYS_RESOURCE)";
    std::fs::write("/proc/self/oom_score_adj", "-1000").map_err(|e| SysError::io(what, &e))
}

/// Whether the calling thread is an I/O flusher. False where the kernel does not say.
pub fn is_io_flusher() -> bool {
    rustix::process::is_io_flusher().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_lists_each_failure_alone() {
        let error = SysError::new("x", libc::EPERM);
        let report = SwapReport {
            lock_limit: Ok(()),
            memory_locked: Err(error.clone()),
            io_flusher: Ok(()),
            oom_protected: Err(error.clone()),
        };
        assert_eq!(report.refused(), [&error, &error]);
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
