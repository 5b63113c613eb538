//! Tests that the session threads of a loop export allocate nothing while they serve requests.
//!
//! When the kernel swaps to the device, an allocation by a session thread may wait for the page that the thread is
//! about to write: a deadlock. This test counts every allocation of the session threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::loop_device::{open, open_direct};
use pagefold_block::{BlockDevice, BlockError, RamDevice};
use pagefold_page::AlignedBytes;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const MIB: u64 = 1 << 20;
static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread has served a request. A `Cell` has no destructor, so its first use allocates nothing.
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

struct Counted;

fn count() {
    if COUNTING.load(Ordering::Relaxed) && SERVES.get() {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the block came from the system allocator, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Marks the threads that call it as session threads.
struct ThreadMarker(RamDevice);

impl BlockDevice for ThreadMarker {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        SERVES.set(true);
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        SERVES.set(true);
        self.0.write_at(offset, data)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.0.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        SERVES.set(true);
        // Allocate once, which the test uses to check that the counter works.
        std::hint::black_box(Box::new(0u64));
        self.0.write_zeroes(offset, len)
    }
    fn flush(&self) -> Result<(), BlockError> {
        SERVES.set(true);
        self.0.flush()
    }
}

#[test]
fn session_threads_allocate_nothing() {
    let Some(rig) = open("session_threads_allocate_nothing", Arc::new(ThreadMarker(RamDevice::new(8 * MIB))))
    else {
        return;
    };
    let file = open_direct(rig.path());
    let mut bytes = AlignedBytes::new(8 * MIB as usize, 1);
    COUNTING.store(true, Ordering::SeqCst);
    for _ in 0..8 {
        file.write_all_at(&bytes, 0).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        for page in bytes.chunks_mut(4096).take(64) {
            file.write_all_at(page, 4096).unwrap();
            file.read_exact_at(page, 8192).unwrap();
        }
        file.sync_all().unwrap();
    }
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), 0);
    for _ in 0..3 {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a call on an open descriptor with numbers only.
        assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, 4096) }, 0);
    }
    COUNTING.store(false, Ordering::SeqCst);
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), 3);
}
