//! The pages of a region: their words, the hashes of their copies, and how many of a stretch are resident.
//!
//! All of it lies in memory that is reserved and not touched, so a region of any size costs nothing until it is
//! used: then 4 bytes a page for the word, and 16 for the hash of a page that was folded.

use crate::page::{FoldTime, PageWord, SOON};
use pagefold_page::{PageCount, PageIndex};
use pagefold_sys::SysError;
use pagefold_sys::mem::Reservation;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Pages that the clock's hand looks at together.
pub(crate) const STRETCH_PAGES: u64 = 1024;

/// The bit of a stretch's count that says that somebody sweeps it.
const HELD: u32 = 1 << 31;

/// What tells whether a page is still what was folded: 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageHash(pub(crate) u128);

/// The pages of a region.
pub(crate) struct Table {
    words: Reservation,
    hashes: Reservation,
    /// Resident, taken and staged pages of each stretch.
    live: Reservation,
    page_count: PageCount,
    /// Pages in the store and nowhere else.
    folded: AtomicU64,
    /// Pages in the store that are not folded: copies.
    copies: AtomicU64,
    /// Pages that were ever folded.
    folds: AtomicU64,
}

impl Table {
    pub(crate) fn new(page_count: PageCount) -> Result<Self, SysError> {
        let count = page_count.0 as usize;
        Ok(Table {
            words: Reservation::new(count * size_of::<PageWord>())?,
            hashes: Reservation::new(count * 16)?,
            live: Reservation::new(page_count.0.div_ceil(STRETCH_PAGES) as usize * 4)?,
            page_count,
            folded: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            folds: AtomicU64::new(0),
        })
    }

    pub(crate) fn page_count(&self) -> PageCount {
        self.page_count
    }

    pub(crate) fn stretch_count(&self) -> u64 {
        self.page_count.0.div_ceil(STRETCH_PAGES)
    }

    /// The word of a page below `page_count`.
    #[inline]
    pub(crate) fn word(&self, page: PageIndex) -> &PageWord {
        assert!(page.0 < self.page_count.0);
        // SAFETY: the index is below the count that the reservation was made for (asserted), whose base is aligned
        // to a page; its memory begins as zeroes, which are an untouched page, is only accessed through this, as
        // atomics, and lives as long as `self`.
        unsafe { &*self.words.base().as_ptr().cast::<PageWord>().add(page.0 as usize) }
    }

    fn hash_words(&self, page: PageIndex) -> &[AtomicU64; 2] {
        assert!(page.0 < self.page_count.0);
        // SAFETY: as for words, with 16 bytes a page; zeroes are two atomics.
        unsafe { &*self.hashes.base().as_ptr().cast::<[AtomicU64; 2]>().add(page.0 as usize) }
    }

    /// The hash of the store's copy of a page. The caller is folding the page, so nobody else sets it.
    pub(crate) fn hash(&self, page: PageIndex) -> PageHash {
        let [low, high] = self.hash_words(page);
        PageHash(u128::from(low.load(Relaxed)) | u128::from(high.load(Relaxed)) << 64)
    }

    /// Notes the hash of the store's copy. As for [`Table::hash`].
    pub(crate) fn set_hash(&self, page: PageIndex, hash: PageHash) {
        let [low, high] = self.hash_words(page);
        low.store(hash.0 as u64, Relaxed);
        high.store((hash.0 >> 64) as u64, Relaxed);
    }

    fn live(&self, stretch: u64) -> &AtomicU32 {
        assert!(stretch < self.stretch_count());
        // SAFETY: as for words, with four bytes a stretch.
        unsafe { &*self.live.base().as_ptr().cast::<AtomicU32>().add(stretch as usize) }
    }

    /// Whether a stretch may have resident pages.
    pub(crate) fn has_live(&self, stretch: u64) -> bool {
        self.live(stretch).load(Relaxed) & !HELD > 0
    }

    /// Makes the caller the only one who sweeps a stretch. False if somebody else does.
    pub(crate) fn try_hold(&self, stretch: u64) -> bool {
        self.live(stretch).fetch_or(HELD, Acquire) & HELD == 0
    }

    /// Undoes [`Table::try_hold`].
    pub(crate) fn let_go(&self, stretch: u64) {
        self.live(stretch).fetch_and(!HELD, Release);
    }

    /// Counts a page that came to be resident.
    pub(crate) fn add_live(&self, page: PageIndex) {
        self.live(page.0 / STRETCH_PAGES).fetch_add(1, Relaxed);
    }

    /// Counts a page that is neither resident nor staged any more.
    pub(crate) fn remove_live(&self, page: PageIndex) {
        self.live(page.0 / STRETCH_PAGES).fetch_sub(1, Relaxed);
    }

    /// Counts pages that came to be folded, or are no more.
    pub(crate) fn add_folded(&self, pages: i64) {
        self.folded.fetch_add(pages as u64, Relaxed);
    }

    /// The time by pages folded, `limit_pages` of which may be resident.
    pub(crate) fn fold_time(&self, limit_pages: u64) -> FoldTime {
        FoldTime((self.folds.load(Relaxed) / (limit_pages / u64::from(SOON)).max(1)) as u16)
    }

    /// Counts a page that was folded.
    pub(crate) fn count_fold(&self) {
        self.folds.fetch_add(1, Relaxed);
    }

    /// Counts copies that came to be, or are no more.
    pub(crate) fn add_copies(&self, pages: i64) {
        self.copies.fetch_add(pages as u64, Relaxed);
    }

    /// Pages that are not folded, of which the store has a copy.
    pub(crate) fn copies(&self) -> u64 {
        u64::try_from(self.copies.load(Relaxed) as i64).unwrap_or(0)
    }

    /// Pages that are folded.
    pub(crate) fn folded(&self) -> u64 {
        self.folded.load(Relaxed)
    }

    /// Bytes of memory that the table takes if all of it is touched.
    pub(crate) fn len_bytes_max(&self) -> u64 {
        (self.words.len_bytes() + self.hashes.len_bytes() + self.live.len_bytes()) as u64
    }
}
