//! The packed file: small files, and the ends of others, one after the other, so that they are compressed together.
//!
//! It is compressed while it grows, a segment at a time, and never stored otherwise. Its segments lie wherever the image
//! ends when they are compressed. The compact index needs consecutive clusters in each pack of entries; so a segment
//! ends where a pack of sixteen begins. Equal fragments are stored once.

use crate::Result;
use crate::compress::segment::SEGMENT_BYTES_MAX;
use crate::options::BLOCK_BYTES;
use crate::progress::Stored;
use crate::table::{Hashes, Spill};

/// Blocks that the entries before the first pack of sixteen describe: the index of an inode without attributes begins
/// eight bytes after a multiple of 32.
const FIRST_BLOCKS: usize = 6;
/// Blocks that a pack of sixteen describes, bytes.
const PACK_BYTES: usize = 16 * BLOCK_BYTES as usize;
const SEGMENT_BYTES_MIN: usize = 2 << 20;
/// Bytes of directories that a thread compresses at once.
const DIRECTORY_SEGMENT_BYTES: usize = 1 << 20;
/// Largest cluster of directories, bytes. A reader decodes a cluster for the first name in it. Half and twice as much make
/// images as small, and walks no faster.
const DIRECTORY_CLUSTER_BYTES_MAX: u32 = 16 << 10;
/// Clusters of a segment, if they were not compressed: half a block is lost in every segment.
const SEGMENT_CLUSTERS: usize = 16;

/// The packed file while it grows.
#[derive(Debug)]
pub struct Packed {
    /// The end of the file, which is in no segment yet.
    buffer: Vec<u8>,
    /// Position of the buffer in the file, bytes.
    start: u64,
    segment_bytes: usize,
    /// Largest cluster of what follows, bytes.
    cluster_bytes: u32,
    /// Positions of fragments by their hashes.
    known: Hashes,
    /// The files that have fragments.
    pub stored: Stored,
}

/// A part of the file that is compressed by itself.
#[derive(Debug)]
pub struct PackedSegment {
    /// Position in the file, bytes.
    pub start: u64,
    /// The contents.
    pub src: Vec<u8>,
    /// Largest cluster, bytes.
    pub cluster_bytes: u32,
    /// Whether it is the last.
    pub is_last: bool,
}

impl Packed {
    /// Begins the file, for clusters of up to this size. Readers look for the prefixes of attribute names in it, if there is
    /// one.
    pub fn new(cluster_bytes: u32, prefixes: &[u8], spill: &Spill) -> Self {
        Packed {
            buffer: prefixes.to_vec(),
            start: 0,
            segment_bytes: segment_bytes(cluster_bytes),
            cluster_bytes,
            known: Hashes::new(spill),
            stored: Stored::default(),
        }
    }

    /// Length so far, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.start + self.buffer.len() as u64
    }

    /// Returns the position of a fragment with these contents, and appends them if no earlier one has them.
    pub fn place(&mut self, fragment: &[u8]) -> Result<u64> {
        let end = self.len_bytes();
        self.stored.add(fragment.len() as u64, 0);
        if let Some(known) = self.known.get_or_insert(&Hashes::key_of_bytes(&[fragment]), end)? {
            return Ok(known);
        }
        self.buffer.extend_from_slice(fragment);
        Ok(end)
    }

    /// Takes the next segment, if all of it is there.
    pub fn next_segment(&mut self) -> Option<PackedSegment> {
        let first = if self.start == 0 { FIRST_BLOCKS * BLOCK_BYTES as usize } else { 0 };
        let len = self.segment_bytes + first;
        // One that has exactly this length may be the last.
        (self.buffer.len() > len).then(|| {
            let rest = self.buffer.split_off(len);
            self.take(rest, false)
        })
    }

    /// Takes what is left at the end.
    pub fn last_segment(&mut self) -> Option<PackedSegment> {
        (!self.buffer.is_empty()).then(|| self.take(Vec::new(), true))
    }

    /// Takes what is left before directories, which follow in short clusters. Their segments lie one after the other, so
    /// they may end anywhere in a pack.
    pub fn begin_directories(&mut self) -> Option<PackedSegment> {
        self.buffer.resize(self.buffer.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        let files = (!self.buffer.is_empty()).then(|| self.take(Vec::new(), false));
        self.segment_bytes = DIRECTORY_SEGMENT_BYTES;
        self.cluster_bytes = self.cluster_bytes.min(DIRECTORY_CLUSTER_BYTES_MAX);
        files
    }

    /// Appends a part of a directory.
    pub fn append_directory(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn take(&mut self, rest: Vec<u8>, is_last: bool) -> PackedSegment {
        let src = std::mem::replace(&mut self.buffer, rest);
        let segment = PackedSegment { start: self.start, src, cluster_bytes: self.cluster_bytes, is_last };
        self.start += segment.src.len() as u64;
        segment
    }
}

/// Length of a segment of the packed file, bytes, with clusters of up to `cluster_bytes`.
pub fn segment_bytes(cluster_bytes: u32) -> usize {
    let bytes = SEGMENT_CLUSTERS * cluster_bytes as usize;
    bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX).next_multiple_of(PACK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_end_where_a_pack_begins() {
        let mut packed = Packed::new(65536, &[], &Spill::none());
        let mut wanted = Vec::new();
        let mut found: Vec<u8> = Vec::new();
        let mut segments = Vec::new();
        for i in 0..2000u32 {
            let fragment: Vec<u8> =
                (0..i * 7 % 9000 + 4).map(|j| ((j * i) >> 3) as u8).chain(i.to_le_bytes()).collect();
            assert_eq!(packed.place(&fragment).unwrap(), wanted.len() as u64);
            wanted.extend(fragment);
            while let Some(segment) = packed.next_segment() {
                segments.push(segment);
            }
        }
        segments.extend(packed.last_segment());
        let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
        for segment in &segments {
            assert_eq!(segment.start, found.len() as u64);
            assert!(segment.start == 0 || blocks(segment.start) % 16 == FIRST_BLOCKS as u64);
            assert!(segment.start == 0 || segment.start.is_multiple_of(u64::from(BLOCK_BYTES)));
            found.extend(&segment.src);
        }
        assert!(segments.len() > 2 && found == wanted && packed.len_bytes() == wanted.len() as u64);
        assert_eq!(segments.iter().filter(|segment| segment.is_last).count(), 1);
    }

    #[test]
    fn equal_fragments_have_one_place() {
        let mut packed = Packed::new(4096, &[], &Spill::none());
        assert_eq!([b"abc", b"bcd", b"abc"].map(|fragment| packed.place(fragment).unwrap()), [0, 3, 0]);
        assert_eq!((packed.len_bytes(), packed.stored.files, packed.stored.content_bytes), (6, 3, 9));
    }
}
