//! [`Runs`], an allocator of ranges that keeps its lists outside of the memory that it divides.
//!
//! Its owner takes and returns large pieces, so two ordered maps will do: each call takes time logarithmic in the number of
//! runs, and touches none of the memory.

use std::collections::{BTreeMap, BTreeSet};

/// Free runs of units such as bytes or pages, by start and by length. Neighbouring runs are always merged.
#[derive(Debug)]
pub struct Runs {
    lens: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl Runs {
    /// Begins with one free run.
    pub fn new(start: u64, len: u64) -> Self {
        let mut runs = Runs { lens: BTreeMap::new(), by_len: BTreeSet::new() };
        runs.insert(start, len);
        runs
    }

    /// Takes units from the smallest run that has room for them (best fit), and returns their start. `alignment` is a
    /// power of two.
    pub fn take(&mut self, len: u64, alignment: u64) -> Option<u64> {
        let fits = |(run_len, start): &(u64, u64)| {
            let aligned = start.checked_next_multiple_of(alignment)?;
            let end = aligned.checked_add(len)?;
            (end <= start + run_len).then_some(aligned)
        };
        let aligned = self.by_len.range((len, 0)..).find_map(fits)?;
        self.take_at(aligned, len).then_some(aligned)
    }

    /// Takes these units if all of them are free.
    pub fn take_at(&mut self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        let Some((&run_start, &run_len)) = self.lens.range(..=start).next_back() else { return false };
        let run_end = run_start + run_len;
        if end > run_end {
            return false;
        }
        self.remove(run_start, run_len);
        self.insert(run_start, start - run_start);
        self.insert(end, run_end - end);
        true
    }

    /// Returns units, which no run has.
    pub fn put(&mut self, start: u64, len: u64) {
        let (mut first, mut end) = (start, start + len);
        if let Some((&before, &before_len)) = self.lens.range(..start).next_back()
            && before + before_len == start
        {
            self.remove(before, before_len);
            first = before;
        }
        if let Some(&after_len) = self.lens.get(&end) {
            self.remove(end, after_len);
            end += after_len;
        }
        self.insert(first, end - first);
    }

    fn insert(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.lens.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.lens.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with one flag for each unit, over random calls.
    #[test]
    fn runs_agree_with_a_map_of_units() {
        const UNITS: usize = 96;
        let (mut runs, mut is_free, mut taken) =
            (Runs::new(UNITS as u64, UNITS as u64), [true; UNITS], Vec::new());
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut refusals = 0;
        for _ in 0..20_000 {
            let (len, alignment) = (1 + random(20), 1_u64 << random(4));
            let start = match random(3) {
                0 if !taken.is_empty() => {
                    let (start, len): (usize, usize) = taken.swap_remove(random(taken.len()));
                    is_free[start - UNITS..][..len].fill(true);
                    runs.put(start as u64, len as u64);
                    continue;
                }
                1 => {
                    let start = UNITS + random(UNITS);
                    let fits = is_free[start - UNITS..].iter().take_while(|free| **free).count() >= len;
                    assert_eq!(runs.take_at(start as u64, len as u64), fits);
                    fits.then_some(start)
                }
                _ => {
                    let start = runs.take(len as u64, alignment).map(|start| start as usize);
                    let has_room = (0..=UNITS - len).any(|at| {
                        ((UNITS + at) as u64).is_multiple_of(alignment)
                            && is_free[at..at + len].iter().all(|free| *free)
                    });
                    assert_eq!(start.is_some(), has_room);
                    assert!(start.is_none_or(|start| (start as u64).is_multiple_of(alignment)));
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
            assert_eq!(runs.lens.values().sum::<u64>(), free as u64);
            assert_eq!(runs.by_len.len(), runs.lens.len());
        }
        assert!(refusals > 100 && !taken.is_empty());
    }
}
