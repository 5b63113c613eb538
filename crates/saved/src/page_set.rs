//! [`PageSet`]: a set of pages that takes memory for its ranges, for disks of any size.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that do not touch: the start and the end of each.
#[derive(Debug, Default)]
pub(crate) struct PageSet(BTreeMap<u64, u64>);

impl PageSet {
    /// Whether there is no page in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a page is in it.
    pub(crate) fn contains(&self, page: u64) -> bool {
        self.0.range(..=page).next_back().is_some_and(|(_, end)| *end > page)
    }

    /// Adds a range.
    pub(crate) fn insert(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) =
            self.0.range(..=range.end).next_back().filter(|(_, end)| **end >= range.start)
        {
            self.0.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        self.0.insert(range.start, range.end);
    }

    /// The parts of a range that are not in the set.
    pub(crate) fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let before = self.0.range(..=range.start).next_back().map_or(range.start, |(_, end)| *end);
        let (mut next, mut gaps) = (before.max(range.start), Vec::new());
        for (&start, &end) in self.0.range(range.start..range.end) {
            if start > next {
                gaps.push(next..start);
            }
            next = next.max(end);
        }
        if next < range.end {
            gaps.push(next..range.end);
        }
        gaps
    }

    /// Its ranges, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sets_of_pages_are_those_of_a_plain_set() {
        let (mut set, mut plain, mut state) = (PageSet::default(), BTreeSet::new(), 7u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..400 {
            let start = random(500);
            let range = start..start + random(12);
            set.insert(range.clone());
            plain.extend(range);
            let from = random(500);
            let asked = from..from + random(100);
            let gaps: Vec<_> = set.gaps(asked.clone()).into_iter().flatten().collect();
            assert!(gaps.iter().copied().eq(asked.filter(|page| !plain.contains(page))));
            assert!((0..520).all(|page| set.contains(page) == plain.contains(&page)));
        }
        assert!(set.0.iter().zip(set.0.iter().skip(1)).all(|((_, end), (start, _))| end < start));
    }
}
