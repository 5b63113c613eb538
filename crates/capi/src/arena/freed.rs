//! Large blocks that a thread has freed and keeps for its next ones.
//!
//! jemalloc's cache of a thread has blocks of up to 32 KiB. A larger one goes through jemalloc's trees of free memory,
//! under locks, each time that it is allocated or freed: for a program that does so again and again that costs more
//! than all uses of the block. So each thread keeps a few, as long as memory is not tight.

use std::ffi::c_void;
use std::ptr::null_mut;
use tikv_jemalloc_sys::{MALLOCX_TCACHE_NONE, sdallocx};

/// Larger blocks are not in jemalloc's caches.
pub(crate) const CACHED_MAX_BYTES: usize = 32 << 10;
/// Most bytes of the blocks that a thread keeps for an arena.
const BYTES_MAX: usize = 1 << 20;
const BLOCKS_MAX: usize = 8;

/// Freed blocks with their usable sizes. They lie in the value itself: a thread that frees a block allocates nothing.
pub(crate) struct FreedBlocks {
    blocks: [(*mut c_void, usize); BLOCKS_MAX],
    len: usize,
}

impl Default for FreedBlocks {
    fn default() -> Self {
        FreedBlocks { blocks: [(null_mut(), 0); BLOCKS_MAX], len: 0 }
    }
}

impl FreedBlocks {
    pub(crate) fn one(block: *mut c_void, usable: usize) -> Self {
        let mut one = FreedBlocks { len: 1, ..FreedBlocks::default() };
        one.blocks[0] = (block, usable);
        one
    }

    fn as_slice(&self) -> &[(*mut c_void, usize)] {
        &self.blocks[..self.len]
    }

    fn bytes(&self) -> usize {
        self.as_slice().iter().map(|(_, usable)| usable).sum()
    }

    /// Adds a block. Returns the blocks that are to be released now: those from before if there is no space, or the
    /// block if it is too large.
    pub(crate) fn push(&mut self, block: *mut c_void, usable: usize) -> FreedBlocks {
        if usable > BYTES_MAX {
            return FreedBlocks::one(block, usable);
        }
        let has_room = self.len < BLOCKS_MAX && self.bytes() + usable <= BYTES_MAX;
        let before = if has_room { FreedBlocks::default() } else { std::mem::take(self) };
        self.blocks[self.len] = (block, usable);
        self.len += 1;
        before
    }

    /// Removes the block of this usable size and alignment that came last.
    pub(crate) fn take(&mut self, usable: usize, alignment: usize) -> Option<*mut c_void> {
        let fits = |(block, bytes): &(*mut c_void, usize)| {
            *bytes == usable && block.addr().is_multiple_of(alignment)
        };
        let at = self.as_slice().iter().rposition(fits)?;
        let (block, _) = self.blocks[at];
        self.blocks.copy_within(at + 1..self.len, at);
        self.len -= 1;
        Some(block)
    }

    /// Returns the blocks to jemalloc.
    ///
    /// # Safety
    /// They are blocks of an arena that exists, with their usable sizes, and nobody uses them.
    pub(crate) unsafe fn release(self) {
        for (block, usable) in self.as_slice() {
            // SAFETY: the caller guarantees it.
            unsafe { sdallocx(*block, *usable, MALLOCX_TCACHE_NONE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::without_provenance_mut as at;

    #[test]
    fn the_last_block_of_the_size_and_alignment_is_taken() {
        let mut freed = FreedBlocks::default();
        for (block, usable) in [(0x10_0000, 40 << 10), (0x20_1000, 40 << 10), (0x30_0000, 48 << 10)] {
            assert!(freed.push(at(block), usable).as_slice().is_empty());
        }
        assert_eq!(freed.take(40 << 10, 0x10_0000), Some(at(0x10_0000)));
        assert_eq!(freed.take(40 << 10, 1), Some(at(0x20_1000)));
        assert_eq!((freed.take(40 << 10, 1), freed.bytes()), (None, 48 << 10));
    }

    #[test]
    fn without_room_the_blocks_from_before_are_freed() {
        let mut freed = FreedBlocks::default();
        assert!(freed.push(at(1 << 20), BYTES_MAX).as_slice().is_empty());
        let before = freed.push(at(2 << 20), 64 << 10);
        assert_eq!((before.as_slice(), freed.bytes()), (&[(at(1 << 20), BYTES_MAX)][..], 64 << 10));
        assert_eq!(freed.push(at(9 << 20), BYTES_MAX + 1).as_slice().len(), 1);
        for i in 1..BLOCKS_MAX {
            assert!(freed.push(at(i << 24), 40 << 10).as_slice().is_empty());
        }
        assert_eq!(freed.push(at(8 << 20), 40 << 10).as_slice().len(), BLOCKS_MAX);
        assert_eq!(freed.as_slice(), [(at(8 << 20), 40 << 10)]);
    }
}
