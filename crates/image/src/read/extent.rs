//! Extents: runs of a file's bytes, and their mapping to stored bytes.

use crate::Address;
use crate::format::config::Algorithm;

/// A run of bytes of a file that are stored in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Position in the file, bytes.
    pub start: u64,
    /// Length, bytes; never 0. An extent ends inside the file.
    pub len_bytes: u64,
    /// The stored bytes.
    pub mapping: Mapping,
}

impl Extent {
    /// Position of the first byte after the extent.
    pub fn end(&self) -> u64 {
        self.start + self.len_bytes
    }
}

/// The storage of an extent's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// Nothing is stored: the bytes are zeroes.
    Hole,
    /// Stored unchanged, from this address on.
    Plain(Address),
    /// Stored uncompressed in `len_bytes` (whole blocks) at `at`, but rotated: the byte at position `p` of the file is
    /// at `p` modulo `len_bytes`.
    Interlaced {
        /// First byte of the first block.
        at: Address,
        /// Bytes of the blocks; a power of two.
        len_bytes: u32,
    },
    /// Compressed. The extent is the beginning of the cluster's output.
    Compressed(Cluster),
    /// A fragment: a range of the packed file, the internal file that holds the ends of files.
    Fragment {
        /// Position in the packed file, bytes.
        offset: u64,
    },
}

/// A physical cluster: one compressed stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cluster {
    /// First byte.
    pub at: Address,
    /// Stored length with padding, bytes; at most 1 MiB, never 0.
    pub len_bytes: u32,
    /// The compression algorithm.
    pub algorithm: Algorithm,
    /// Whether the stream may decode to more than this extent, or its end is unknown (images without zero padding).
    /// Then only a prefix of the output is used, and trailing input is ignored.
    pub prefix_only: bool,
    /// Whether the stream is at the end of the cluster, after less than a block of zeroes. Otherwise it begins at the
    /// first byte.
    pub zero_padded: bool,
}

/// Longest stored cluster, bytes.
pub const MAX_CLUSTER_BYTES: u32 = 1 << 20;
/// Longest compressed extent, decoded bytes.
pub const MAX_DECODED_BYTES: u64 = 12 << 20;
