//! From a frame to the store.
//!
//! The oldest tray of the queue is gone through, frame by frame. A page that still waits is compared with its copy
//! in the store, by its hash, and dropped if they are equal; else it is written to the store. If the store refuses
//! it, it is brought back and stays resident. Only here is it known what the page was: a scan before it was moved
//! out could have missed a write.

use super::Evictor;
use super::sweep::drop_old_copy;
use crate::counters::Counter;
use crate::page::{Folded, Frame, Refused};
use crate::pager::Pager;
use crate::staging::Tray;
use crate::table::PageHash;
use pagefold_codec::same_filled;
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_store::StoreError;
use std::time::Duration;

/// Memory of the tables for a page that was folded, bytes: word, hash, slot; its entry in the page table, and what its
/// object adds to the pool's lists and page tables.
const TABLE_BYTES: u64 = 4 + 16 + 16 + 8 + 4;
/// Working memory of the region, pages: frames that the pool keeps ready, scratches, trays.
const WORKING_PAGES: u64 = 1536;
/// How long to wait for memory of the kernel's for a page that has no other place.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// Pages looked at for copies to drop, when the pool is full.
const COPIES_LOOKED_FOR: u64 = 4096;

impl Evictor {
    /// Folds what waits in a tray, and gives its memory up. False if the store refused all of it.
    pub(super) fn fold_tray(&mut self, tray: Tray) -> bool {
        let pager = &*self.pager;
        let filled = pager.staging.filled(&tray);
        let mut refused = 0;
        for at in 0..filled {
            refused += usize::from(!fold_frame(pager, &tray, at));
        }
        pager.release(tray);
        refused == 0 || refused < filled
    }
}

/// Folds the page that waits in a frame of a tray, if it still does. False if it was refused. Afterwards nobody uses the
/// frame.
fn fold_frame(pager: &Pager, tray: &Tray, at: usize) -> bool {
    let (frame, page) = (pager.staging.frame(tray, at), pager.staging.page(tray, at));
    let word = pager.word(page);
    // Again, if somebody brings it back: that may fail, and leave the page here.
    while word.begin_fold(frame) {
        let had_copy = word.has_copy();
        // SAFETY: this thread has the tray, and has just begun to fold the page from its frame.
        if unsafe { store_page(pager, page, frame) } {
            let is_folded = word.finish_fold(frame, pager.fold_time()) == Folded::Yes;
            pager.table.add_copies(i64::from(!is_folded) - i64::from(had_copy));
            if is_folded {
                pager.note_folded(page);
                break;
            }
        } else if word.refuse_fold(frame) == Refused::BringBack {
            // SAFETY: the refusal has made the page returning from this frame, by this thread, which alone read the frame.
            unsafe { pager.bring_back_refused(page, frame) };
            word.finish_refusal();
            pager.wake(page);
            return false;
        }
    }
    true
}

/// Has the store keep the page that is in a frame. False if it refuses.
///
/// # Safety
/// The page is being folded from the frame, by the caller.
unsafe fn store_page(pager: &Pager, page: PageIndex, frame: Frame) -> bool {
    let began = pager.meter.start();
    // SAFETY: the frame has memory and keeps it, and nobody writes to it: the page is being folded by this thread,
    // so that who touches it copies from the frame.
    let bytes = unsafe { &*pager.staging.address(frame).cast::<Page>() };
    let fill_word = pager.fill_word(bytes);
    let hash = pager.hash_of(bytes, fill_word);
    if pager.equals_copy(page, hash) {
        pager.counters.add(Counter::CleanPages, 1);
        return true;
    }
    if !write(pager, page, bytes, fill_word) {
        return false;
    }
    pager.table.set_hash(page, hash);
    pager.counters.add(Counter::FoldedPages, 1);
    if let Some(began) = began {
        let ns = pager.meter.ns_since(began);
        let is_same_filled = fill_word.is_some();
        let counter = if is_same_filled { Counter::SameFilledStoreNs } else { Counter::StoreNs };
        pager.counters.add(counter, ns);
        pager.counters.add(Counter::SameFilledStored, is_same_filled.into());
    }
    true
}

