//! Serving faults in the thread that faulted: the process's SIGBUS handler.
//!
//! A userfaultfd context that was opened with `sigbus` turns a fault into SIGBUS, and the handler fills the page, so
//! that no other thread has to wake up. A process has one handler per signal, so this module installs a handler that
//! calls the [`Serve`] function for each SIGBUS with code BUS_ADRERR, whatever the address. If that does not serve the
//! address, the handler does what the kernel would have done with the earlier handler (`forward`).
//!
//! The handler runs on the thread's stack, not on its alternate signal stack (no SA_ONSTACK): an alternate stack may
//! have 8 KiB, of which the signal frame takes 3 KiB with AVX-512 state, and serving a fault may decompress a page. So
//! stacks must not lie in served memory and must have space for that; programs with very small stacks, such as Go's,
//! cannot be served this way ([`thread`] checks it). An earlier handler that requested its alternate stack runs on the thread's stack too.
//!
//! All signals are blocked while the handler runs: a handler of the program that interrupted it could fault on served
//! memory and wait for a lock that the interrupted handler holds. For the same reason a fault inside of the handler is
//! fatal.
//!
//! One mutex serialises installations; the handler itself reads two atomic pointers and takes no lock.
//!
//! Reference: sigaction(2), signal(7), the kernel's Documentation/admin-guide/mm/userfaultfd.rst.

pub mod thread;

use crate::{Errno, SysError, panic_line};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// A function that fills the page of `address` and returns true if the address is in served memory; the thread then
/// retries the access. It returns false for any other address.
///
/// It runs in a signal handler: it must not allocate, take locks that the interrupted code may hold, access missing
/// pages of served memory, or panic. The handler saves and restores `errno`. On x86-64, `is_write` is whether the
/// access was a write; on other architectures it is always `false`.
pub type Serve = fn(address: usize, is_write: bool) -> bool;

/// The installed [`Serve`] function; null until installed.
static SERVE: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// The earlier action, to which signals for other addresses are forwarded. Null until installed. It is never freed, as
/// a handler may be reading it.
static EARLIER: AtomicPtr<Action> = AtomicPtr::new(std::ptr::null_mut());
static DEFAULT: Action = Action { handler: libc::SIG_DFL, flags: 0, mask: 0 };

/// A signal action, with the mask in the kernel's form: signal `n` is bit `n - 1`.
#[derive(PartialEq, Eq)]
struct Action {
    handler: libc::sighandler_t,
    flags: c_int,
    mask: u64,
}

/// Bytes of the kernel's signal set, which has 64 signals; the C library's `sigset_t` is larger.
const KERNEL_SET_BYTES: usize = size_of::<u64>();

/// Installs the handler permanently.
///
/// Does nothing if the same `serve` is installed already; fails with EBUSY if another one is. A handler that the
/// program installs later must forward signals for other addresses to this one, or faults are no longer served. Whether it
/// does cannot be seen: the first call that finds such a handler writes a line to standard error.
///
/// # Safety
/// `serve` keeps the rules of [`Serve`]: it interrupts any code of the process at a faulting access.
pub unsafe fn install(serve: Serve) -> Result<(), SysError> {
    const WHAT: &str = "installing the SIGBUS handler";
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let serve = serve as *mut ();
    let installed = SERVE.load(Ordering::Acquire);
    if !installed.is_null() {
        let is_same = std::ptr::eq(installed, serve);
        let is_ours = exchange(None).is_ok_and(|now| now.sa_sigaction == handler());
        if is_same && !is_ours {
            warn_of_later_handler();
        }
        return if is_same { Ok(()) } else { Err(SysError::new(WHAT, libc::EBUSY)) };
    }
    let earlier = exchange(None).map_err(|e| SysError::new(WHAT, e.0))?;
    remember(&earlier);
    SERVE.store(serve, Ordering::Release);
    match exchange(Some(&ours(&earlier))) {
        // Another thread may have changed the action in between.
        Ok(replaced) => remember(&replaced),
        Err(e) => {
            SERVE.store(std::ptr::null_mut(), Ordering::Release);
            return Err(SysError::new(WHAT, e.0));
        }
    }
    Ok(())
}

