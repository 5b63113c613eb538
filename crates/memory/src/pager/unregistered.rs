//! Parts of the range that the kernel fills by itself, without a fault of ours, in huge pages.
//!
//! A page that is not registered with userfaultfd costs what ordinary memory costs. So whole chunks are unregistered at
//! their first fault, as long as they and all that is resident stay well below the limit: three quarters of it may be
//! unregistered. Such a chunk is charged as if all of it had memory, so the limit holds however fast a program fills
//! it, and nothing has to watch it. When memory becomes short, evictors first register all these chunks again: a scan
//! of the page map tells which pages have memory, those become resident, and the charge for the others is returned.
//!
//! A region with a file has no such chunks: its pages must fault to be read. Neither has a kernel without PAGEMAP_SCAN
//! (before 6.7).
//!
//! A thread that unregisters a chunk charges it, marks it in the table, changes the words of its pages, makes the
//! system call, and marks the chunk as filled by the kernel. A page that is in use (in the store, or in another
//! thread's hands) stops this before the system call. A thread that registers a chunk takes only one that is marked as
//! filled by the kernel, and goes the other way. A fault that meets the word of such a page is repeated until the
//! change is done.

use super::Pager;
use super::kernel_filled::{CHUNK_BYTES, PageBits};
use crate::config::Service;
use crate::error::RangeError;
use crate::table::CHUNK_PAGES;
use pagefold_page::PageIndex;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// The least limit, in chunks, with which chunks are unregistered.
const LIMIT_CHUNKS_MIN: u64 = 2;
/// Most chunks that are unregistered by one fault.
const RUN_MAX: u64 = 16;

fn pages_of(chunk: u64) -> Range<u64> {
    chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES
}

impl Pager {
    /// Unregisters the chunk of a page that was never touched, and some chunks behind it, if there is room. Returns
    /// true if the access is to be retried; otherwise the caller serves the fault.
    pub(super) fn unregister_around(&self, page: PageIndex) -> bool {
        let limit_chunks = self.budget.limit() / CHUNK_PAGES;
        if self.unregistered.pagemap.is_none() || limit_chunks < LIMIT_CHUNKS_MIN {
            return false;
        }
        let first = page.0 / CHUNK_PAGES;
        if self.table.is_unregistered(first) {
            // Another thread is changing it.
            std::thread::yield_now();
            return true;
        }
        let run = (limit_chunks / 64).clamp(1, RUN_MAX);
        let marked =
            (first..first + run).take_while(|chunk| self.mark_unregistered(*chunk, limit_chunks)).count();
        marked > 0 && self.unregister_marked(first, marked as u64)
    }

    /// Charges a chunk, marks it and changes the words of its pages, if all are untouched and there is room. Otherwise
    /// nothing has changed afterwards.
    fn mark_unregistered(&self, chunk: u64, limit_chunks: u64) -> bool {
        let state = &self.unregistered;
        let is_whole = pages_of(chunk).end <= self.table.page_count().0;
        // Three quarters of the limit.
        let has_room = || state.chunks.load(Relaxed) < limit_chunks * 3 / 4;
        if !is_whole || self.table.has_live(chunk) || !has_room() || !self.table.mark_unregistered(chunk) {
            return false;
        }
        state.chunks.fetch_add(1, Relaxed);
        let is_marked = self.budget.charge_spare(CHUNK_PAGES as u32) && {
            let words = pages_of(chunk).map(|page| self.word(PageIndex(page)));
            let changed = words.take_while(|word| word.unregister()).count() as u64;
            let is_all = changed == CHUNK_PAGES;
            if !is_all {
                self.end_unregistered(pages_of(chunk).start..pages_of(chunk).start + changed);
                self.budget.uncharge(CHUNK_PAGES as u32);
            }
            is_all
        };
        if !is_marked {
            state.chunks.fetch_sub(1, Relaxed);
            self.table.unmark_unregistered(chunk, 0);
        }
        is_marked
    }

    /// Makes unregistered pages without memory untouched.
    fn end_unregistered(&self, pages: Range<u64>) {
        for page in pages {
            self.word(PageIndex(page)).register(false);
        }
    }

    /// Unregisters marked chunks. If the kernel refuses, removes their marks and returns false.
    fn unregister_marked(&self, first: u64, chunks: u64) -> bool {
        let (start, len_bytes) = (first as usize * CHUNK_BYTES, chunks as usize * CHUNK_BYTES);
        self.note_resident();
        if self.unregistered.huge_pages {
            self.range.advise_huge_pages(start, len_bytes, true);
        }
        if self.uffd.unregister(self.range.base().as_ptr().addr() + start, len_bytes).is_ok() {
            (first..first + chunks).for_each(|chunk| self.table.mark_kernel_filled(chunk));
            return true;
        }
        // The kernel has no memory, or the process too many mappings.
        for chunk in first..first + chunks {
            self.end_unregistered(pages_of(chunk));
            self.unregistered.chunks.fetch_sub(1, Relaxed);
            self.table.unmark_unregistered(chunk, 0);
            self.budget.uncharge(CHUNK_PAGES as u32);
        }
        false
    }

