//! The table of a region's pages: their words, the hashes of their copies in the store, and the count of resident
//! pages of each chunk.
//!
//! The table lies in reserved memory that takes no space until it is touched: 4 bytes per page for the word, and 16
//! for the hash of a page that was folded.

use crate::page::{EARLY_REFAULT_TICKS, FoldTime, PageWord};
use pagefold_page::{PageCount, PageIndex};
use pagefold_sys::SysError;
use pagefold_sys::mem::Reservation;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Pages of a chunk. The clock hand examines one chunk at a time.
pub(crate) const CHUNK_PAGES: u64 = 1024;

/// Bit of a chunk's count: a thread sweeps the chunk.
const LOCKED: u32 = 1 << 31;
/// The chunk is not registered with userfaultfd: the kernel fills its pages.
const UNREGISTERED: u32 = 1 << 30;
/// The kernel fills the pages of the unregistered chunk: the change is complete.
const KERNEL_FILLED: u32 = 1 << 29;
/// For each 2 MiB of the chunk, whether the range has or had a page there. Each has a separate page table.
const MAPPED: [u32; 2] = [1 << 27, 1 << 28];
/// For each quarter of the chunk, whether it has or had a page in the store. The hashes of each take a page of memory.
const HASHED: [u32; 4] = [1 << 23, 1 << 24, 1 << 25, 1 << 26];
/// The bits of the number of pages.
const LIVE: u32 = HASHED[0] - 1;
const _: () = assert!(LIVE as u64 >= CHUNK_PAGES);

/// A hash of 128 bits that tells whether a page still equals its copy in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageHash(pub(crate) u128);

/// Memory that the pages of a range have used so far, besides that of their contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Touched {
    /// Units of 2 MiB that have or had a page: page tables of the kernel.
    pub(crate) page_tables: u64,
    /// Pages of the words and hashes that have memory.
    pub(crate) table_pages: u64,
}

/// The table of a region's pages.
pub(crate) struct Table {
    words: Reservation,
    hashes: Reservation,
    /// Resident, taken and staged pages of each chunk.
    live: Reservation,
    page_count: PageCount,
    /// Folded pages.
    folded: AtomicU64,
    /// Copies: pages in the store that are not folded.
    copies: AtomicU64,
    /// Pages folded so far.
    folds: AtomicU64,
    /// Chunks with any bit of `MAPPED` or `HASHED`, and the number of those bits.
    touched: AtomicU64,
    mapped: AtomicU64,
    hashed: AtomicU64,
}

impl Table {
    pub(crate) fn new(page_count: PageCount) -> Result<Self, SysError> {
        let count = page_count.0 as usize;
        Ok(Table {
            words: Reservation::new(count * size_of::<PageWord>())?,
            hashes: Reservation::new(count * 16)?,
            live: Reservation::new(page_count.0.div_ceil(CHUNK_PAGES) as usize * 4)?,
            page_count,
            folded: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            folds: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            mapped: AtomicU64::new(0),
            hashed: AtomicU64::new(0),
        })
    }

    pub(crate) fn page_count(&self) -> PageCount {
        self.page_count
    }

    pub(crate) fn chunk_count(&self) -> u64 {
        self.page_count.0.div_ceil(CHUNK_PAGES)
    }

