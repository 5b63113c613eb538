//! The paths of a list: it may have a million, and an allocation for each would take four times as much as their bytes.

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

    /// Appends a path.
    pub(super) fn push(&mut self, path: &[u8]) {
        self.bytes.extend_from_slice(path);
        self.ends.push(self.bytes.len() as u32);
    }

    /// The paths without those that are equal to an earlier one.
    pub(super) fn without_repeats(&self) -> Self {
        let mut numbers: Vec<u32> = (0..self.count() as u32).collect();
        // Equal paths stay in their order.
        numbers.sort_by(|a, b| self.path(*a as usize).cmp(self.path(*b as usize)));
        numbers.dedup_by_key(|number| self.path(*number as usize));
        numbers.sort_unstable();
        let mut first = Paths::default();
        numbers.iter().for_each(|number| first.push(self.path(*number as usize)));
        first
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
            let mut paths = Paths::default();
            let mut wanted: Vec<&str> = Vec::new();
            for path in &added {
                paths.push(path.as_bytes());
                if !wanted.contains(&path.as_str()) {
                    wanted.push(path);
                }
            }
            let paths = paths.without_repeats();
            let found: Vec<_> = (0..paths.count()).map(|number| paths.path(number)).collect();
            prop_assert_eq!(found, wanted.iter().map(|path| path.as_bytes()).collect::<Vec<_>>());
        }
    }
}
