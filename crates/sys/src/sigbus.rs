//! Serving faults in the thread that made them: the process's SIGBUS handler.
//!
//! A userfaultfd context that was opened with `sigbus` turns a fault into SIGBUS, and the handler fills the
//! page: no other thread has to wake up for it. A signal has one handler in a process, so this module
//! installs one and asks whether an address is served; for any other it does what the kernel would have done
//! with the handler that was there before.
//!
//! The handler runs on the stack of the thread, not on its alternate signal stack (no SA_ONSTACK): such a
//! stack may have 8 KiB, and the signal's frame alone takes 3 KiB of it with AVX-512 state, while serving a
//! fault may mean to decompress a page. So stacks must not lie in served memory and need room for that, and
//! programs whose stacks are very small, as Go's are, cannot be served this way. An earlier handler that
//! asked for its alternate stack is called on the thread's stack, too.
//!
//! All signals are blocked while it runs: a handler of the program's own that ran in the middle could fault
//! on served memory and wait for a lock that the interrupted one holds. By the same rule a fault inside of it
//! is fatal.
//!
//! Reference: sigaction(2), signal(7), the kernel's Documentation/admin-guide/mm/userfaultfd.rst.

use crate::{Errno, SysError};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// Fills the page of `address` if it is served memory and says so; the access is then tried again. False for
/// any other.
///
/// It is called in a signal handler: it must not allocate, take locks that the interrupted code may hold,
/// touch served memory that is missing, or panic. `errno` is kept for it. `is_write` says whether the access
/// was a write, on x86-64; elsewhere it is `false`, which means nothing.
pub type Serve = fn(address: usize, is_write: bool) -> bool;

/// Null until installed.
static SERVE: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// Whose signals the others are. Null until installed; what it points to is never freed, as a handler may be
/// reading it.
static EARLIER: AtomicPtr<Action> = AtomicPtr::new(std::ptr::null_mut());
static DEFAULT: Action = Action { handler: libc::SIG_DFL, flags: 0, mask: 0 };

/// A signal's action, with the mask as the kernel has it: signal `n` is bit `n - 1`.
struct Action {
    handler: libc::sighandler_t,
    flags: c_int,
    mask: u64,
}

/// The kernel's signal sets have 64 signals, whatever the C library's `sigset_t` has room for.
const KERNEL_SET_BYTES: usize = size_of::<u64>();

/// Installs the handler, for good.
///
/// Again with the same `serve` is fine; EBUSY with another. Handlers that are installed later and do not pass
/// on what is not theirs cut it off.
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
        return if is_same { Ok(()) } else { Err(SysError::new(WHAT, libc::EBUSY)) };
    }
    let earlier = exchange(None).map_err(|e| SysError::new(WHAT, e.0))?;
    remember(&earlier);
    SERVE.store(serve, Ordering::Release);
    match exchange(Some(&ours(&earlier))) {
        // Another thread may have changed it in between.
        Ok(replaced) => remember(&replaced),
        Err(e) => {
            SERVE.store(std::ptr::null_mut(), Ordering::Release);
            return Err(SysError::new(WHAT, e.0));
        }
    }
    Ok(())
}

fn ours(earlier: &libc::sigaction) -> libc::sigaction {
    // SAFETY: integers and an optional function pointer, for all of which zeroes are valid.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_sigbus as *const () as libc::sighandler_t;
    // Whether a system call goes on after a signal that was sent is up to whom it is forwarded to.
    ours.sa_flags = libc::SA_SIGINFO | (earlier.sa_flags & libc::SA_RESTART);
    // SAFETY: fills the set it is given.
    unsafe { libc::sigfillset(&mut ours.sa_mask) };
    ours
}

/// Sets the action of SIGBUS if there is one to set; returns the one before.
fn exchange(action: Option<&libc::sigaction>) -> Result<libc::sigaction, Errno> {
    // SAFETY: integers and an optional function pointer, for all of which zeroes are valid.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    let action = action.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the action is null or whole, and names a handler that lives as long as the program does.
    match unsafe { libc::sigaction(libc::SIGBUS, action, &mut before) } {
        0 => Ok(before),
        _ => Err(Errno::last()),
    }
}

fn remember(earlier: &libc::sigaction) {
    // SAFETY: a set is larger than the kernel's, which is at its beginning.
    let mask = unsafe { (&raw const earlier.sa_mask).cast::<u64>().read_unaligned() };
    let action = Action { handler: earlier.sa_sigaction, flags: earlier.sa_flags, mask };
    EARLIER.store(Box::into_raw(Box::new(action)), Ordering::Release);
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: returns where the calling thread's own `errno` is.
    let errno_place = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own `errno`, an integer that nobody else writes.
    let errno = unsafe { *errno_place };
    // SAFETY: called by the kernel, with what belongs to the signal.
    let is_served = unsafe { serve(info, context.cast()) };
    // SAFETY: the calling thread's own `errno`, to which nothing holds a reference.
    unsafe { *errno_place = errno };
    if !is_served {
        // SAFETY: called by the kernel, with what belongs to the signal.
        unsafe { forward(signal, info, context) };
        // SAFETY: the calling thread's own `errno`, to which nothing holds a reference.
        unsafe { *errno_place = errno };
    }
}

