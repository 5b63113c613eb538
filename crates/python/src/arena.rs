//! A region that is divided into blocks: memory for many arrays.
//!
//! Free memory of the range is always zero: a block that is freed is discarded first. It takes no memory, but for a few
//! zero pages behind blocks that are read in order. As long as memory is not short, the last freed blocks stay there with
//! their contents for new blocks of the same length that need not be zero.
//!
//! *Fork.* A forked child has neither the range nor the threads, and may have a copy of a lock that another thread held.
//! The mark of the process is therefore checked before any lock: in a child, [`Arena::take`] refuses, and
//! [`Arena::free`] does nothing with a parent's block.

use crate::blocks::Blocks;
use crate::freed::FreedBlocks;
use crate::report::PyRegionStats;
use pagefold_memory::{Region, RegionError};
use pagefold_page::PAGE_SIZE;
use pagefold_sys::forkmark::ForkMark;
use parking_lot::Mutex;
use std::ptr;

/// A region with an allocator of blocks. Threads share it.
pub(crate) struct Arena {
    region: Region,
    state: Mutex<State>,
    mark: ForkMark,
    base: usize,
    len_bytes: usize,
}

/// Where blocks are. Freed blocks that stay resident are taken and belong to nobody.
struct State {
    blocks: Blocks,
    freed: FreedBlocks,
}

impl Arena {
    pub(crate) fn new(region: Region) -> Result<Self, RegionError> {
        let (base, len_bytes) = (region.as_ptr().expose_provenance(), region.len_bytes());
        let blocks = Blocks::new((len_bytes / PAGE_SIZE) as u64);
        let state = Mutex::new(State { blocks, freed: FreedBlocks::default() });
        Ok(Arena { region, state, mark: ForkMark::new()?, base, len_bytes })
    }

    /// Returns whether this process made the arena, rather than being a forked child.
    pub(crate) fn is_same_process(&self) -> bool {
        self.mark.is_same_process()
    }

    /// Returns whether an address lies in the range.
    pub(crate) fn contains(&self, address: *mut u8) -> bool {
        address.addr().wrapping_sub(self.base) < self.len_bytes
    }

    /// Takes a block of any contents. Returns null if the range has no room for it, or belongs to the parent process.
    pub(crate) fn take(&self, len_bytes: usize) -> *mut u8 {
        if !self.is_same_process() {
            return ptr::null_mut();
        }
        if !self.region.is_tight() {
            let mut state = self.state.lock();
            if let Some(start) = state.freed.take(pages(len_bytes)) {
                state.blocks.take_back(start, pages(len_bytes));
                return self.address(start);
            }
        }
        self.take_zeroed(len_bytes)
    }

    /// Takes a block of zeroes. Returns null if the range has no room for it, or belongs to the parent process.
    pub(crate) fn take_zeroed(&self, len_bytes: usize) -> *mut u8 {
        if !self.is_same_process() {
            return ptr::null_mut();
        }
        if self.region.is_tight() {
            self.discard_freed();
        }
        let take = || self.state.lock().blocks.take(pages(len_bytes));
        let start = take().or_else(|| {
            self.discard_freed();
            take()
        });
        start.map_or(ptr::null_mut(), |start| self.address(start))
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
        let mut state = self.state.lock();
        let Some(len) = state.blocks.remove(start) else { return };
        let mut lost = state.freed.push(start, len);
        // Soon all of it would be compressed for nothing.
        if self.region.is_tight() {
            lost.extend(state.freed.take_all());
        }
        drop(state);
        for (start, len) in lost {
            // SAFETY: the caller's duty; the pages are still taken, so no other block has them.
            unsafe { self.discard(start, len) };
        }
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
        let mut state = self.state.lock();
        let blocks = &mut state.blocks;
        let Some(len) = blocks.len_at(start) else { return ptr::null_mut() };
        if wanted < len {
            let lost = blocks.shrink(start, wanted);
            drop(state);
            if let Some((start, len)) = lost {
                // SAFETY: the caller's duty; the pages are still taken, so no other block has them.
                unsafe { self.discard(start, len) };
            }
            return address;
        }
        if blocks.grow(start, wanted) {
            return address;
        }
        drop(state);
        let new = self.take(len_bytes);
        if new.is_null() {
            // `take` has discarded freed blocks, one of which may have been behind this one.
            let has_grown = self.state.lock().blocks.grow(start, wanted);
            return if has_grown { address } else { new };
        }
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
        self.state.lock().blocks.len_at(self.page(address)).unwrap_or(0) as usize * PAGE_SIZE
    }

    pub(crate) fn stats(&self) -> PyRegionStats {
        let (size, count) = {
            let state = self.state.lock();
            let pages = state.blocks.used_pages() - state.freed.pages();
            (pages * PAGE_SIZE as u64, state.blocks.count() as u64)
        };
        PyRegionStats::new(&self.region.stats(), size, count)
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Discards the freed blocks that stay resident.
    fn discard_freed(&self) {
        let freed = self.state.lock().freed.take_all();
        for (start, len) in freed {
            // SAFETY: the blocks were freed, so no code uses their bytes.
            unsafe { self.discard(start, len) };
        }
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
            self.state.lock().blocks.release(start, pages);
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
