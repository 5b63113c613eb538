//! Copying parts of the range to buffers and from them, while pages stay where they are.
//!
//! A copy to a buffer decodes a page that only the store has straight into the buffer. A copy from a buffer to a whole
//! page that is not resident goes to the store, as if the page had been written and folded at once. Neither takes memory
//! of the budget or costs a fault, so it is the way to go once over data that is much larger than the limit. Pages that
//! are resident, and parts of pages that are written, are copied by ordinary accesses to the range.
//!
//! A page that was never touched becomes resident when it is written while there is memory, as in every other way, and
//! goes to the store when less than an eighth of the limit is left.
//!
//! The buffer may be memory of any region, so accesses to it may fault. Faults never wait for what these functions hold:
//! working memory that is separate from that of faults. The buffer is never accessed while this thread owns a page's word,
//! or holds a slot's lock or a stream of the store: a page in a frame, and one that does not compress, go through working
//! memory. So does a page that is written, which also makes hash and contents those of one version.

mod items;

use super::Pager;
use super::scratch::CopyScratch;
use crate::error::RangeError;
use crate::page::{OverwriteClaim, Whereabouts};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_store::{Loaded, Loader};

/// After so many pages that went to the store, their tables are counted.
const COUNTED_PAGES: u64 = 256;

/// Divides bytes from an offset on at the borders of pages: the page, the first byte in it, and which of the bytes.
fn pieces(
    offset: usize,
    len_bytes: usize,
) -> impl Iterator<Item = (PageIndex, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let within = (offset + done) % PAGE_SIZE;
        let end = len_bytes.min(done + PAGE_SIZE - within);
        let piece = (PageIndex(((offset + done) / PAGE_SIZE) as u64), within, done..end);
        (done < len_bytes).then(|| {
            done = end;
            piece
        })
    })
}

impl Pager {
    /// Copies the bytes of the range from `offset` on to a buffer. After an error, some of the buffer has been written.
    pub(crate) fn read_part(&self, offset: usize, to: &mut [u8]) -> Result<(), RangeError> {
        self.pages_of(offset, to.len())?;
        let mut scratch = self.copy_scratches.take(&self.store)?;
        let result = pieces(offset, to.len()).try_for_each(|(page, within, piece)| {
            let to = &mut to[piece];
            self.prefetch(page);
            match <&mut Page>::try_from(&mut *to) {
                Ok(whole) => self.copy_page_out(page, whole, &mut scratch.loader),
                Err(_) => self.copy_part_out(page, within, to, &mut scratch),
            }
        });
        self.copy_scratches.put(scratch);
        result
    }

    /// Begins to load what is read of the next pages.
    #[inline]
    fn prefetch(&self, page: PageIndex) {
        let next =
            |ahead| Some(PageIndex(page.0 + ahead)).filter(|page| self.table.page_count().contains(*page));
        if let Some(page) = next(2) {
            self.store.prefetch_slot(page);
        }
        if let Some(page) = next(1) {
            self.store.prefetch_object(page);
        }
    }

    fn copy_part_out(
        &self,
        page: PageIndex,
        within: usize,
        to: &mut [u8],
        scratch: &mut CopyScratch,
    ) -> Result<(), RangeError> {
        if self.word(page).whereabouts() == Whereabouts::Range {
            self.copy_from_range(page, within, to);
            return Ok(());
        }
        self.copy_page_out(page, &mut scratch.page, &mut scratch.loader)?;
        to.copy_from_slice(&scratch.page[within..within + to.len()]);
        Ok(())
    }

