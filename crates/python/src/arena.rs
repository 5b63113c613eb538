//! A region that is divided into blocks: memory for many arrays.
//!
//! Free memory of the range is always zero: a block that is freed is discarded first. It takes no memory, but for a few
//! zero pages behind blocks that are read in order.
//!
//! *Fork.* A forked child has neither the range nor the threads, and may have a copy of a lock that another thread held.
//! The mark of the process is therefore checked before any lock: in a child, [`Arena::take`] refuses, and
//! [`Arena::free`] does nothing with a parent's block.

use crate::blocks::Blocks;
use crate::report::PyRegionStats;
use pagefold_memory::{Region, RegionError};
use pagefold_page::PAGE_SIZE;
use pagefold_sys::forkmark::ForkMark;
use parking_lot::Mutex;
use std::ptr;

/// A region with an allocator of blocks. Threads share it.
pub(crate) struct Arena {
    region: Region,
    blocks: Mutex<Blocks>,
    mark: ForkMark,
    base: usize,
    len_bytes: usize,
}

impl Arena {
    pub(crate) fn new(region: Region) -> Result<Self, RegionError> {
        let (base, len_bytes) = (region.as_ptr().expose_provenance(), region.len_bytes());
        let blocks = Mutex::new(Blocks::new((len_bytes / PAGE_SIZE) as u64));
        Ok(Arena { region, blocks, mark: ForkMark::new()?, base, len_bytes })
    }

    /// Returns whether this process made the arena, rather than being a forked child.
    pub(crate) fn is_same_process(&self) -> bool {
        self.mark.is_same_process()
    }

    /// Returns whether an address lies in the range.
    pub(crate) fn contains(&self, address: *mut u8) -> bool {
        address.addr().wrapping_sub(self.base) < self.len_bytes
    }

    /// Takes a block of zeroes. Returns null if the range has no room for it, or belongs to the parent process.
    pub(crate) fn take(&self, len_bytes: usize) -> *mut u8 {
        if !self.is_same_process() {
            return ptr::null_mut();
        }
        match self.blocks.lock().take(pages(len_bytes)) {
            Some(start) => self.address(start),
            None => ptr::null_mut(),
        }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// No code uses the block's bytes any more.
    pub(crate) unsafe fn free(&self, address: *mut u8) {
        if !self.is_same_process() {
            return;
        }
        let start = self.page(address);
        let Some(len) = self.blocks.lock().remove(start) else { return };
        // SAFETY: the caller's duty; the pages are still taken, so no other block has them.
        unsafe { self.discard(start, len) };
    }

    /// Changes the length of a block, which may move. The bytes that both lengths have stay the same. Returns null, and
    /// changes nothing, if there is no room.
    ///
    /// # Safety
    /// No other thread uses the block meanwhile, and nothing uses the old address afterwards.
    pub(crate) unsafe fn resize(&self, address: *mut u8, len_bytes: usize) -> *mut u8 {
        if !self.is_same_process() {
            return ptr::null_mut();
        }
        let (start, wanted) = (self.page(address), pages(len_bytes));
        let mut blocks = self.blocks.lock();
        let Some(len) = blocks.len_at(start) else { return ptr::null_mut() };
        if wanted < len {
            let lost = blocks.shrink(start, wanted);
            drop(blocks);
            if let Some((start, len)) = lost {
                // SAFETY: the caller's duty; the pages are still taken, so no other block has them.
                unsafe { self.discard(start, len) };
            }
            return address;
        }
        if blocks.grow(start, wanted) {
            return address;
        }
        let Some(new) = blocks.take(wanted) else { return ptr::null_mut() };
        drop(blocks);
        let new = self.address(new);
        // SAFETY: both blocks are taken, do not overlap, and have at least `len` pages; the caller guarantees that no
        // other thread uses the old one, and nobody knows the new one.
        unsafe {
            ptr::copy_nonoverlapping(address, new, len as usize * PAGE_SIZE);
            self.free(address);
        }
        new
    }

    /// Returns the bytes of the block at an address, in whole pages.
    pub(crate) fn len_at(&self, address: *mut u8) -> usize {
        self.blocks.lock().len_at(self.page(address)).unwrap_or(0) as usize * PAGE_SIZE
    }

    pub(crate) fn stats(&self) -> PyRegionStats {
        let (size, count) = {
            let blocks = self.blocks.lock();
            (blocks.used_pages() * PAGE_SIZE as u64, blocks.count() as u64)
        };
        PyRegionStats::new(&self.region.stats(), size, count)
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Drops the contents of pages that are taken and belong to no block, and makes the pages free.
    ///
    /// # Safety
    /// No code uses their bytes.
    unsafe fn discard(&self, start: u64, pages: u64) {
        let from = start as usize * PAGE_SIZE;
        // SAFETY: the caller's duty.
        let discarded = unsafe { self.region.discard_shared(from..from + pages as usize * PAGE_SIZE) };
        // Pages that could not be dropped are not zero, and stay taken.
        if discarded.is_ok() {
            self.blocks.lock().release(start, pages);
        }
    }

    fn address(&self, page: u64) -> *mut u8 {
        self.region.as_ptr().wrapping_add(page as usize * PAGE_SIZE)
    }

    fn page(&self, address: *mut u8) -> u64 {
        ((address.addr() - self.base) / PAGE_SIZE) as u64
    }
}

fn pages(len_bytes: usize) -> u64 {
    len_bytes.div_ceil(PAGE_SIZE).max(1) as u64
}
