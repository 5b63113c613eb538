//! Cutting a segment of a file into extents, and compressing each into a cluster.
//!
//! A cluster has a fixed size, and the encoder finds how much of the file fits into it. So extents begin at any byte.
//! Data that does not get smaller is stored plain, a block an extent.

use super::stored::{BLOCK, Extent, INLINE_BYTES_MAX, Segment, Stored};
use crate::{BuildError, Result};
use pagefold_codec::cluster::encode::{Encoder, Fit};
use std::sync::atomic::{AtomicBool, Ordering};

/// The last cluster is compressed once more, into a block less, if at least this many bytes of it would be unused.
const UNUSED_BYTES_MIN: usize = BLOCK / 8;
/// A part of a segment with fewer bytes than this many clusters is not compressed while the segment goes on.
const REST_CLUSTERS_MIN: usize = 8;

/// How to cut.
#[derive(Debug, Clone, Default)]
pub struct CutRules {
    /// Position of the segment in its file, bytes.
    pub start: u64,
    /// Whether the file ends with the segment.
    pub is_last: bool,
    /// Largest cluster, bytes.
    pub cluster_bytes: usize,
    /// Whether the last extent may be stored with the metadata.
    pub tail_packing: bool,
    /// Whether a file without gain may have no extents, and be stored plain.
    pub may_be_plain: bool,
    /// The end of the file becomes a fragment if this many bytes or fewer are left; 0: never.
    pub fragment_bytes_max: usize,
    /// Bytes of the file before this are in blocks, because other files refer to them.
    pub in_blocks: u64,
    /// Positions in the file, ascending, at which extents should begin, because others refer to what follows there.
    pub cuts: Box<[u64]>,
}

/// A segment that is being cut.
pub(super) struct Cutter<'a> {
    pub(super) cut: &'a CutRules,
    /// Position of `src` in the file, bytes.
    pub(super) start: u64,
    /// The segment, or a part of it.
    pub(super) src: &'a [u8],
    /// Bytes of `src` that are stored.
    pub(super) at: usize,
    /// The extents and blocks so far.
    pub(super) segment: Segment,
    /// Room for a cluster.
    pub(super) cluster: Vec<u8>,
    /// Whether nobody wants the segment any more.
    pub(super) is_stopped: &'a AtomicBool,
}

