//! Advice of the program: its effect on the pages that a fault brings in, and bringing pages in beforehand.

use super::Pager;
use super::serve::{OnLoss, Served};
use crate::advice::{Access, Advice};
use crate::error::RangeError;
use crate::readahead::{WINDOW_MAX, Window};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_sys::signal;
use std::ops::Range;

impl Pager {
    /// Takes advice for the pages that a range of bytes touches.
    pub(crate) fn advise(&self, offset: usize, len_bytes: usize, advice: Advice) -> Result<(), RangeError> {
        let pages = self.pages_of(offset, len_bytes)?;
        match advice {
            Advice::Normal => self.access.set(pages, Access::Normal),
            Advice::Sequential => self.access.set(pages, Access::Sequential),
            Advice::Random => self.access.set(pages, Access::Random),
            Advice::WillNeed => self.bring_in_stored(pages),
        }
        Ok(())
    }

    /// Records a fault at an offset, in bytes, and returns the pages to bring in. `is_stored` says whether the page has
    /// contents.
    #[inline]
    pub(super) fn window(&self, offset: u64, is_stored: bool) -> Window {
        if self.access.is_automatic() {
            return self.readahead.record_fault(offset, is_stored);
        }
        self.advised_window(offset, is_stored)
    }

    #[cold]
    fn advised_window(&self, offset: u64, is_stored: bool) -> Window {
        let page = PageIndex(offset / PAGE_SIZE as u64);
        match self.access.get(page) {
            Access::Sequential => self.readahead.record_sequential(page),
            Access::Normal if self.neighbours => self.readahead.record_fault(offset, is_stored),
            Access::Normal | Access::Random => Window::SINGLE,
        }
    }

    /// Brings in pages that the store or the file has, up to half of the limit: more would evict each other.
    fn bring_in_stored(&self, pages: Range<u64>) {
        let end = pages.end.min(pages.start.saturating_add(self.budget.limit() / 2));
        for page in pages.start..end {
            let (page, word) = (PageIndex(page), self.word(PageIndex(page)));
            if !(word.is_folded() || word.is_untouched() && self.has_file_page(page)) {
                continue;
            }
            // A handler of another signal that touches the range must not interrupt this thread inside the engine.
            let _masked = signal::mask_asynchronous();
            let Some(claim) = word.claim_readahead() else { continue };
            let pages = (end - page.0).min(WINDOW_MAX as u64);
            let window = Window::Strided { pages, stride: 1 };
            // SAFETY: the claim has made the page loading, owned by this thread.
            let served = unsafe { self.page_in_advised(page, claim, window) };
            if served == Served::Failed {
                // The fault of an access will report it.
                // SAFETY: after a failure the page is still loading, owned by this thread.
                unsafe { self.give_up(page, OnLoss::Return) };
            }
            // Otherwise the clock hand could take the pages before the program uses them.
            (page.0..page.0 + pages).for_each(|page| self.word(PageIndex(page)).spare());
            self.budget.wake_evictors_if_low(self.ready_frames());
        }
    }
}