/// Writes the line once in a process.
fn warn_of_later_handler() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        panic_line::write_line(
            "pagefold: this program has installed a handler of SIGBUS after that of compressed memory: it must call the \
             handler that it has replaced, or the next access to a page that is not resident ends the program\n",
        );
    });
}

fn handler() -> libc::sighandler_t {
    on_sigbus as *const () as libc::sighandler_t
}

fn ours(earlier: &libc::sigaction) -> libc::sigaction {
    // SAFETY: the structure has integers and an optional function pointer, for all of which zeroes are valid.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = handler();
    // A SIGBUS that a process sends is forwarded to the earlier handler, so that handler's flag decides whether an
    // interrupted system call is restarted.
    ours.sa_flags = libc::SA_SIGINFO | (earlier.sa_flags & libc::SA_RESTART);
    // SAFETY: the call initialises the set that it is given.
    unsafe { libc::sigfillset(&mut ours.sa_mask) };
    ours
}

/// Returns the action of SIGBUS, and sets a new one if `action` is set.
fn exchange(action: Option<&libc::sigaction>) -> Result<libc::sigaction, Errno> {
    // SAFETY: the structure has integers and an optional function pointer, for all of which zeroes are valid.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    let action = action.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the action is null or a whole structure, whose handler is a function of this program; the kernel writes
    // the whole of `before`.
    match unsafe { libc::sigaction(libc::SIGBUS, action, &mut before) } {
        0 => Ok(before),
        _ => Err(Errno::last()),
    }
}

/// Stores an action as the earlier one, and leaks the one before, if that is another: checkers of leaks report it.
fn remember(earlier: &libc::sigaction) {
    // SAFETY: the C library's set is larger than the kernel's, which is at its beginning, so the read is inside of it.
    let mask = unsafe { (&raw const earlier.sa_mask).cast::<u64>().read_unaligned() };
    let action = Action { handler: earlier.sa_sigaction, flags: earlier.sa_flags, mask };
    // SAFETY: stored actions are never freed, and none changes.
    let is_stored =
        unsafe { EARLIER.load(Ordering::Acquire).as_ref() }.is_some_and(|stored| *stored == action);
    if !is_stored {
        EARLIER.store(Box::into_raw(Box::new(action)), Ordering::Release);
    }
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the call returns the address of the calling thread's `errno`, and has no conditions.
    let errno_ptr = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's `errno`, an integer that no other thread writes.
    let errno = unsafe { *errno_ptr };
    // SAFETY: the kernel called this handler, with the `info` and `context` of the signal.
    let is_served = unsafe { serve(info, context.cast()) };
    // SAFETY: the calling thread's `errno`, to which no reference exists.
    unsafe { *errno_ptr = errno };
    if !is_served {
        // SAFETY: the kernel called this handler, with the `info` and `context` of the signal.
        unsafe { forward(signal, info, context) };
        // SAFETY: the calling thread's `errno`, to which no reference exists.
        unsafe { *errno_ptr = errno };
    }
}

/// Calls the [`Serve`] function if the signal is a fault that userfaultfd may have raised.
///
/// # Safety
/// `info` and `context` are those of a signal that is being handled.
unsafe fn serve(info: *const libc::siginfo_t, context: *const libc::ucontext_t) -> bool {
    let serve = SERVE.load(Ordering::Acquire);
    // Userfaultfd raises SIGBUS with this code only. Memory errors (BUS_MCEERR_*) must not be hidden, and a misaligned
    // access would be retried forever. Signals that a process sends have other codes, and no address.
    // SAFETY: `info` is that of a signal that is being handled (the caller's duty), so it can be read.
    if serve.is_null() || unsafe { (*info).si_code } != libc::BUS_ADRERR {
        return false;
    }
    // SAFETY: the pointer is not null, and `install` stores only pointers of type `Serve` here.
    let serve = unsafe { std::mem::transmute::<*mut (), Serve>(serve) };
    // SAFETY: `info` and `context` are those of a signal that is being handled (the caller's duty); with this code,
    // `info` has an address.
    unsafe { serve((*info).si_addr().addr(), is_write(context)) }
}

