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
//! returns, so that the access faults again and the earlier action takes effect. A signal that a process has sent does not
//! come again by itself, so the handler sends it once more.
//!
//! The ranges are in tables of atomics, because a child of a process with threads may not take locks. The tables form a
//! list that only grows. Reference: pthread_atfork(3), sigaction(2), rt_sigqueueinfo(2).

use crate::{SysError, panic_line};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering::SeqCst};

/// Ranges of a table.
const TABLE_LEN: usize = 128;

#[derive(Debug)]
struct Entry {
    /// 0 if the entry is free, 1 while it is being filled.
    start: AtomicUsize,
    len_bytes: AtomicUsize,
}

struct Table {
    entries: [Entry; TABLE_LEN],
    /// The next table, or null. It is never freed.
    next: AtomicPtr<Table>,
}

static FIRST: Table = Table::new();

impl Table {
    const fn new() -> Self {
        let entries =
            [const { Entry { start: AtomicUsize::new(0), len_bytes: AtomicUsize::new(0) } }; TABLE_LEN];
        Table { entries, next: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the table after this one, which is made if there is none.
    fn next_or_new(&self) -> &'static Table {
        if let Some(next) = self.next() {
            return next;
        }
        let new = Box::into_raw(Box::new(Table::new()));
        match self.next.compare_exchange(std::ptr::null_mut(), new, SeqCst, SeqCst) {
            // SAFETY: nobody frees a table of the list.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: the table was made above, and nobody else has its address.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: only a null pointer is ever replaced, and nobody frees a table of the list.
                unsafe { &*other }
            }
        }
    }

    fn next(&self) -> Option<&'static Table> {
        // SAFETY: the pointer is null or that of a table of the list, which nobody frees.
        unsafe { self.next.load(SeqCst).as_ref() }
    }
}

/// Returns the entries of all tables. A child may call it.
fn entries() -> impl Iterator<Item = &'static Entry> {
    std::iter::successors(Some(&FIRST), |table| table.next()).flat_map(|table| &table.entries)
}

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
    entry: &'static Entry,
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
        let entry = take_entry(&FIRST);
        entry.len_bytes.store(len_bytes, SeqCst);
        entry.start.store(start, SeqCst);
        Ok(ForkGuard { entry })
    }
}

/// Takes a free entry of a table, or of one after it.
fn take_entry(mut table: &'static Table) -> &'static Entry {
    let is_free = |entry: &&Entry| entry.start.compare_exchange(0, 1, SeqCst, SeqCst).is_ok();
    loop {
        if let Some(entry) = table.entries.iter().find(is_free) {
            return entry;
        }
        table = table.next_or_new();
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        self.entry.start.store(0, SeqCst);
    }
}

/// Returns the guarded ranges: start and length.
fn ranges() -> impl Iterator<Item = (usize, usize)> {
    let of = |entry: &Entry| (entry.start.load(SeqCst), entry.len_bytes.load(SeqCst));
    entries().map(of).filter(|(start, _)| *start > 1)
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
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid structure to a handler with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Positive codes are the kernel's: an instruction raised the signal. Others have no address.
    let is_sent = code <= 0;
    if !is_sent && ranges().any(|(start, len_bytes)| address.wrapping_sub(start) < len_bytes) {
        let message = "pagefold: this process was forked and does not have the compressed memory of its parent: use \
            shared memory, or make the region after the fork\n";
        panic_line::write_line(message);
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
    if is_sent {
        // It is blocked until this handler returns. A process may send itself any information, the original sender's too.
        // SAFETY: the call reads a whole structure, and a signal handler may make it.
        unsafe {
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), signal, info);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Reservation, page_size};

    #[test]
    fn any_number_of_ranges_is_guarded() {
        let guarded = |_| {
            let range = Reservation::new(page_size()).unwrap();
            // SAFETY: the child does not use the range.
            unsafe { range.keep_from_children() }.unwrap();
            let start = range.base().as_ptr().expose_provenance();
            (ForkGuard::new(start, page_size()).unwrap(), start, range)
        };
        let ranges: Vec<_> = (0..10 * TABLE_LEN).map(guarded).collect();
        // SAFETY: the child only makes system calls, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let is_free = |start: usize| {
                let at = std::ptr::with_exposed_provenance_mut(start);
                // SAFETY: the flag makes the call fail where something is mapped.
                unsafe { libc::mmap(at, page_size(), libc::PROT_NONE, flags, -1, 0) != libc::MAP_FAILED }
            };
            let is_any_free = ranges.iter().any(|(_, start, _)| is_free(*start));
            // SAFETY: ends the child.
            unsafe { libc::_exit(is_any_free.into()) };
        }
        let mut status = 0;
        // SAFETY: waits for the child above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        // Entries are used again.
        drop(ranges);
        let tables = std::iter::successors(Some(&FIRST), |table| table.next());
        let first = tables.count();
        let _ranges: Vec<_> = (0..10 * TABLE_LEN).map(guarded).collect();
        assert_eq!(std::iter::successors(Some(&FIRST), |table| table.next()).count(), first);
    }
}
