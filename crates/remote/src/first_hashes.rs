//! Detects a block that the server sends differently a second time, for a command that compares all bytes with a digest at
//! the end.
//!
//! Blocks leave memory and the cache on disk, and come again from the server when the whole is hashed. A server could
//! send other bytes then, which have the right digest. So a block that comes again must be as it was, or the digest says
//! nothing about the bytes that the command has used.
//!
//! A hash takes 8 bytes of memory for each block of 32 KiB that was read, so all of them take a 4096th of what was read, in
//! no budget. They are short because their key is secret: a server has one try for each block, and hits the right one of
//! 2^64. Mounts, which compare no digest, have none.

use crate::blocks::Loaded;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Hashes that are allocated at once. Blocks that were read often lie near each other.
const GROUP_BLOCKS: u64 = 512;

/// The hashes of consecutive blocks; 0 for one that has not come.
type HashGroup = Box<[u64; GROUP_BLOCKS as usize]>;

/// The hashes of the blocks of one object that have come so far.
#[derive(Default)]
pub(crate) struct FirstHashes {
    key: RandomState,
    groups: Mutex<HashMap<u64, HashGroup>>,
    has_other: AtomicBool,
}

impl FirstHashes {
    /// Notes that these blocks have come, the first of them with this number.
    pub(crate) fn note(&self, first: u64, blocks: &Loaded) {
        for (block, bytes) in (first..).zip(blocks) {
            let mut hasher = self.key.build_hasher();
            hasher.write(bytes);
            let hash = hasher.finish().max(1);
            let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            let group =
                groups.entry(block / GROUP_BLOCKS).or_insert_with(|| Box::new([0; GROUP_BLOCKS as usize]));
            let known = &mut group[(block % GROUP_BLOCKS) as usize];
            if *known != 0 && *known != hash {
                self.has_other.store(true, Ordering::Relaxed);
            }
            *known = hash;
        }
    }

    /// Whether a block came again with other bytes.
    pub(crate) fn has_other(&self) -> bool {
        self.has_other.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_comes_again_is_compared() {
        let hashes = FirstHashes::default();
        let blocks = |bytes: [u8; 2]| bytes.map(|byte| vec![byte; 100]).to_vec();
        hashes.note(3, &blocks([1, 2]));
        hashes.note(4, &blocks([2, 3]));
        hashes.note(0, &blocks([9, 9]));
        hashes.note(GROUP_BLOCKS - 1, &blocks([7, 8]));
        assert!(!hashes.has_other());
        hashes.note(GROUP_BLOCKS, &blocks([8, 5]));
        assert!(!hashes.has_other());
        hashes.note(5, &blocks([4, 5]));
        assert!(hashes.has_other());
    }

    #[test]
    fn a_hash_takes_eight_bytes() {
        let hashes = FirstHashes::default();
        (0..2 * GROUP_BLOCKS).for_each(|block| hashes.note(block, &vec![vec![1; 10]]));
        let groups = hashes.groups.lock().unwrap();
        assert_eq!((groups.len(), size_of_val(&**groups.get(&0).unwrap())), (2, 8 * GROUP_BLOCKS as usize));
    }
}
