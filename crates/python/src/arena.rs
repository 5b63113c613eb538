//! A region that is divided into blocks: memory for many arrays.
//!
//! Free memory of the range is always zero: a block that is freed is discarded first. It takes no memory, but for a few
//! zero pages after blocks that are read in order. The last freed blocks stay there with their contents, for new blocks
//! of the same length. When memory is short, few of them stay: each block that stays takes the place of other pages, but
//! a discarded one costs a fault for each of its pages when it is taken again.
//!
//! *Fork.* A forked child has neither the range nor the threads, and may have a copy of a lock that another thread held.
//! The mark of the process is therefore checked before any lock: in a child, [`Arena::take`] refuses, and
//! [`Arena::free`] does nothing with a parent's block.

use crate::blocks::Blocks;
use crate::freed::{FreedBlocks, PAGES_MAX};
use crate::parts::{self, Owner};
use crate::report::PyRegionStats;
use pagefold_memory::{RangeError, Region, RegionError};
use pagefold_page::PAGE_SIZE;
use pagefold_sys::forkmark::ForkMark;
use parking_lot::Mutex;
use std::ptr;
use std::sync::Arc;

/// When memory is short, freed blocks of so many parts of the limit stay: 4 MiB of 128.
const TIGHT_PARTS: u64 = 32;

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

impl Owner for Arena {
    fn with_region(
        &self,
        f: &mut dyn FnMut(&Region) -> Result<(), RangeError>,
    ) -> Option<Result<(), RangeError>> {
        self.is_same_process().then(|| f(&self.region))
    }
}

impl Arena {
    pub(crate) fn new(region: Region) -> Result<Arc<Self>, RegionError> {
        let (base, len_bytes) = (region.as_ptr().expose_provenance(), region.len_bytes());
        let blocks = Blocks::new((len_bytes / PAGE_SIZE) as u64);
        let state = Mutex::new(State { blocks, freed: FreedBlocks::default() });
        let arena = Arc::new(Arena { region, state, mark: ForkMark::new()?, base, len_bytes });
        parts::register(base..base + len_bytes, Arc::<Arena>::downgrade(&arena));
        Ok(arena)
    }

    /// Returns whether this process made the arena, rather than being a forked child.
    pub(crate) fn is_same_process(&self) -> bool {
        self.mark.is_same_process()
    }

    /// Returns whether an address lies in the range.
    pub(crate) fn contains(&self, address: *mut u8) -> bool {
        address.addr().wrapping_sub(self.base) < self.len_bytes
    }

    /// Takes a block of any contents. Returns null if the range has no space for it, or belongs to the parent process.
    pub(crate) fn take(&self, len_bytes: usize) -> *mut u8 {
        if !self.is_same_process() {
            return ptr::null_mut();
        }
        self.take_freed(len_bytes).unwrap_or_else(|| self.take_new(len_bytes))
    }

    /// Takes a block of zeroes. Returns null if the range has no space for it, or belongs to the parent process.
    pub(crate) fn take_zeroed(&self, len_bytes: usize) -> *mut u8 {
        if !self.is_same_process() {
            return ptr::null_mut();
        }
        // The kernel's zeroes cost less, in huge pages, while memory is not short.
        let freed = if self.region.is_tight() { self.take_freed(len_bytes) } else { None };
        let Some(address) = freed else { return self.take_new(len_bytes) };
        // SAFETY: the block is taken, has at least so many bytes, and nobody else knows it. This thread holds no lock.
        unsafe { ptr::write_bytes(address, 0, len_bytes) };
        address
    }

    /// Takes a freed block of this length that stayed, with its contents.
    fn take_freed(&self, len_bytes: usize) -> Option<*mut u8> {
        let mut state = self.state.lock();
        let start = state.freed.take(pages(len_bytes))?;
        state.blocks.take_back(start, pages(len_bytes));
        Some(self.address(start))
    }

    /// Takes a block of zeroes whose pages were never used, or discarded.
    fn take_new(&self, len_bytes: usize) -> *mut u8 {
        if self.region.is_tight() {
            // No block that stayed has this length: perhaps none of their lengths is needed any more.
            let (oldest, beyond) = {
                let freed = &mut self.state.lock().freed;
                (freed.take_oldest(), freed.shrink(self.freed_pages_max()))
            };
            self.discard_all(oldest.into_iter().chain(beyond));
        }
        let take = || self.state.lock().blocks.take(pages(len_bytes));
        let start = take().or_else(|| {
            let freed = self.state.lock().freed.take_all();
            self.discard_all(freed);
            take()
        });
        start.map_or(ptr::null_mut(), |start| self.address(start))
    }

    /// Returns how many pages of freed blocks may stay.
    fn freed_pages_max(&self) -> u64 {
        match self.region.is_tight() {
            true => self.region.limit_bytes() / PAGE_SIZE as u64 / TIGHT_PARTS,
            false => PAGES_MAX,
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
        let mut state = self.state.lock();
        let Some(len) = state.blocks.remove(start) else { return };
        let lost = state.freed.push(start, len, self.freed_pages_max());
        drop(state);
        self.discard_all(lost);
    }

    /// Changes the length of a block, which may move. The bytes that both lengths have stay the same. Returns null, and
    /// changes nothing, if there is no space.
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
            // `take` has discarded freed blocks, one of which may have followed this one.
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

    /// Discards blocks that were removed from the freed ones.
    fn discard_all(&self, blocks: impl IntoIterator<Item = (u64, u64)>) {
        for (start, len) in blocks {
            // SAFETY: the blocks were freed, so no code uses their bytes; they are still taken, so no other block has
            // their pages.
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
