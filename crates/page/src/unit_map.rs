//! A first-fit allocator of units: a bitmap of the units in use.

const WORD_BITS: usize = u64::BITS as usize;

/// One bit per unit; a set bit means that the unit is in use.
#[derive(Debug)]
pub struct UnitMap {
    words: Vec<u64>,
    unit_count: usize,
    /// No unit below this one is free, so searches begin here.
    first_free: usize,
}

impl UnitMap {
    /// `unit_count` free units.
    pub fn new(unit_count: usize) -> Self {
        UnitMap { words: vec![0; unit_count.div_ceil(WORD_BITS)], unit_count, first_free: 0 }
    }

    /// Allocates the first run of `count` (at least 1) free units and returns the index of its first unit.
    pub fn take(&mut self, count: usize) -> Option<usize> {
        let mut at = self.next(self.first_free, false, self.unit_count);
        self.first_free = at;
        while at.checked_add(count)? <= self.unit_count {
            let end = self.next(at, true, at + count);
            if end - at >= count {
                self.mark(at, count, true);
                if at == self.first_free {
                    self.first_free = at + count;
                }
                return Some(at);
            }
            at = self.next(end, false, self.unit_count);
        }
        None
    }

    /// Frees `count` units from `first`.
    pub fn release(&mut self, first: usize, count: usize) {
        self.mark(first, count, false);
        self.first_free = self.first_free.min(first);
    }

    /// Sets the bits of a run, set or not, and returns how many were clear before.
    pub fn mark_all(&mut self, first: usize, count: usize) -> usize {
        let mut new_count = 0;
        for unit in first..first + count {
            let (word, bit) = (&mut self.words[unit / WORD_BITS], 1_u64 << (unit % WORD_BITS));
            new_count += usize::from(*word & bit == 0);
            *word |= bit;
        }
        new_count
    }

    /// The last run (within one word) of units that are set here and clear in `other`: first unit and count.
    pub fn last_run_outside(&self, other: &UnitMap) -> Option<(usize, usize)> {
        let pairs = self.words.iter().zip(&other.words).enumerate();
        let (index, bits) =
            pairs.map(|(i, (&mine, &theirs))| (i, mine & !theirs)).rfind(|&(_, bits)| bits != 0)?;
        let last = WORD_BITS - 1 - bits.leading_zeros() as usize;
        let count = (bits << (WORD_BITS - 1 - last)).leading_ones() as usize;
        Some((index * WORD_BITS + last + 1 - count, count))
    }

    /// The first unit from `from` on that is used (or free, if `used` is false); `limit` if there is none below it.
    fn next(&self, from: usize, used: bool, limit: usize) -> usize {
        let mut index = from / WORD_BITS;
        let mut ignored_bits = (1_u64 << (from % WORD_BITS)) - 1;
        while let Some(&word) = self.words.get(index)
            && index * WORD_BITS < limit
        {
            let wanted = (if used { word } else { !word }) & !ignored_bits;
            if wanted != 0 {
                return (index * WORD_BITS + wanted.trailing_zeros() as usize).min(limit);
            }
            ignored_bits = 0;
            index += 1;
        }
        limit
    }

    fn mark(&mut self, first: usize, count: usize, used: bool) {
        for unit in first..first + count {
            let (word, bit) = (&mut self.words[unit / WORD_BITS], 1_u64 << (unit % WORD_BITS));
            debug_assert_eq!(*word & bit != 0, !used, "unit {unit} taken or returned twice");
            *word = if used { *word | bit } else { *word & !bit };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A reference model: one bool per unit; the search tries every start.
    struct Naive(Vec<bool>);

    impl Naive {
        fn take(&mut self, count: usize) -> Option<usize> {
            let found = (0..self.0.len())
                .find(|&at| self.0.get(at..at + count).is_some_and(|run| run.iter().all(|used| !used)))?;
            self.0[found..found + count].fill(true);
            Some(found)
        }
    }

    proptest! {
        #[test]
        fn finds_what_the_naive_search_finds(
            unit_count in 0_usize..300,
            steps in prop::collection::vec((any::<bool>(), 1_usize..70, any::<prop::sample::Index>()), 0..200),
        ) {
            let (mut map, mut naive, mut held) = (UnitMap::new(unit_count), Naive(vec![false; unit_count]), vec![]);
            for (take, count, which) in steps {
                if take || held.is_empty() {
                    let found = map.take(count);
                    prop_assert_eq!(found, naive.take(count));
                    held.extend(found.map(|first| (first, count)));
                } else {
                    let (first, count): (usize, usize) = held.swap_remove(which.index(held.len()));
                    map.release(first, count);
                    naive.0[first..first + count].fill(false);
                }
            }
            for (first, count) in held {
                map.release(first, count);
            }
            prop_assert_eq!(map.take(unit_count.max(1)), (unit_count > 0).then_some(0));
        }
    }
}
