//! Holding signals back, and termination signals as a descriptor that can be polled.
//!
//! A handler for termination could do almost nothing safely; a blocked signal read from a
//! descriptor is handled in the main loop like any other event. Signals are
//! blocked before the first thread starts, so that every thread inherits it.

use crate::SysError;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

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

/// While it lives, signals of the calling thread wait, but for those that the thread's own instructions
/// raise.
///
/// Dropping it delivers what came meanwhile. It is for one thread and cannot be sent to another.
pub struct Masked {
    old: libc::sigset_t,
    not_send: std::marker::PhantomData<*const ()>,
}

/// Holds signals of the calling thread back, so that no handler runs in the middle of something, such as
/// under a lock that a handler would wait for.
///
/// SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP and SIGSYS are not held back: the kernel kills a process that
/// raises one of them by an instruction while it is blocked, handler or not, and SIGBUS may be how memory is
/// served. Who sends one of them to a thread still interrupts it. Can be called in a signal handler. Two
/// system calls with the drop.
pub fn mask_all() -> Result<Masked, SysError> {
    let old = change_mask(libc::SIG_BLOCK, &all_but_synchronous())?;
    Ok(Masked { old, not_send: std::marker::PhantomData })
}

/// Starts a thread that runs no signal handler but for what its own instructions raise: the signals that [`mask_all`]
/// blocks are blocked in it from its first instruction on, and the others are not, whatever the caller's mask is.
///
/// For a thread that other threads rely on to go on, in their signal handlers too: a handler that ran in it could wait
/// for the thread that it interrupted.
pub fn spawn_masked<T: Send + 'static>(
    builder: Builder,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A new thread has the mask of the one that starts it.
    let _masked = mask_all();
    builder.spawn(move || run_masked(run))
}

/// [`spawn_masked`] for a thread of a scope.
pub fn spawn_masked_scoped<'scope, T: Send + 'scope>(
    builder: Builder,
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let _masked = mask_all();
    builder.spawn_scoped(scope, move || run_masked(run))
}

fn run_masked<T>(run: impl FnOnce() -> T) -> T {
    // A caller that blocks SIGBUS must not pass that on: a fault of the thread would end the process.
    // Setting a mask that is valid cannot fail.
    let _ = change_mask(libc::SIG_SETMASK, &all_but_synchronous());
    run()
}

impl Masked {
    /// Runs `run` with the signal mask that the thread had before; what came meanwhile is delivered then.
    pub fn unmasked_while<R>(&self, run: impl FnOnce() -> R) -> R {
        struct MaskAgain(Option<libc::sigset_t>);
        impl Drop for MaskAgain {
            fn drop(&mut self) {
                // Restoring a mask that the kernel gave cannot fail.
                let _ = self.0.map(|mask| change_mask(libc::SIG_SETMASK, &mask));
            }
        }
        // Dropped after `run`, and if `run` panics.
        let _again = MaskAgain(change_mask(libc::SIG_SETMASK, &self.old).ok());
        run()
    }
}

const SYNCHRONOUS: [i32; 6] =
    [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

fn all_but_synchronous() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the whole set it is given.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    for signal in SYNCHRONOUS {
        // SAFETY: the set was initialised above and the numbers are valid signals.
        unsafe { libc::sigdelset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: initialised by sigfillset.
    unsafe { set.assume_init() }
}

impl Drop for Masked {
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

    fn is_blocked(signal: i32) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: with no set to apply, this only writes the mask of the calling thread.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn a_masked_thread_blocks_all_but_synchronous_signals_whatever_its_parent_does() {
        let blocked = || (1..32).filter(|signal| is_blocked(*signal)).collect::<Vec<_>>();
        let expected: Vec<i32> = (1..32)
            .filter(|signal| {
                !SYNCHRONOUS.contains(signal) && ![libc::SIGKILL, libc::SIGSTOP].contains(signal)
            })
            .collect();
        std::thread::spawn(move || {
            for parent_blocks_all in [false, true] {
                let mut all = MaybeUninit::uninit();
                // SAFETY: fills the set it is given.
                unsafe { libc::sigfillset(all.as_mut_ptr()) };
                // SAFETY: initialised by sigfillset.
                let all = unsafe { all.assume_init() };
                let how = if parent_blocks_all { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
                change_mask(how, &all).unwrap();
                let before = blocked();
                let thread = spawn_masked(Builder::new(), blocked).unwrap();
                assert_eq!(thread.join().unwrap(), expected);
                assert_eq!(blocked(), before, "the caller has its mask back");
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn masked_signals_wait_for_the_drop_and_synchronous_ones_do_not() {
        static CAME: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        extern "C" fn note(_: i32) {
            CAME.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        let came = || CAME.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::spawn(move || {
            // SAFETY: the handler stores a flag; no other test uses this signal.
            unsafe { libc::signal(libc::SIGUSR2, note as *const () as libc::sighandler_t) };
            let before = is_blocked(libc::SIGTERM);
            {
                let _masked = mask_all().unwrap();
                // SAFETY: this thread blocks the signal, so it waits.
                unsafe { libc::raise(libc::SIGUSR2) };
                assert!(!came() && is_blocked(libc::SIGTERM) && is_blocked(libc::SIGUSR1));
                assert!(SYNCHRONOUS.iter().all(|signal| !is_blocked(*signal)));
                drop(mask_all().unwrap());
                assert!(!came(), "the outer one still holds");
                let inner = mask_all().unwrap();
                inner.unmasked_while(|| assert!(!came(), "the outer one still holds"));
            }
            assert!(came());
            assert_eq!(is_blocked(libc::SIGTERM), before);
            CAME.store(false, std::sync::atomic::Ordering::Relaxed);
            let masked = mask_all().unwrap();
            // SAFETY: this thread blocks the signal, so it waits.
            unsafe { libc::raise(libc::SIGUSR2) };
            assert!(!came());
            masked.unmasked_while(|| assert!(came()));
            assert!(is_blocked(libc::SIGUSR2));
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                masked.unmasked_while(|| panic!("on purpose"));
            }));
            assert!(panicked.is_err() && is_blocked(libc::SIGUSR2));
        })
        .join()
        .unwrap();
    }
}
