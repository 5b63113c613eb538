//! A save: the contents of a store at one moment, page by page, while writes go on.
//!
//! [`Store::begin_save`] sets the moment. [`Save::step`] then passes pages on, first those that writers have captured
//! because they change (`capture`), then the next ones in order. A page is read in the form that it has, so nothing is
//! decompressed, and pages on the backing stay there. A write that is in flight at the moment may be in the save or not;
//! one that returned before is.

use crate::engine::capture::{Capture, CapturedPage, Form, FormCopy};
use crate::engine::changes::{Moment, SaveDigest, next_changed};
use crate::engine::store::Store;
use crate::error::{SaveError, StoreError};
use crate::writeback::Reader;
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_sys::cpu;
use std::sync::Arc;

/// Slots that a step passes at most: captured pages do not wait longer.
const STEP_SLOTS: u32 = 64;
/// Slots ahead of the save whose objects are prefetched.
const PREFETCH_SLOTS: u64 = 8;

/// The contents of a page in a save. A full save leaves out pages that read as zeroes; an incremental one has them as
/// [`SameFilled`](SavedContents::SameFilled) with 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavedContents<'a> {
    /// Compressed bytes, made by the codec of this priority.
    Compressed {
        /// The priority of the codec.
        priority: u8,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The page itself.
    Raw(&'a Page),
    /// The page repeats this word, in memory order.
    SameFilled(u64),
    /// The contents are lost; reading the page is an error.
    Lost,
}

/// A function that takes the pages of a save.
pub type TakePage<'a> = dyn FnMut(PageIndex, SavedContents<'_>) -> std::io::Result<()> + 'a;

/// A save that runs. Dropping it ends it.
pub struct Save<'a> {
    store: &'a Store,
    capture: Arc<Capture>,
    /// Of a tracked save, with its digest when it is complete.
    moment: Option<(Moment, Option<SaveDigest>)>,
    /// Where the next page is copied to.
    page: Box<Page>,
}

/// Whether a save was given up, for the threads that write it, and the way to give it up from other threads.
#[derive(Clone)]
pub struct SaveWatch(Arc<Capture>);

impl SaveWatch {
    /// Whether a write to the store has waited too long, and given the save up. The next step fails.
    pub fn is_given_up(&self) -> bool {
        self.0.is_stalled()
    }

    /// Gives the save up: writes to the store go on at once, and the next step fails.
    pub fn give_up(&self) {
        self.0.end();
    }
}

impl Store {
    /// Begins a save of the contents at this moment. Fails if one runs, or if a restore is in progress.
    ///
    /// While it exists, writes copy what they replace, and may wait for [`Save::step`]. A store whose pages are loaded in
    /// signal handlers must not be saved.
    pub fn begin_save(&self) -> Result<Save<'_>, SaveError> {
        self.begin(None)
    }

    /// The same for a save after which an incremental one can follow: from this moment on, the store notes which pages
    /// change. If `since` is the digest of the last tracked save that is [complete](Save::complete), this save is
    /// incremental: it has only the pages that have changed since then.
    pub fn begin_tracked_save(&self, since: Option<SaveDigest>) -> Result<Save<'_>, SaveError> {
        self.begin(Some(since))
    }

    fn begin(&self, tracked: Option<Option<SaveDigest>>) -> Result<Save<'_>, SaveError> {
        if self.is_restoring() {
            return Err(SaveError::Restoring);
        }
        let page_count = self.pages.table.page_count().0;
        let (capture, moment) = self.saving.begin(page_count, self.has_reserve(), tracked)?;
        let moment = moment.map(|moment| (moment, None));
        Ok(Save { store: self, capture, moment, page: Box::new([0; PAGE_SIZE]) })
    }
}

