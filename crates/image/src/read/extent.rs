//! Where a piece of a file lies.

use crate::Address;

/// How a cluster is compressed; the numbers are the format's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// LZ4 block.
    Lz4 = 0,
    /// LZMA1 with its properties in the first byte and no end mark.
    MicroLzma = 1,
    /// Raw deflate, RFC 1951.
    Deflate = 2,
    /// One zstd frame.
    Zstd = 3,
}

/// A run of bytes of a file, all stored in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins in the file, bytes.
    pub start: u64,
    /// How long it is, bytes; never 0. Never reaches past the end of the file.
    pub len_bytes: u64,
    /// Where it lies.
    pub place: Place,
}

impl Extent {
    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.start + self.len_bytes
    }
}

/// Where an extent's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: zeroes.
    Hole,
    /// As they are, from this address on.
    Plain(Address),
    /// As they are, in `len_bytes` (whole blocks) at `at`, but rotated: the byte at position `p` of the file
    /// is at `p` modulo `len_bytes`.
    Interlaced {
        /// The first block's first byte.
        at: Address,
        /// Bytes of the blocks; a power of two.
        len_bytes: u32,
    },
    /// Compressed. The extent begins at byte 0 of what the cluster decodes to.
    Compressed(Cluster),
    /// In the packed file (the file system's own file of tails) from this byte on.
    Fragment {
        /// Position in the packed file, bytes.
        offset: u64,
    },
}

/// A physical cluster: one compressed stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cluster {
    /// Its first byte.
    pub at: Address,
    /// Its length as stored, padding included; at most 1 MiB, never 0.
    pub len_bytes: u32,
    /// What decodes it.
    pub algorithm: Algorithm,
    /// Whether the stream may hold more than this extent wants, or where it ends is not known (images
    /// without zero padding): only a prefix of the output is taken, and trailing input means nothing.
    pub prefix_only: bool,
    /// Whether the stream is at the end of the cluster, behind less than a block of zeroes to skip;
    /// otherwise it begins at the first byte.
    pub zero_padded: bool,
}

/// The longest cluster as stored, bytes.
pub const MAX_CLUSTER_BYTES: u32 = 1 << 20;
/// The longest extent that a cluster may decode to, bytes.
pub const MAX_DECODED_BYTES: u64 = 12 << 20;
