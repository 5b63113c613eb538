//! Which pages of a range are in use: an allocator of blocks of whole pages, which touches no memory.
//!
//! The free pages are [`Runs`]. All operations take time logarithmic in the number of blocks.

use pagefold_page::Runs;
use std::collections::BTreeMap;

/// The blocks of a range. Positions and lengths are in pages.
#[derive(Debug)]
pub struct Blocks {
    free: Runs,
    /// Blocks in use: start and length.
    used: BTreeMap<u64, u64>,
    used_pages: u64,
}

impl Blocks {
    /// Makes the blocks of a range of so many pages; all pages are free.
    pub fn new(pages: u64) -> Self {
        Blocks { free: Runs::new(0, pages), used: BTreeMap::new(), used_pages: 0 }
    }

    /// Returns the pages of all blocks in use, those that were removed and not released included.
    pub fn used_pages(&self) -> u64 {
        self.used_pages
    }

    /// Returns the number of blocks in use.
    pub fn count(&self) -> usize {
        self.used.len()
    }

    /// Returns the length of the block that begins at a page.
    pub fn len_at(&self, start: u64) -> Option<u64> {
        self.used.get(&start).copied()
    }

    /// Takes a block of at least one page. Returns its start, or `None` if no free run is large enough.
    pub fn take(&mut self, pages: u64) -> Option<u64> {
        let pages = pages.max(1);
        let start = self.free.take(pages, 1)?;
        self.used.insert(start, pages);
        self.used_pages += pages;
        Some(start)
    }

    /// Removes the block that begins at a page, and returns its length. Its pages stay taken until they are
    /// [released](Blocks::release), so that the caller can drop their contents without a lock.
    pub fn remove(&mut self, start: u64) -> Option<u64> {
        self.used.remove(&start)
    }

    /// Makes a removed block, whose pages are not released, a block again.
    pub fn take_back(&mut self, start: u64, pages: u64) {
        self.used.insert(start, pages);
    }

    /// Makes pages free that a removed or shortened block had.
    pub fn release(&mut self, start: u64, pages: u64) {
        if pages > 0 {
            self.used_pages -= pages;
            self.free.put(start, pages);
        }
    }

    /// Lengthens a block in place. Returns false, and changes nothing, if the pages after it are not free.
    pub fn grow(&mut self, start: u64, pages: u64) -> bool {
        let Some(len) = self.len_at(start) else { return false };
        let Some(more) = pages.checked_sub(len) else { return false };
        if more > 0 {
            if !self.free.take_at(start + len, more) {
                return false;
            }
            self.used.insert(start, pages);
            self.used_pages += more;
        }
        true
    }

    /// Shortens a block to at least one page. Returns the pages that it loses, as start and length: they stay taken
    /// until they are [released](Blocks::release).
    pub fn shrink(&mut self, start: u64, pages: u64) -> Option<(u64, u64)> {
        let (len, pages) = (self.len_at(start)?, pages.max(1));
        let less = len.checked_sub(pages)?;
        self.used.insert(start, pages);
        Some((start + pages, less))
    }
}
