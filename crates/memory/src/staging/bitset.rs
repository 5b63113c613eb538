//! A lock-free set of small numbers.

use std::sync::atomic::{AtomicU64, Ordering::*};

/// A set of numbers below a bound.
#[derive(Debug)]
pub(super) struct AtomicBitSet(Box<[AtomicU64]>);

impl AtomicBitSet {
    pub(super) fn empty(bound: usize) -> Self {
        AtomicBitSet((0..bound.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn full(bound: usize) -> Self {
        let bits = Self::empty(bound);
        (0..bound as u16).for_each(|n| bits.insert(n));
        bits
    }

    /// Returns whether the set is empty at this moment.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Relaxed) == 0)
    }

    /// Removes the lowest number that is still in the set.
    pub(super) fn take(&self) -> Option<u16> {
        for (i, word) in self.0.iter().enumerate() {
            let mut seen = word.load(Relaxed);
            while seen != 0 {
                let bit = seen.trailing_zeros();
                match word.compare_exchange_weak(seen, seen & !(1 << bit), AcqRel, Relaxed) {
                    Ok(_) => return Some((i * 64) as u16 + bit as u16),
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// Adds a number that is not in the set.
    pub(super) fn insert(&self, number: u16) {
        let was = self.0[usize::from(number) / 64].fetch_or(1 << (number % 64), AcqRel);
        debug_assert_eq!(was >> (number % 64) & 1, 0, "{number} was given twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_taken_once() {
        let bits = AtomicBitSet::full(130);
        let mut all: Vec<_> = std::iter::from_fn(|| bits.take()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..130).collect::<Vec<_>>());
        bits.insert(129);
        assert_eq!(bits.take(), Some(129));
        assert_eq!(bits.take(), None);
    }
}
