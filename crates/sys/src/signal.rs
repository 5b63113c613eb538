//! Termination signals as a descriptor that can be polled.
//!
//! A handler could do almost nothing safely; a blocked signal read from a
//! descriptor is handled in the main loop like any other event. Signals are
//! blocked before the first thread starts, so that every thread inherits it.

use crate::SysError;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const TERMINATION: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

fn termination_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in TERMINATION {
        // SAFETY: the set was initialised above and the numbers are valid signals.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: initialised by sigemptyset.
    unsafe { set.assume_init() }
}

fn change_mask(how: i32, set: &libc::sigset_t) -> Result<libc::sigset_t, SysError> {
    let mut old = MaybeUninit::uninit();
    // SAFETY: both pointers are to live sets; the kernel writes the whole of the old one.
    let rc = unsafe { libc::pthread_sigmask(how, set, old.as_mut_ptr()) };
    match rc {
        // SAFETY: the call succeeded, so the old mask was written.
        0 => Ok(unsafe { old.assume_init() }),
        errno => Err(SysError::new("changing the signal mask", errno)),
    }
}

/// While it lives, SIGTERM, SIGINT and SIGHUP of the calling thread wait.
///
/// Dropping it delivers what came meanwhile. It is for one thread and cannot be sent to another.
pub struct Held {
    old: libc::sigset_t,
    not_send: std::marker::PhantomData<*const ()>,
}

/// Holds termination signals back while something must not be left half done.
pub fn hold_termination() -> Result<Held, SysError> {
    let old = change_mask(libc::SIG_BLOCK, &termination_set())?;
    Ok(Held { old, not_send: std::marker::PhantomData })
}

impl Drop for Held {
    fn drop(&mut self) {
        // Restoring a mask that the kernel gave cannot fail.
        let _ = change_mask(libc::SIG_SETMASK, &self.old);
    }
}

/// Readable when SIGTERM, SIGINT or SIGHUP has come for this process.
pub struct Termination {
    fd: OwnedFd,
}

impl Termination {
    /// Blocks the signals for good in the calling thread, and in threads it starts from now on.
    pub fn listen() -> Result<Self, SysError> {
        let set = termination_set();
        change_mask(libc::SIG_BLOCK, &set)?;
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(SysError::last("listening for signals"));
        }
        // SAFETY: the kernel just made this descriptor for us alone.
        Ok(Termination { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// The number of a signal that came, if one did. Does not wait.
    pub fn take(&self) -> Option<i32> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = std::mem::size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is as long as the length says, and owned by this call.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        // SAFETY: the kernel writes whole records or nothing, and wrote one.
        (n == size as isize).then(|| unsafe { info.assume_init() }.ssi_signo as i32)
    }
}

impl AsFd for Termination {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_this_thread_is_read_not_fatal() {
        std::thread::spawn(|| {
            let signals = Termination::listen().unwrap();
            assert_eq!(signals.take(), None);
            // SAFETY: raising a signal that this thread blocks runs no handler.
            unsafe { libc::raise(libc::SIGTERM) };
            assert_eq!(signals.take(), Some(libc::SIGTERM));
            assert_eq!(signals.take(), None);
        })
        .join()
        .unwrap();
    }
}
