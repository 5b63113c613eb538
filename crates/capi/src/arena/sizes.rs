//! The sizes of the blocks on each page of an arena's part, so that freeing a block needs no look into jemalloc's
//! metadata.
//!
//! jemalloc finds the size of a block in a structure of 128 bytes for each slab: for small blocks in random order that
//! is a miss of the CPU's cache each time. All blocks that begin on one page at a time have one size, because a page
//! belongs to one slab or to one large block. So two bytes for each page are enough.

use crate::error::{Code, Error};
use pagefold_page::PAGE_SIZE;
use pagefold_sys::mem::Reservation;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use tikv_jemalloc_sys::nallocx;

/// Sizes are counted in units of the smallest block.
const UNIT_BYTES: usize = 8;
/// The largest size that fits; larger blocks have a zero.
const NOTED_MAX_BYTES: usize = UNIT_BYTES * u16::MAX as usize;

/// The usable size of the blocks that begin on each page. An allocating thread sets it before it returns the block, and
/// it stays the same as long as a block lives there.
pub(crate) struct BlockSizes {
    table: Reservation,
    /// The address of the part.
    start: usize,
    pages: usize,
}

impl BlockSizes {
    /// Makes the table of a part at `start`, which takes memory as the part is used.
    pub(crate) fn new(start: usize, len_bytes: usize) -> Result<Self, Error> {
        let pages = len_bytes.div_ceil(PAGE_SIZE);
        let table = Reservation::new(pages * size_of::<AtomicU16>());
        let table = table.map_err(|error| Error::new(Code::NoMemory, error))?;
        Ok(BlockSizes { table, start, pages })
    }

    #[inline]
    fn units(&self, block: usize) -> &AtomicU16 {
        let page = block.wrapping_sub(self.start) / PAGE_SIZE;
        assert!(page < self.pages);
        // SAFETY: the index is below the count that the reservation was made for (asserted), whose base is aligned to a
        // page; its memory begins as zeroes, is only accessed through this, as atomics, and lives as long as `self`.
        unsafe { &*self.table.base().as_ptr().cast::<AtomicU16>().add(page) }
    }

    /// Notes the usable size of a block.
    #[inline]
    pub(crate) fn set(&self, block: usize, usable: usize) {
        let wanted = if usable <= NOTED_MAX_BYTES { (usable / UNIT_BYTES) as u16 } else { 0 };
        let units = self.units(block);
        // Most often it is there, and threads share the cache line.
        if units.load(Relaxed) != wanted {
            units.store(wanted, Relaxed);
        }
    }

    /// Returns the usable size of a block; `None` if the block is too large for the table.
    #[inline]
    pub(crate) fn get(&self, block: usize) -> Option<usize> {
        match self.units(block).load(Relaxed) {
            0 => None,
            units => Some(usize::from(units) * UNIT_BYTES),
        }
    }
}

/// The largest size whose class is computed here; jemalloc answers for larger ones.
const SMALL_MAX_BYTES: usize = 8 << 10;

/// Returns the usable size of a block that is allocated with these flags: jemalloc's size class. `size` is not zero.
/// The result is 0 if no block can be so large.
#[inline]
pub(crate) fn usable_size(size: usize, flags: c_int) -> usize {
    match size {
        // SAFETY: the size is not zero.
        _ if alignment(flags) > 1 || size > SMALL_MAX_BYTES => unsafe { nallocx(size, flags) },
        ..=8 => 8,
        9..=128 => size.next_multiple_of(16),
        // Four classes from each power of two to the next.
        _ => size.next_multiple_of(1 << ((size - 1).ilog2() - 2)),
    }
}

/// Returns the alignment that flags ask for: jemalloc has its logarithm in their lowest bits.
#[inline]
pub(crate) fn alignment(flags: c_int) -> usize {
    1 << (flags & 0x3f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_jemalloc() {
        for size in 1..=2 * SMALL_MAX_BYTES {
            // SAFETY: the size is not zero.
            assert_eq!(usable_size(size, 0), unsafe { nallocx(size, 0) }, "{size}");
        }
        assert_eq!((alignment(0), alignment(12), usable_size(100, 12)), (1, 4096, 4096));
    }

    #[test]
    fn the_size_of_each_page_is_the_last_that_was_set() {
        let start = 1 << 30;
        let sizes = BlockSizes::new(start, 4 * 4096).unwrap();
        assert_eq!(sizes.get(start), None);
        for (block, usable) in [(start + 64, 64), (start + 4096, 14336), (start + 3 * 4096, NOTED_MAX_BYTES)]
        {
            sizes.set(block, usable);
            assert_eq!(sizes.get(block), Some(usable));
        }
        assert_eq!((sizes.get(start + 4032), sizes.get(start + 8192)), (Some(64), None));
        sizes.set(start + 4096, NOTED_MAX_BYTES + 1);
        assert_eq!(sizes.get(start + 4096), None);
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn a_block_outside_of_the_part_panics() {
        BlockSizes::new(1 << 30, 4096).unwrap().get((1 << 30) + 4096);
    }
}
