//! Leaving the terminal: what a process does to become a service of its own.

use crate::SysError;
use std::os::fd::{AsFd, OwnedFd};

/// Keeps every descriptor above 2 out of programs this process starts from now on.
///
/// Descriptors that a careless parent left open would otherwise live on in a
/// service, and hold file systems busy. Ours are close-on-exec already.
pub fn forbid_inheritance() {
    // SAFETY: with CLOSE_RANGE_CLOEXEC nothing is closed, only a flag of descriptors is set; the
    // call touches no memory. A kernel too old for it changes nothing, which is no worse.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Starts a session of its own, so that a terminal's signals and hang-up do not reach it, and lets
/// go of the working directory. A process that already leads its group stays where it is.
pub fn new_session() {
    // The only failure is leading a process group already, and then nothing is lost.
    let _ = rustix::process::setsid();
    // "/" always exists; if it cannot be entered the old directory stays, which is harmless.
    let _ = rustix::process::chdir("/");
}

/// Gives the calling thread, and the process if it is the first, a name in process listings.
pub fn set_name(name: &std::ffi::CStr) {
    // A name is a convenience.
    let _ = rustix::thread::set_name(name);
}

/// Takes what standard input refers to, and leaves `/dev/null` in its place.
pub fn take_stdin() -> Result<OwnedFd, SysError> {
    let failed = |e| SysError::new("taking over standard input", e);
    let taken = std::io::stdin().as_fd().try_clone_to_owned();
    let taken = taken.map_err(|e| failed(e.raw_os_error().unwrap_or(libc::EIO)))?;
    let null = std::fs::File::open("/dev/null").map_err(|e| failed(e.raw_os_error().unwrap_or(libc::EIO)))?;
    rustix::stdio::dup2_stdin(&null).map_err(|e| failed(e.raw_os_error()))?;
    Ok(taken)
}
