//! The layout of a file of the cache: pure functions from bytes to values and back. `docs/formats/remote-cache.md` has the
//! fields.
//!
//! A header, a record for each group of sixteen blocks, and the blocks. Everything is at a place that follows from the
//! length of the object, so that reading a block needs no search. A record lies in one sector and has the checksums of
//! its group and the time of its last use. Nothing here reads or writes files.

use super::key::Key;
use crate::eviction::BLOCK_BYTES;
use std::ops::Range;
use twox_hash::XxHash3_128;

/// Blocks of a group, which is evicted at once.
pub(crate) const GROUP_BLOCKS: u64 = 16;
/// Bytes of the header and what is reserved after it.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// Bytes of the header that have a meaning.
pub(crate) const HEADER_USED_BYTES: usize = 80;
/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 512;
/// Where the checksums are in a record.
pub(crate) const CHECKSUMS_AT: usize = 256;
/// Bytes of a checksum.
pub(crate) const CHECKSUM_BYTES: usize = 16;
/// The length of the longest object that is cached: a limit for what a file can make its readers do.
pub(crate) const MAX_LEN_BYTES: u64 = 1 << 40;

const MAGIC: [u8; 8] = *b"PFRANGES";
const VERSION: u32 = 1;
const PAGE_BYTES: u64 = 4096;

/// The identity of a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: Key,
    pub(crate) len_bytes: u64,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_USED_BYTES] {
        let mut bytes = [0; HEADER_USED_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[24..56].copy_from_slice(&self.key.0);
        let checksum = XxHash3_128::oneshot(&bytes[..64]);
        bytes[64..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses a header; `None` for anything but one that [`Header::to_bytes`] makes.
    pub(crate) fn parse(bytes: &[u8; HEADER_USED_BYTES]) -> Option<Self> {
        let mut len_bytes = [0; 8];
        len_bytes.copy_from_slice(&bytes[16..24]);
        let mut key = [0; 32];
        key.copy_from_slice(&bytes[24..56]);
        let header = Header { key: Key(key), len_bytes: u64::from_le_bytes(len_bytes) };
        (header.to_bytes() == *bytes).then_some(header)
    }
}

/// Where the parts of an object's file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) len_bytes: u64,
    pub(crate) groups: u64,
    data_start: u64,
}

impl Layout {
    /// The layout for an object of this length; `None` if it has no bytes or too many.
    pub(crate) fn of(len_bytes: u64) -> Option<Self> {
        if !(1..=MAX_LEN_BYTES).contains(&len_bytes) {
            return None;
        }
        let groups = len_bytes.div_ceil(BLOCK_BYTES * GROUP_BLOCKS);
        let data_start = (HEADER_BYTES + groups * RECORD_BYTES as u64).next_multiple_of(PAGE_BYTES);
        Some(Layout { len_bytes, groups, data_start })
    }

    /// The number of blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.len_bytes.div_ceil(BLOCK_BYTES)
    }

    /// Where the record of a group begins.
    pub(crate) fn record_at(&self, group: u64) -> u64 {
        HEADER_BYTES + group * RECORD_BYTES as u64
    }

    /// Where the checksum of a block is.
    pub(crate) fn checksum_at(&self, block: u64) -> u64 {
        let within = CHECKSUMS_AT as u64 + block % GROUP_BLOCKS * CHECKSUM_BYTES as u64;
        self.record_at(block / GROUP_BLOCKS) + within
    }

    /// The bytes of the file that have these blocks; the last block of the object may be shorter.
    pub(crate) fn data(&self, blocks: &Range<u64>) -> Range<u64> {
        let end = (blocks.end * BLOCK_BYTES).min(self.len_bytes);
        self.data_start + blocks.start * BLOCK_BYTES..self.data_start + end
    }

    /// The bytes of the file for the blocks of a group. They end at a page, so that nothing of them is left when they are
    /// deallocated.
    pub(crate) fn group_data(&self, group: u64) -> Range<u64> {
        let Range { start, end } = self.data(&(group * GROUP_BLOCKS..(group + 1) * GROUP_BLOCKS));
        start..end.next_multiple_of(PAGE_BYTES)
    }

    /// The length of a block, bytes.
    pub(crate) fn block_bytes(&self, block: u64) -> usize {
        let data = self.data(&(block..block + 1));
        (data.end - data.start) as usize
    }
}

