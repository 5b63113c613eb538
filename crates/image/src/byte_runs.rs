//! Sets of bytes of an image's address spaces, kept as runs.
//!
//! Ranges that touch are merged, so a set has one entry for each gap between its bytes. Adding a range takes logarithmic
//! time on average, however long the range is, because the runs that it covers are removed.
//!
//! A set does not limit its memory; `ChargedRuns` is one that charges a budget for each run.

use crate::account::Account;
use crate::{Address, Space};
use std::collections::BTreeMap;

/// Bytes that a run is charged with; the nodes of the tree are at least half full.
const RUN_BYTES: u64 = 64;

/// A set of bytes: ranges in ascending order that neither overlap nor touch, first byte to end.
#[derive(Default)]
struct ByteRuns(BTreeMap<(Space, u64), u64>);

impl ByteRuns {
    /// Number of runs.
    fn count(&self) -> usize {
        self.0.len()
    }

    /// The first byte that a range has in common with the set.
    fn overlap(&self, at: Address, end: u64) -> Option<u64> {
        let before = self.0.range(..=(at.space, at.offset)).next_back();
        match before {
            Some(((space, _), run_end)) if *space == at.space && *run_end > at.offset => Some(at.offset),
            _ => {
                let after = (at.space, at.offset)..(at.space, end);
                self.0.range(after).next().map(|((_, start), _)| *start)
            }
        }
    }

    /// Adds a range, which is not empty, and returns the number of its bytes that the set did not have.
    fn insert(&mut self, at: Address, mut end: u64) -> u64 {
        let (mut start, mut had_bytes) = (at.offset, 0);
        if let Some((&(space, before), &run_end)) = self.0.range(..=(at.space, start)).next_back()
            && space == at.space
            && run_end >= start
        {
            (start, end) = (before, end.max(run_end));
        }
        while let Some((&key, &run_end)) = self.0.range((at.space, start)..=(at.space, end)).next() {
            self.0.remove(&key);
            had_bytes += run_end - key.1;
            end = end.max(run_end);
        }
        self.0.insert((at.space, start), end);
        end - start - had_bytes
    }
}

/// Runs of `N` kinds, whose memory is charged to an account.
pub struct ChargedRuns<const N: usize> {
    runs: [ByteRuns; N],
    account: Account,
    charged_runs: u64,
    is_over_budget: bool,
}

impl<const N: usize> ChargedRuns<N> {
    /// No runs.
    pub fn new(account: &Account) -> Self {
        let runs = std::array::from_fn(|_| ByteRuns::default());
        ChargedRuns { runs, account: account.clone(), charged_runs: 0, is_over_budget: false }
    }

    /// Whether a run could not be recorded for want of memory. Then no further one is.
    pub fn is_over_budget(&self) -> bool {
        self.is_over_budget
    }

    /// Number of runs of a kind; those that touch are one.
    pub fn count(&self, kind: usize) -> usize {
        self.runs[kind].count()
    }

    /// The first byte of `at..end` that is in a run of this kind.
    pub fn overlap(&self, kind: usize, at: Address, end: u64) -> Option<u64> {
        self.runs[kind].overlap(at, end)
    }

    /// Adds `at..end` to the runs of a kind, and returns how many of the bytes are new; `None` without memory for it.
    pub fn insert(&mut self, kind: usize, at: Address, end: u64) -> Option<u64> {
        let count: usize = self.runs.iter().map(ByteRuns::count).sum();
        if count as u64 >= self.charged_runs && !self.is_over_budget {
            let more = (self.charged_runs / 2).max(64);
            match self.account.try_charge(more * RUN_BYTES) {
                true => self.charged_runs += more,
                false => self.is_over_budget = true,
            }
        }
        (!self.is_over_budget).then(|| self.runs[kind].insert(at, end))
    }
}

impl<const N: usize> Drop for ChargedRuns<N> {
    fn drop(&mut self) {
        self.account.uncharge(self.charged_runs * RUN_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// The twin is a set of single bytes.
        #[test]
        fn runs_are_a_set_of_bytes(ranges in prop::collection::vec((0..2u16, 0..80u64, 1..20u64), 1..60)) {
            let (mut runs, mut bytes) = (ByteRuns::default(), BTreeSet::new());
            for (device, start, len) in ranges {
                let at = Address { space: Space::Device(device), offset: start };
                let range = (start..start + len).map(|byte| (device, byte));
                prop_assert_eq!(runs.overlap(at, start + len), range.clone().find(|b| bytes.contains(b)).map(|b| b.1));
                let before = bytes.len();
                bytes.extend(range);
                prop_assert_eq!(runs.insert(at, start + len), (bytes.len() - before) as u64);
                let starts = bytes.iter().filter(|(d, byte)| *byte == 0 || !bytes.contains(&(*d, byte - 1)));
                prop_assert_eq!(runs.count(), starts.count());
            }
        }
    }
}
