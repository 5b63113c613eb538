//! The paths of a list, and a table of those that are in it: a list may have a million paths, and an allocation for each
//! would take four times as much as their bytes.

use std::hash::{BuildHasher, RandomState};

/// An unused entry of the table.
const NONE: u32 = u32::MAX;
/// Least entries of the table; a power of two.
const ENTRIES_MIN: usize = 16;

/// Paths, one after the other. All their bytes are fewer than 4 GiB.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Paths {
    pub(super) bytes: Vec<u8>,
    /// The end of each.
    pub(super) ends: Vec<u32>,
}

impl Paths {
    /// Number of paths.
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    /// The path of a number below [`count`](Self::count).
    pub(super) fn path(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[number] as usize]
    }

    fn push(&mut self, path: &[u8]) {
        self.bytes.extend_from_slice(path);
        self.ends.push(self.bytes.len() as u32);
    }
}

/// A table that finds a path among others: their numbers, at places that a hash with a random key decides.
#[derive(Debug, Default)]
pub(super) struct Known {
    numbers: Vec<u32>,
    hasher: RandomState,
}

impl Known {
    /// Appends a path to `paths`, all of which were added by this, unless it is among them.
    pub(super) fn add(&mut self, paths: &mut Paths, path: &[u8]) {
        if 2 * (paths.count() + 1) > self.numbers.len() {
            self.grow(paths);
        }
        let place = self.place(paths, path);
        if self.numbers[place] == NONE {
            self.numbers[place] = paths.count() as u32;
            paths.push(path);
        }
    }

    /// The entry of a path, or the unused one that it would have. At least half of the entries are unused.
    fn place(&self, paths: &Paths, path: &[u8]) -> usize {
        let mask = self.numbers.len() - 1;
        let mut place = self.hasher.hash_one(path) as usize & mask;
        while self.numbers[place] != NONE && paths.path(self.numbers[place] as usize) != path {
            place = (place + 1) & mask;
        }
        place
    }

    fn grow(&mut self, paths: &Paths) {
        self.numbers = vec![NONE; (2 * self.numbers.len()).max(ENTRIES_MIN)];
        for number in 0..paths.count() {
            let place = self.place(paths, paths.path(number));
            self.numbers[place] = number as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_path_is_there_once_at_its_first_place(
            added in proptest::collection::vec("[a-c/]{0,4}", 0..200),
        ) {
            let (mut paths, mut known) = (Paths::default(), Known::default());
            let mut wanted: Vec<&str> = Vec::new();
            for path in &added {
                known.add(&mut paths, path.as_bytes());
                if !wanted.contains(&path.as_str()) {
                    wanted.push(path);
                }
            }
            let found: Vec<_> = (0..paths.count()).map(|number| paths.path(number)).collect();
            prop_assert_eq!(found, wanted.iter().map(|path| path.as_bytes()).collect::<Vec<_>>());
        }
    }
}