/// The record of a group, as it is in the file.
#[derive(Clone, Copy)]
pub(crate) struct Record([u8; RECORD_BYTES]);

impl Record {
    pub(crate) fn new(bytes: [u8; RECORD_BYTES]) -> Self {
        Record(bytes)
    }

    /// The time of the last use, seconds since 1970; 0 if the group has no blocks.
    pub(crate) fn used_s(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(bytes)
    }

    /// The checksum of a block of the group; `None` if the block is not there.
    pub(crate) fn checksum(&self, block: u64) -> Option<u128> {
        let at = CHECKSUMS_AT + (block % GROUP_BLOCKS) as usize * CHECKSUM_BYTES;
        let mut bytes = [0; CHECKSUM_BYTES];
        bytes.copy_from_slice(&self.0[at..at + CHECKSUM_BYTES]);
        Some(u128::from_le_bytes(bytes)).filter(|checksum| *checksum != 0)
    }
}

/// The checksum of a block; never 0. The seed makes it another one in another object or at another place.
pub(crate) fn checksum(key: &Key, block: u64, bytes: &[u8]) -> u128 {
    let mut seed = [0; 8];
    seed.copy_from_slice(&key.0[..8]);
    XxHash3_128::oneshot_with_seed(u64::from_le_bytes(seed).wrapping_add(block), bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_survive_and_any_changed_byte_is_noticed(
            len_bytes in any::<u64>(),
            key in any::<[u8; 32]>(),
            at in 0..HEADER_USED_BYTES,
            change in 1..=255_u8,
        ) {
            let header = Header { key: Key(key), len_bytes };
            let mut bytes = header.to_bytes();
            prop_assert_eq!(Header::parse(&bytes), Some(header));
            bytes[at] ^= change;
            prop_assert_eq!(Header::parse(&bytes), None);
        }

        /// The parts of a file follow each other, and none is in two.
        #[test]
        fn the_parts_of_a_file_do_not_overlap(len_bytes in 1..=MAX_LEN_BYTES, block in any::<u64>()) {
            let layout = Layout::of(len_bytes).unwrap();
            let block = block % layout.blocks();
            let group = block / GROUP_BLOCKS;
            let record = layout.record_at(group)..layout.record_at(group) + RECORD_BYTES as u64;
            let checksum = layout.checksum_at(block);
            prop_assert!(record.start.is_multiple_of(512) && record.start >= HEADER_BYTES);
            prop_assert!(checksum >= record.start + 256 && checksum + 16 <= record.end);
            prop_assert!(layout.record_at(layout.groups) <= layout.data(&(0..1)).start);
            let data = layout.data(&(block..block + 1));
            prop_assert!(data.start.is_multiple_of(4096) && data.end - data.start <= BLOCK_BYTES && !data.is_empty());
            prop_assert_eq!((data.end - data.start) as usize, layout.block_bytes(block));
            let of_group = layout.group_data(group);
            prop_assert!(of_group.start <= data.start && data.end <= of_group.end);
            prop_assert!(group + 1 == layout.groups || layout.group_data(group + 1).start == of_group.end);
            let last = layout.blocks() - 1;
            prop_assert_eq!(layout.data(&(0..last + 1)).end - layout.data(&(0..1)).start, len_bytes);
        }
    }

    #[test]
    fn lengths_without_a_layout_and_empty_records() {
        assert!(Layout::of(0).is_none() && Layout::of(MAX_LEN_BYTES + 1).is_none());
        let record = Record::new([0; RECORD_BYTES]);
        assert!(record.used_s() == 0 && record.checksum(3).is_none());
        let key = Key([7; 32]);
        let of = |key, block, bytes: &[u8]| checksum(key, block, bytes);
        assert_ne!(of(&key, 0, b"x"), of(&key, 1, b"x"));
        assert_ne!(of(&key, 0, b"x"), of(&Key([8; 32]), 0, b"x"));
        assert_ne!(of(&key, 0, b"x"), of(&key, 0, b"x\0"));
    }
}
