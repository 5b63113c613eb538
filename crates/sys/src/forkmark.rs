//! Detecting with one load whether this process is a forked child.
//!
//! A forked child has copies of its parent's memory and descriptors, but not its threads and not its address space.
//! Code that serves memory by userfaultfd must do nothing in the child. Comparing process ids would be a system call
//! each time; instead a page holds a mark that the kernel clears in children (MADV_WIPEONFORK, Linux 4.14). Unlike
//! `pthread_atfork`, that works for every way to fork. Reference: madvise(2).
//!
//! A child that shares its parent's memory (vfork, `CLONE_VM`) counts as the same process: its changes to memory are
//! changes to the parent's.

use crate::SysError;
use crate::mem::{Reservation, page_size};
use std::sync::atomic::{AtomicU32, Ordering};

/// A mark in memory that forked children do not have.
#[derive(Debug)]
pub struct ForkMark {
    page: Reservation,
    /// The process id, on kernels without MADV_WIPEONFORK.
    pid: Option<u32>,
}

impl ForkMark {
    /// Marks this process.
    pub fn new() -> Result<ForkMark, SysError> {
        let page = Reservation::new(page_size())?;
        // SAFETY: the page holds an integer, for which zero is valid.
        let can_wipe = unsafe { page.wipe_in_children() };
        let pid = (!can_wipe).then(std::process::id);
        let mark = ForkMark { page, pid };
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    /// Whether this is the process that made the mark, rather than a child with a copy of its memory. A signal handler
    /// may call it.
    ///
    /// On kernels before 4.14 it makes a system call, and a child that shares its parent's memory counts as another
    /// process.
    #[inline]
    pub fn is_same_process(&self) -> bool {
        match self.pid {
            None => self.word().load(Ordering::Relaxed) != 0,
            Some(pid) => pid == std::process::id(),
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the first bytes of a page, which is aligned, and mapped readable and writable as long as `self`
        // lives; nothing else refers to them.
        unsafe { &*self.page.base().as_ptr().cast::<AtomicU32>() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use std::ffi::{c_int, c_void};

    /// Waits for a child; returns its exit code.
    fn exit_code(child: libc::pid_t) -> i32 {
        assert!(child > 0, "{}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: the call writes only to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        libc::WEXITSTATUS(status)
    }

    /// The result of `is_same_process` in a forked child.
    fn in_fork(mark: &ForkMark) -> bool {
        // SAFETY: the child makes a load or a system call, and exits.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(mark.is_same_process().into());
            }
            child
        };
        exit_code(child) == 1
    }

    #[test]
    fn forked_child_is_another_process_by_mark_and_by_pid() {
        let mark = ForkMark::new().unwrap();
        assert!(mark.is_same_process() && !in_fork(&mark) && mark.is_same_process());
        let by_pid = ForkMark { page: Reservation::new(page_size()).unwrap(), pid: Some(std::process::id()) };
        assert!(by_pid.is_same_process() && !in_fork(&by_pid) && by_pid.is_same_process());
    }

    #[test]
    fn child_of_a_raw_clone_is_another_process() {
        let mark = ForkMark::new().unwrap();
        // SAFETY: without shared memory this is a fork; the child makes a load or a system call, and exits.
        let child = unsafe {
            let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t;
            if child == 0 {
                libc::_exit(mark.is_same_process().into());
            }
            child
        };
        assert_eq!(exit_code(child), 0);
    }

    #[test]
    fn child_that_shares_memory_is_the_same_process() {
        extern "C" fn look(mark: *mut c_void) -> c_int {
            // SAFETY: the pointer is to the parent's mark, which lives, as the parent waits for this child.
            unsafe { &*mark.cast::<ForkMark>() }.is_same_process().into()
        }
        let mut mark = ForkMark::new().unwrap();
        if mark.pid.is_some() {
            pagefold_testkit::skipped!("child_that_shares_memory_is_the_same_process: no MADV_WIPEONFORK");
            return;
        }
        let mut stack = vec![0u128; 4096];
        // SAFETY: the child runs on a separate stack, and, as for vfork, the parent stops until the child has exited.
        let child = unsafe {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            libc::clone(look, stack.as_mut_ptr_range().end.cast(), flags, (&raw mut mark).cast())
        };
        assert_eq!(exit_code(child), 1);
    }
}
