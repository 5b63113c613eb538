//! Blocking signals, and receiving termination signals through a descriptor that can be polled (signalfd).
//!
//! A signal handler for termination could do almost nothing safely. So the signals are blocked, and the main loop reads
//! them from a descriptor like any other event. The process blocks them before it starts other threads, which inherit
//! the mask.

use crate::SysError;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

const TERMINATION: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

fn termination_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in TERMINATION {
        // SAFETY: the set was initialised above, and the numbers are valid signals.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: sigemptyset has initialised the set.
    unsafe { set.assume_init() }
}

fn change_mask(how: i32, set: &libc::sigset_t) -> Result<libc::sigset_t, SysError> {
    let mut old = MaybeUninit::uninit();
    // SAFETY: both pointers are to live sets; the call writes the whole old set.
    let rc = unsafe { libc::pthread_sigmask(how, set, old.as_mut_ptr()) };
    match rc {
        // SAFETY: the call succeeded, so the old mask was written.
        0 => Ok(unsafe { old.assume_init() }),
        errno => Err(SysError::new("changing the signal mask", errno)),
    }
}

/// Makes writes beyond the limit of the length of files (RLIMIT_FSIZE) fail with EFBIG; otherwise they end the process by
/// SIGXFSZ. Holds for the whole process, and for the programs that it starts.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler. It fails for no signal that exists and can be ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// A guard that blocks all signals in the calling thread except synchronous ones.
///
/// Dropping it restores the old mask, which delivers signals that have arrived meanwhile. It stays on its thread (not
/// `Send`).
pub struct Masked {
    old: libc::sigset_t,
    not_send: std::marker::PhantomData<*const ()>,
}

/// Blocks signals in the calling thread, so that no handler interrupts it, for example while it holds a lock for which
/// a handler would wait.
///
/// SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP and SIGSYS stay unblocked: if an instruction raises one of them while it is
/// blocked, the kernel kills the process, handler or not, and SIGBUS may be the way in which memory is served. Another
/// process that sends one of them still interrupts the thread. A signal handler may call this function. It makes one
/// system call, and its drop another.
pub fn mask_asynchronous() -> Result<Masked, SysError> {
    let old = change_mask(libc::SIG_BLOCK, &all_but_synchronous())?;
    Ok(Masked { old, not_send: std::marker::PhantomData })
}

/// Starts a thread in which the signals that [`mask_asynchronous`] blocks are blocked from its first instruction on,
/// and all others are unblocked, whatever the caller's mask is.
///
/// It is for a thread on which other threads depend, also in their signal handlers: a handler that interrupted this
/// thread could wait for the interrupted thread itself, which is a deadlock.
pub fn spawn_masked<T: Send + 'static>(
    builder: Builder,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A new thread inherits the mask of the thread that starts it.
    let _masked = mask_asynchronous();
    builder.spawn(move || run_masked(run))
}

/// [`spawn_masked`] for a thread of a scope.
pub fn spawn_masked_scoped<'scope, T: Send + 'scope>(
    builder: Builder,
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let _masked = mask_asynchronous();
    builder.spawn_scoped(scope, move || run_masked(run))
}

fn run_masked<T>(run: impl FnOnce() -> T) -> T {
    // If the caller blocks SIGBUS, this thread must not: a fault would end the process. Setting a valid mask cannot
    // fail.
    let _ = change_mask(libc::SIG_SETMASK, &all_but_synchronous());
    run()
}

impl Masked {
    /// Whether the thread had blocked a signal before.
    pub fn had_blocked(&self, signal: i32) -> bool {
        // SAFETY: the kernel has filled the set.
        unsafe { libc::sigismember(&self.old, signal) == 1 }
    }

    /// Runs `run` with the signal mask that the thread had before, so that pending signals are delivered.
    pub fn unmasked_while<R>(&self, run: impl FnOnce() -> R) -> R {
        struct MaskAgain(Option<libc::sigset_t>);
        impl Drop for MaskAgain {
            fn drop(&mut self) {
                // Restoring a mask that the kernel returned cannot fail.
                let _ = self.0.map(|mask| change_mask(libc::SIG_SETMASK, &mask));
            }
        }
        // Dropped after `run`, also if `run` panics.
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
        // SAFETY: the set was initialised above, and the numbers are valid signals.
        unsafe { libc::sigdelset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: sigfillset has initialised the set.
    unsafe { set.assume_init() }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // Restoring a mask that the kernel returned cannot fail.
        let _ = change_mask(libc::SIG_SETMASK, &self.old);
    }
}

/// A descriptor that is readable when this process has received SIGTERM, SIGINT or SIGHUP, or another signal that was
/// chosen.
pub struct Termination {
    fd: OwnedFd,
}

impl Termination {
    /// Opens the descriptor. Blocks the signals permanently in the calling thread, and so in threads that it starts
    /// later.
    pub fn listen() -> Result<Self, SysError> {
        Self::listen_also(&[])
    }

