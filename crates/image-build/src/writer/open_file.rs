//! A regular file while it is written: its extents, with the places of their clusters, and what is not in blocks.
//!
//! A file gets extents in two ways: with the clusters of a segment that is appended to the image, and as references
//! (`references`).

use crate::Result;
use crate::compress::buffers::Buffer;
use crate::compress::extents::{ExtentTable, Placed};
use crate::compress::stored::{Segment, Stored};
use crate::options::BLOCK_BYTES;
use crate::table::Spill;
use std::time::Duration;

/// A block, bytes.
pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;

/// A regular file whose segments are being appended.
#[derive(Debug, Default)]
pub struct OpenFile {
    pub(super) extents: ExtentTable,
    /// The first block that is stored for it.
    pub(super) first_block: Option<u64>,
    /// Its own blocks so far.
    pub(super) blocks: u64,
    /// The block after that of the last extent.
    pub(super) next_block: u64,
    /// The end of the file that is stored with its inode.
    pub(super) tail: Vec<u8>,
    /// Position in the packed file, if the last extent lies there.
    pub fragment: Option<u64>,
    pub(super) elapsed: Duration,
    /// Bytes of the contents that are stored elsewhere.
    pub(super) shared_bytes: u64,
    /// Whether its extents are such that it needs an index, even if all are plain.
    pub is_cut: bool,
}

impl OpenFile {
    /// Makes a file without contents so far, whose extents may spill.
    pub fn new(spill: &Spill) -> Self {
        OpenFile { extents: ExtentTable::new(spill), ..OpenFile::default() }
    }

    /// Blocks that are stored for it so far.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds the extents of a segment whose blocks are appended to the image from `block` on, and takes its tail.
    /// Returns the memory of its blocks.
    pub(super) fn add_segment(&mut self, segment: Segment, block: u64, elapsed: Duration) -> Result<Buffer> {
        self.add_blocks(block, segment.blocks.len() as u64 / BLOCK);
        let is_appended = !segment.blocks.is_empty();
        let mut block = if is_appended { block } else { self.next_block.max(1) };
        for extent in segment.extents {
            let (start, is_prefix) = (extent.start, extent.is_short);
            self.extents.push(&Placed { start, block, stored: extent.stored, is_prefix })?;
            block += blocks_of(extent.stored);
        }
        self.next_block = block;
        self.tail = segment.tail;
        self.elapsed += elapsed;
        Ok(segment.blocks)
    }

    /// Counts blocks that are appended to the image from `block` on.
    pub(super) fn add_blocks(&mut self, block: u64, count: u64) {
        if count > 0 {
            self.first_block.get_or_insert(block);
        }
        self.blocks += count;
    }
}

/// Blocks that an extent takes.
fn blocks_of(stored: Stored) -> u64 {
    match stored {
        Stored::Compressed { blocks } => blocks.into(),
        Stored::Plain => 1,
        Stored::Inline { .. } | Stored::Fragment => 0,
    }
}
