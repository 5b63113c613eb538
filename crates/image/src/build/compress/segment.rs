//! Cutting a segment of a file into extents, and compressing each into a cluster.
//!
//! A cluster has a fixed size, and the encoder finds how much of the file fits into it. So extents begin at any byte.
//! Data that does not get smaller is stored plain, a block an extent. Segments are compressed independently of each other,
//! by any thread: where a segment begins depends on the file alone, so the image does not depend on the number of
//! threads.

use crate::build::BuildError;
use crate::build::options::BLOCK_BYTES;
use pagefold_codec::cluster::encode::Encoder;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const BLOCK: usize = BLOCK_BYTES as usize;
/// Most bytes of a file that are compressed by one thread at once. An extent does not cross a segment's end, and may be
/// shorter there: half a block is lost in every segment.
pub const SEGMENT_BYTES_MAX: usize = 16 << 20;
/// Segments are not shorter than this because they are among the last, bytes.
const SHORT_SEGMENT_BYTES: u64 = 4 << 20;
/// A segment is at most this part of everything that is left: several threads are to end at about the same time.
const SEGMENTS_LEFT_MIN: u64 = 4;
/// Segments begin at multiples of this, bytes.
const SEGMENT_ALIGN_BYTES: u64 = 64 << 10;
/// Most bytes of an end of a file that is stored with the metadata: with them and what precedes them in their 32 bytes,
/// a block is full.
pub const INLINE_BYTES_MAX: usize = BLOCK - 32;
/// The last cluster is compressed once more, into a block less, if at least this many bytes of it would be unused.
const UNUSED_BYTES_MIN: usize = BLOCK / 8;

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
#[derive(Debug, Default)]
pub struct Segment {
    /// The extents, in order.
    pub extents: Vec<Extent>,
    /// The blocks of the extents, in the same order.
    pub blocks: Vec<u8>,
    /// The bytes of the last extent that are stored behind the index, or of an uncompressed file behind its inode.
    pub tail: Vec<u8>,
    /// The bytes of the last extent if that is [`Stored::Fragment`], uncompressed.
    pub fragment: Vec<u8>,
    /// The end of the segment, if it is not stored, since no extent can end there. Only if the file goes on behind it, and
    /// not at a block's beginning.
    pub left: Vec<u8>,
}

impl Segment {
    /// Stores bytes that begin at byte `start` of a file, at most a block of them, in a plain block.
    pub fn of_plain_block(start: u64, bytes: &[u8]) -> Self {
        let mut blocks = bytes.to_vec();
        blocks.resize(BLOCK, 0);
        Segment {
            extents: vec![Extent { start, stored: Stored::Plain, is_short: false }],
            blocks,
            ..Segment::default()
        }
    }
}

/// How to cut.
#[derive(Debug, Clone, Default)]
pub struct Cut {
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

impl Cut {
    /// Compresses the segment `src`, which is not empty. The result has the memory `room`, whose contents do not matter.
    /// Fails soon after `is_stopped` is set.
    pub fn compress(
        &self,
        src: &[u8],
        mut room: Vec<u8>,
        encoder: &mut Encoder,
        is_stopped: &AtomicBool,
    ) -> Result<Segment, BuildError> {
        room.clear();
        let mut cutter = Cutter {
            cut: self,
            src,
            at: 0,
            segment: Segment { blocks: room, ..Segment::default() },
            cluster: vec![0; self.cluster_bytes],
            is_stopped,
        };
        let first_cut = self.cuts.partition_point(|cut| *cut <= self.start);
        for cut in &self.cuts[first_cut..] {
            cutter.go_to_cut((cut - self.start) as usize, encoder)?;
        }
        let has_open_end = self.is_last || (self.start + src.len() as u64).is_multiple_of(BLOCK as u64);
        if !has_open_end {
            cutter.go_to_cut(src.len(), encoder)?;
            cutter.segment.left = src[cutter.at..].to_vec();
            return Ok(cutter.segment);
        }
        while cutter.at < src.len() {
            cutter.check_stop()?;
            cutter.step(encoder)?;
        }
        Ok(match self.may_be_plain && self.start == 0 && self.is_last && cutter.is_no_gain() {
            true => plain(src, cutter.segment.blocks),
            false => cutter.segment,
        })
    }
}

/// Returns the length of the next segment of a file that has `file_left` bytes, where all files of the image have
/// `all_left`, both not zero.
///
/// The segments of a file are as few as possible, and equal. Those of the last files are short, so that no thread is
/// left with a long one at the end. Lengths depend on the contents alone, so the image does not depend on the number of
/// threads.
pub fn next_segment_bytes(file_left: u64, all_left: u64) -> usize {
    let most = (all_left / SEGMENTS_LEFT_MIN).clamp(SHORT_SEGMENT_BYTES, SEGMENT_BYTES_MAX as u64);
    let segment = file_left.div_ceil(file_left.div_ceil(most)).next_multiple_of(SEGMENT_ALIGN_BYTES);
    segment.min(file_left) as usize
}

/// Stores a segment plain, in the memory `room`: `src` is all of a file, or a part that ends with the file or at a block's
/// end.
pub fn plain(src: &[u8], mut room: Vec<u8>) -> Segment {
    let full = src.len() / BLOCK * BLOCK;
    room.clear();
    room.extend_from_slice(&src[..full]);
    Segment { blocks: room, tail: src[full..].to_vec(), ..Segment::default() }
}

pub(super) struct Cutter<'a> {
    cut: &'a Cut,
    pub(super) src: &'a [u8],
    /// Bytes of `src` that are stored.
    pub(super) at: usize,
    segment: Segment,
    /// Room for a cluster.
    pub(super) cluster: Vec<u8>,
    is_stopped: &'a AtomicBool,
}

