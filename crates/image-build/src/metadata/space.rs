//! The area of inodes, which the image has after all data.
//!
//! A record is an inode with all that follows it: attributes, index, inline end. It begins at a multiple of 32 bytes. An
//! inline end must not cross a block's border, so a record may have to begin later than where the one before ends; the
//! gap takes a later, smaller record.

use crate::Result;
use crate::table::{Spill, Table};
use pagefold_image::format::inode::SLOT_LEN;
use std::collections::BTreeSet;
use std::ops::Range;

/// Gaps that are remembered. The smallest are forgotten first.
const GAPS_MAX: usize = 4096;
/// Version 1.5 of fsck.erofs reads the header of attributes after each inode, also if the inode has none and the image
/// ends there. No other reader is known to do so.
const BEHIND_LAST_LEN: usize = 12;

/// The area of inodes while it is filled.
#[derive(Debug)]
pub struct Space {
    bytes: Table<u8>,
    /// A block, bytes.
    block: u64,
    /// Length and position of the gaps.
    gaps: BTreeSet<(u64, u64)>,
}

impl Space {
    /// Makes an area whose first 32 bytes are unused, so that no inode has number 0: programs pass over entries of that
    /// number.
    pub fn new(spill: &Spill, block_bytes: u32) -> Self {
        let mut bytes = Table::new(spill);
        // The first bytes of a table are in memory.
        let _ = bytes.grow(SLOT_LEN as usize, 0);
        Space { bytes, block: block_bytes.into(), gaps: BTreeSet::new() }
    }

    /// Finds room for a record of `len_bytes`, whose bytes `inline` lie within a block, and returns its position. The
    /// inline bytes are at most a block less 32 bytes.
    pub fn reserve(&mut self, len_bytes: u64, inline: Range<u64>) -> Result<u64> {
        let len = len_bytes.next_multiple_of(SLOT_LEN);
        if let Some((gap, at)) = self.find_gap(len, &inline) {
            self.gaps.remove(&gap);
            self.add_gap(gap.1..at);
            self.add_gap(at + len..gap.1 + gap.0);
            return Ok(at);
        }
        let end = self.bytes.len() as u64;
        let at = match self.fits(end, &inline) {
            true => end,
            false => {
                let border = (end + inline.start) / self.block * self.block + self.block;
                (border - inline.start).next_multiple_of(SLOT_LEN)
            }
        };
        self.add_gap(end..at);
        self.bytes.grow((at + len) as usize, 0)?;
        Ok(at)
    }

    /// Writes part of a record at a position.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.bytes.write_at(at, bytes);
    }

    /// Whether it has no record.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() as u64 <= SLOT_LEN
    }

    /// Bytes that were written.
    pub fn read(&self, bytes: Range<u64>) -> Vec<u8> {
        self.bytes.read_at(bytes)
    }

    /// The area, filled up to a whole block, with at least [`BEHIND_LAST_LEN`] bytes after the last record.
    pub fn into_bytes(mut self) -> Result<Table<u8>> {
        self.bytes.grow((self.bytes.len() + BEHIND_LAST_LEN).next_multiple_of(self.block as usize), 0)?;
        Ok(self.bytes)
    }

    /// The smallest gap that takes the record, and the position in it.
    fn find_gap(&self, len: u64, inline: &Range<u64>) -> Option<((u64, u64), u64)> {
        self.gaps.range((len, 0)..).find_map(|&(gap_len, start)| {
            let last = start + gap_len - len;
            [start, last].into_iter().find(|&at| self.fits(at, inline)).map(|at| ((gap_len, start), at))
        })
    }

    fn add_gap(&mut self, gap: Range<u64>) {
        if gap.end > gap.start {
            self.gaps.insert((gap.end - gap.start, gap.start));
        }
        if self.gaps.len() > GAPS_MAX {
            self.gaps.pop_first();
        }
    }

    /// Whether the inline bytes of a record at `at` lie within a block.
    fn fits(&self, at: u64, inline: &Range<u64>) -> bool {
        inline.is_empty() || (at + inline.start) / self.block == (at + inline.end - 1) / self.block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_do_not_overlap_and_inline_bytes_stay_in_a_block(
            records in proptest::collection::vec((0u64..200, 0u64..4065), 1..200),
            block_bytes in proptest::sample::select(vec![512, 4096]),
        ) {
            let mut space = Space::new(&Spill::none(), block_bytes);
            let mut taken: Vec<Range<u64>> = vec![Range { start: 0, end: 32 }];
            for (before, inline) in records {
                let inline = inline % (u64::from(block_bytes) - 31);
                let (start, len) = (32 + before, 32 + before + inline);
                let at = space.reserve(len, start..len).unwrap();
                prop_assert!(at.is_multiple_of(32) && space.fits(at, &(start..len)));
                prop_assert!(taken.iter().all(|t| t.end <= at || at + len <= t.start));
                taken.push(at..at + len);
                space.write(at, &vec![1; len as usize]);
            }
        }
    }

    #[test]
    fn a_gap_takes_a_later_record() {
        let mut space = Space::new(&Spill::none(), 4096);
        let large = space.reserve(4096, 32..4096).unwrap();
        assert_eq!(large, 4064);
        assert_eq!(space.reserve(64, 64..64).unwrap(), 32);
        assert_eq!(space.into_bytes().unwrap().len(), 2 * 4096);
    }

    #[test]
    fn bytes_follow_an_inode_at_the_end_of_a_block() {
        for (len_bytes, blocks) in [(4032, 1), (4064, 2), (4096, 2)] {
            let mut space = Space::new(&Spill::none(), 4096);
            assert_eq!(space.reserve(len_bytes, len_bytes..len_bytes).unwrap(), 32);
            assert_eq!(space.into_bytes().unwrap().len(), blocks * 4096, "{len_bytes}");
        }
    }
}
