//! The layout of a Merkle tree: which of its blocks hold which hashes.
//!
//! Level 0 has the hashes of the data blocks; each further level has those of the blocks of the level below, up to the
//! root, a level of one block. The tree begins with the root, and level 0 comes last. Data of one block or none has no
//! tree.

use super::{BLOCK_BYTES, HASHES_PER_BLOCK};
use std::ops::Range;

/// The levels of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) data_bytes: u64,
    pub(super) data_blocks: u64,
    /// The blocks of each level in the tree, level 0 first.
    pub(super) levels: Vec<Range<u64>>,
}

impl Layout {
    /// The layout of the tree over this many bytes of data.
    pub(super) fn of(data_bytes: u64) -> Self {
        let data_blocks = data_bytes.div_ceil(BLOCK_BYTES as u64);
        let mut counts = Vec::new();
        let mut below = data_blocks;
        while below > 1 {
            below = below.div_ceil(HASHES_PER_BLOCK as u64);
            counts.push(below);
        }
        let mut end = counts.iter().sum();
        let place = |count| {
            let level = end - count..end;
            end = level.start;
            level
        };
        Layout { data_bytes, data_blocks, levels: counts.into_iter().map(place).collect() }
    }

    /// The length of the tree, bytes.
    pub(super) fn tree_bytes(&self) -> u64 {
        self.levels.first().map_or(0, |lowest| lowest.end * BLOCK_BYTES as u64)
    }

    /// The first byte of a data block, and its length: that of the last one may be shorter.
    pub(super) fn data_block(&self, block: u64) -> (u64, usize) {
        let start = block * BLOCK_BYTES as u64;
        (start, self.data_bytes.saturating_sub(start).min(BLOCK_BYTES as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "a level is a range")]
    fn levels_lie_behind_each_other_with_the_root_first() {
        for (data_bytes, levels) in [
            (0, vec![]),
            (1, vec![]),
            (4096, vec![]),
            (4097, vec![0..1]),
            (128 * 4096, vec![0..1]),
            (128 * 4096 + 1, vec![1..3, 0..1]),
            (128 * 128 * 4096, vec![1..129, 0..1]),
            (128 * 128 * 4096 + 1, vec![3..132, 1..3, 0..1]),
        ] {
            let layout = Layout::of(data_bytes);
            assert_eq!(layout.levels, levels, "{data_bytes}");
            assert_eq!(layout.tree_bytes(), levels.first().map_or(0, |level| level.end) * 4096);
        }
        let largest = Layout::of(u64::MAX);
        assert_eq!(largest.levels.len(), 8);
        assert_eq!(largest.levels[7], 0..1);
        assert_eq!(largest.data_block(largest.data_blocks - 1), (u64::MAX - 4095, 4095));
    }
}
