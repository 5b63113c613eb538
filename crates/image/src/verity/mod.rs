//! Digests of files as fs-verity computes them, and sources that are verified against one.
//!
//! fs-verity hashes each block of a file, then the blocks of these hashes, and so on to a single root hash: a Merkle
//! tree. The *digest* of the file is the hash of a descriptor with the root hash and the file's length. A reader that knows
//! the digest can verify any block with a few blocks of the tree, without reading the rest. Digest, tree and descriptor
//! are those of Linux and of the program `fsverity`, byte for byte; `docs/formats/verity.md` has the layout.
//!
//! [`measure()`] computes all three. [`VerifiedSource`] reads a source and a tree that nobody need trust, and returns only
//! bytes that belong to the digest: it fails a read whose bytes do not. The layout of a tree is in `layout`, the hashes
//! in `hash`.
//!
//! Only SHA-256 and blocks of 4 KiB exist here. Nothing here signs, and nothing uses the kernel's fs-verity.

mod hash;
mod layout;
mod measure;
mod verified;

pub use hash::{Descriptor, Digest, MAX_SALT_BYTES, Salt, SyntaxError};
pub use measure::measure;
pub use verified::{MAX_CACHE_BYTES, VerifiedSource};

use pagefold_backing::BackingError;

/// Bytes of a block, of data and of the tree.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a hash.
const HASH_BYTES: usize = 32;
/// Hashes in a block of the tree.
const HASHES_PER_BLOCK: usize = BLOCK_BYTES / HASH_BYTES;

/// Why a digest was not computed, or a source not opened for verified reading.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerityError {
    /// The source or the tree cannot be read.
    #[error(transparent)]
    Read(#[from] BackingError),
    /// The tree cannot be written.
    #[error("writing the Merkle tree: {what}")]
    WriteTree {
        /// The system's error.
        what: String,
    },
    /// The source is longer than any that is measured.
    #[error("{data_bytes} bytes are too many; at most {max_bytes} are measured")]
    TooLong {
        /// The length of the source, bytes.
        data_bytes: u64,
        /// The greatest length, bytes.
        max_bytes: u64,
    },
    /// The caller cancelled the computation.
    #[error("interrupted")]
    Cancelled,
    /// The tree has the wrong length: it belongs to a file of another length, or is cut off.
    #[error(
        "the Merkle tree has {found_bytes} bytes, and that of {data_bytes} bytes of data has {expected_bytes}"
    )]
    TreeLength {
        /// The length of the source, bytes.
        data_bytes: u64,
        /// The length of its tree, bytes.
        expected_bytes: u64,
        /// The length of the tree that was passed, bytes.
        found_bytes: u64,
    },
    /// The tree, or the length of the source, belongs to another digest.
    #[error("the digest is {found}, not {expected}: other contents, another salt, or another Merkle tree")]
    WrongDigest {
        /// The digest that the caller wants.
        expected: Digest,
        /// The digest of the source's length and the tree's root.
        found: Digest,
    },
}

impl VerityError {
    /// Whether the bytes are at fault, rather than reading or writing.
    pub fn is_damage(&self) -> bool {
        match self {
            VerityError::Read(error) => error.is_mismatch(),
            VerityError::TreeLength { .. } | VerityError::WrongDigest { .. } => true,
            VerityError::WriteTree { .. } | VerityError::TooLong { .. } | VerityError::Cancelled => false,
        }
    }
}
