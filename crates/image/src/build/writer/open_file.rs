//! A regular file while it is written: its extents, with the places of their clusters, and what is not in blocks.
//!
//! A file gets extents in two ways: with the clusters of a segment that is appended to the image, and as references to
//! clusters that an earlier file has, or an earlier part of the same file.

use super::originals::Extents;
use super::{BLOCK, Writer};
use crate::build::BuildError;
use crate::build::chunks::Reference;
use crate::build::compress::extent::{Segment, Stored};
use crate::build::compress::index::Placed;
use crate::build::plan::Planned;
use std::time::Duration;

/// A regular file whose segments are being appended.
#[derive(Debug, Clone, Default)]
pub struct OpenFile {
    pub(super) extents: Vec<Placed>,
    /// The first block that is stored for it.
    pub(super) first_block: Option<u64>,
    /// Its own blocks so far.
    pub(super) blocks: u64,
    /// The block behind that of the last extent.
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
    /// Blocks that are stored for it so far.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds the extents of a segment whose blocks are appended to the image from `block` on, and takes its tail.
    /// Returns the memory of its blocks.
    pub(super) fn add_segment(&mut self, segment: Segment, block: u64, elapsed: Duration) -> Vec<u8> {
        self.add_blocks(block, segment.blocks.len() as u64 / BLOCK);
        let is_appended = !segment.blocks.is_empty();
        let mut block = if is_appended { block } else { self.next_block.max(1) };
        self.extents.reserve(segment.extents.len());
        for extent in segment.extents {
            let (start, is_prefix) = (extent.start, extent.is_short);
            self.extents.push(Placed { start, block, stored: extent.stored, is_prefix });
            block += blocks_of(extent.stored);
        }
        self.next_block = block;
        self.tail = segment.tail;
        self.elapsed += elapsed;
        segment.blocks
    }

    /// Counts blocks that are appended to the image from `block` on.
    pub(super) fn add_blocks(&mut self, block: u64, count: u64) {
        if count > 0 {
            self.first_block.get_or_insert(block);
        }
        self.blocks += count;
    }

    /// Adds extents that lie elsewhere.
    pub(super) fn add_shared(&mut self, extents: &[Placed], len_bytes: u64) {
        self.extents.extend_from_slice(extents);
        self.shared_bytes += len_bytes;
    }
}

impl Writer<'_> {
    /// Adds a reference to a file whose extents so far end where it begins; `last` has the bytes of its last block. Returns
    /// false, and does nothing, if the contents do not lie in extents that the file can refer to.
    pub fn add_reference(
        &mut self,
        planned: &Planned,
        file: &mut OpenFile,
        reference: &Reference,
        last: &[u8],
    ) -> Result<bool, BuildError> {
        let found = match reference.source == planned.id {
            true => resolve(file.extents.as_slice(), reference, reference.start),
            false => {
                let end = self.tree.content_bytes(reference.source);
                self.originals.get(reference.source).and_then(|source| resolve(&source, reference, end))
            }
        };
        let Some((extents, end)) = found else { return Ok(false) };
        file.add_shared(&extents, end - reference.start);
        self.used.shared_clusters = true;
        match last.get(last.len().saturating_sub((reference.end - end) as usize)..) {
            Some(rest) if !rest.is_empty() => {
                let segment = Segment::of_plain_block(end, rest);
                self.append_segment(file, segment, Duration::ZERO)?;
            }
            _ => {}
        }
        Ok(true)
    }
}

/// Returns the extents that have the contents of a reference, with their places in the file that refers, and where they
/// end there; `None` if `source`, the file that has the contents, does not have them in such extents. Its extents
/// so far end at byte `end`.
///
/// Up to a block is missing at the end if the last extent would have one entry of the index, and a cluster of several
/// blocks, which needs two.
fn resolve(source: &(impl Extents + ?Sized), reference: &Reference, end: u64) -> Option<(Vec<Placed>, u64)> {
    let source_end = reference.source_start + reference.end.checked_sub(reference.start)?;
    let (first, behind) = (source.first_from(reference.source_start), source.first_from(source_end));
    if first >= behind || source.extent(first).start != reference.source_start {
        return None;
    }
    let mut found: Vec<Placed> = Vec::with_capacity(behind - first);
    for number in first..behind {
        let extent = source.extent(number);
        let is_known = number + 1 < source.count();
        let extent_end = if is_known { source.extent(number + 1).start } else { end };
        let in_reference = |at: u64| reference.start + (at.min(source_end) - reference.source_start);
        let (start, next_start) = (in_reference(extent.start), in_reference(extent_end));
        let is_last = number + 1 == behind;
        let entries = next_start / BLOCK - start / BLOCK;
        match extent.stored {
            Stored::Compressed { blocks } if entries < 1 + u64::from(blocks > 1) => {
                return is_last.then_some((found, start));
            }
            Stored::Plain if entries == 0 => return None,
            Stored::Compressed { .. } | Stored::Plain => {}
            Stored::Inline { .. } | Stored::Fragment => return None,
        }
        let is_compressed = extent.stored != Stored::Plain;
        let is_prefix = extent.is_prefix || (is_compressed && extent_end > source_end);
        found.push(Placed { start, is_prefix, ..extent });
    }
    (end >= source_end).then_some((found, reference.end))
}

/// Blocks that an extent takes.
fn blocks_of(stored: Stored) -> u64 {
    match stored {
        Stored::Compressed { blocks } => blocks.into(),
        Stored::Plain => 1,
        Stored::Inline { .. } | Stored::Fragment => 0,
    }
}