/// Whether the faulting access was a write: bit 1 of the page fault's error code.
///
/// # Safety
/// `context` is that of a signal that is being handled.
#[cfg(target_arch = "x86_64")]
unsafe fn is_write(context: *const libc::ucontext_t) -> bool {
    // The kernel's structure is shorter than the C library's, so a reference to the whole structure would be unsound.
    // SAFETY: both structures have the registers, and only they are read, through a raw pointer.
    let error_code = unsafe { (&raw const (*context).uc_mcontext.gregs[libc::REG_ERR as usize]).read() };
    error_code & 2 != 0
}

/// Always false: this architecture does not report whether the access was a write.
///
/// # Safety
/// No condition; it is unsafe only to match the x86-64 version.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn is_write(_context: *const libc::ucontext_t) -> bool {
    false
}

/// Does what the kernel would have done with the earlier action.
///
/// # Safety
/// `info` and `context` are those of a signal that is being handled.
unsafe fn forward(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: `info` is that of a signal that is being handled (the caller's duty), so it can be read.
    let code = unsafe { (*info).si_code };
    // Whether an instruction raised the signal; it runs again when the handler returns. The kernel kills a process that
    // ignores such a signal.
    let is_synchronous = (libc::BUS_ADRALN..=libc::BUS_MCEERR_AR).contains(&code);
    let action = take_action();
    match action.handler {
        libc::SIG_IGN if !is_synchronous => {}
        libc::SIG_DFL | libc::SIG_IGN => die(signal, is_synchronous),
        // SAFETY: `info` and `context` are those of the signal (the caller's duty), and the program had installed the
        // action for this signal, so its handler has the type that its flags say.
        handler => unsafe {
            set_mask(action, context.cast());
            call(handler, action.flags, signal, info, context);
        },
    }
}

/// The earlier action. A handler with SA_RESETHAND is returned once; then the default action takes its place.
fn take_action() -> &'static Action {
    loop {
        let earlier = EARLIER.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or to `DEFAULT`, or to an action that `remember` has leaked.
        let action = unsafe { earlier.as_ref() }.unwrap_or(&DEFAULT);
        let default = std::ptr::from_ref(&DEFAULT).cast_mut();
        if action.flags & libc::SA_RESETHAND == 0
            || EARLIER.compare_exchange(earlier, default, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return action;
        }
    }
}

/// Restores the default action, so that the signal ends the process when the handler returns.
fn die(signal: c_int, is_synchronous: bool) {
    // SAFETY: a structure of zeroes is the default action, which is valid; a signal handler may make both calls.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, std::ptr::null_mut());
        if !is_synchronous {
            // No instruction raises the signal again, so raise it here. It is blocked until the handler has returned.
            libc::raise(signal);
        }
    }
}

/// Sets the signal mask with which the kernel would have called the handler of `action`.
///
/// # Safety
/// `context` is that of a signal that is being handled.
unsafe fn set_mask(action: &Action, context: *const libc::ucontext_t) {
    // SAFETY: the kernel's set is at the beginning of this field, and only its bytes are read.
    let interrupted = unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read_unaligned() };
    let own = if action.flags & libc::SA_NODEFER != 0 { 0 } else { 1 << (libc::SIGBUS - 1) };
    let mask: u64 = interrupted | action.mask | own;
    // A raw call, because the C library's function takes its own, larger set. The kernel restores the interrupted mask
    // when the handler returns.
    // SAFETY: the kernel reads as many bytes of `mask` as the last argument says, which is its size, and writes
    // nothing.
    unsafe {
        let nothing = std::ptr::null_mut::<u64>();
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            nothing,
            KERNEL_SET_BYTES,
        );
    }
}

/// Calls a signal handler with one or three arguments, as `flags` say.
///
/// # Safety
/// `handler` is a handler for `signal` of the type that `flags` say (SA_SIGINFO); `info` and `context` are those of
/// that signal.
unsafe fn call(
    handler: libc::sighandler_t,
    flags: c_int,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    type Full = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    type Plain = extern "C" fn(c_int);
    let handler = std::ptr::with_exposed_provenance::<()>(handler);
    if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: with SA_SIGINFO the handler has this type (the caller's duty).
        let handler = unsafe { std::mem::transmute::<*const (), Full>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO the handler has this type (the caller's duty).
        let handler = unsafe { std::mem::transmute::<*const (), Plain>(handler) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests;
