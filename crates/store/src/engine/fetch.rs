//! Pages that are still in a saved disk: a restore that goes on while the store is used.
//!
//! While a restore is in progress, an empty slot means that the page has its contents in the source, where a page that the
//! source does not have reads as zeroes. All other slots mean what they always do. So the slot alone says where the
//! contents are, each change of it is one step under its lock, and a process that dies leaves nothing half done:
//!
//! - a fetch ([`Store::publish_fetched`]) fills a slot only if it is still empty and the restore still in progress;
//! - a write of a whole page fills it without a fetch, and a write of a part reads, and so fetches, first;
//! - a discard makes the page one that repeats the word 0 ([`Store::empty_page`]), and never an empty one.
//!
//! Readers fetch what they need, and store it as far as memory is free ([`Room::Free`]). The owner of the store fetches the
//! rest ([`Store::fetch_ahead`]), and then calls [`Store::end_restore`]. From then on an empty slot reads as zeroes. In memory
//! that outlives the process, the version in the header says whether a restore is in progress; the next process passes
//! the source again. No save runs meanwhile.

use crate::engine::fold::Room;
use crate::engine::save::SavedContents;
use crate::engine::store::Store;
use crate::error::StoreError;
use crate::slot::{Content, Slot};
use pagefold_codec::fill;
use pagefold_page::{Page, PageIndex};
use pagefold_sys::cpu;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The saved pages that a store is restored from. Its pages never change.
pub trait PageSource: Send + Sync {
    /// Passes the contents of a page to `take`, if the source has the page, and those of pages that lie beside it. Holds no
    /// lock while `take` runs, which may wait. A failed fetch may succeed later.
    fn fetch(&self, index: PageIndex, take: &mut TakeFetched) -> io::Result<()>;

    /// The first page in the range that the source has. One of which it cannot find that out counts as there.
    fn next_page(&self, range: Range<PageIndex>) -> Option<PageIndex>;
}

/// A function that takes pages of a source.
pub type TakeFetched<'a> = dyn FnMut(PageIndex, FetchedContents<'_>) + 'a;

