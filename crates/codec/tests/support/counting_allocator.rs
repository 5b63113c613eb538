//! Counts a thread's requests to Rust's allocator and to C's `malloc`, by replacing both, which glibc permits (its manual,
//! "Replacing malloc"). The tests of `pagefold-store` use this file too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_int, c_void};

thread_local! {
    /// Whether this thread's requests count. Needs no destructor, so no allocation to set up.
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
    /// Requests to Rust's allocator, and to C's.
    static COUNTS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

fn count(rust: u64, c: u64) {
    if IS_COUNTING.get() {
        let before = COUNTS.get();
        COUNTS.set((before.0 + rust, before.1 + c));
    }
}

struct Counted;

// SAFETY: each call is passed to the system allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, 0);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(1, 0);
        // SAFETY: the block came from the system allocator, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

const ENOMEM: c_int = 12;

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
    fn __libc_realloc(at: *mut c_void, len: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, len: usize) -> *mut c_void;
    fn __libc_free(at: *mut c_void);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(len: usize) -> *mut c_void {
    count(0, 1);
    // SAFETY: the caller's promises are those that glibc's own function asks for; the same for those below.
    unsafe { __libc_malloc(len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(number: usize, len: usize) -> *mut c_void {
    count(0, 1);
    // SAFETY: see `malloc`.
    unsafe { __libc_calloc(number, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(at: *mut c_void, len: usize) -> *mut c_void {
    count(0, 1);
    // SAFETY: see `malloc`.
    unsafe { __libc_realloc(at, len) }
}

/// Rust's allocator calls this for large alignments.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, alignment: usize, len: usize) -> c_int {
    count(0, 1);
    // SAFETY: see `malloc`.
    let block = unsafe { __libc_memalign(alignment, len) };
    // SAFETY: the caller passes a pointer that may be written.
    unsafe { out.write(block) };
    if block.is_null() { ENOMEM } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(at: *mut c_void) {
    count(0, 1);
    // SAFETY: see `malloc`.
    unsafe { __libc_free(at) }
}

/// Runs `what`, and returns its result and the number of this thread's requests to Rust's allocator and to C's.
pub fn counted<T>(what: impl FnOnce() -> T) -> (T, (u64, u64)) {
    COUNTS.set((0, 0));
    IS_COUNTING.set(true);
    let result = what();
    IS_COUNTING.set(false);
    (result, COUNTS.get())
}
