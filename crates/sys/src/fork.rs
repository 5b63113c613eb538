//! [`fork`], a child process that runs a function of this program: for work that needs other rights than the rest.
//!
//! The child is a copy of a process with one thread, so it may allocate and take locks. It has copies of all descriptors, and
//! its ends of sockets are closed by dropping them. Reference: fork(2), signal-safety(7).

use crate::pidfd::Lifeline;
use crate::respawn::Started;
use crate::{SysError, failed};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The exit code of a child whose function has panicked, as of a program.
const PANICKED: u8 = 101;

/// How often, and with which pauses, threads are counted: one that was joined is in the list for a moment.
const ENDING_TRIES: u32 = 20;
const ENDING_PAUSE: Duration = Duration::from_millis(1);

/// Starts a child process that calls `run` and exits with the code that it returns. Values that `run` owns are dropped in
/// the parent too, when this function returns.
///
/// Fails with EBUSY if this process has other threads: the child would have none of them, but the locks that they hold.
pub fn fork(run: impl FnOnce() -> u8) -> Result<Started, SysError> {
    fork_keeping(|_| run())
}

/// As [`fork`]. `run` gets the number of a descriptor that the child must not close, if there is one.
fn fork_keeping(run: impl FnOnce(Option<RawFd>) -> u8) -> Result<Started, SysError> {
    has_one_thread("starting a process (fork)")?;
    let lifeline = Lifeline::if_needed()?;
    // SAFETY: this is the only thread, so the child is a consistent copy of the process: no lock is held by a thread that
    // it does not have. It never returns from this block, so the caller's values are dropped once in each process at most.
    let pid = unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let kept = lifeline.map(|lifeline| lifeline.of_child().into_raw_fd());
            let code = catch_unwind(AssertUnwindSafe(|| run(kept))).unwrap_or(PANICKED);
            libc::_exit(code.into());
        }
        pid
    };
    Started::of_child(pid, lifeline)
}

/// Fails with EBUSY if this process has other threads. The error begins with `what`.
pub(crate) fn has_one_thread(what: &str) -> Result<(), SysError> {
    for _ in 0..ENDING_TRIES {
        let threads = std::fs::read_dir("/proc/self/task");
        let threads = threads.map_err(|e| SysError::io("counting threads in /proc/self/task", &e))?;
        if threads.count() == 1 {
            return Ok(());
        }
        std::thread::sleep(ENDING_PAUSE);
    }
    Err(SysError::new(format!("{what} beside other threads"), libc::EBUSY))
}

/// As [`fork`], and closes all descriptors in the child but the standard ones and `keep`, which `run` gets: files, locks and
/// connections of the parent end with the parent. `run` owns no other descriptor.
pub fn fork_with(keep: Vec<OwnedFd>, run: impl FnOnce(Vec<OwnedFd>) -> u8) -> Result<Started, SysError> {
    fork_keeping(move |kept| {
        let numbers = keep.iter().map(AsRawFd::as_raw_fd).chain(kept);
        let mut numbers: Vec<u32> = numbers.map(i32::unsigned_abs).collect();
        numbers.sort_unstable();
        let mut first = 3;
        for number in numbers.into_iter().chain([u32::MAX]) {
            if first < number && !close_all(first, number - 1) {
                return PANICKED;
            }
            first = first.max(number.saturating_add(1));
        }
        run(keep)
    })
}

/// Closes the descriptors with these numbers in a child process. Returns false if they are not known.
fn close_all(first: u32, last: u32) -> bool {
    // SAFETY: the calls access no memory. The values that own these descriptors are those of the parent's functions, which
    // this process never returns to.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return true;
    }
    // Before Linux 5.9, or in a container that refuses the call.
    let Ok(listed) = std::fs::read_dir("/proc/self/fd") else { return false };
    let numbers = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let numbers: Vec<i32> = numbers.collect();
    for number in numbers.into_iter().filter(|number| (first..=last).contains(&number.unsigned_abs())) {
        // SAFETY: as above.
        unsafe { libc::close(number) };
    }
    true
}

/// Lets the kernel kill the calling process when the thread that has started it ends. Changes of user or capabilities undo
/// it, so it comes after them. Fails with ESRCH if the parent is not `parent` any more.
pub fn die_with_parent(parent: rustix::process::Pid) -> Result<(), SysError> {
    let kill = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(kill)
        .map_err(failed("setting the signal of the parent's death"))?;
    match rustix::process::getppid() == Some(parent) {
        true => Ok(()),
        false => Err(SysError::new("staying with the parent process", libc::ESRCH)),
    }
}