    /// Registers a chunk that the kernel fills, if there is one. Returns whether it did.
    pub(crate) fn register_next_chunk(&self) -> bool {
        let count = self.table.chunk_count();
        for _ in 0..count {
            if self.unregistered.chunks.load(Relaxed) == 0 {
                return false;
            }
            let chunk = self.unregistered.cursor.fetch_add(1, Relaxed) % count;
            if self.table.is_kernel_filled(chunk) && self.register_chunk(chunk) {
                return true;
            }
        }
        false
    }

    /// Registers the chunk of an unregistered page.
    pub(super) fn register_around(&self, page: PageIndex) {
        if !self.register_chunk(page.0 / CHUNK_PAGES) {
            // Another thread is changing the chunk, or the kernel has no memory at this moment.
            std::thread::yield_now();
        }
    }

    fn register_chunk(&self, chunk: u64) -> bool {
        let _registering = self.unregistered.lock();
        let (offset, first) = (chunk as usize * CHUNK_BYTES, PageIndex(pages_of(chunk).start));
        let register = || self.uffd.register_again(self.address(first), CHUNK_BYTES, true, true);
        if !self.table.is_kernel_filled(chunk) || register().is_err() {
            return false;
        }
        // From here on a page that has no memory gets none without a fault, and such faults wait for the words.
        if self.unregistered.huge_pages {
            self.range.advise_huge_pages(offset, CHUNK_BYTES, false);
        }
        let populated = self.unregistered.populated_pages(self.address(PageIndex(pages_of(chunk).start)));
        let mut resident = 0;
        for (i, page) in pages_of(chunk).enumerate() {
            let is_populated = populated[i / 64] >> (i % 64) & 1 == 1;
            resident += u32::from(self.word(PageIndex(page)).register(is_populated));
        }
        self.table.unmark_unregistered(chunk, resident);
        self.unregistered.chunks.fetch_sub(1, Relaxed);
        self.budget.uncharge(CHUNK_PAGES as u32 - resident);
        if self.service == Service::HandlerThreads {
            // The call fails only for ranges that are not registered.
            let _ = self.uffd.wake(self.address(first), CHUNK_BYTES);
        }
        true
    }

    /// Pins a page of a chunk that the kernel fills, and lets the kernel give it memory. Returns false if the chunk is
    /// not filled by the kernel at this moment, or the page has too many pins.
    ///
    /// The lock keeps the chunk unregistered, so the touch cannot wait for an evictor. Without it, a thread that drops
    /// the chunk could look for pins before this one and drop its memory afterwards.
    pub(super) fn pin_unregistered(&self, page: PageIndex) -> bool {
        let _registering = self.unregistered.lock();
        let is_pinned =
            self.table.is_kernel_filled(page.0 / CHUNK_PAGES) && self.word(page).pin_unregistered();
        if is_pinned {
            self.touch(page);
        }
        is_pinned
    }

    /// Returns the memory of a chunk to the kernel, if the chunk lies in `pages`, begins there, and is filled by the
    /// kernel. Returns the number of its pages, or 0.
    ///
    /// # Safety
    /// As for [`Pager::discard`].
    pub(super) unsafe fn drop_chunk(&self, pages: Range<u64>) -> Result<u64, RangeError> {
        let chunk = pages.start / CHUNK_PAGES;
        if pages_of(chunk).start != pages.start || pages_of(chunk).end > pages.end {
            return Ok(0);
        }
        let _registering = self.unregistered.lock();
        if !self.table.is_kernel_filled(chunk) {
            return Ok(0);
        }
        if let Some(page) = pages_of(chunk).find(|page| self.word(PageIndex(*page)).pins() > 0) {
            return Err(RangeError::Pinned { page });
        }
        // If the kernel refuses, the chunk is registered and its pages are dropped one by one, or not, with an error.
        // SAFETY: the caller guarantees that nobody relies on the contents. A chunk without memory stays charged.
        let dropped = unsafe { self.range.discard(chunk as usize * CHUNK_BYTES, CHUNK_BYTES) };
        Ok(if dropped.is_ok() { CHUNK_PAGES } else { 0 })
    }

    /// Returns the pages that are charged and have no memory, because the kernel has not filled them yet.
    pub(crate) fn charged_without_memory(&self) -> u64 {
        let _registering = self.unregistered.lock();
        let count = self.unregistered.chunks.load(Relaxed) as usize;
        let chunks = (0..self.table.chunk_count()).filter(|chunk| self.table.is_kernel_filled(*chunk));
        let chunks = chunks.take(count);
        let missing = |bits: PageBits| bits.iter().map(|word| u64::from(word.count_zeros())).sum::<u64>();
        chunks
            .map(|chunk| {
                missing(self.unregistered.populated_pages(self.address(PageIndex(pages_of(chunk).start))))
            })
            .sum()
    }
}
