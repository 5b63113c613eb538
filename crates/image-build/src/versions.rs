//! Brings versions of a file together, so that they are compressed together.
//!
//! A tree often has a file in several versions: two releases of a package, two roots of a system. They share most of their
//! contents and lie far apart by path. Two files count as versions of one if they have the same name in directories of the
//! same name, where digits do not count: `a/python3.11/json/tool.py` and `b/python3.13/json/tool.py` do, and so do
//! `libz.so.1.2.13` and `libz.so.1.3.1`.
//!
//! Only names are compared: contents would have to be read once more. Names that mean nothing, like `index.html` in two
//! directories `doc`, cost nothing but the neighbourhood in which the file was. The hash of a name need not withstand
//! attacks for the same reason.

use super::plan::Planned;
use super::table::Table;
use super::tree::Tree;
use crate::Result;
use twox_hash::XxHash3_128;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Names of a path, from its end, that versions have in common.
const NAMES: usize = 3;

/// A file and what it is ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Ranked {
    /// The hash of its names, and then the rank of its first version.
    key: u64,
    /// Its place in the order before.
    rank: u64,
}

/// Moves each file after the versions of it that come before. Other files keep their order.
pub fn bring_together(tree: &Tree, files: &mut Table<Planned>) -> Result<()> {
    let mut order = Table::new(files.spill());
    for (rank, file) in files.iter().enumerate() {
        order.push(Ranked { key: key(&file.path(tree)), rank: rank as u64 })?;
    }
    order.sort_by(Ranked::cmp)?;
    let mut last = None;
    for at in 0..order.len() {
        let Ranked { key, rank } = order.get(at);
        let first = last.filter(|(known, _)| *known == key).map_or(rank, |(_, first)| first);
        order.set(at, Ranked { key: first, rank });
        last = Some((key, first));
    }
    order.sort_by(Ranked::cmp)?;
    let mut sorted = Table::new(files.spill());
    for Ranked { rank, .. } in order.iter() {
        sorted.push(files.get(rank as usize))?;
    }
    *files = sorted;
    Ok(())
}

/// The hash of the last names of a path without their digits. The first name of a path does not count, unless it is the
/// only one: it may be what two roots differ in.
fn key(path: &[u8]) -> u64 {
    let names = path.split(|byte| *byte == b'/').count();
    let skipped = names.saturating_sub(NAMES).max(usize::from(names > 1));
    let mut hash = XxHash3_128::with_seed(0);
    for name in path.split(|byte| *byte == b'/').skip(skipped) {
        let letters: Vec<u8> = name.iter().copied().filter(|byte| !byte.is_ascii_digit()).collect();
        hash.write(&letters);
        hash.write(b"/");
    }
    hash.finish_128() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::table::Spill;
    use crate::tree::Metadata;

    fn ordered(paths: &[&str], spill: &Spill) -> Vec<String> {
        let mut tree = Tree::with_spill(Metadata::default(), spill).unwrap();
        for path in paths {
            tree.add_bytes(path.as_bytes(), *b"1").unwrap();
        }
        let mut files = Plan::new(&tree, None, false).unwrap().others;
        bring_together(&tree, &mut files).unwrap();
        files.iter().map(|file| String::from_utf8_lossy(&file.path(&tree)).into_owned()).collect()
    }

    #[test]
    fn versions_follow_the_first_one() {
        let paths = [
            "one/etc/a",
            "one/etc/b",
            "one/lib/libz.so.1.2",
            "two/etc/b",
            "two/etc/c",
            "two/lib/libz.so.1.3",
        ];
        let wanted = [
            "one/etc/a",
            "one/etc/b",
            "two/etc/b",
            "one/lib/libz.so.1.2",
            "two/lib/libz.so.1.3",
            "two/etc/c",
        ];
        assert_eq!(ordered(&paths, &Spill::none()), wanted);
        // Without versions the order stays.
        let paths = ["a", "b/a", "b/c/d/e", "b/c/x/e"];
        assert_eq!(ordered(&paths, &Spill::none()), paths);
    }

    #[test]
    fn names_are_versions_by_their_last_parts_without_digits() {
        let is_version = |a: &str, b: &str| key(a.as_bytes()) == key(b.as_bytes());
        for (a, b) in [
            ("a/python3.11/json/tool.py", "b/python3.13/json/tool.py"),
            ("x-1/y/src/lib/a.c", "x-2/y/src/lib/a.c"),
            ("lib1.so", "lib2.so"),
            ("one/file", "two/file"),
        ] {
            assert!(is_version(a, b), "{a} {b}");
        }
        for (a, b) in [("file", "other"), ("r/a/bc", "r/ab/c"), ("r/x/a/f", "r/x/b/f"), ("r/1", "r/a")] {
            assert!(!is_version(a, b), "{a} {b}");
        }
    }

    /// The obvious twin: for each file, its first version by comparing it with all before.
    #[test]
    fn many_files_are_ordered_as_by_comparing_each_with_all() {
        let paths: Vec<_> = (0..3000u32)
            .map(|n| format!("d{}/{}/f{}", n % 7, char::from(b'a' + (n % 5) as u8), n * 31 % 97 / 3))
            .map(|path| path.replace("f1", "fx").replace("f2", "fy"))
            .collect();
        let paths: std::collections::BTreeSet<&str> = paths.iter().map(String::as_str).collect();
        let paths: Vec<_> = paths.into_iter().collect();
        let spilled = Spill::in_directory(&std::env::temp_dir(), 1 << 20).unwrap();
        let found = ordered(&paths, &Spill::none());
        assert_eq!(found, ordered(&paths, &spilled));
        let mut tree = Tree::new(Metadata::default());
        for path in &paths {
            tree.add_bytes(path.as_bytes(), *b"1").unwrap();
        }
        let files: Vec<Vec<u8>> =
            Plan::new(&tree, None, false).unwrap().others.iter().map(|file| file.path(&tree)).collect();
        let mut wanted: Vec<(usize, usize)> = (0..files.len())
            .map(|at| (files.iter().position(|other| key(other) == key(&files[at])).unwrap(), at))
            .collect();
        wanted.sort_unstable();
        assert!(wanted.iter().any(|(first, at)| first != at));
        let wanted: Vec<_> = wanted.iter().map(|(_, at)| String::from_utf8_lossy(&files[*at])).collect();
        assert_eq!(found, wanted);
    }
}
