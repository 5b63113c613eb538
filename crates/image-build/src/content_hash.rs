//! The hash by which two readings of the same contents are compared, within one run of the program.
//!
//! A file that is read twice may change between. Its owner must not be able to prepare contents with an equal hash, so the
//! hash begins with a random number, which never leaves the process. An image does not depend on it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;
use twox_hash::XxHash3_128;

/// The hash of contents that are read in parts.
pub struct ContentHash(XxHash3_128);

impl ContentHash {
    /// Begins.
    pub fn new() -> Self {
        static SEED: OnceLock<u64> = OnceLock::new();
        // The standard library's hasher has random keys.
        ContentHash(XxHash3_128::with_seed(*SEED.get_or_init(|| RandomState::new().build_hasher().finish())))
    }

    /// Adds the next bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The hash of all bytes.
    pub fn finish(&self) -> u128 {
        self.0.finish_128()
    }
}