/// Writes to the store, within the pool's limit: bytes, which repeat the word if there is one.
fn write(pager: &Pager, page: PageIndex, bytes: &Page, fill_word: Option<u64>) -> bool {
    if !has_room(pager) {
        pager.counters.add(Counter::RejectReclaimFail, 1);
        return false;
    }
    // With a backing the store waits for room by itself, as long as there is hope of any.
    let written = match fill_word {
        Some(word) => pager.store.write_same_filled(page, word),
        None => pager.store.write(page.0 * PAGE_SIZE as u64, bytes),
    };
    let counter = match written {
        Ok(()) => return true,
        Err(StoreError::NoMemory { .. }) => {
            if pager.limit.reach() {
                pager.counters.add(Counter::PoolLimitHit, 1);
            }
            Counter::RejectAllocFail
        }
        Err(_) => Counter::RejectCompressFail,
    };
    pager.counters.add(counter, 1);
    false
}

/// Whether the pool accepts pages. At its limit, copies of resident pages go first; with a backing, the store
/// itself waits for room.
fn has_room(pager: &Pager) -> bool {
    let accepts = || pager.limit.accepts(pager.store.held_bytes());
    if accepts() || pager.store.parking().is_some() {
        return true;
    }
    if pager.limit.reach() {
        pager.counters.add(Counter::PoolLimitHit, 1);
    }
    pager.drop_copies();
    accepts()
}

impl Pager {
    /// Brings back a page that the store refused: it must have a place, within the limit or beyond. Tries for as long as the
    /// kernel has no memory for it; nothing else can become of the page.
    ///
    /// # Safety
    /// The page is returning from the frame, by the caller, and nobody reads the frame.
    unsafe fn bring_back_refused(&self, page: PageIndex, frame: Frame) {
        // SAFETY: the caller's duty.
        while !unsafe { self.bring_back(page, frame, false) } {
            self.left.overdraw(1);
            // SAFETY: the caller's duty: it is still returning.
            if unsafe { self.copy_back_paid(page, frame) } {
                return;
            }
            std::thread::sleep(REFUSED_PAUSE);
        }
    }

    /// What tells whether a page is what was folded: XXH3, with a seed of the region's own, so that pages which
    /// are taken for each other cannot be prepared. For a page that repeats one word, that word.
    pub(super) fn hash(&self, page: &Page) -> PageHash {
        self.hash_of(page, self.fill_word(page))
    }

    /// [`Pager::hash`] of a page whose word is known.
    fn hash_of(&self, page: &Page, fill_word: Option<u64>) -> PageHash {
        PageHash(match fill_word {
            Some(word) => u128::from(word) << 64 | u128::from(self.seed),
            None => twox_hash::XxHash3_128::oneshot_with_seed(self.seed, page),
        })
    }

    /// The word that a page repeats, if it does and that is of interest.
    fn fill_word(&self, page: &Page) -> Option<u64> {
        if self.knows_same_filled { same_filled(page) } else { None }
    }

    /// Whether a page with this hash is what the store has of it. The page is the caller's: being folded, or taken.
    pub(super) fn equals_copy(&self, page: PageIndex, hash: PageHash) -> bool {
        self.word(page).has_copy() && self.table.hash(page) == hash
    }

    /// Counts the memory of copies, of the tables, and to work with, as if it were in use: so many pages.
    pub(super) fn count_copies(&self) {
        let (copies, folded) = (self.table.copies(), self.table.folded());
        let page_bytes = self.store.held_bytes() / (copies + folded).max(1);
        // Words and hashes, and the store's slots, of the pages that ever were folded; half of the limit at most.
        let tables = ((copies + folded) * TABLE_BYTES / PAGE_SIZE as u64).min(self.left.limit() / 2);
        let working = WORKING_PAGES.min(self.left.limit() / 32);
        self.left.set_copies(copies * page_bytes / PAGE_SIZE as u64 + tables + working);
    }

    /// Whether copies and tables take more than three eighths of the limit.
    pub(super) fn has_too_many_copies(&self) -> bool {
        self.left.copies() > self.left.limit() * 3 / 8
    }

    /// Drops copies of resident pages among the next few pages of the range.
    fn drop_copies(&self) {
        let count = self.table.page_count().0;
        for _ in 0..COPIES_LOOKED_FOR.min(count) {
            let page = self.next_copy();
            if self.word(page).has_copy() {
                drop_old_copy(self, page);
            }
        }
    }
}