impl Save<'_> {
    /// Passes some pages to `take`, each once. Returns false if there are no more.
    ///
    /// An error ends the save; the caller drops it.
    pub fn step(&mut self, take: &mut TakePage) -> Result<bool, SaveError> {
        let page_count = self.store.pages.table.page_count();
        for _ in 0..STEP_SLOTS {
            self.take_captured(take)?;
            let reached = self.capture.reached();
            let index = self.next_page(reached);
            if index != reached {
                self.capture.reach(index);
            }
            if !page_count.contains(index) {
                return Ok(self.capture.wait_for_writers());
            }
            self.take_page(index, take)?;
        }
        Ok(true)
    }

    /// Passes to `take` the pages that writers have captured, which otherwise wait for room: for a caller that pauses between
    /// steps.
    pub fn take_captured(&mut self, take: &mut TakePage) -> Result<(), SaveError> {
        while let Some(CapturedPage { index, form, buffer }) = self.capture.next() {
            let taken = self.pass_on(index, form, &buffer, take);
            self.capture.recycle(buffer);
            taken?;
        }
        match () {
            // The contents of pages that it has not come to may be newer.
            () if self.capture.is_stalled() => Err(SaveError::Stalled),
            () if self.capture.is_over() => Err(SaveError::GivenUp),
            () => Ok(()),
        }
    }

    /// The next page that the save has to come to, or one that is not in the store.
    fn next_page(&self, reached: PageIndex) -> PageIndex {
        let table = &self.store.pages.table;
        match self.capture.selected() {
            None => table.next_allocated(reached, table.page_count().0),
            Some(selected) => {
                next_changed(selected, table, reached).unwrap_or(PageIndex(table.page_count().0))
            }
        }
    }

    /// Whether the save has only the pages that have changed since the last one.
    pub fn is_incremental(&self) -> bool {
        self.capture.selected().is_some()
    }

    /// Lets writers go on without the save, which has all pages or has failed.
    pub fn end_capture(&self) {
        self.capture.end();
    }

    /// Ends a tracked save whose pages are all written, in a file of this digest: the next one may go on from it. If a
    /// tracked save is dropped without this, the next one has its pages too.
    pub fn complete(mut self, digest: SaveDigest) {
        if let Some((_, completed)) = &mut self.moment {
            *completed = Some(digest);
        }
    }

    /// A watch for the function that takes pages: it may block for long.
    pub fn watch(&self) -> SaveWatch {
        SaveWatch(self.capture.clone())
    }

    /// How many pages were passed or left out so far, and how many there are.
    pub fn progress(&self) -> (u64, u64) {
        (self.capture.reached().0, self.store.pages.table.page_count().0)
    }

    /// Takes the page that the save comes to next, unless a writer has captured it.
    fn take_page(&mut self, index: PageIndex, take: &mut TakePage) -> Result<(), SaveError> {
        let Save { store, capture, page, .. } = self;
        let after = PageIndex(index.0 + 1);
        let Some(slot) = store.pages.table.get(index) else {
            capture.reach(after);
            return Ok(());
        };
        store.prefetch_object(PageIndex(index.0 + PREFETCH_SLOTS));
        let mut reader = Reader::default();
        reader.cpu = cpu::current();
        let form = loop {
            match store.copy_form(&mut reader, index, slot, page, || capture.is_captured(index)) {
                // A writer has queued it, or will.
                FormCopy::NotNeeded => break None,
                FormCopy::Changed => {}
                FormCopy::Copied(guard, form) => {
                    // Under the lock: a writer that comes next need not capture it.
                    capture.reach(after);
                    drop(guard);
                    break Some(form);
                }
            }
        };
        capture.reach(after);
        if let Some(writeback) = &store.writeback {
            writeback.end_reader(reader);
        }
        form.map_or(Ok(()), |form| self.pass_on(index, form, &self.page, take))
    }

    /// Passes contents on whose bytes are in `buffer`.
    fn pass_on(
        &self,
        index: PageIndex,
        form: Result<Form, StoreError>,
        buffer: &Page,
        take: &mut TakePage,
    ) -> Result<(), SaveError> {
        let contents = match form.map_err(SaveError::Page)? {
            Form::Zeroes if !self.is_incremental() => return Ok(()),
            // In the save before, the page may have other contents.
            Form::Zeroes => SavedContents::SameFilled(0),
            Form::SameFilled(word) => SavedContents::SameFilled(word),
            Form::Bytes(PAGE_SIZE, _) => SavedContents::Raw(buffer),
            Form::Bytes(len, priority) => SavedContents::Compressed { priority, bytes: &buffer[..len] },
            Form::Lost => SavedContents::Lost,
        };
        take(index, contents).map_err(SaveError::Target)
    }
}

impl Drop for Save<'_> {
    fn drop(&mut self) {
        self.store.saving.end(self.moment.take(), self.store);
    }
}
