//! Which pages of an arena's part the allocator has not taken: runs of free bytes, in whole pages.
//!
//! The allocator takes and returns large pieces, so two ordered maps outside of the region will do: looking for room
//! touches no page of the region.

use std::collections::{BTreeMap, BTreeSet};

/// Free runs by address, and by size. Neighbouring runs are always merged.
pub(crate) struct Runs {
    sizes: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
}

impl Runs {
    /// Begins with one free run.
    pub(crate) fn new(start: usize, len_bytes: usize) -> Self {
        let mut runs = Runs { sizes: BTreeMap::new(), by_size: BTreeSet::new() };
        runs.insert(start, len_bytes);
        runs
    }

    /// Takes bytes from the smallest run that has room for them, and returns their address. `alignment` is a power of
    /// two.
    pub(crate) fn take(&mut self, len_bytes: usize, alignment: usize) -> Option<usize> {
        let fits = |(size, start): &(usize, usize)| {
            let aligned = start.checked_next_multiple_of(alignment)?;
            let end = aligned.checked_add(len_bytes)?;
            (end <= start + size).then_some(aligned)
        };
        let aligned = self.by_size.range((len_bytes, 0)..).find_map(fits)?;
        self.take_at(aligned, len_bytes).then_some(aligned)
    }

    /// Takes these bytes if all of them are free.
    pub(crate) fn take_at(&mut self, start: usize, len_bytes: usize) -> bool {
        let Some(end) = start.checked_add(len_bytes) else { return false };
        let Some((&run_start, &run_size)) = self.sizes.range(..=start).next_back() else { return false };
        let run_end = run_start + run_size;
        if end > run_end {
            return false;
        }
        self.remove(run_start, run_size);
        self.insert(run_start, start - run_start);
        self.insert(end, run_end - end);
        true
    }

    /// Returns bytes, which no run has.
    pub(crate) fn put(&mut self, start: usize, len_bytes: usize) {
        let (mut first, mut end) = (start, start + len_bytes);
        if let Some((&before, &size)) = self.sizes.range(..start).next_back()
            && before + size == start
        {
            self.remove(before, size);
            first = before;
        }
        if let Some(&size) = self.sizes.get(&end) {
            self.remove(end, size);
            end += size;
        }
        self.insert(first, end - first);
    }

    fn insert(&mut self, start: usize, size: usize) {
        if size > 0 {
            self.sizes.insert(start, size);
            self.by_size.insert((size, start));
        }
    }

    fn remove(&mut self, start: usize, size: usize) {
        self.sizes.remove(&start);
        self.by_size.remove(&(size, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with one flag for each unit, over random calls.
    #[test]
    fn runs_agree_with_a_map_of_units() {
        const UNITS: usize = 96;
        let (mut runs, mut is_free, mut taken) = (Runs::new(UNITS, UNITS), [true; UNITS], Vec::new());
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut refusals = 0;
        for _ in 0..20_000 {
            let (len, alignment) = (1 + random(20), 1 << random(4));
            let start = match random(3) {
                0 if !taken.is_empty() => {
                    let (start, len): (usize, usize) = taken.swap_remove(random(taken.len()));
                    is_free[start - UNITS..][..len].fill(true);
                    runs.put(start, len);
                    continue;
                }
                1 => {
                    let start = UNITS + random(UNITS);
                    let fits = is_free[start - UNITS..].iter().take_while(|free| **free).count() >= len;
                    assert_eq!(runs.take_at(start, len), fits);
                    fits.then_some(start)
                }
                _ => {
                    let start = runs.take(len, alignment);
                    let has_room = (0..=UNITS - len).any(|at| {
                        (UNITS + at).is_multiple_of(alignment)
                            && is_free[at..at + len].iter().all(|free| *free)
                    });
                    assert_eq!(start.is_some(), has_room);
                    assert!(start.is_none_or(|start| start.is_multiple_of(alignment)));
                    refusals += usize::from(start.is_none());
                    start
                }
            };
            if let Some(start) = start {
                let units = &mut is_free[start - UNITS..][..len];
                assert!(units.iter().all(|free| *free), "{start} {len}");
                units.fill(false);
                taken.push((start, len));
            }
            let free = is_free.iter().filter(|free| **free).count();
            assert_eq!(runs.sizes.values().sum::<usize>(), free);
            assert_eq!(runs.by_size.len(), runs.sizes.len());
        }
        assert!(refusals > 100 && !taken.is_empty());
    }
}
