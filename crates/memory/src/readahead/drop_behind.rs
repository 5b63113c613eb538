//! The windows that streams have passed, oldest first: a ring buffer that overwrites its oldest entries.
//!
//! Faulting threads push, perhaps inside a signal handler, and evictors pop. So the queue takes no lock and allocates
//! only when it is made. Threads that meet at an entry may lose it, which only makes a guess worse.

use crossbeam_utils::CachePadded;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of windows remembered.
const WINDOWS_MAX: u64 = 1024;

/// The queue of windows, each a range of pages.
pub(super) struct DropBehind {
    /// The bits: first page 0-47, pages 48-55; 0 for no window.
    ranges: Box<[AtomicU64]>,
    pushed: CachePadded<AtomicU64>,
    popped: CachePadded<AtomicU64>,
}

impl DropBehind {
    pub(super) fn new() -> Self {
        DropBehind {
            ranges: (0..WINDOWS_MAX).map(|_| AtomicU64::new(0)).collect(),
            pushed: CachePadded::new(AtomicU64::new(0)),
            popped: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Returns how many windows were pushed so far.
    pub(super) fn pushed(&self) -> u64 {
        self.pushed.load(Relaxed)
    }

    fn slot(&self, at: u64) -> &AtomicU64 {
        &self.ranges[(at % WINDOWS_MAX) as usize]
    }

    /// Adds a window of less than 256 pages.
    pub(super) fn push(&self, pages: Range<u64>) {
        let bits = (pages.end - pages.start) << 48 | pages.start;
        self.slot(self.pushed.fetch_add(1, Relaxed)).store(bits, Relaxed);
    }

    /// Removes the oldest window.
    pub(super) fn pop(&self) -> Option<Range<u64>> {
        loop {
            let (pushed, popped) = (self.pushed.load(Relaxed), self.popped.load(Relaxed));
            if popped >= pushed {
                return None;
            }
            // Entries that were overwritten are skipped.
            let at = popped.max(pushed.saturating_sub(WINDOWS_MAX));
            if self.popped.compare_exchange(popped, at + 1, Relaxed, Relaxed).is_err() {
                continue;
            }
            let bits = self.slot(at).swap(0, Relaxed);
            // 0: the push has not stored its window yet, or another thread was faster.
            if bits != 0 {
                let first = bits & ((1 << 48) - 1);
                return Some(first..first + (bits >> 48));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_windows_are_forgotten_first() {
        let queue = DropBehind::new();
        (0..WINDOWS_MAX + 10).for_each(|i| queue.push(i * 32..i * 32 + 32));
        assert_eq!(queue.pop(), Some(320..352));
        assert_eq!(std::iter::from_fn(|| queue.pop()).count() as u64, WINDOWS_MAX - 1);
        queue.push(5..9);
        assert_eq!((queue.pop(), queue.pop()), (Some(5..9), None));
    }
}