/// The contents of a page of a source.
#[derive(Debug, Clone, Copy)]
pub enum FetchedContents<'a> {
    /// In a form that the store has too.
    Saved(SavedContents<'a>),
    /// A page that the store compresses.
    Plain(&'a Page),
}

/// Whether a restore is in progress, and its source.
#[derive(Default)]
pub(crate) struct Unfetched {
    /// Never set again in the life of a store after it was cleared.
    is_restoring: AtomicBool,
    source: RwLock<Option<Arc<dyn PageSource>>>,
}

impl Unfetched {
    /// That of a store whose process has died during a restore. It has no source yet.
    pub(crate) fn recovered(is_restoring: bool) -> Self {
        Unfetched { is_restoring: AtomicBool::new(is_restoring), source: RwLock::default() }
    }

    fn source(&self) -> Option<Arc<dyn PageSource>> {
        self.source.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_source(&self, source: Option<Arc<dyn PageSource>>) {
        let former =
            std::mem::replace(&mut *self.source.write().unwrap_or_else(PoisonError::into_inner), source);
        // Without the lock: it may close files.
        drop(former);
    }
}

impl Store {
    /// Begins a restore: from now on pages that the store does not have are those of `source`. The store is new and empty,
    /// or [recovered](Store::recover) from a process that died during a restore from the same source. Nobody uses it yet.
    ///
    /// A store whose pages are [loaded](Store::load) must not be restored in this way: a load does not fetch.
    pub fn begin_restore(&self, source: Arc<dyn PageSource>) {
        self.unfetched.set_source(Some(source));
        // First in the memory: slots are filled only after both.
        self.pages.kept.iter().for_each(|kept| kept.set_restoring(true));
        self.unfetched.is_restoring.store(true, Ordering::Release);
    }

    /// Ends a restore. The caller has [fetched](Store::fetch_ahead) all pages that the source has.
    pub fn end_restore(&self) {
        // First in the memory: a page that is discarded after this, with an empty slot, must not come back when this
        // process has died.
        self.pages.kept.iter().for_each(|kept| kept.set_restoring(false));
        self.unfetched.is_restoring.store(false, Ordering::Release);
        self.unfetched.set_source(None);
    }

    /// Whether a restore is in progress.
    #[inline]
    pub fn is_restoring(&self) -> bool {
        #[cfg(test)]
        tests::look(self);
        // Acquire: who sees that the restore has ended also sees that in the memory.
        self.unfetched.is_restoring.load(Ordering::Acquire)
    }

    /// Stores a page of the source, and those beside it, unless the page has contents already. At the memory limit it
    /// waits as a write does. Returns whether it had to fetch.
    pub fn fetch_ahead(&self, index: PageIndex) -> Result<bool, StoreError> {
        if !self.is_unfetched(index) {
            return Ok(false);
        }
        let Some(source) = self.unfetched.source() else {
            return if self.is_restoring() { Err(no_source(index)) } else { Ok(false) };
        };
        let mut stored = Ok(false);
        let fetched = source.fetch(index, &mut |at, contents| {
            // Without memory for one, others are not tried: each would wait.
            if stored.is_ok() {
                stored = self.store_fetched(at, contents, Room::Waited);
            }
        });
        fetched.map_err(|e| fetch_failure(index, &e))?;
        stored.map(|_| true)
    }

    /// Whether the contents of a page are still in the source. Takes no lock: they may be fetched at once.
    pub fn is_unfetched(&self, index: PageIndex) -> bool {
        self.is_restoring()
            && self.pages.table.page_count().contains(index)
            && self.pages.table.get(index).is_none_or(Slot::is_empty)
    }

    /// Reads a page whose slot was empty during a restore from the source, and stores it and those beside it as far as
    /// memory is free. Returns false if the restore has ended meanwhile: the caller looks at the slot again.
    #[cold]
    pub(crate) fn fetch_page(
        &self,
        cpu: usize,
        index: PageIndex,
        page: &mut Page,
    ) -> Result<bool, StoreError> {
        let Some(source) = self.unfetched.source() else {
            return if self.is_restoring() { Err(no_source(index)) } else { Ok(false) };
        };
        let mut expanded = None;
        let mut has_room = true;
        let fetched = source.fetch(index, &mut |at, contents| {
            if at == index {
                expanded = Some(self.expand_fetched(cpu, index, contents, page));
            }
            // A page that cannot be stored stays in the source.
            has_room = has_room && self.store_fetched(at, contents, Room::Free).is_ok();
        });
        fetched.map_err(|e| fetch_failure(index, &e))?;
        match expanded {
            None => page.fill(0),
            Some(expanded) => expanded?,
        }
        Ok(true)
    }

    fn expand_fetched(
        &self,
        cpu: usize,
        index: PageIndex,
        contents: FetchedContents<'_>,
        page: &mut Page,
    ) -> Result<(), StoreError> {
        match contents {
            FetchedContents::Plain(plain) | FetchedContents::Saved(SavedContents::Raw(plain)) => {
                page.copy_from_slice(plain);
            }
            FetchedContents::Saved(SavedContents::SameFilled(word)) => fill(page, word),
            FetchedContents::Saved(SavedContents::Lost) => return Err(StoreError::Lost { index }),
            FetchedContents::Saved(SavedContents::Compressed { priority, bytes }) => {
                let is_possible = self.pages.codecs.get(priority).is_some();
                let expanded = is_possible.then(|| self.pages.expand(cpu, priority, bytes, page));
                let expanded = expanded.ok_or_else(|| fetch_failure(index, &malformed()))?;
                expanded.map_err(|source| StoreError::Corrupt { index, source })?;
            }
        }
        Ok(())
    }

    /// Stores a page of the source whose slot is empty. Returns false if it is not.
    fn store_fetched(
        &self,
        index: PageIndex,
        contents: FetchedContents<'_>,
        room: Room,
    ) -> Result<bool, StoreError> {
        if !self.is_unfetched(index) {
            return Ok(false);
        }
        let cpu = cpu::current();
        let slot = self.slot_in(index, room)?;
        let content = match contents {
            FetchedContents::Saved(saved) => self.content_of(index, saved, room)?,
            FetchedContents::Plain(page) => self.fold_in(cpu, index, page, room)?,
        };
        Ok(self.publish_fetched(cpu, index, slot, content))
    }

    /// Puts contents that were fetched into a slot that is still empty. Otherwise, or if the restore has ended, frees them
    /// and returns false.
    fn publish_fetched(&self, cpu: usize, index: PageIndex, slot: &Slot, new: Content) -> bool {
        // No save notes this change, because none runs.
        let guard = slot.lock();
        // Under the lock: a discard of this page that found no restore in progress comes before, and then this finds
        // none either, or after.
        let is_unfetched = guard.content() == Content::Empty && self.is_restoring();
        let freed = if is_unfetched {
            self.exchange(cpu, guard, new)
        } else {
            drop(guard);
            new
        };
        debug_assert!(self.pages.table.page_count().contains(index));
        self.release(freed);
        is_unfetched
    }

    /// Makes a page read as zeroes.
    pub(crate) fn empty_page(&self, cpu: usize, index: PageIndex, slot: &Slot) {
        let guard = self.lock_to_change(index, slot);
        // Under the lock, see `publish_fetched`.
        let new = if self.is_restoring() { Content::SameFilled(0) } else { Content::Empty };
        if guard.content() == new {
            return;
        }
        let old = self.exchange(cpu, guard, new);
        self.release(old);
    }

    /// The source of a restore in progress, for a discard that begins with page `first`.
    #[inline]
    pub(crate) fn source_to_discard(
        &self,
        first: PageIndex,
    ) -> Result<Option<Arc<dyn PageSource>>, StoreError> {
        if !self.is_restoring() {
            return Ok(None);
        }
        match self.unfetched.source() {
            None if self.is_restoring() => Err(no_source(first)),
            source => Ok(source),
        }
    }

    /// Makes the pages of a range read as zeroes that the source has. The restore may have ended meanwhile.
    #[cold]
    pub(crate) fn discard_unfetched(
        &self,
        source: &dyn PageSource,
        cpu: usize,
        range: Range<PageIndex>,
    ) -> Result<(), StoreError> {
        let mut rest = range;
        while let Some(index) = source.next_page(rest.clone()) {
            rest.start = PageIndex(index.0 + 1);
            let slot = self.slot(index)?;
            self.empty_page(cpu, index, slot);
        }
        Ok(())
    }
}

fn fetch_failure(index: PageIndex, e: &io::Error) -> StoreError {
    StoreError::Fetch { index, reason: e.to_string() }
}

fn no_source(index: PageIndex) -> StoreError {
    StoreError::Fetch { index, reason: "the saved disk was not passed on".into() }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its codec is none of the disk")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::engine::config::{MemLimit, StoreConfig};
    use pagefold_page::PAGE_SIZE;
    use std::cell::Cell;

    thread_local! {
        /// Called once, when this thread looks whether a restore is in progress.
        static BEFORE_LOOK: Cell<Option<fn(&Store)>> = const { Cell::new(None) };
    }

    pub(super) fn look(store: &Store) {
        if let Some(run) = BEFORE_LOOK.take() {
            run(store);
        }
    }

    /// Has one page, the first.
    struct OnePage;

    impl PageSource for OnePage {
        fn fetch(&self, index: PageIndex, take: &mut TakeFetched) -> io::Result<()> {
            take(index, FetchedContents::Plain(&[7; PAGE_SIZE]));
            Ok(())
        }

        fn next_page(&self, range: Range<PageIndex>) -> Option<PageIndex> {
            (range.start.0 == 0).then_some(range.start)
        }
    }

    /// The last page is fetched and the restore ends after a thread has seen the slot empty, and before it looks whether a
    /// restore is in progress.
    #[test]
    fn the_end_of_a_restore_makes_no_page_one_of_zeroes() {
        let end: fn(&Store) = |store| {
            assert!(store.fetch_ahead(PageIndex(0)).unwrap());
            store.end_restore();
        };
        let store = || {
            let config = StoreConfig { mem_limit: MemLimit::Off, ..StoreConfig::new(8 * PAGE_SIZE as u64) };
            let store = Store::new(config).unwrap();
            store.begin_restore(Arc::new(OnePage));
            BEFORE_LOOK.set(Some(end));
            store
        };
        for (offset, len) in [(0, PAGE_SIZE), (100, 50)] {
            let (store, mut read) = (store(), vec![1; len]);
            store.read(offset, &mut read).unwrap();
            assert!(read.iter().all(|byte| *byte == 7) && !store.is_restoring());
        }
        // A write of a part looks under the slot's lock.
        for is_write in [true, false] {
            let (store, mut read) = (store(), [1; 16]);
            match is_write {
                true => store.write_zeroes(4, 4).unwrap(),
                false => assert_eq!(store.extent(0, 16).unwrap(), (16, false)),
            }
            store.read(0, &mut read).unwrap();
            let changed = if is_write { [0; 4] } else { [7; 4] };
            assert_eq!((&read[..4], &read[4..8], &read[8..]), (&[7; 4][..], &changed[..], &[7; 8][..]));
        }
        // A discard of the whole page, which the end of the restore must not undo.
        let (store, mut read) = (store(), [1; 16]);
        store.discard(0, PAGE_SIZE as u64).unwrap();
        store.read(0, &mut read).unwrap();
        assert_eq!(read, [0; 16]);
    }
}
