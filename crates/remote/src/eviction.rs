//! Tracks which 4 KiB parts of a block were read; a block read once from end to end is evicted first.
//!
//! A sequential reader seldom returns to what it has consumed. A block was passed if all its parts were read, and few of them twice: clusters at the border
//! of two reads are decoded twice. A block of which the same parts are read again and again, as those of small files that
//! are compressed together, was not passed.

/// Bytes of a block; the last one of an object may be shorter. Of a cluster at a random place, half a block more than its
/// bytes is loaded before it and after it on average.
pub(crate) const BLOCK_BYTES: u64 = 32 << 10;

/// Bytes of a part.
const PART_BYTES: u64 = 4096;
/// Parts that may be read again: one cluster of the usual length.
const MAX_AGAIN: u32 = 4;

/// The parts of a block that were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReadParts {
    read: u16,
    again: u32,
}

impl ReadParts {
    /// Notes a read of bytes of the block, which are inside it.
    pub(crate) fn note(&mut self, from: u64, len_bytes: u64) {
        if len_bytes == 0 {
            return;
        }
        let parts = mask(from / PART_BYTES, (from + len_bytes).div_ceil(PART_BYTES));
        // A part that a read begins or ends in may belong to the reads before and after it.
        let whole = mask(from.div_ceil(PART_BYTES), (from + len_bytes) / PART_BYTES);
        self.again = self.again.saturating_add((self.read & whole).count_ones());
        self.read |= parts;
    }

    /// Whether the part was read that has byte `at` of the block.
    pub(crate) fn has_read(&self, at: u64) -> bool {
        let part = at / PART_BYTES;
        self.read & mask(part, part + 1) != 0
    }

    /// Whether a reader in order has passed the block, which has `len_bytes`.
    pub(crate) fn is_passed(&self, len_bytes: u64) -> bool {
        let all = mask(0, len_bytes.div_ceil(PART_BYTES));
        self.read & all == all && self.again <= MAX_AGAIN
    }
}

/// A bit for each part from `start` to before `end`.
fn mask(start: u64, end: u64) -> u16 {
    let below = |n: u64| u32::MAX.checked_shr(32 - n.min(BLOCK_BYTES / PART_BYTES) as u32).unwrap_or(0);
    (below(end) & !below(start)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_passed_when_all_of_it_was_read_once() {
        let read = |reads: &[(u64, u64)], len_bytes| {
            let mut parts = ReadParts::default();
            reads.iter().for_each(|(from, len)| parts.note(*from, *len));
            parts.is_passed(len_bytes)
        };
        let pieces: Vec<_> =
            (0..BLOCK_BYTES).step_by(5000).map(|at| (at, 5000.min(BLOCK_BYTES - at))).collect();
        assert!(read(&pieces, BLOCK_BYTES) && !read(&pieces[1..], BLOCK_BYTES));
        assert!(!read(&pieces[..pieces.len() - 2], BLOCK_BYTES) && read(&[(0, BLOCK_BYTES)], BLOCK_BYTES));
        // A cluster that was read twice, and one that was read for each file in it.
        let again = |times: usize| [vec![(0, BLOCK_BYTES)], vec![(16384, 16384); times]].concat();
        assert!(read(&again(1), BLOCK_BYTES) && !read(&again(2), BLOCK_BYTES));
        assert!(!read(&[(0, 16384); 10], BLOCK_BYTES));
        // The last block of an object.
        assert!(read(&[(0, 4097)], 4097) && !read(&[(0, 4096)], 4097) && read(&[], 0));
        assert_eq!((mask(0, 16), mask(0, 0), mask(3, 5), mask(8, 8)), (0xff, 0, 0b11000, 0));
    }
}
