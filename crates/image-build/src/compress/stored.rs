//! The parts of a compressed segment: its extents, their blocks, and the ends that are stored elsewhere.

use super::buffers::Buffer;
use crate::options::BLOCK_BYTES;

pub(super) const BLOCK: usize = BLOCK_BYTES as usize;
/// Most bytes of an end of a file that is stored with the metadata: with them and what precedes them in their 32 bytes,
/// a block is full.
pub const INLINE_BYTES_MAX: usize = BLOCK - 32;

/// How an extent is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// As a cluster of this many blocks.
    Compressed {
        /// Number of blocks.
        blocks: u16,
    },
    /// As it is, in one block.
    Plain,
    /// Behind the index. Only the last extent.
    Inline {
        /// Whether it is compressed.
        compressed: bool,
    },
    /// In the packed file. Only the last extent.
    Fragment,
}

impl Stored {
    /// Whether it has to be decompressed.
    pub fn is_compressed(self) -> bool {
        matches!(self, Stored::Compressed { .. } | Stored::Inline { compressed: true })
    }
}

/// A run of bytes of a file that are stored in one way. It ends where the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub start: u64,
    /// Its storage.
    pub stored: Stored,
    /// Whether its cluster takes more bytes than the extent has. Linux refuses such an extent from 7.1 on, unless its entry
    /// says that the cluster decodes to more.
    pub is_short: bool,
}

/// A compressed segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The extents, in order.
    pub extents: Vec<Extent>,
    /// The blocks of the extents, in the same order.
    pub blocks: Buffer,
    /// The bytes of the last extent that are stored after the index, or of an uncompressed file after its inode.
    pub tail: Vec<u8>,
    /// The bytes of the last extent if that is [`Stored::Fragment`], uncompressed.
    pub fragment: Vec<u8>,
    /// The end of the segment, if it is not stored, since no extent can end there. Only if the file goes on after it, and
    /// not at a block's beginning.
    pub left: Vec<u8>,
}

impl Segment {
    /// Stores bytes that begin at byte `start` of a file, at most a block of them, in a plain block.
    pub fn of_plain_block(start: u64, bytes: &[u8]) -> Self {
        let mut blocks = Buffer::from(bytes.to_vec());
        blocks.append_zeroes(BLOCK - bytes.len());
        Segment {
            extents: vec![Extent { start, stored: Stored::Plain, is_short: false }],
            blocks,
            ..Segment::default()
        }
    }

    /// Whether a whole file of `len` bytes takes as much as it would uncompressed. The index has about two bytes for each
    /// block, and a header of 16.
    pub(super) fn is_no_gain(&self, len: usize) -> bool {
        let index_bytes = 16 + 2 * len.div_ceil(BLOCK);
        let plain_bytes = match len % BLOCK {
            tail if tail > INLINE_BYTES_MAX => len.next_multiple_of(BLOCK),
            _ => len,
        };
        self.blocks.len() + self.tail.len() + self.fragment.len() + index_bytes >= plain_bytes
    }
}
