//! Folding: from a frame of the staging area to the store.
//!
//! An evictor takes the oldest batch of the queue and goes through its frames. If a page still waits in its frame, it
//! is compared by hash with its copy in the store. If they are equal, nothing is written: the copy is the page.
//! Otherwise it is written to the store. If the store refuses the page, the page returns to the range and stays
//! resident. The comparison takes place here because the page can no longer be written: an earlier scan could miss a
//! write.

use super::Evictor;
use super::sweep::drop_old_copy;
use crate::counters::Counter;
use crate::page::{FoldResult, Frame, RefusalResult};
use crate::pager::Pager;
use crate::staging::FrameBatch;
use crate::table::PageHash;
use pagefold_codec::same_filled;
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_store::StoreError;
use std::time::Duration;

/// Memory for the tables of one folded page, bytes: word, hash, slot; its entry in the page table, and its object's
/// part of the pool's lists and page tables.
const TABLE_BYTES: u64 = 4 + 16 + 16 + 8 + 4;
/// Working memory of the region, pages: the pool's reserve, scratches, batches.
const WORKING_PAGES: u64 = 1536;
/// Pause before the next attempt to get memory for a refused page.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(1);
/// Pages examined for copies to drop when the pool is full.
const COPIES_LOOKED_FOR: u64 = 4096;

impl Evictor {
    /// Folds the pages that wait in a batch, and releases the batch. Returns false if the store refused all of them.
    pub(super) fn fold_batch(&mut self, batch: FrameBatch) -> bool {
        let pager = &*self.pager;
        let filled = pager.staging.filled(&batch);
        let mut refused = 0;
        for at in 0..filled {
            refused += usize::from(!fold_frame(pager, &batch, at));
        }
        pager.release(batch);
        refused == 0 || refused < filled
    }
}

/// Folds the page that waits in a frame of a batch, if it is still there. Returns false if the store refused it. No
/// thread uses the frame afterwards.
fn fold_frame(pager: &Pager, batch: &FrameBatch, at: usize) -> bool {
    let (frame, page) = (pager.staging.frame(batch, at), pager.staging.page(batch, at));
    let word = pager.word(page);
    // Repeated if another thread brings the page back: that may fail, and leave the page here.
    while word.begin_fold(frame) {
        let had_copy = word.has_copy();
        // SAFETY: this thread owns the batch, and has just begun to fold the page from its frame.
        let stored = unsafe { store_page(pager, page, frame) };
        if stored == Stored::InStore {
            let is_folded = word.finish_fold(frame, pager.fold_time()) == FoldResult::Folded;
            pager.table.add_copies(i64::from(!is_folded) - i64::from(had_copy));
            if is_folded {
                pager.note_folded(page);
                break;
            }
        } else if stored == Stored::InFile {
            if word.finish_drop_to_file(frame) == FoldResult::Folded {
                pager.table.remove_live(page);
                pager.counters.add(Counter::DroppedToFile, 1);
                break;
            }
        } else if word.refuse_fold(frame) == RefusalResult::BringBack {
            // SAFETY: the refusal has made the page returning from this frame, owned by this thread, which alone read
            // the frame.
            unsafe { pager.bring_back_refused(page, frame) };
            word.finish_refusal();
            pager.wake(page);
            return false;
        }
    }
    true
}

/// Where the bytes of a page are after an attempt to store it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    InStore,
    /// The store refused the page, and the region's file has the same bytes.
    InFile,
    /// The store refused the page.
    Nowhere,
}

/// Stores the page that is in a frame.
///
/// # Safety
/// The caller is folding the page from the frame.
unsafe fn store_page(pager: &Pager, page: PageIndex, frame: Frame) -> Stored {
    // SAFETY: the frame keeps its memory, and no thread writes to it: this thread is folding the page, so a thread
    // that faults on it copies from the frame.
    let bytes = unsafe { &*pager.staging.address(frame).cast::<Page>() };
    store_bytes(pager, page, bytes)
}

/// Stores the bytes of a page that the caller is folding, or owns.
fn store_bytes(pager: &Pager, page: PageIndex, bytes: &Page) -> Stored {
    let fill_word = pager.fill_word(bytes);
    let hash = pager.hash_of(bytes, fill_word);
    let word = pager.word(page);
    if word.has_fold_hash() {
        word.note_rewritten(pager.table.hash(page) != hash);
    }
    if pager.equals_copy(page, hash) {
        pager.counters.add(Counter::CleanPages, 1);
        return Stored::InStore;
    }
    let is_in_file = word.has_file_hash() && pager.table.hash(page) == hash;
    // The file's bytes are as good as a copy of them, for which other pages would have to leave the pool.
    if is_in_file && !pager.limit.accepts(pager.store.in_use_bytes()) {
        return Stored::InFile;
    }
    if !write(pager, page, bytes, fill_word) {
        return if is_in_file { Stored::InFile } else { Stored::Nowhere };
    }
    if !is_in_file {
        word.clear_file_hash();
    }
    pager.table.set_hash(page, hash);
    pager.counters.add(Counter::FoldedPages, 1);
    Stored::InStore
}