    fn copy_page_out(&self, page: PageIndex, to: &mut Page, loader: &mut Loader) -> Result<(), RangeError> {
        let word = self.word(page);
        loop {
            match word.whereabouts() {
                Whereabouts::Range => {
                    self.copy_from_range(page, 0, to);
                    return Ok(());
                }
                Whereabouts::Nowhere { is_zeroed: false } if self.has_file_page(page) => {
                    return self.copy_from_file(page, to);
                }
                Whereabouts::Nowhere { .. } => {
                    to.fill(0);
                    return Ok(());
                }
                Whereabouts::Frame => {
                    if self.copy_from_frame(page, to) {
                        return Ok(());
                    }
                }
                Whereabouts::Store => {
                    if self.copy_from_store(page, to, loader)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn copy_from_range(&self, page: PageIndex, within: usize, to: &mut [u8]) {
        let start = self.range.base().as_ptr().wrapping_add(page.0 as usize * PAGE_SIZE + within);
        // SAFETY: the bytes lie in the range (the caller has checked the whole copy), which is mapped for as long as
        // `self`. A page that left it meanwhile faults. The owner of the region is responsible for threads that write to
        // it. `copy` because the buffer may overlap.
        unsafe { std::ptr::copy(start, to.as_mut_ptr(), to.len()) };
    }

    fn copy_from_file(&self, page: PageIndex, to: &mut Page) -> Result<(), RangeError> {
        // Not to the buffer: a system call cannot write to memory whose faults are served in the faulting thread.
        let mut contents = [[0; PAGE_SIZE]];
        match self.source.as_ref().is_some_and(|source| source.read(page, &mut contents)) {
            true => {
                *to = contents[0];
                Ok(())
            }
            false if self.is_file_changed() => Err(RangeError::FileChanged { page: page.0 }),
            false => Err(RangeError::Lost { page: page.0 }),
        }
    }

    /// Returns false if the page is not staged any more.
    fn copy_from_frame(&self, page: PageIndex, to: &mut Page) -> bool {
        let word = self.word(page);
        let Some(frame) = word.claim_frame() else { return false };
        // Not to the buffer, which may fault: an evictor that finds the page returning waits for it, and a fault may wait
        // for that evictor.
        // SAFETY: the claim has made the page returning from this frame, owned by this thread: the frame keeps its memory,
        // and no thread writes to it.
        let contents = unsafe { *self.staging.address(frame).cast::<Page>() };
        word.abandon_return();
        *to = contents;
        true
    }

    /// Returns false if the page is not in the store any more.
    fn copy_from_store(
        &self,
        page: PageIndex,
        to: &mut Page,
        loader: &mut Loader,
    ) -> Result<bool, RangeError> {
        match self.store.load_without_lock(page, loader, to) {
            Ok(Loaded::Page) => {}
            Ok(Loaded::SameFilled(word)) => pagefold_store::fill(to, word),
            Ok(Loaded::Empty) => return self.await_stored(page),
            Err(_) => return Err(RangeError::Lost { page: page.0 }),
        }
        Ok(true)
    }

    /// Decides about a page that the store did not have: returns false if that was because another thread moved it.
    #[cold]
    fn await_stored(&self, page: PageIndex) -> Result<bool, RangeError> {
        let word = self.word(page);
        let Some(claim) = word.begin_overwrite(false) else { return Ok(false) };
        // While this thread owns the page, no other moves it.
        let is_lost = claim == OverwriteClaim::Folded && !self.store.is_stored(page);
        word.abandon_overwrite(claim);
        if is_lost { Err(RangeError::Lost { page: page.0 }) } else { Ok(false) }
    }

    /// Copies a buffer to the bytes of the range from `offset` on. After an error, some of them have been written.
    ///
    /// # Safety
    /// The bytes of the range may be written, and no reference to them is used meanwhile.
    pub(crate) unsafe fn write_part(&self, offset: usize, from: &[u8]) -> Result<(), RangeError> {
        self.pages_of(offset, from.len())?;
        let mut scratch = self.copy_scratches.take(&self.store)?;
        let mut stored = 0;
        let result = pieces(offset, from.len()).try_for_each(|(page, within, piece)| {
            let from = &from[piece];
            if from.len() == PAGE_SIZE && self.is_stored_whole(page) {
                scratch.page.copy_from_slice(from);
                if self.overwrite(page, &scratch.page) {
                    stored += 1;
                    // Evictors, which count the tables of folded pages otherwise, may be asleep.
                    if stored % COUNTED_PAGES == 0 {
                        self.count_copies();
                    }
                    return Ok(());
                }
            }
            if self.word(page).whereabouts() == Whereabouts::Store {
                // An access to a page that cannot be read would end the process.
                self.copy_page_out(page, &mut scratch.page, &mut scratch.loader)?;
            }
            let start = self.range.base().as_ptr().wrapping_add(page.0 as usize * PAGE_SIZE + within);
            // SAFETY: the bytes lie in the range, and the caller guarantees that they may be written. This thread holds no
            // lock of the engine. `copy` because the buffer may overlap.
            unsafe { std::ptr::copy(from.as_ptr(), start, from.len()) };
            Ok(())
        });
        self.copy_scratches.put(scratch);
        if stored % COUNTED_PAGES > 0 {
            self.count_copies();
        }
        self.budget.wake_evictors_if_low(self.ready_frames());
        result
    }

    /// Returns whether new contents of a page go to the store at this moment.
    fn is_stored_whole(&self, page: PageIndex) -> bool {
        match self.word(page).whereabouts() {
            Whereabouts::Store | Whereabouts::Frame => true,
            Whereabouts::Nowhere { .. } => self.budget.is_tight(),
            Whereabouts::Range => false,
        }
    }

    /// Gives the store new contents of a page that is not resident. Returns false, and has changed nothing, if another
    /// thread has the page or the store does not take it.
    fn overwrite(&self, page: PageIndex, contents: &Page) -> bool {
        let word = self.word(page);
        let Some(claim) = word.begin_overwrite(self.budget.is_tight()) else { return false };
        if claim == OverwriteClaim::Folded {
            // SAFETY: the claim has made the page loading, owned by this thread.
            unsafe { self.remove_poison(page) };
        }
        if !self.store_contents(page, contents) {
            word.abandon_overwrite(claim);
            self.wake(page);
            return false;
        }
        match claim {
            OverwriteClaim::Untouched => self.table.add_folded(1),
            OverwriteClaim::Folded => {}
            OverwriteClaim::Staged { has_copy } => {
                self.table.remove_live(page);
                self.table.add_folded(1);
                self.table.add_copies(-i64::from(has_copy));
            }
        }
        word.finish_overwrite(self.fold_time());
        true
    }
}
