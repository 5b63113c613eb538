//! Pinning parts of the range for system calls, and dropping parts of it.

use super::Pager;
use super::serve::{OnLoss, Served};
use crate::config::Service;
use crate::error::RangeError;
use crate::page::{DropClaim, State};
use crate::table::CHUNK_PAGES;
use pagefold_page::{PAGE_SIZE, PageIndex};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed, Ordering::SeqCst, fence};

/// Pages that stay resident until this is dropped.
pub(crate) struct Pinned<'a> {
    pager: &'a Pager,
    pages: Range<u64>,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.pages.clone().for_each(|page| self.pager.word(PageIndex(page)).unpin());
    }
}

/// A mark that a thread protects pages, until this is dropped.
pub(crate) struct Protecting<'a>(&'a Pager);

impl Drop for Protecting<'_> {
    fn drop(&mut self) {
        self.0.protecting.fetch_sub(1, SeqCst);
    }
}

/// Most pages that are dropped together.
const RUN_MAX: usize = 256;

/// Adjacent pages that this thread has taken to drop them: the state of each before, and whether the store has a copy.
struct TakenRun {
    first: u64,
    pages: usize,
    claims: [(State, bool); RUN_MAX],
}

impl TakenRun {
    fn new(first: u64) -> Self {
        TakenRun { first, pages: 0, claims: [(State::Untouched, false); RUN_MAX] }
    }

    /// Empties the run; the next page to take is `first`.
    fn restart(&mut self, first: u64) {
        self.first = first;
        self.pages = 0;
    }
}

impl Pager {
    /// Returns the pages that a range of bytes touches.
    pub(super) fn pages_of(&self, offset: usize, len_bytes: usize) -> Result<Range<u64>, RangeError> {
        let region_len_bytes = self.range.len_bytes();
        let end = offset.checked_add(len_bytes).filter(|end| *end <= region_len_bytes);
        let end = end.ok_or(RangeError::OutOfRange {
            start: offset,
            end: offset.saturating_add(len_bytes),
            region_len_bytes,
        })?;
        let first = (offset / PAGE_SIZE) as u64;
        Ok(first..(end.div_ceil(PAGE_SIZE) as u64).max(first))
    }

