//! Which pages have changed since the last tracked save: a bit for each.
//!
//! The first tracked save begins the list; before that there is none, and writers pay nothing. Each tracked save takes the
//! list and leaves an empty one at its moment, under the lock under which writers add to it. If the save fails, the pages
//! are added to the new list. A page that was written without a change, or whose write failed, may be in the list.
//!
//! The list is not kept over the death of the process: slots have no bit for it, and the next tracked save has all pages
//! then. So a save is known by its digest, which the caller compares with that of the file that it goes on from.

use crate::pages::SlotTable;
use pagefold_page::PageIndex;
use pagefold_sys::lazybits::LazyBits;
use std::sync::Arc;

/// Pages of a word of the list.
const WORD_PAGES: u64 = u64::BITS as u64;

/// The digest by which a complete save is known.
pub type SaveDigest = [u8; 32];

/// The pages that have changed since the last tracked save.
pub(crate) struct Changes {
    pages: Arc<LazyBits>,
    /// The last tracked save that is complete.
    since: Option<SaveDigest>,
}

/// The changes that a tracked save has taken.
pub(crate) struct Moment {
    /// `None`: there was no list before.
    taken: Option<Arc<LazyBits>>,
    is_incremental: bool,
}

impl Changes {
    /// The list.
    pub(crate) fn pages(&self) -> Arc<LazyBits> {
        self.pages.clone()
    }

    /// Adds a page.
    pub(crate) fn add(&self, index: PageIndex) {
        if !self.pages.contains(index.0) {
            self.pages.insert(index.0);
        }
    }

    /// Takes the list for a save, and leaves the empty one `fresh`. The save has the pages in the list only if that
    /// begins with the save of the digest `since`.
    pub(crate) fn begin_save(
        changes: &mut Option<Changes>,
        fresh: LazyBits,
        since: Option<SaveDigest>,
    ) -> Moment {
        let last = changes.as_ref().and_then(|changes| changes.since);
        let new = Changes { pages: Arc::new(fresh), since: last };
        let taken = changes.replace(new).map(|changes| changes.pages);
        Moment { taken, is_incremental: since.is_some() && since == last }
    }

    /// Notes the end of a save: its digest if it is complete. Returns a list that is no longer needed.
    pub(crate) fn end_save(changes: &mut Option<Changes>, digest: Option<SaveDigest>) -> Option<Changes> {
        if let Some(changes) = changes
            && digest.is_some()
        {
            changes.since = digest;
        }
        changes.take_if(|changes| changes.since.is_none())
    }
}

impl Moment {
    /// The pages that the save has; `None`: all.
    pub(crate) fn selected(&self) -> Option<Arc<LazyBits>> {
        self.taken.clone().filter(|_| self.is_incremental)
    }

    /// Adds the pages to those that have changed since the moment, because the save has failed.
    pub(crate) fn merge_into(&self, since_moment: &LazyBits, table: &SlotTable) {
        let Some(taken) = &self.taken else { return };
        let mut index = PageIndex(0);
        while let Some(next) = next_changed(taken, table, index) {
            let first = next.0 - next.0 % WORD_PAGES;
            since_moment.insert_word(first, taken.word(first));
            index = PageIndex(first + WORD_PAGES);
        }
    }
}

/// The first page at or after `index` in the list. A page that never had a slot is in none.
pub(crate) fn next_changed(list: &LazyBits, table: &SlotTable, index: PageIndex) -> Option<PageIndex> {
    let page_count = table.page_count();
    let mut index = index;
    loop {
        index = table.next_allocated(index, page_count.0);
        if !page_count.contains(index) {
            return None;
        }
        let first = index.0 - index.0 % WORD_PAGES;
        let rest = list.word(first) & u64::MAX << (index.0 - first);
        if rest != 0 {
            return Some(PageIndex(first + u64::from(rest.trailing_zeros())));
        }
        index = PageIndex(first + WORD_PAGES);
    }
}
