//! Files and attributes of a source that could not be read: bounded lists, and the numbers of all.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// Most entries that are listed.
const LISTED_MAX: usize = 1000;

/// A file or directory that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreadableFile {
    /// Its path.
    pub path: PathBuf,
    /// The reason.
    pub reason: String,
}

/// An extended attribute that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreadableXattr {
    /// The path of its file.
    pub path: PathBuf,
    /// Its name; empty for all attributes of a file whose names could not be read.
    pub name: Vec<u8>,
    /// The reason.
    pub reason: String,
}

/// Files or attributes that could not be read: the first ones by path, so that the list does not depend on the order of
/// reading, and their number.
#[derive(Debug, Clone)]
pub struct Unreadable<T> {
    listed: BTreeSet<T>,
    count: u64,
}

impl<T> Default for Unreadable<T> {
    fn default() -> Self {
        Unreadable { listed: BTreeSet::new(), count: 0 }
    }
}

impl<T: Ord> Unreadable<T> {
    /// Adds an entry.
    pub(super) fn add(&mut self, entry: T) {
        // A source that lists a name twice counts as one, as long as the name is listed.
        self.count += u64::from(self.listed.insert(entry));
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

    /// The first 1000 by path.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.listed.iter()
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
            paths(step).for_each(|path| {
                unreadable.add(UnreadableFile { path: path.into(), reason: "denied".into() })
            });
            assert_eq!((unreadable.count(), unreadable.count_unlisted()), (100_000, 99_000));
            unreadable.iter().map(|file| file.path.clone()).collect::<Vec<_>>()
        });
        assert_eq!(lists[0], (0..1000).map(|n| PathBuf::from(format!("{n:05}"))).collect::<Vec<_>>());
        assert!(lists[1] == lists[0] && lists[2] == lists[0]);
    }
}
