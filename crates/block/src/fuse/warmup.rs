//! [`ThreadWarmup`]: has every session thread touch its memory before the disk is used.
//!
//! When the kernel swaps to the device, a session thread that has to fault in a page waits for memory that only its own
//! reply can free: a deadlock. So before the file is used, every thread must have begun, with its buffers in memory,
//! which the session ensures, and must have touched its stack.

use pagefold_sys::harden;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of stack touched in advance. Call chains need a fraction, as codecs keep their tables on the heap.
const STACK_BYTES: usize = 128 << 10;

/// The report of the session threads from their warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadReport {
    /// Session threads.
    pub threads: usize,
    /// Session threads that are I/O flushers: all of them, if `harden::for_swap` succeeded before they started.
    pub io_flushers: usize,
}

/// Counts the session threads that have begun.
#[derive(Default)]
pub(super) struct ThreadWarmup {
    threads: AtomicUsize,
    io_flushers: AtomicUsize,
}

impl ThreadWarmup {
    /// Touches the stack of the calling session thread, and counts the thread.
    pub(super) fn begin(&self) {
        black_box([0xffu8; STACK_BYTES]);
        self.threads.fetch_add(1, Ordering::Relaxed);
        self.io_flushers.fetch_add(usize::from(harden::is_io_flusher()), Ordering::Relaxed);
    }

    /// The threads that have begun.
    pub(super) fn report(&self) -> ThreadReport {
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        ThreadReport { threads: count(&self.threads), io_flushers: count(&self.io_flushers) }
    }
}
