//! Freed blocks that keep their memory for the next arrays: which ones, without touching them.
//!
//! An expression frees and makes arrays of the same size again and again. A block that is discarded each time costs a
//! fault for each of its pages, more than most operations on them. So a few freed blocks stay resident, as those of the C
//! library do.
//! This file decides nothing about memory that is short: the caller then takes all blocks and discards them.

/// Most pages of all blocks together: 32 MiB, the largest block that glibc keeps.
pub const PAGES_MAX: u64 = 8192;
/// Most blocks.
pub const BLOCKS_MAX: usize = 8;

/// Freed blocks, start and length in pages, the last freed one at the end.
#[derive(Debug, Default)]
pub struct FreedBlocks(Vec<(u64, u64)>);

impl FreedBlocks {
    /// Returns the pages of all blocks.
    pub fn pages(&self) -> u64 {
        self.0.iter().map(|(_, len)| len).sum()
    }

    /// Adds a block. Returns the blocks for which there is no room any more, which may be the same one.
    pub fn push(&mut self, start: u64, len: u64) -> Vec<(u64, u64)> {
        if len > PAGES_MAX {
            return vec![(start, len)];
        }
        let mut lost = 0;
        let mut pages = self.pages() + len;
        while pages > PAGES_MAX || self.0.len() - lost >= BLOCKS_MAX {
            pages -= self.0[lost].1;
            lost += 1;
        }
        let lost = self.0.drain(..lost).collect();
        self.0.push((start, len));
        lost
    }

    /// Removes the block of this length that was freed last. Returns its start.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let at = self.0.iter().rposition(|block| block.1 == len)?;
        Some(self.0.remove(at).0)
    }

    /// Removes all blocks.
    pub fn take_all(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.0)
    }
}
