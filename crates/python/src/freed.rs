//! Freed blocks that keep their memory for the next arrays: which ones, without touching them.
//!
//! An expression frees and makes arrays of the same size again and again. A block that is discarded each time costs a
//! fault for each of its pages, more than most operations on them. So a few freed blocks stay resident, as those of the C
//! library do.
//!
//! This file decides nothing about memory that is short: the caller says how many pages may stay, and discards the others.

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

    /// Adds a block, so that all blocks together have at most `pages_max` pages, and [`PAGES_MAX`]. Returns the blocks for
    /// which there is no space any more, the oldest ones, or the same one.
    pub fn push(&mut self, start: u64, len: u64, pages_max: u64) -> Vec<(u64, u64)> {
        let pages_max = pages_max.min(PAGES_MAX);
        if len > pages_max {
            let mut lost = self.shrink(pages_max);
            lost.push((start, len));
            return lost;
        }
        let lost = self.remove_oldest(pages_max - len, BLOCKS_MAX - 1);
        self.0.push((start, len));
        lost
    }

    /// Removes the oldest blocks until at most `pages_max` pages are left. Returns the removed blocks.
    pub fn shrink(&mut self, pages_max: u64) -> Vec<(u64, u64)> {
        self.remove_oldest(pages_max, BLOCKS_MAX)
    }

    fn remove_oldest(&mut self, pages_max: u64, blocks_max: usize) -> Vec<(u64, u64)> {
        let (mut lost, mut pages) = (0, self.pages());
        while pages > pages_max || self.0.len() - lost > blocks_max {
            pages -= self.0[lost].1;
            lost += 1;
        }
        self.0.drain(..lost).collect()
    }

    /// Removes the oldest block.
    pub fn take_oldest(&mut self) -> Option<(u64, u64)> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
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
