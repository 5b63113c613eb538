//! Finding equal files, whose contents the image stores once.
//!
//! Files are equal by length, by the compression that the options choose for them, and by the SHA-256 of their contents:
//! sources are hostile, so a hash for which equal values can be made does not do. Only files whose length occurs more
//! than once are hashed, and each is decided before it is compressed, in the order of the plan. So the image does not
//! depend on the number of threads, and a duplicate costs no compression.
//!
//! Parts of files are not compared.

use super::options::{Compression, Dedupe, Options};
use super::plan::Plan;
use super::tree::{InodeId, Tree};
use super::writer::content_bytes;
use crate::format::features::incompat;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Shorter files fit behind their inodes, where nothing can be shared.
const LEN_BYTES_MIN: u64 = super::compress::segment::INLINE_BYTES_MAX as u64 + 1;

/// The files so far whose contents others may have too.
#[derive(Debug, Default)]
pub struct Duplicates {
    /// Lengths that occur more than once, bytes.
    lengths: HashSet<u64>,
    /// Whether compressed files can share clusters.
    shares_clusters: bool,
    first: HashMap<Key, InodeId>,
}

/// The property in which equal files agree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    len_bytes: u64,
    compression: Option<Compression>,
    sha256: [u8; 32],
}

/// A file's place among equal ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It is the first.
    First,
    /// It has the contents of this file.
    Same(InodeId),
}

impl Duplicates {
    /// Looks for lengths that several files have.
    pub fn new(tree: &Tree, plan: &Plan, options: &Options) -> Self {
        if options.dedupe == Dedupe::Nothing {
            return Duplicates::default();
        }
        let (mut once, mut lengths) = (BTreeSet::new(), HashSet::new());
        for planned in &plan.others {
            let len_bytes = content_bytes(tree, planned.id);
            if len_bytes >= LEN_BYTES_MIN && !once.insert(len_bytes) {
                lengths.insert(len_bytes);
            }
        }
        let shares_clusters = options.target.has(incompat::DEDUPE);
        Duplicates { lengths, shares_clusters, first: HashMap::new() }
    }

    /// Whether a file may be equal to another one, so that it has to be hashed.
    pub fn may_have(&self, len_bytes: u64, compression: Option<Compression>) -> bool {
        (self.shares_clusters || compression.is_none()) && self.lengths.contains(&len_bytes)
    }

    /// Finds out whether a file before had the same key, and notes this one otherwise.
    pub fn find(&mut self, id: InodeId, key: Key) -> Found {
        match self.first.entry(key) {
            std::collections::hash_map::Entry::Occupied(first) => Found::Same(*first.get()),
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(id);
                Found::First
            }
        }
    }
}

/// The hash of a file that is read in parts.
#[derive(Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds the next bytes of the file.
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The key of the file, all of whose bytes were added.
    pub fn finish(self, len_bytes: u64, compression: Option<Compression>) -> Key {
        Key { len_bytes, compression, sha256: self.0.finalize().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::target::Target;
    use crate::build::tree::Metadata;

    #[test]
    fn only_files_of_a_common_length_are_hashed() {
        let mut tree = Tree::new(Metadata::default());
        for (name, len) in [("a", 5000), ("b", 5000), ("c", 6000), ("d", 100), ("e", 100)] {
            tree.add_bytes(name.as_bytes(), vec![1; len]).unwrap();
        }
        let plan = Plan::new(&tree, None);
        let options = Options::for_target(Target::new(6, 12));
        let hashed = |options: &Options, compression| {
            let duplicates = Duplicates::new(&tree, &plan, options);
            [5000, 6000, 100].map(|len_bytes| duplicates.may_have(len_bytes, compression))
        };
        let some = options.compression;
        assert_eq!(hashed(&options, some), [true, false, false]);
        let old = Options::for_target(Target::new(5, 15));
        assert_eq!(hashed(&old, old.compression), [false; 3], "clusters have one owner in old kernels");
        assert_eq!(hashed(&old, None), [true, false, false]);
        let off = Options { dedupe: Dedupe::Nothing, ..options };
        assert_eq!(hashed(&off, some), [false; 3]);
    }

    #[test]
    fn the_first_of_equal_files_is_found() {
        let mut duplicates = Duplicates::default();
        let key = |bytes: &[u8]| {
            let mut hasher = Hasher::default();
            bytes.iter().for_each(|byte| hasher.write(&[*byte]));
            hasher.finish(bytes.len() as u64, None)
        };
        assert_eq!(duplicates.find(InodeId::ROOT, key(b"abc")), Found::First);
        assert_eq!(duplicates.find(InodeId::ROOT, key(b"abd")), Found::First);
        assert_eq!(duplicates.find(InodeId::ROOT, key(b"abc")), Found::Same(InodeId::ROOT));
    }
}
