//! The hashes of blocks as they came first, for a command that compares all bytes with a digest at the end.
//!
//! Blocks leave memory and the cache on disk, and come again from the server when the whole is hashed. A server could
//! send other bytes then, which have the right digest. So a block that comes again must be as it was, or the digest says
//! nothing about the bytes that the command has used.
//!
//! A hash takes some 60 bytes of memory for each block of 32 KiB that was read. Mounts, which compare no digest, have none.

use crate::blocks::Loaded;
use ring::digest::{SHA256, digest};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The blocks of one object that have come so far.
#[derive(Default)]
pub(crate) struct Served {
    hashes: Mutex<HashMap<u64, [u8; 32]>>,
    has_other: AtomicBool,
}

impl Served {
    /// Notes that these blocks have come, the first of them with this number.
    pub(crate) fn note(&self, first: u64, blocks: &Loaded) {
        for (block, bytes) in (first..).zip(blocks) {
            let mut hash = [0; 32];
            hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
            let mut hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
            if *hashes.entry(block).or_insert(hash) != hash {
                self.has_other.store(true, Ordering::Relaxed);
            }
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
        let served = Served::default();
        let blocks = |bytes: [u8; 2]| bytes.map(|byte| vec![byte; 100]).to_vec();
        served.note(3, &blocks([1, 2]));
        served.note(4, &blocks([2, 3]));
        served.note(0, &blocks([9, 9]));
        assert!(!served.has_other());
        served.note(5, &blocks([4, 5]));
        assert!(served.has_other());
    }
}
