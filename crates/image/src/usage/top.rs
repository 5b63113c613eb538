//! The first few files in an order, of any number that are offered.

use super::FileUsage;
use std::cmp::Ordering;

/// Files that a list has at most.
pub const LISTED_FILES: usize = 10;
/// Longest path of a listed file, bytes. A hostile image can have paths of 256 KiB.
const MAX_PATH_BYTES: usize = 4096;

/// The first [`LISTED_FILES`] of the offered files. Files that the order does not tell apart are ordered by path, so
/// that the list does not depend on the order of the walk.
pub(super) struct Top {
    files: Vec<FileUsage>,
    order: fn(&FileUsage, &FileUsage) -> Ordering,
}

impl Top {
    pub(super) fn new(order: fn(&FileUsage, &FileUsage) -> Ordering) -> Self {
        Top { files: Vec::new(), order }
    }

    /// Adds a file if it is one of the first. Its path is copied only then, and cut if it is too long.
    pub(super) fn offer(&mut self, path: &[u8], len_bytes: u64, stored_bytes: u64) {
        let offered = FileUsage { path: Vec::new(), len_bytes, stored_bytes };
        let path = &path[..path.len().min(MAX_PATH_BYTES)];
        let is_before = |file: &FileUsage| (self.order)(file, &offered).then(file.path.as_slice().cmp(path));
        let place = self.files.partition_point(|file| is_before(file).is_lt());
        if place < LISTED_FILES {
            self.files.truncate(LISTED_FILES - 1);
            self.files.insert(place, FileUsage { path: path.to_vec(), ..offered });
        }
    }

    pub(super) fn into_files(self) -> Vec<FileUsage> {
        self.files
    }
}

/// The order of files by stored bytes, most first.
pub(super) fn by_stored(a: &FileUsage, b: &FileUsage) -> Ordering {
    b.stored_bytes.cmp(&a.stored_bytes)
}

/// The order of files by stored bytes for each byte of contents, most first, and of equal ones by stored bytes: of the many
/// files that do not compress at all, the long ones matter. Lengths are not 0.
pub(super) fn by_fraction(a: &FileUsage, b: &FileUsage) -> Ordering {
    let product =
        |stored: &FileUsage, len: &FileUsage| u128::from(stored.stored_bytes) * u128::from(len.len_bytes);
    product(b, a).cmp(&product(a, b)).then(by_stored(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The twin sorts all files by these keys.
    fn sorted(mut files: Vec<FileUsage>, key: fn(&FileUsage) -> f64) -> Vec<FileUsage> {
        files.sort_by(|a, b| {
            let by_stored = || b.stored_bytes.cmp(&a.stored_bytes);
            key(b).total_cmp(&key(a)).then_with(by_stored).then(a.path.cmp(&b.path))
        });
        files.truncate(LISTED_FILES);
        files
    }

    proptest! {
        #[test]
        fn the_first_files_are_those_of_a_sorted_list(
            files in prop::collection::btree_map(0..99u32, (1..6u64, 0..6u64), 0..40),
            order in prop::collection::vec(any::<u32>(), 40),
        ) {
            let file = |(name, (len_bytes, stored_bytes)): (&u32, &(u64, u64))| FileUsage {
                path: format!("/{name:02}").into_bytes(),
                len_bytes: *len_bytes,
                stored_bytes: *stored_bytes,
            };
            let mut files: Vec<_> = order.iter().zip(files.iter().map(file)).collect();
            files.sort_by_key(|(order, _)| **order);
            let files: Vec<_> = files.into_iter().map(|(_, file)| file).collect();
            let (mut largest, mut worst) = (Top::new(by_stored), Top::new(by_fraction));
            for file in &files {
                largest.offer(&file.path, file.len_bytes, file.stored_bytes);
                worst.offer(&file.path, file.len_bytes, file.stored_bytes);
            }
            prop_assert_eq!(largest.into_files(), sorted(files.clone(), |file| file.stored_bytes as f64));
            prop_assert_eq!(worst.into_files(), sorted(files, |file| file.fraction().unwrap()));
        }
    }

    #[test]
    fn a_long_path_is_cut() {
        let mut top = Top::new(by_stored);
        top.offer(&[b'x'; 300_000], 1, 1);
        assert_eq!(top.into_files()[0].path.len(), MAX_PATH_BYTES);
    }
}