/// # Safety
/// `info` and `context` are those of a signal that is being handled.
unsafe fn serve(info: *const libc::siginfo_t, context: *const libc::ucontext_t) -> bool {
    let serve = SERVE.load(Ordering::Acquire);
    // Of what the kernel raises, only this comes from userfaultfd: memory errors (BUS_MCEERR_*) must not be
    // hidden, and an access that is not aligned would be tried again forever. What a process sends has other
    // codes, and no address. SAFETY: the caller's duty.
    if serve.is_null() || unsafe { (*info).si_code } != libc::BUS_ADRERR {
        return false;
    }
    // SAFETY: only `install` stores here, and a `Serve`.
    let serve = unsafe { std::mem::transmute::<*mut (), Serve>(serve) };
    // SAFETY: the caller's duty; with this code there is an address.
    unsafe { serve((*info).si_addr().addr(), is_write(context)) }
}

/// Bit 1 of the page fault's error code.
///
/// # Safety
/// `context` is that of a signal that is being handled.
#[cfg(target_arch = "x86_64")]
unsafe fn is_write(context: *const libc::ucontext_t) -> bool {
    // No reference: the kernel's structure is shorter than the C library's.
    // SAFETY: the registers are in both.
    let error_code = unsafe { (&raw const (*context).uc_mcontext.gregs[libc::REG_ERR as usize]).read() };
    error_code & 2 != 0
}

/// Not known here.
///
/// # Safety
/// None; as for its twin.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn is_write(_context: *const libc::ucontext_t) -> bool {
    false
}

/// Does what the kernel would have done with the action that was there before.
///
/// # Safety
/// `info` and `context` are those of a signal that is being handled.
unsafe fn forward(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the caller's duty.
    let code = unsafe { (*info).si_code };
    // Raised by an instruction, which runs again when the handler returns. The kernel kills who ignores that.
    let is_synchronous = (libc::BUS_ADRALN..=libc::BUS_MCEERR_AR).contains(&code);
    let action = take_action();
    match action.handler {
        libc::SIG_IGN if !is_synchronous => {}
        libc::SIG_DFL | libc::SIG_IGN => die(signal, is_synchronous),
        // SAFETY: the caller's duty; the action was installed by someone as one for this signal.
        handler => unsafe {
            set_mask(action, context.cast());
            call(handler, action.flags, signal, info, context);
        },
    }
}

/// The action that was there before; a one-shot handler is given out once, as SA_RESETHAND says.
fn take_action() -> &'static Action {
    loop {
        let earlier = EARLIER.load(Ordering::Acquire);
        // SAFETY: null, or `DEFAULT`, or made by `remember` and never freed.
        let action = unsafe { earlier.as_ref() }.unwrap_or(&DEFAULT);
        let default = std::ptr::from_ref(&DEFAULT).cast_mut();
        if action.flags & libc::SA_RESETHAND == 0
            || EARLIER.compare_exchange(earlier, default, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return action;
        }
    }
}

/// Has the process die of the signal when the handler returns.
fn die(signal: c_int, is_synchronous: bool) {
    // SAFETY: the default action, with all else zero, is valid; both calls may be made in a signal handler.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, std::ptr::null_mut());
        if !is_synchronous {
            // No instruction does it again. Blocked now, so it waits until the handler has returned.
            libc::raise(signal);
        }
    }
}

/// The signal mask under which the kernel would have called the handler of `action`.
///
/// # Safety
/// `context` is that of a signal that is being handled.
unsafe fn set_mask(action: &Action, context: *const libc::ucontext_t) {
    // SAFETY: the kernel's set is at the beginning of this field; it may be shorter than the C library's.
    let interrupted = unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read_unaligned() };
    let own = if action.flags & libc::SA_NODEFER != 0 { 0 } else { 1 << (libc::SIGBUS - 1) };
    let mask: u64 = interrupted | action.mask | own;
    // The C library's call wants its own, longer set. SAFETY: the kernel reads as many bytes as the last
    // argument says. It restores the mask when the handler returns.
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

/// # Safety
/// `handler` is a handler for `signal` of the kind that `flags` says; the rest is that signal's.
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
        // SAFETY: the caller's duty.
        let handler = unsafe { std::mem::transmute::<*const (), Full>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: the caller's duty.
        let handler = unsafe { std::mem::transmute::<*const (), Plain>(handler) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests;
