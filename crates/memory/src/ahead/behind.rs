//! The windows that streams have gone on from, oldest first.
//!
//! A queue that forgets its oldest when it is full. It is filled inside a signal handler and emptied by threads that fold,
//! so it takes no lock and allocates nothing after it was made. Threads that meet may lose an entry, which costs a guess.

use crossbeam_utils::CachePadded;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Windows remembered.
const BEHIND: u64 = 1024;

/// The windows, each a range of pages.
pub(super) struct Behind {
    /// Bits: first page 0-47, pages 48-55; 0 if there is none.
    ranges: Box<[AtomicU64]>,
    pushed: CachePadded<AtomicU64>,
    popped: CachePadded<AtomicU64>,
}

impl Behind {
    pub(super) fn new() -> Self {
        Behind {
            ranges: (0..BEHIND).map(|_| AtomicU64::new(0)).collect(),
            pushed: CachePadded::new(AtomicU64::new(0)),
            popped: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// How many windows were ever pushed.
    pub(super) fn pushed(&self) -> u64 {
        self.pushed.load(Relaxed)
    }

    fn slot(&self, at: u64) -> &AtomicU64 {
        &self.ranges[(at % BEHIND) as usize]
    }

    /// Adds a window of less than 256 pages.
    pub(super) fn push(&self, pages: Range<u64>) {
        let bits = (pages.end - pages.start) << 48 | pages.start;
        self.slot(self.pushed.fetch_add(1, Relaxed)).store(bits, Relaxed);
    }

    /// Takes the oldest.
    pub(super) fn pop(&self) -> Option<Range<u64>> {
        loop {
            let (pushed, popped) = (self.pushed.load(Relaxed), self.popped.load(Relaxed));
            if popped >= pushed {
                return None;
            }
            // What was pushed over is forgotten.
            let at = popped.max(pushed.saturating_sub(BEHIND));
            if self.popped.compare_exchange(popped, at + 1, Relaxed, Relaxed).is_err() {
                continue;
            }
            let bits = self.slot(at).swap(0, Relaxed);
            // Else who pushes has not got there yet, or another has been faster.
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
        let behind = Behind::new();
        (0..BEHIND + 10).for_each(|i| behind.push(i * 32..i * 32 + 32));
        assert_eq!(behind.pop(), Some(320..352));
        assert_eq!(std::iter::from_fn(|| behind.pop()).count() as u64, BEHIND - 1);
        behind.push(5..9);
        assert_eq!((behind.pop(), behind.pop()), (Some(5..9), None));
    }
}