    /// As [`Termination::listen`], for the signals `further` too.
    pub fn listen_also(further: &[i32]) -> Result<Self, SysError> {
        let mut set = termination_set();
        for signal in further {
            // SAFETY: the set is initialised; a number that is no signal adds none.
            unsafe { libc::sigaddset(&raw mut set, *signal) };
        }
        change_mask(libc::SIG_BLOCK, &set)?;
        // SAFETY: the set is initialised; -1 requests a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(SysError::last("listening for signals"));
        }
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        Ok(Termination { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Takes one received signal and returns its number; `None` if there is none. Does not wait.
    pub fn take(&self) -> Option<i32> {
        self.take_received().map(|received| received.number)
    }

    /// Takes one received signal, as [`Termination::take`] does.
    pub fn take_received(&self) -> Option<Received> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = std::mem::size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has `size` bytes, and this call owns it.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        // SAFETY: the kernel writes whole records only, and the length shows that it wrote one.
        let info = (n == size as isize).then(|| unsafe { info.assume_init() })?;
        Some(Received { number: info.ssi_signo as i32, is_of_kernel: info.ssi_code == libc::SI_KERNEL })
    }
}

/// A signal that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub number: i32,
    /// Whether the kernel has sent it, as it sends those of a terminal to all processes of a group, and not a process.
    pub is_of_kernel: bool,
}

/// Unblocks SIGTERM, SIGINT and SIGHUP in the calling thread, which handles them as the process does.
pub fn unblock_termination() -> Result<(), SysError> {
    change_mask(libc::SIG_UNBLOCK, &termination_set()).map(drop)
}

/// Makes `command` start with SIGTERM, SIGINT and SIGHUP unblocked. Otherwise it inherits the mask of the thread that
/// starts it, and a program that [`Termination::listen`]s would start programs that Ctrl-C does not reach.
pub fn unblock_termination_in(command: &mut Command) -> &mut Command {
    let set = termination_set();
    let unblock = move || {
        // SAFETY: the set is initialised, and with a null pointer the call writes no old mask.
        match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    };
    // SAFETY: the closure runs between fork and exec, where only calls are sound that are safe in a signal handler. It
    // makes one such call, and allocates nothing.
    unsafe { command.pre_exec(unblock) }
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
    fn a_termination_signal_is_read_and_does_not_end_the_process() {
        std::thread::spawn(|| {
            let signals = Termination::listen().unwrap();
            assert_eq!(signals.take(), None);
            // SAFETY: raising a signal that this thread blocks runs no handler.
            unsafe { libc::raise(libc::SIGTERM) };
            let received = signals.take_received();
            assert_eq!(received, Some(Received { number: libc::SIGTERM, is_of_kernel: false }));
            assert_eq!(signals.take(), None);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_program_can_be_started_with_termination_signals_unblocked() {
        std::thread::spawn(|| {
            let _signals = Termination::listen().unwrap();
            let kill_itself = || {
                let mut command = Command::new("sh");
                command.args(["-c", "kill -INT $$; exit 3"]);
                command
            };
            assert_eq!(kill_itself().status().unwrap().code(), Some(3));
            let status = unblock_termination_in(&mut kill_itself()).status().unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGINT));
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
    fn a_masked_thread_blocks_all_but_synchronous_signals_whatever_the_parents_mask_is() {
        let blocked = || (1..32).filter(|signal| is_blocked(*signal)).collect::<Vec<_>>();
        let expected: Vec<i32> = (1..32)
            .filter(|signal| {
                !SYNCHRONOUS.contains(signal) && ![libc::SIGKILL, libc::SIGSTOP].contains(signal)
            })
            .collect();
        std::thread::spawn(move || {
            for parent_blocks_all in [false, true] {
                let mut all = MaybeUninit::uninit();
                // SAFETY: sigfillset initialises the whole set it is given.
                unsafe { libc::sigfillset(all.as_mut_ptr()) };
                // SAFETY: sigfillset has initialised the set.
                let all = unsafe { all.assume_init() };
                let how = if parent_blocks_all { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
                change_mask(how, &all).unwrap();
                let before = blocked();
                let thread = spawn_masked(Builder::new(), blocked).unwrap();
                assert_eq!(thread.join().unwrap(), expected);
                assert_eq!(blocked(), before, "the caller's mask is restored");
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
                let _masked = mask_asynchronous().unwrap();
                // SAFETY: this thread blocks the signal, so it waits.
                unsafe { libc::raise(libc::SIGUSR2) };
                assert!(!came() && is_blocked(libc::SIGTERM) && is_blocked(libc::SIGUSR1));
                assert!(SYNCHRONOUS.iter().all(|signal| !is_blocked(*signal)));
                drop(mask_asynchronous().unwrap());
                assert!(!came(), "the outer one still holds");
                let inner = mask_asynchronous().unwrap();
                inner.unmasked_while(|| assert!(!came(), "the outer one still holds"));
            }
            assert!(came());
            assert_eq!(is_blocked(libc::SIGTERM), before);
            CAME.store(false, std::sync::atomic::Ordering::Relaxed);
            let masked = mask_asynchronous().unwrap();
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