    /// Makes pages resident and pins them, if they are at most half of the limit.
    pub(crate) fn pin(&self, offset: usize, len_bytes: usize) -> Result<Pinned<'_>, RangeError> {
        let pages = self.pages_of(offset, len_bytes)?;
        let count = pages.end - pages.start;
        // Half of the limit: other pages that are needed meanwhile take the rest.
        let limit_pages = self.budget.limit() / 2;
        if count > limit_pages {
            return Err(RangeError::OverLimit { pages: count, limit_pages });
        }
        self.pin_pages(pages)
    }

    /// Makes some bytes resident and pins their pages, for a short time and whatever the limit is.
    pub(crate) fn pin_briefly(&self, offset: usize, len_bytes: usize) -> Result<Pinned<'_>, RangeError> {
        self.pin_pages(self.pages_of(offset, len_bytes)?)
    }

    fn pin_pages(&self, pages: Range<u64>) -> Result<Pinned<'_>, RangeError> {
        let mut pinned = Pinned { pager: self, pages: pages.start..pages.start };
        for page in pages {
            self.pin_page(PageIndex(page))?;
            pinned.pages.end = page + 1;
        }
        self.await_unprotected();
        Ok(pinned)
    }

    /// Marks that this thread protects pages, perhaps with others between them, until the result is dropped. The
    /// caller looks for pins afterwards.
    pub(crate) fn begin_protecting(&self) -> Protecting<'_> {
        self.protecting.fetch_add(1, SeqCst);
        fence(SeqCst);
        Protecting(self)
    }

    /// Waits for threads that may have missed a pin that was just made, and protect its page for a moment.
    fn await_unprotected(&self) {
        fence(SeqCst);
        while self.protecting.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    /// Makes a page resident and writable, and pins it.
    fn pin_page(&self, page: PageIndex) -> Result<(), RangeError> {
        let word = self.word(page);
        while !word.pin() {
            if word.pins() >= crate::page::PINS_MAX {
                return Err(RangeError::TooManyPins { page: page.0 });
            }
            if word.is_unregistered() {
                if self.pin_unregistered(page) {
                    return Ok(());
                }
                // Another thread is changing the chunk.
                std::thread::yield_now();
                continue;
            }
            if self.serve(page.0 * PAGE_SIZE as u64, true, OnLoss::Return) == Served::Failed {
                return Err(match self.is_file_changed() {
                    true => RangeError::FileChanged { page: page.0 },
                    false => RangeError::Lost { page: page.0 },
                });
            }
        }
        Ok(())
    }

    /// Reads a byte of a page that the kernel fills, so that the page has memory.
    pub(super) fn touch(&self, page: PageIndex) {
        let byte = self.range.base().as_ptr().wrapping_add(page.0 as usize * PAGE_SIZE);
        // SAFETY: inside the range, which is mapped for as long as `self`. Other threads may write to the byte, so the
        // access is atomic, and its value is not used.
        unsafe { AtomicU8::from_ptr(byte) }.load(Relaxed);
    }

    /// Drops the whole pages in a range of bytes; parts of pages at its ends become zero.
    ///
    /// # Safety
    /// No code relies on the old bytes, and no reference into them is used meanwhile.
    pub(crate) unsafe fn discard(&self, offset: usize, len_bytes: usize) -> Result<(), RangeError> {
        let pages = self.pages_of(offset, len_bytes)?;
        let is_part = |at: usize| !at.is_multiple_of(PAGE_SIZE) && at < self.range.len_bytes();
        let whole_start = pages.start + u64::from(is_part(offset));
        let whole_end = pages.end - u64::from(is_part(offset + len_bytes));
        if whole_end < whole_start {
            // The bytes lie inside one page.
            // SAFETY: the caller guarantees it for these bytes.
            unsafe { self.zero(offset, len_bytes) };
            return Ok(());
        }
        let (head_end, tail_start) = (whole_start as usize * PAGE_SIZE, whole_end as usize * PAGE_SIZE);
        // SAFETY: the caller guarantees it for these bytes.
        unsafe {
            self.zero(offset, head_end.min(offset + len_bytes) - offset);
            self.zero(tail_start.max(offset), (offset + len_bytes).saturating_sub(tail_start.max(offset)));
        }
        let mut page = whole_start;
        while page < whole_end {
            // SAFETY: the caller guarantees it.
            let dropped = unsafe { self.drop_chunk(page..whole_end) }?;
            let end = whole_end.min((page / CHUNK_PAGES + 1) * CHUNK_PAGES);
            if dropped == 0 {
                // SAFETY: the caller guarantees it.
                unsafe { self.drop_pages(page..end) }?;
            }
            page = end;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Pager::discard`]; the bytes lie in the range.
    unsafe fn zero(&self, offset: usize, len_bytes: usize) {
        let start = self.range.base().as_ptr().wrapping_add(offset);
        // SAFETY: inside the range, whose contents here the caller may change. This thread holds no lock of the
        // engine.
        unsafe { start.write_bytes(0, len_bytes) };
    }

    /// Drops pages, adjacent ones together: each system call interrupts all CPUs that run the program.
    ///
    /// # Safety
    /// As for [`Pager::discard`].
    unsafe fn drop_pages(&self, pages: Range<u64>) -> Result<(), RangeError> {
        let mut run = TakenRun::new(pages.start);
        for page in pages {
            while let Some(other) = self.take_to_drop(PageIndex(page), &mut run) {
                // Threads may wait for pages of the run. They must not wait for what this thread waits for.
                // SAFETY: the caller guarantees it; this thread has taken the pages of the run.
                unsafe { self.drop_run(&mut run) }?;
                run.restart(page + 1);
                if self.await_droppable(PageIndex(page), other)? {
                    break;
                }
                run.restart(page);
            }
            if run.pages == RUN_MAX {
                // SAFETY: as above.
                unsafe { self.drop_run(&mut run) }?;
                run.restart(page + 1);
            }
        }
        // SAFETY: as above.
        unsafe { self.drop_run(&mut run) }
    }

    /// Takes a page and adds it to the run. Returns another result of the claim.
    fn take_to_drop(&self, page: PageIndex, run: &mut TakenRun) -> Option<DropClaim> {
        match self.word(page).claim_drop() {
            DropClaim::Taken { was, has_copy } => {
                run.claims[run.pages] = (was, has_copy);
                run.pages += 1;
                None
            }
            other => Some(other),
        }
    }

    /// Waits until a page that could not be taken may be tried again. Returns true if there is nothing to drop.
    fn await_droppable(&self, page: PageIndex, claim: DropClaim) -> Result<bool, RangeError> {
        let word = self.word(page);
        match claim {
            DropClaim::Nothing => return Ok(!self.has_file_page(page) || word.zero_untouched()),
            DropClaim::Unregistered => self.register_around(page),
            DropClaim::Pinned => return Err(RangeError::Pinned { page: page.0 }),
            DropClaim::Busy(seen) => word.wait(seen),
            DropClaim::Taken { .. } => {}
        }
        Ok(false)
    }

    /// Drops the pages of a run. If the kernel refuses to release their memory, those that have any stay, with an error.
    ///
    /// # Safety
    /// As for [`Pager::discard`]; the caller owns the pages of the run, which are taken.
    unsafe fn drop_run(&self, run: &mut TakenRun) -> Result<(), RangeError> {
        let claims = &run.claims[..run.pages];
        // A folded page may have been poisoned: dropping removes the poison as it removes memory.
        let is_poisonable = self.service == Service::HandlerThreads;
        let has_memory = |was: State| was == State::Resident || is_poisonable && was == State::Folded;
        let has_memory = claims.iter().any(|(was, _)| has_memory(*was));
        let (offset, len_bytes) = (run.first as usize * PAGE_SIZE, run.pages * PAGE_SIZE);
        let released_bytes = if has_memory {
            // SAFETY: the contents may be lost.
            unsafe { self.range.discard_until_refused(offset, len_bytes) }
        } else {
            len_bytes
        };
        let end = run.first + (released_bytes / PAGE_SIZE) as u64;
        let (mut released, mut unreleased) = (0, None);
        for (page, (was, has_copy)) in (run.first..).map(PageIndex).zip(claims) {
            if *was == State::Resident {
                if page.0 >= end {
                    self.word(page).put_back();
                    unreleased = Some(page.0);
                    continue;
                }
                released += 1;
            }
            // SAFETY: the caller guarantees it.
            unsafe { self.drop_taken(page, *was, *has_copy) };
        }
        self.budget.uncharge(released);
        if run.pages > 0 && self.service == Service::HandlerThreads {
            // The call fails only for ranges that are not registered.
            let _ = self.uffd.wake(self.address(PageIndex(run.first)), run.pages * PAGE_SIZE);
        }
        unreleased.map_or(Ok(()), |page| Err(RangeError::NotReleased { page }))
    }

    /// Ends the drop of a taken page whose memory has been released.
    ///
    /// # Safety
    /// As for [`Pager::discard`]; the caller owns the page, which is taken.
    unsafe fn drop_taken(&self, page: PageIndex, was: State, has_copy: bool) {
        // The frame of a staged page becomes free when an evictor folds its batch.
        if has_copy {
            // SAFETY: the caller owns the page, which is taken, and its contents may be lost.
            unsafe { self.drop_copy(page) };
            self.table.add_copies(if was == State::Folded { 0 } else { -1 });
        }
        match was {
            State::Folded => self.table.add_folded(-1),
            _ => self.table.remove_live(page),
        }
        self.finish_drop(page, self.word(page));
    }

    /// Drops the store's copy of a page.
    ///
    /// # Safety
    /// The caller owns the page, which is taken, and its bytes are elsewhere or no code relies on them.
    pub(crate) unsafe fn drop_copy(&self, page: PageIndex) {
        // The call fails only for pages outside the store.
        let _ = self.store.discard(page.0 * PAGE_SIZE as u64, PAGE_SIZE as u64);
    }
}