impl Cutter<'_> {
    /// Stores the next extent, or several plain ones.
    fn step(&mut self, encoder: &mut Encoder) -> Result<(), BuildError> {
        let rest = &self.src[self.at..];
        // A file of nothing else is packed before it comes here.
        if self.is_end_free() && rest.len() <= self.cut.fragment_bytes_max && self.position() > 0 {
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
    pub(super) fn check_stop(&self) -> Result<(), BuildError> {
        if self.is_stopped.load(Ordering::Relaxed) { Err(BuildError::Interrupted) } else { Ok(()) }
    }

    /// Position in the file, bytes.
    pub(super) fn position(&self) -> u64 {
        self.cut.start + self.at as u64
    }

    /// Whether the rest of the segment is the end of the file, and may be stored elsewhere than in blocks.
    fn is_end_free(&self) -> bool {
        self.cut.is_last && self.position() >= self.cut.in_blocks
    }

    /// Stores the end of the file with the metadata. `written_bytes` is what the encoder has just made of it. Returns
    /// whether it did.
    fn pack_tail(&mut self, encoder: &mut Encoder, written_bytes: usize) -> Result<bool, BuildError> {
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
    fn restore(&mut self, encoder: &mut Encoder) -> Result<bool, BuildError> {
        encoder.fit(&self.src[self.at..], &mut self.cluster)?;
        Ok(false)
    }

    /// Appends the stream at the beginning of `self.cluster` as a cluster: zeroes precede it.
    pub(super) fn push_cluster(&mut self, blocks: usize, consumed_bytes: usize, written_bytes: usize) {
        let (start, stored) = (self.position(), Stored::Compressed { blocks: blocks as u16 });
        let is_short = consumed_bytes < blocks * BLOCK;
        self.segment.extents.push(Extent { start, stored, is_short });
        let stored = &mut self.segment.blocks;
        stored.resize(stored.len() + blocks * BLOCK - written_bytes, 0);
        stored.extend_from_slice(&self.cluster[..written_bytes]);
        self.at += consumed_bytes;
    }

    /// Appends up to `blocks` plain blocks; the end of the file, if it is not a whole one, goes behind the index where
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
        self.segment.blocks.extend_from_slice(&self.src[self.at..self.at + len]);
        self.segment.blocks.resize(self.segment.blocks.len().next_multiple_of(BLOCK), 0);
        self.at += len;
    }

    /// Stores the rest behind the index: the stream at the beginning of `self.cluster`, or as it is if that is not
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

    /// Whether a whole file takes as much as it would uncompressed. The index has about two bytes for each block, and
    /// a header of 16.
    fn is_no_gain(&self) -> bool {
        let segment = &self.segment;
        let index_bytes = 16 + 2 * self.src.len().div_ceil(BLOCK);
        let plain_bytes = match self.src.len() % BLOCK {
            tail if tail > INLINE_BYTES_MAX => self.src.len().next_multiple_of(BLOCK),
            _ => self.src.len(),
        };
        segment.blocks.len() + segment.tail.len() + segment.fragment.len() + index_bytes >= plain_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The segments of a file, behind which other files have `later` bytes.
    fn segments(mut file_left: u64, later: u64) -> Vec<u64> {
        let mut segments = Vec::new();
        while file_left > 0 {
            let segment = next_segment_bytes(file_left, file_left + later) as u64;
            assert!(0 < segment && segment <= file_left && segment <= SEGMENT_BYTES_MAX as u64);
            file_left -= segment;
            assert!(file_left == 0 || segment.is_multiple_of(SEGMENT_ALIGN_BYTES));
            segments.push(segment);
        }
        segments
    }

    #[test]
    fn segments_are_equal_and_as_few_as_possible() {
        let max = SEGMENT_BYTES_MAX as u64;
        for len in [1, 4095, max - 1, max, max + 1, 2 * max, 2 * max + 1, 5 * max / 2, 100 * max - 7] {
            let segments = segments(len, 1 << 40);
            assert_eq!(segments.len() as u64, len.div_ceil(max), "{len}");
            let longest = segments.iter().max().unwrap();
            assert!(
                segments[..segments.len() - 1].iter().all(|s| longest - s <= SEGMENT_ALIGN_BYTES),
                "{len}"
            );
        }
    }

    #[test]
    fn a_stopped_segment_is_not_finished() {
        let config = pagefold_codec::cluster::encode::EncoderConfig::Lz4Hc { window_bytes: 65535, level: 9 };
        let mut encoder = Encoder::new(&config).unwrap();
        let src = vec![7; 1 << 20];
        for cuts in [vec![], vec![300_000]] {
            for is_last in [false, true] {
                let cut = Cut { is_last, cluster_bytes: 4096, cuts: cuts.clone().into(), ..Cut::default() };
                let compressed = cut.compress(&src, Vec::new(), &mut encoder, &AtomicBool::new(true));
                assert!(matches!(compressed, Err(BuildError::Interrupted)), "{cuts:?}");
                assert!(
                    cut.compress(&src, Vec::new(), &mut encoder, &AtomicBool::new(false)).is_ok(),
                    "{cuts:?}"
                );
            }
        }
    }

    #[test]
    fn the_last_segments_are_short() {
        let segments = segments(200 << 20, 0);
        assert!(*segments.iter().max().unwrap() > 15 << 20, "{segments:?}");
        let last = &segments[segments.len() - SEGMENTS_LEFT_MIN as usize..];
        assert!(last.iter().all(|segment| *segment <= SHORT_SEGMENT_BYTES));
        assert!(segments.len() < 40, "{segments:?}");
    }
}