    /// Returns the word of a page below `page_count`.
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
        // SAFETY: the index is below the count that the reservation was made for (asserted), with 16 bytes a page and a
        // base that is aligned to a page; its memory begins as zeroes, which are two atomics, is only accessed through
        // this, as atomics, and lives as long as `self`.
        unsafe { &*self.hashes.base().as_ptr().cast::<[AtomicU64; 2]>().add(page.0 as usize) }
    }

    /// Returns the hash of the store's copy of a page. The caller owns the page, so no other thread changes the hash.
    pub(crate) fn hash(&self, page: PageIndex) -> PageHash {
        let [low, high] = self.hash_words(page);
        PageHash(u128::from(low.load(Relaxed)) | u128::from(high.load(Relaxed)) << 64)
    }

    /// Sets the hash of the store's copy of a page, which the caller is folding.
    pub(crate) fn set_hash(&self, page: PageIndex, hash: PageHash) {
        let [low, high] = self.hash_words(page);
        low.store(hash.0 as u64, Relaxed);
        high.store((hash.0 >> 64) as u64, Relaxed);
        let quarter = page.0 % CHUNK_PAGES / (CHUNK_PAGES / 4);
        self.note(page.0 / CHUNK_PAGES, HASHED[quarter as usize], &self.hashed);
    }

    /// Sets a bit of `MAPPED` or `HASHED`, and counts it the first time.
    fn note(&self, chunk: u64, bit: u32, counter: &AtomicU64) {
        let live = self.live(chunk);
        // Nearly always it is set: no other CPU loses the cache line.
        if live.load(Relaxed) & bit != 0 {
            return;
        }
        let before = live.fetch_or(bit, Relaxed);
        if before & bit == 0 {
            counter.fetch_add(1, Relaxed);
        }
        if before & (MAPPED[0] | MAPPED[1] | HASHED[0] | HASHED[1] | HASHED[2] | HASHED[3]) == 0 {
            self.touched.fetch_add(1, Relaxed);
        }
    }

    fn live(&self, chunk: u64) -> &AtomicU32 {
        assert!(chunk < self.chunk_count());
        // SAFETY: the index is below the count that the reservation was made for (asserted), with four bytes a chunk
        // and a base that is aligned to a page; its memory begins as zeroes, which are an atomic, is only accessed
        // through this, as atomics, and lives as long as `self`.
        unsafe { &*self.live.base().as_ptr().cast::<AtomicU32>().add(chunk as usize) }
    }

    /// Returns whether a chunk may have resident pages.
    pub(crate) fn has_live(&self, chunk: u64) -> bool {
        self.live(chunk).load(Relaxed) & LIVE > 0
    }

    /// Locks a chunk for sweeping. Returns false if another thread has it.
    pub(crate) fn try_lock_chunk(&self, chunk: u64) -> bool {
        self.live(chunk).fetch_or(LOCKED, Acquire) & LOCKED == 0
    }

    /// Unlocks a chunk that [`Table::try_lock_chunk`] locked.
    pub(crate) fn unlock_chunk(&self, chunk: u64) {
        self.live(chunk).fetch_and(!LOCKED, Release);
    }

    /// Marks a chunk as about to be unregistered. Returns false if it is marked already.
    pub(crate) fn mark_unregistered(&self, chunk: u64) -> bool {
        self.live(chunk).fetch_or(UNREGISTERED, AcqRel) & UNREGISTERED == 0
    }

    /// Removes the mark of a chunk, of which so many pages are resident now.
    pub(crate) fn unmark_unregistered(&self, chunk: u64, resident: u32) {
        self.live(chunk).fetch_add(resident, Relaxed);
        self.live(chunk).fetch_and(!(UNREGISTERED | KERNEL_FILLED), Release);
    }

    /// Marks an unregistered chunk as one that the kernel fills.
    pub(crate) fn mark_kernel_filled(&self, chunk: u64) {
        // The kernel does not say which half it fills.
        MAPPED.into_iter().for_each(|bit| self.note(chunk, bit, &self.mapped));
        self.live(chunk).fetch_or(KERNEL_FILLED, Release);
    }

    /// Returns whether the kernel fills the pages of a chunk.
    pub(crate) fn is_kernel_filled(&self, chunk: u64) -> bool {
        self.live(chunk).load(Acquire) & KERNEL_FILLED != 0
    }

    /// Returns whether a chunk is marked as unregistered or about to be.
    pub(crate) fn is_unregistered(&self, chunk: u64) -> bool {
        self.live(chunk).load(Acquire) & UNREGISTERED != 0
    }

    /// Counts a page that became resident.
    pub(crate) fn add_live(&self, page: PageIndex) {
        self.live(page.0 / CHUNK_PAGES).fetch_add(1, Relaxed);
        let half = page.0 % CHUNK_PAGES / (CHUNK_PAGES / 2);
        self.note(page.0 / CHUNK_PAGES, MAPPED[half as usize], &self.mapped);
    }

    /// Counts a page that is neither resident nor staged any more.
    pub(crate) fn remove_live(&self, page: PageIndex) {
        self.live(page.0 / CHUNK_PAGES).fetch_sub(1, Relaxed);
    }

    /// Adds to the count of folded pages; a negative number subtracts.
    pub(crate) fn add_folded(&self, pages: i64) {
        self.folded.fetch_add(pages as u64, Relaxed);
    }

    /// Returns the present time in units of [`FoldTime`], given that `limit_pages` may be resident.
    pub(crate) fn fold_time(&self, limit_pages: u64) -> FoldTime {
        FoldTime((self.folds.load(Relaxed) / (limit_pages / u64::from(EARLY_REFAULT_TICKS)).max(1)) as u16)
    }

    /// Counts a page that was folded.
    pub(crate) fn count_fold(&self) {
        self.folds.fetch_add(1, Relaxed);
    }

    /// Adds to the count of copies; a negative number subtracts.
    pub(crate) fn add_copies(&self, pages: i64) {
        self.copies.fetch_add(pages as u64, Relaxed);
    }

    /// Returns the number of pages that are not folded and of which the store has a copy.
    pub(crate) fn copies(&self) -> u64 {
        u64::try_from(self.copies.load(Relaxed) as i64).unwrap_or(0)
    }

    /// Returns the number of folded pages.
    pub(crate) fn folded(&self) -> u64 {
        // A fault may bring a page in before the evictor has counted it as folded.
        u64::try_from(self.folded.load(Relaxed) as i64).unwrap_or(0)
    }

    /// Returns the memory that the pages have used besides that of their contents. Nothing of it is given back while the
    /// region exists, but page tables where the kernel frees them.
    pub(crate) fn touched(&self) -> Touched {
        // The words of a chunk take one page.
        let table_pages = self.touched.load(Relaxed) + self.hashed.load(Relaxed);
        Touched { page_tables: self.mapped.load(Relaxed), table_pages }
    }

    /// Returns the bytes of memory that the table takes if all of it is touched.
    pub(crate) fn len_bytes_max(&self) -> u64 {
        (self.words.len_bytes() + self.hashes.len_bytes() + self.live.len_bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::page::{FaultClaim, State};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Not a multiple of a chunk.
    const PAGES: u64 = 2 * CHUNK_PAGES + 100;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        SetHash(u64, u128),
        AddLive(u64),
        RemoveLive(u64),
        AddFolded(u8),
        RemoveFolded(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Neighbours at both ends of a chunk, and of the table.
        let at = prop_oneof![Just(CHUNK_PAGES), Just(2 * CHUNK_PAGES), Just(PAGES)];
        let page = (at, 0..3_u64).prop_map(|(at, step)| (at + step).saturating_sub(2).min(PAGES - 1));
        prop_oneof![
            (page.clone(), any::<u128>()).prop_map(|(page, hash)| Step::SetHash(page, hash)),
            page.clone().prop_map(Step::AddLive),
            page.prop_map(Step::RemoveLive),
            any::<u8>().prop_map(Step::AddFolded),
            any::<u8>().prop_map(Step::RemoveFolded),
        ]
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_a_map(steps in prop::collection::vec(step(), 0..100)) {
            let table = Table::new(PageCount(PAGES)).unwrap();
            let (mut hashes, mut live, mut folded) = (BTreeMap::new(), BTreeMap::<u64, u32>::new(), 0_u64);
            for step in steps {
                match step {
                    Step::SetHash(page, hash) => {
                        table.set_hash(PageIndex(page), PageHash(hash));
                        hashes.insert(page, hash);
                    }
                    Step::AddLive(page) => {
                        table.add_live(PageIndex(page));
                        *live.entry(page).or_default() += 1;
                    }
                    Step::RemoveLive(page) if live.get(&page).is_some_and(|count| *count > 0) => {
                        table.remove_live(PageIndex(page));
                        *live.entry(page).or_default() -= 1;
                    }
                    Step::AddFolded(pages) => {
                        table.add_folded(pages.into());
                        folded += u64::from(pages);
                    }
                    Step::RemoveFolded(pages) if u64::from(pages) <= folded => {
                        table.add_folded(-i64::from(pages));
                        folded -= u64::from(pages);
                    }
                    Step::RemoveLive(_) | Step::RemoveFolded(_) => {}
                }
                prop_assert_eq!(table.folded(), folded);
                for chunk in 0..table.chunk_count() {
                    let is_live = live.iter().any(|(page, count)| page / CHUNK_PAGES == chunk && *count > 0);
                    prop_assert_eq!(table.has_live(chunk), is_live);
                }
            }
            for page in 0..PAGES {
                let hash = hashes.get(&page).copied().unwrap_or(0);
                prop_assert_eq!(table.hash(PageIndex(page)), PageHash(hash));
            }
        }
    }

    #[test]
    fn every_page_has_a_word_and_begins_untouched() {
        let table = Table::new(PageCount(PAGES)).unwrap();
        assert_eq!((table.page_count(), table.chunk_count()), (PageCount(PAGES), 3));
        for page in 0..PAGES {
            assert_eq!(table.word(PageIndex(page)).state(), State::Untouched);
            assert_eq!(table.word(PageIndex(page)).claim_fault(), FaultClaim::Zero);
        }
        // 20 bytes a page and 4 a chunk, each up to a whole page of memory.
        let least = PAGES * 20 + 3 * 4;
        assert!((least..least + 3 * 4096).contains(&table.len_bytes_max()));
    }

    #[test]
    fn what_pages_use_besides_their_memory_is_counted_once() {
        let table = Table::new(PageCount(PAGES)).unwrap();
        assert_eq!(table.touched(), Touched::default());
        for page in [0, 511, CHUNK_PAGES + 512, 0] {
            table.add_live(PageIndex(page));
            table.remove_live(PageIndex(page));
        }
        assert_eq!(table.touched(), Touched { page_tables: 2, table_pages: 2 });
        for page in [0, 255, 256, 2 * CHUNK_PAGES] {
            table.set_hash(PageIndex(page), PageHash(1));
        }
        assert_eq!(table.touched(), Touched { page_tables: 2, table_pages: 3 + 3 });
        // The kernel may fill both halves.
        table.mark_kernel_filled(2);
        table.unmark_unregistered(2, 1);
        assert_eq!(table.touched(), Touched { page_tables: 4, table_pages: 3 + 3 });
        assert!(table.has_live(2) && !table.has_live(0) && !table.has_live(1));
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn the_word_of_a_page_beyond_the_range_panics() {
        let table = Table::new(PageCount(PAGES)).unwrap();
        table.word(PageIndex(PAGES));
    }
}
