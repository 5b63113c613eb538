//! Becoming a daemon: session, working directory, process name, and inherited descriptors.

use crate::SysError;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Sets close-on-exec on all open descriptors above 2, so that programs that this process starts do not inherit them.
///
/// Descriptors that a parent process left open would otherwise stay open in a daemon, and keep file systems busy. The
/// descriptors that this program opens are close-on-exec already.
pub fn forbid_inheritance() {
    // SAFETY: with CLOSE_RANGE_CLOEXEC the call closes no descriptor and sets only a flag of each; it accesses no
    // memory. A kernel that does not know the call changes nothing.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Starts a new session, so that signals and the hang-up of a terminal do not reach this process. A process that already
/// leads its process group keeps its session.
pub fn new_session() {
    // setsid fails only if this process leads its group already, which is harmless.
    let _ = rustix::process::setsid();
}

/// Changes the working directory to `/`, so that this process keeps no file system busy.
pub fn leave_directory() {
    // "/" always exists; if this process may not enter it, it keeps the old directory, which is harmless.
    let _ = rustix::process::chdir("/");
}

/// Lets the program of a command begin its own session: it has no terminal, so it cannot ask there, and a signal to its
/// group reaches all that it starts. The command must not set a process group.
pub fn in_new_session(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec the function makes one system call, which is async-signal-safe; it allocates nothing
    // and touches no memory of the parent.
    unsafe { command.pre_exec(|| rustix::process::setsid().map(drop).map_err(std::io::Error::from)) }
}

/// Sets the name of the calling thread in process listings; the main thread's name is also the process's.
pub fn set_name(name: &std::ffi::CStr) {
    // The name is only informative, so a failure is ignored.
    let _ = rustix::thread::set_name(name);
}

/// Returns a descriptor of the file that is standard input, and makes standard input one without bytes, `/dev/null` if that
/// can be opened.
pub fn take_stdin() -> Result<OwnedFd, SysError> {
    let failed = |e| SysError::new("taking over standard input", e);
    let taken = std::io::stdin().as_fd().try_clone_to_owned();
    let taken = taken.map_err(|e| failed(e.raw_os_error().unwrap_or(libc::EIO)))?;
    let null = match std::fs::File::open("/dev/null") {
        Ok(file) => file.into(),
        // A sandbox may have no devices that can be opened. A pipe without a writer is at its end, too.
        Err(_) => rustix::pipe::pipe().map_err(|e| failed(e.raw_os_error()))?.0,
    };
    rustix::stdio::dup2_stdin(&null).map_err(|e| failed(e.raw_os_error()))?;
    Ok(taken)
}

/// Returns a descriptor of the file that is standard output, and makes `/dev/null` standard output instead.
pub fn take_stdout() -> Result<OwnedFd, SysError> {
    let failed = |e: std::io::Error| SysError::io("taking over standard output", &e);
    let taken = std::io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
    let null = match std::fs::OpenOptions::new().write(true).open("/dev/null") {
        Ok(file) => file.into(),
        // As above. Writing to a pipe without a reader is an error, and writes nothing.
        Err(_) => rustix::pipe::pipe().map_err(|e| failed(e.into()))?.1,
    };
    rustix::stdio::dup2_stdout(&null).map_err(|e| failed(e.into()))?;
    Ok(taken)
}
