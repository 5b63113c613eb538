//! Reading a page from the file of the region, and dropping pages of a region with a file.

use super::Pager;
use super::page_in::Kind;
use crate::counters::Counter;
use crate::page::PageWord;
use pagefold_page::{Page, PageIndex};

impl Pager {
    /// Returns whether the region has a file with bytes for the page.
    pub(super) fn has_file_page(&self, page: PageIndex) -> bool {
        self.source.as_ref().is_some_and(|source| source.has(page))
    }

    /// Returns whether the region has a file that was changed.
    pub(super) fn is_file_changed(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.is_changed())
    }

    /// Reads a page that this thread is loading from the file, and notes its hash, which tells later whether the page
    /// still equals the file's bytes.
    #[cold]
    pub(super) fn read_file_page(&self, page: PageIndex, to: &mut Page) -> Kind {
        let is_read = self.source.as_ref().is_some_and(|source| source.read(page, to));
        if !is_read {
            self.counters.add(Counter::ReadBackFail, 1);
            return Kind::Failed;
        }
        self.counters.add(Counter::FileReads, 1);
        self.table.set_hash(page, self.hash(to));
        self.word(page).set_file_hash();
        Kind::Bytes
    }

    /// Ends the drop of a taken page: it is zero from now on.
    pub(crate) fn finish_drop(&self, page: PageIndex, word: &PageWord) {
        match self.has_file_page(page) {
            true => word.finish_drop_to_zero(),
            false => word.finish_drop(),
        }
    }
}