/// Writes a page to the store, within the pool's limit. `fill_word` is the word that the page repeats, if it does.
fn write(pager: &Pager, page: PageIndex, bytes: &Page, fill_word: Option<u64>) -> bool {
    if !has_room(pager) {
        pager.counters.add(Counter::RejectReclaimFail, 1);
        return false;
    }
    // With a backing, the store itself waits for room, as long as writeback can make some.
    let written = match fill_word {
        Some(word) => pager.store.write_same_filled(page, word),
        None => pager.store.write(page.0 * PAGE_SIZE as u64, bytes),
    };
    let counter = match written {
        Ok(()) => return true,
        Err(StoreError::NoMemory { .. }) => {
            if pager.limit.set_full() {
                pager.counters.add(Counter::PoolLimitHit, 1);
            }
            Counter::RejectAllocFail
        }
        Err(_) => Counter::RejectCompressFail,
    };
    pager.counters.add(counter, 1);
    false
}

/// Returns whether the pool accepts pages. At its limit, copies of resident pages are dropped first; with a backing,
/// the store itself waits for room.
fn has_room(pager: &Pager) -> bool {
    let accepts = || pager.limit.accepts(pager.store.in_use_bytes());
    if accepts() || pager.store.writeback().is_some() {
        return true;
    }
    if pager.limit.set_full() {
        pager.counters.add(Counter::PoolLimitHit, 1);
    }
    pager.drop_copies();
    accepts()
}

impl Pager {
    /// Stores new contents of a page that the caller owns. Returns false if the store refuses them; then the store has what
    /// it had before.
    pub(crate) fn store_contents(&self, page: PageIndex, contents: &Page) -> bool {
        store_bytes(self, page, contents) == Stored::InStore
    }

    /// Brings back a page that the store refused, within the limit or beyond it. Repeats until the kernel has memory
    /// for the page, because there is no other place for it.
    ///
    /// # Safety
    /// The caller owns the page, which is returning from the frame, and no thread reads the frame.
    unsafe fn bring_back_refused(&self, page: PageIndex, frame: Frame) {
        // SAFETY: the caller guarantees it.
        while !unsafe { self.bring_back(page, frame, false) } {
            self.budget.force_charge(1);
            // SAFETY: the caller guarantees it: the page is still returning.
            if unsafe { self.copy_back_charged(page, frame) } {
                return;
            }
            std::thread::sleep(NO_MEMORY_PAUSE);
        }
    }

    /// Returns the hash that tells whether a page has changed since it was folded: XXH3 with a random seed, so that
    /// nobody can prepare pages with equal hashes. For a page that repeats one word, the hash contains this word.
    pub(crate) fn hash(&self, page: &Page) -> PageHash {
        self.hash_of(page, self.fill_word(page))
    }

    /// Like [`Pager::hash`], for a page whose repeated word is known.
    fn hash_of(&self, page: &Page, fill_word: Option<u64>) -> PageHash {
        PageHash(match fill_word {
            Some(word) => u128::from(word) << 64 | u128::from(self.seed),
            None => twox_hash::XxHash3_128::oneshot_with_seed(self.seed, page),
        })
    }

    /// Returns the word that a page repeats, if it does and same-filled pages are kept as a word.
    fn fill_word(&self, page: &Page) -> Option<u64> {
        if self.checks_same_filled { same_filled(page) } else { None }
    }

    /// Returns whether the hash is that of the store's copy. The caller owns the page, or is folding it.
    pub(super) fn equals_copy(&self, page: PageIndex, hash: PageHash) -> bool {
        self.word(page).has_copy() && self.table.hash(page) == hash
    }

    /// Sets the memory that copies, tables and working memory take from the budget.
    pub(crate) fn count_copies(&self) {
        let (copies, folded) = (self.table.copies(), self.table.folded());
        let page_bytes = self.store.in_use_bytes() / (copies + folded).max(1);
        // Words, hashes and slots of pages in the store; half of the limit at most.
        let tables = ((copies + folded) * TABLE_BYTES / PAGE_SIZE as u64).min(self.budget.limit() / 2);
        let most = self.budget.limit() / 32;
        let working = WORKING_PAGES.min(most) + self.readahead.history_pages().min(most);
        self.budget.set_copy_pages(copies * page_bytes / PAGE_SIZE as u64 + tables + working);
    }

    /// Returns whether copies, tables and working memory take more than three eighths of the limit.
    pub(super) fn has_too_many_copies(&self) -> bool {
        self.budget.copy_pages() > self.budget.limit() * 3 / 8
    }

    /// Drops copies of resident pages, and folded pages that the region's file has too, among the next few pages of the
    /// range.
    fn drop_copies(&self) {
        let count = self.table.page_count().0;
        for _ in 0..COPIES_LOOKED_FOR.min(count) {
            let page = self.next_copy_candidate();
            let word = self.word(page);
            if word.take_folded_in_file() {
                // SAFETY: this thread owns the page, which is taken, and the file has its bytes.
                unsafe { self.drop_copy(page) };
                self.table.add_folded(-1);
                self.counters.add(Counter::DroppedToFile, 1);
                word.finish_drop_folded_in_file();
                self.wake(page);
            } else if word.has_copy() {
                drop_old_copy(self, page);
            }
        }
    }
}
