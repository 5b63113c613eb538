//! Finding equal files, whose contents the image stores once.
//!
//! Files are equal by length, by the compression that the options choose for them, and by the SHA-256 of their
//! contents: sources are hostile, so a hash for which equal values can be made does not do; the first 24 bytes of this
//! one are kept. Only files whose length occurs more than once are hashed, and each is decided before it is
//! compressed, in the order of the plan. So the image does not depend on the number of threads, and a duplicate costs
//! no compression.
//!
//! Parts of files are not compared.

use super::compression::Compression;
use super::options::{Dedupe, Options};
use super::plan::Plan;
use super::table::{Hashes, Key, Spill, key_of_hash};
use super::tree::{InodeId, Tree};
use crate::Result;
use pagefold_image::format::features::incompat;
use sha2::{Digest, Sha256};

/// Shorter files fit after their inodes, where nothing can be shared.
const LEN_BYTES_MIN: u64 = super::compress::stored::INLINE_BYTES_MAX as u64 + 1;

/// The files so far whose contents others may have too.
#[derive(Debug)]
pub struct Duplicates {
    /// Lengths that occur more than once, bytes.
    lengths: Hashes,
    /// Whether compressed files can share clusters.
    shares_clusters: bool,
    first: Hashes,
}

impl Duplicates {
    /// Finds none.
    pub fn none(spill: &Spill) -> Self {
        Duplicates { lengths: Hashes::new(spill), shares_clusters: false, first: Hashes::new(spill) }
    }

    /// Looks for lengths that several files have.
    pub fn new(tree: &Tree, plan: &Plan, options: &Options) -> Result<Self> {
        let mut duplicates = Duplicates::none(tree.spill());
        if options.dedupe == Dedupe::Nothing {
            return Ok(duplicates);
        }
        let mut once = Hashes::new(tree.spill());
        for planned in plan.others.iter() {
            let len_bytes = tree.content_bytes(planned.id);
            if len_bytes >= LEN_BYTES_MIN && once.get_or_insert(&length_key(len_bytes), 0)?.is_some() {
                duplicates.lengths.get_or_insert(&length_key(len_bytes), 0)?;
            }
        }
        duplicates.shares_clusters = options.target.has(incompat::DEDUPE);
        Ok(duplicates)
    }

    /// Whether a file may be equal to another one, so that it has to be hashed.
    pub fn may_have(&self, len_bytes: u64, compression: Option<Compression>) -> bool {
        (self.shares_clusters || compression.is_none()) && self.lengths.get(&length_key(len_bytes)).is_some()
    }

    /// Returns the first file with this key; `None` if it is this one.
    pub fn find(&mut self, id: InodeId, key: &Key) -> Result<Option<InodeId>> {
        let first = self.first.get_or_insert(key, id.index() as u64)?;
        Ok(first.map(|first| InodeId::at(first as usize)))
    }
}

/// The key of a length: a source can choose it, so it is a hash too.
fn length_key(len_bytes: u64) -> Key {
    Hashes::key_of_bytes(&[&len_bytes.to_le_bytes()])
}

/// The hash of a file that is read in parts.
#[derive(Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds the next bytes of the file.
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The property in which equal files agree: the hash of contents, length and compression. All bytes of the file were
    /// added.
    pub fn finish(self, len_bytes: u64, compression: Option<Compression>) -> Key {
        let compression = compression.map_or([u8::MAX; 5], |compression| {
            let [a, b, c, d] = compression.level.to_le_bytes();
            [compression.method as u8, a, b, c, d]
        });
        key_of_hash(self.0.chain_update(len_bytes.to_le_bytes()).chain_update(compression))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;
    use crate::tree::Metadata;

    #[test]
    fn only_files_of_a_common_length_are_hashed() {
        let mut tree = Tree::new(Metadata::default());
        for (name, len) in [("a", 5000), ("b", 5000), ("c", 6000), ("d", 100), ("e", 100)] {
            tree.add_bytes(name.as_bytes(), vec![1; len]).unwrap();
        }
        let plan = Plan::new(&tree, None, false).unwrap();
        let options = Options::for_target(Target::new(6, 12));
        let hashed = |options: &Options, compression| {
            let duplicates = Duplicates::new(&tree, &plan, options).unwrap();
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
        let mut duplicates = Duplicates::none(&Spill::none());
        let key = |bytes: &[u8]| {
            let mut hasher = Hasher::default();
            bytes.iter().for_each(|byte| hasher.write(&[*byte]));
            hasher.finish(bytes.len() as u64, None)
        };
        assert_eq!(duplicates.find(InodeId::ROOT, &key(b"abc")).unwrap(), None);
        assert_eq!(duplicates.find(InodeId::ROOT, &key(b"abd")).unwrap(), None);
        assert_eq!(duplicates.find(InodeId::ROOT, &key(b"abc")).unwrap(), Some(InodeId::ROOT));
    }
}