impl Cutter<'_> {
    /// Stores everything. The segment ends with `src`.
    pub(super) fn go_to_end(&mut self, encoder: &mut Encoder) -> Result<()> {
        while self.at < self.src.len() {
            self.check_stop()?;
            self.step(encoder)?;
        }
        Ok(())
    }

    /// Stores the next extents, until the next one may depend on the `after` bytes of the segment that follow `src`.
    pub(super) fn go_on(&mut self, after: usize, encoder: &mut Encoder) -> Result<()> {
        // A part that is too short is compressed in vain.
        let rest_min = REST_CLUSTERS_MIN * self.cluster.len();
        while self.src.len() - self.at >= rest_min && !self.is_fragment(self.src.len() - self.at + after) {
            self.check_stop()?;
            let at = self.segment.blocks.len();
            // Most clusters are full, and stay where the encoder writes them.
            let room = self.segment.blocks.append_any(self.cluster.len());
            let fit = encoder.fit_of_part(&self.src[self.at..], room);
            let Ok(Some(fit)) = fit else {
                self.segment.blocks.truncate(at);
                return fit.map(|_| ()).map_err(BuildError::from);
            };
            self.store_in_place(at, fit);
        }
        Ok(())
    }

    /// Stores what the encoder has just put after the first `at` bytes of the blocks, if it became smaller.
    fn store_in_place(&mut self, at: usize, fit: Fit) {
        let blocks = fit.written_bytes.div_ceil(BLOCK);
        if fit.consumed_bytes <= blocks * BLOCK {
            self.segment.blocks.truncate(at);
            return self.push_plain((fit.consumed_bytes / BLOCK).max(1));
        }
        let padding = blocks * BLOCK - fit.written_bytes;
        let stored = &mut self.segment.blocks;
        stored.truncate(at + blocks * BLOCK);
        if padding > 0 {
            stored.copy_within(at..at + fit.written_bytes, at + padding);
            stored[at..at + padding].fill(0);
        }
        self.push_stored(blocks, fit.consumed_bytes);
    }

    /// Stores the next extent, or several plain ones.
    fn step(&mut self, encoder: &mut Encoder) -> Result<()> {
        let rest = &self.src[self.at..];
        if self.is_fragment(rest.len()) {
            self.push_fragment();
            return Ok(());
        }
        let fit = encoder.fit(rest, &mut self.cluster)?;
        let is_end = self.is_end_free() && fit.consumed_bytes == rest.len();
        if is_end && self.cut.tail_packing && self.pack_tail(encoder, fit.written_bytes)? {
            return Ok(());
        }
        let blocks = fit.written_bytes.div_ceil(BLOCK);
        match fit.consumed_bytes > blocks * BLOCK {
            true => self.push_cluster(blocks, fit.consumed_bytes, fit.written_bytes),
            // The bytes that the encoder could not make smaller are not tried again.
            false => self.push_plain((fit.consumed_bytes / BLOCK).max(1)),
        }
        Ok(())
    }

    /// Fails if nobody wants the segment any more.
    pub(super) fn check_stop(&self) -> Result<()> {
        if self.is_stopped.load(Ordering::Relaxed) { Err(BuildError::Interrupted) } else { Ok(()) }
    }

    /// Position in the file, bytes.
    pub(super) fn position(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Whether the rest of the segment is the end of the file, and may be stored elsewhere than in blocks.
    fn is_end_free(&self) -> bool {
        self.cut.is_last && self.position() >= self.cut.in_blocks
    }

    /// Whether the rest of the segment, which has `rest_bytes`, goes into the packed file.
    fn is_fragment(&self, rest_bytes: usize) -> bool {
        // A file of nothing else is packed before it comes here.
        self.is_end_free() && rest_bytes <= self.cut.fragment_bytes_max && self.position() > 0
    }

    /// Stores the end of the file with the metadata. `written_bytes` is what the encoder has just made of it. Returns
    /// whether it did.
    fn pack_tail(&mut self, encoder: &mut Encoder, written_bytes: usize) -> Result<bool> {
        let rest = &self.src[self.at..];
        if written_bytes.min(rest.len()) <= INLINE_BYTES_MAX {
            self.push_inline(written_bytes);
            return Ok(true);
        }
        let blocks = written_bytes.div_ceil(BLOCK);
        if blocks == 1 || blocks * BLOCK - written_bytes < UNUSED_BYTES_MIN {
            return Ok(false);
        }
        // One block less, and what does not fit then.
        let room = (blocks - 1) * BLOCK;
        let head = encoder.fit(rest, &mut self.cluster[..room])?;
        let left = &rest[head.consumed_bytes..];
        if head.consumed_bytes <= room || left.is_empty() {
            return self.restore(encoder);
        }
        let mut tail = [0; INLINE_BYTES_MAX];
        let end = encoder.fit(left, &mut tail)?;
        if end.consumed_bytes < left.len() && left.len() > INLINE_BYTES_MAX {
            return self.restore(encoder);
        }
        self.push_cluster(head.written_bytes.div_ceil(BLOCK), head.consumed_bytes, head.written_bytes);
        let is_whole = end.consumed_bytes == self.src.len() - self.at;
        let written_bytes = if is_whole { end.written_bytes } else { usize::MAX };
        if is_whole {
            self.cluster[..end.written_bytes].copy_from_slice(&tail[..end.written_bytes]);
        }
        self.push_inline(written_bytes);
        Ok(true)
    }

    /// Compresses the end of the file into whole blocks again, after a try that did not do better.
    fn restore(&mut self, encoder: &mut Encoder) -> Result<bool> {
        encoder.fit(&self.src[self.at..], &mut self.cluster)?;
        Ok(false)
    }

    /// Appends the stream at the beginning of `self.cluster` as a cluster: zeroes precede it.
    pub(super) fn push_cluster(&mut self, blocks: usize, consumed_bytes: usize, written_bytes: usize) {
        let stored = &mut self.segment.blocks;
        stored.append_zeroes(blocks * BLOCK - written_bytes);
        stored.append(&self.cluster[..written_bytes]);
        self.push_stored(blocks, consumed_bytes);
    }

    /// Appends the extent of a cluster whose blocks are stored.
    fn push_stored(&mut self, blocks: usize, consumed_bytes: usize) {
        let (start, stored) = (self.position(), Stored::Compressed { blocks: blocks as u16 });
        let is_short = consumed_bytes < blocks * BLOCK;
        self.segment.extents.push(Extent { start, stored, is_short });
        self.at += consumed_bytes;
    }

    /// Appends up to `blocks` plain blocks; the end of the file, if it is not a whole one, goes after the index where
    /// that is allowed.
    fn push_plain(&mut self, blocks: usize) {
        for _ in 0..blocks {
            let rest = &self.src[self.at..];
            if rest.is_empty() {
                return;
            }
            if self.is_end_free() && self.cut.tail_packing && rest.len() <= INLINE_BYTES_MAX {
                return self.push_inline(usize::MAX);
            }
            self.push_plain_block(rest.len().min(BLOCK));
        }
    }

    /// Appends a plain block with `len` bytes, at most a block.
    pub(super) fn push_plain_block(&mut self, len: usize) {
        self.push_extent(Stored::Plain);
        self.segment.blocks.append(&self.src[self.at..self.at + len]);
        self.segment.blocks.append_zeroes(len.next_multiple_of(BLOCK) - len);
        self.at += len;
    }

    /// Stores the rest after the index: the stream at the beginning of `self.cluster`, or as it is if that is not
    /// longer.
    fn push_inline(&mut self, written_bytes: usize) {
        let rest = &self.src[self.at..];
        let compressed = written_bytes < rest.len();
        self.push_extent(Stored::Inline { compressed });
        let tail = if compressed { &self.cluster[..written_bytes] } else { &self.src[self.at..] };
        self.segment.tail = tail.to_vec();
        self.at = self.src.len();
    }

    /// Leaves the rest to the packed file.
    fn push_fragment(&mut self) {
        self.push_extent(Stored::Fragment);
        self.segment.fragment = self.src[self.at..].to_vec();
        self.at = self.src.len();
    }

    fn push_extent(&mut self, stored: Stored) {
        self.segment.extents.push(Extent { start: self.position(), stored, is_short: false });
    }
}
