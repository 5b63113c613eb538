//! Paths of a source that could not be read, with the reasons: a bounded list, and the number of all.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Most paths that are listed.
const LISTED_MAX: usize = 1000;

/// Files and directories that could not be read: the first ones by path, so that the list does not depend on the order of
/// reading, and their number.
#[derive(Debug, Clone, Default)]
pub struct Unreadable {
    listed: BTreeSet<(PathBuf, String)>,
    count: u64,
}

impl Unreadable {
    /// Adds a path and the reason.
    pub(super) fn add(&mut self, path: PathBuf, reason: String) {
        // A source that lists a name twice counts as one, as long as the name is listed.
        self.count += u64::from(self.listed.insert((path, reason)));
        if self.listed.len() > LISTED_MAX {
            self.listed.pop_last();
        }
    }

    /// Number of all of them.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Those that are not listed.
    pub fn count_unlisted(&self) -> u64 {
        self.count - self.listed.len() as u64
    }

    /// The first 1000 by path, each with the reason.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.listed.iter().map(|(path, reason)| (path.as_path(), reason.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_paths_are_listed_and_all_are_counted() {
        let paths = |step: usize| (0..100_000).map(move |n| format!("{:05}", n * step % 100_000));
        let lists = [1, 7, 99_999].map(|step| {
            let mut unreadable = Unreadable::default();
            paths(step).for_each(|path| unreadable.add(path.into(), "denied".into()));
            assert_eq!((unreadable.count(), unreadable.count_unlisted()), (100_000, 99_000));
            unreadable.iter().map(|(path, _)| path.to_path_buf()).collect::<Vec<_>>()
        });
        assert_eq!(lists[0], (0..1000).map(|n| PathBuf::from(format!("{n:05}"))).collect::<Vec<_>>());
        assert!(lists[1] == lists[0] && lists[2] == lists[0]);
    }
}
