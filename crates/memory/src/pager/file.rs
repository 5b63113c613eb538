//! Reading pages from the file of the region, and dropping pages of a region with a file.

use super::Pager;
use super::claims::PageContents;
use super::page_in::Memory;
use super::scratch::Scratch;
use crate::counters::Counter;
use crate::page::{FaultClaim, PageWord};
use crate::readahead::WINDOW_MAX;
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

    /// Reads pages that this thread is loading from the file, from `first` on, and notes their hashes, which tell later
    /// whether a page still equals the file's bytes. If one of them cannot be read, returns false and has read nothing.
    #[cold]
    pub(super) fn read_file_pages(&self, first: PageIndex, to: &mut [Page]) -> bool {
        if !self.source.as_ref().is_some_and(|source| source.read(first, to)) {
            return false;
        }
        self.counters.add(Counter::FileReads, to.len() as u64);
        self.counters.add(Counter::FileReadCalls, 1);
        for (page, bytes) in (first.0..).map(PageIndex).zip(to) {
            let word = self.word(page);
            self.counters.add(Counter::FileRereads, word.has_file_hash().into());
            self.table.set_hash(page, self.hash(bytes));
            word.set_file_hash();
        }
        true
    }

    /// Like [`Pager::read_file_pages`], for one page.
    #[cold]
    pub(super) fn read_file_page(&self, page: PageIndex, to: &mut Page) -> PageContents {
        match self.read_file_pages(page, std::slice::from_mut(to)) {
            true => PageContents::Bytes,
            false => {
                self.counters.add(Counter::ReadBackFail, 1);
                PageContents::Failed
            }
        }
    }

    /// Reads adjacent pages of the file by one system call, where there are several. Returns a bit for each page that
    /// it read, whose kind it has set. The caller reads the others one by one: after a failure, that tells which pages
    /// cannot be read.
    #[inline]
    pub(super) fn read_file_runs(
        &self,
        claims: &[(PageIndex, FaultClaim)],
        memory: &Memory,
        scratch: &mut Scratch,
        kinds: &mut [PageContents; WINDOW_MAX],
    ) -> u64 {
        let mut read = 0;
        let mut at = 0;
        while self.source.is_some() && at < claims.len() {
            let run = at..at + self.file_run(&claims[at..]);
            at = run.end.max(at + 1);
            let to = self.memory_of(memory, &mut scratch.pages, run.clone());
            if run.len() > 1 && self.read_file_pages(claims[run.start].0, to) {
                kinds[run.clone()].fill(PageContents::Bytes);
                run.for_each(|i| read |= 1 << i);
            }
        }
        read
    }

    /// Returns how many of the claims, from the first on, are adjacent pages that have the file's bytes.
    fn file_run(&self, claims: &[(PageIndex, FaultClaim)]) -> usize {
        let is_next = |(at, (page, claim)): &(usize, &(PageIndex, FaultClaim))| {
            *claim == FaultClaim::Zero && page.0 == claims[0].0.0 + *at as u64 && self.has_file_page(*page)
        };
        claims.iter().enumerate().take_while(is_next).count()
    }

    /// Ends the drop of a taken page: it is zero from now on.
    pub(crate) fn finish_drop(&self, page: PageIndex, word: &PageWord) {
        match self.has_file_page(page) {
            true => word.finish_drop_to_zero(),
            false => word.finish_drop(),
        }
    }
}
