//! Guarding memory that forked children do not have.
//!
//! Memory with MADV_DONTFORK is not mapped in a child, so a later mapping of the child could take its address: a stale
//! pointer would then read foreign bytes. A [`ForkGuard`] makes the range inaccessible in children instead (PROT_NONE),
//! before `fork` returns, and ends a child that touches it with SIGSEGV and one line on standard error that says why.
//!
//! `pthread_atfork` runs it: in children of `fork`, but not of `vfork` or `posix_spawn`, which have the parent's memory,
//! and not of a bare `clone` system call, where the range is unmapped.
//!
//! The handler of SIGSEGV is installed in the child only. For other addresses it restores the earlier action and
//! returns, so that the access faults again and the earlier action takes effect.
//!
//! The ranges are in a table of atomics, because a child of a process with threads may not take locks. Reference:
//! pthread_atfork(3), sigaction(2).

use crate::{SysError, lastwords};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};

/// Most ranges that are guarded at once; further ranges are unmapped in children.
const RANGES_MAX: usize = 1024;

struct Entry {
    /// 0 if the entry is free, 1 while it is being filled.
    start: AtomicUsize,
    len_bytes: AtomicUsize,
}

static RANGES: [Entry; RANGES_MAX] =
    [const { Entry { start: AtomicUsize::new(0), len_bytes: AtomicUsize::new(0) } }; RANGES_MAX];

/// The action of SIGSEGV that the child had before. Only the one thread of a child writes it, before the handler is
/// installed.
struct Earlier(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written only in the atfork handler of a child, when the child has one thread, before the handler that reads it
// is installed.
unsafe impl Sync for Earlier {}

static EARLIER: Earlier = Earlier(UnsafeCell::new(MaybeUninit::uninit()));

/// A range that is inaccessible in forked children until this is dropped.
#[derive(Debug)]
pub struct ForkGuard {
    /// The entry of the table; `None` if the table was full.
    entry: Option<usize>,
}

impl ForkGuard {
    /// Guards a range of whole pages, which children do not have ([`crate::mem::Reservation::keep_from_children`]).
    pub fn new(start: usize, len_bytes: usize) -> Result<ForkGuard, SysError> {
        static INSTALLED: Once = Once::new();
        static ERRNO: AtomicI32 = AtomicI32::new(0);
        // SAFETY: the handler only makes system calls and accesses atomics, which a child of a process with threads may.
        INSTALLED
            .call_once(|| ERRNO.store(unsafe { libc::pthread_atfork(None, None, Some(in_child)) }, SeqCst));
        if ERRNO.load(SeqCst) != 0 {
            return Err(SysError::new("registering a function for forked children", ERRNO.load(SeqCst)));
        }
        let is_free = |entry: &Entry| entry.start.compare_exchange(0, 1, SeqCst, SeqCst).is_ok();
        let entry = RANGES.iter().position(is_free);
        if let Some(entry) = entry {
            RANGES[entry].len_bytes.store(len_bytes, SeqCst);
            RANGES[entry].start.store(start, SeqCst);
        }
        Ok(ForkGuard { entry })
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            RANGES[entry].start.store(0, SeqCst);
        }
    }
}

/// Returns the guarded ranges: start and length.
fn ranges() -> impl Iterator<Item = (usize, usize)> {
    let of = |entry: &Entry| (entry.start.load(SeqCst), entry.len_bytes.load(SeqCst));
    RANGES.iter().map(of).filter(|(start, _)| *start > 1)
}

extern "C" fn in_child() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let mut is_any = false;
    for (start, len_bytes) in ranges() {
        let at = std::ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: the child has no memory there, and the flag makes the call fail if it does.
        unsafe { libc::mmap(at, len_bytes, libc::PROT_NONE, flags, -1, 0) };
        is_any = true;
    }
    if is_any {
        install();
    }
}

fn install() {
    // SAFETY: an action of zero bytes is valid. The child has one thread, which alone accesses EARLIER, and the handler
    // is not installed yet.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // A child of a child has the handler, and what was before it.
        let mut now = MaybeUninit::<libc::sigaction>::uninit();
        if libc::sigaction(libc::SIGSEGV, std::ptr::null(), now.as_mut_ptr()) != 0
            || now.assume_init_ref().sa_sigaction == action.sa_sigaction
        {
            return;
        }
        (*EARLIER.0.get()).write(now.assume_init());
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
    }
}

/// Ends the child if the address is guarded; otherwise restores the earlier action, so that the access faults again.
extern "C" fn on_fault(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid structure to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() }.addr();
    if ranges().any(|(start, len_bytes)| address.wrapping_sub(start) < len_bytes) {
        let message = "pagefold: this process was forked and does not have the compressed memory of its parent: use \
            shared memory, or make the region after the fork\n";
        lastwords::write_line(message);
        // SAFETY: a structure of zeroes is the default action, which is valid; it ends the process.
        unsafe {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGSEGV, &default, std::ptr::null_mut());
        }
        return;
    }
    // SAFETY: `install` has filled it before it installed this handler, and nobody writes it afterwards.
    unsafe { libc::sigaction(libc::SIGSEGV, (*EARLIER.0.get()).as_ptr(), std::ptr::null_mut()) };
}
