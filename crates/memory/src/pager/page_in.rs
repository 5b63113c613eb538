//! Bringing a page and its neighbours from the store into the range.
//!
//! The neighbours are the pages that `readahead` returns and that no other thread owns. They use only memory that is
//! available without waiting: free frames with memory, which are filled and then moved to the range many at once; or
//! new memory, to which the kernel copies them. Moving interrupts the other CPUs for each run of adjacent pages, so
//! scattered pages are copied if possible. The thread waits for memory only for the page that faulted.
//!
//! Moving scattered pages out costs the same again. So those that come from the store to be read are write-protected
//! ([`Pager::protects_loads`]): until there is a write to them they can be dropped. The first write costs a fault, so this
//! is not done for pages that were written the last time.

use super::Pager;
use super::claims::{Claims, PageContents};
use super::install::Put;
use super::scratch::{Pages, Scratch, ScratchGuard};
use super::serve::Served;
use crate::config::Service;
use crate::counters::Counter;
use crate::page::{Arrival, FaultClaim, Frame};
use crate::readahead::{WINDOW_MAX, Window};
use crate::staging::{FrameBatch, longest_run};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_store::{LoadError, Loaded};
use pagefold_sys::cpu;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Memory for pages that come in.
pub(super) enum Memory {
    /// New memory of the kernel, to be copied to: the number of pages charged.
    New(usize),
    /// `len` frames of a batch, from `first` on.
    Frames { batch: FrameBatch, first: usize, len: usize },
}

/// Pages in runs at least as long as this are moved out at little cost, so they are not write-protected.
const RUN_UNPROTECTED_MIN: usize = 8;

impl Pager {
    /// Brings in the page of an access at an offset, in bytes, with neighbours. If the result is `Failed`, the page is still
    /// loading.
    ///
    /// # Safety
    /// The caller owns the page, which is loading, by `claim`.
    pub(super) unsafe fn page_in(&self, offset: u64, claim: FaultClaim, is_write: bool) -> Served {
        let page = PageIndex(offset / PAGE_SIZE as u64);
        // The work before the object is read takes about as long as this prefetch.
        self.store.prefetch_object(page);
        let counter = if claim == FaultClaim::Load { Counter::FaultsFolded } else { Counter::FaultsZero };
        self.counters.add(counter, 1);
        let window = self.window(offset, claim == FaultClaim::Load || self.has_file_page(page));
        // SAFETY: the caller owns the page, which is loading.
        unsafe {
            self.page_in_window(page, claim, window, is_write, |claims| {
                self.trim_window(page, window, claims)
            })
        }
    }

    /// Like [`Pager::page_in`], for a page that the program has asked for before it touches it.
    ///
    /// # Safety
    /// The caller owns the page, which is loading, by `claim`.
    pub(super) unsafe fn page_in_advised(
        &self,
        page: PageIndex,
        claim: FaultClaim,
        window: Window,
    ) -> Served {
        self.store.prefetch_object(page);
        // The first page is a neighbour of none that faulted, but no fault brings it in.
        let count = |_: &Claims| self.readahead.count_brought(1);
        // SAFETY: the caller owns the page, which is loading.
        unsafe { self.page_in_window(page, claim, window, false, count) }
    }

    /// Brings in the page and those of its neighbours in the window for which there is memory. `note` gets the claims.
    ///
    /// # Safety
    /// The caller owns the page, which is loading, by `claim`.
    #[inline]
    unsafe fn page_in_window(
        &self,
        page: PageIndex,
        claim: FaultClaim,
        window: Window,
        is_write: bool,
        note: impl FnOnce(&Claims),
    ) -> Served {
        self.page_ins.fetch_add(1, Relaxed);
        // SAFETY: the caller owns the page, which is loading.
        let mut claims = unsafe { self.claim_window(page, claim, window) };
        let Some(memory) = self.memory_for(&mut claims) else {
            self.page_ins.fetch_sub(1, Relaxed);
            self.word(page).abandon_load();
            return Served::Again;
        };
        note(&claims);
        let mut scratch = self.scratch_pool.take(cpu::current());
        let served = self.fill_and_put(&claims, memory, &mut scratch, is_write);
        self.page_ins.fetch_sub(1, Relaxed);
        self.note_resident();
        served
    }

    /// Shortens the window of `readahead` if memory ran out or some of its pages were resident already.
    fn trim_window(&self, page: PageIndex, window: Window, claims: &Claims) {
        let brought = claims.len as u64 - 1;
        match window {
            Window::Rows(rows) => self.readahead.note_rows_brought(rows, brought),
            Window::Gather(_) => self.readahead.note_gather_brought(brought),
            Window::Strided { pages, stride } if (claims.len as u64) < pages => {
                let last = if stride > 0 { claims.pages[claims.len - 1].0 } else { claims.pages[0].0 };
                self.readahead.shorten(page, window, last, brought);
            }
            Window::Strided { .. } => {}
        }
    }

    /// Returns memory for the claims, or for some of them; the others are abandoned. Waits if no memory is available.
    /// Returns `None` if the region is being dropped.
    fn memory_for(&self, claims: &mut Claims) -> Option<Memory> {
        let is_move = self.can_move() && self.reuses_frames && claims.are_worth_moving();
        let found = self.try_memory(claims.len, is_move);
        let memory = match found {
            Some(memory) => memory,
            None => {
                self.abandon_neighbours(claims, 1);
                self.await_memory(|| self.try_memory(1, false), || Memory::New(1))?
            }
        };
        self.abandon_neighbours(claims, memory.len());
        Some(memory)
    }

    /// Returns memory for up to so many pages, without waiting: preferably frames with memory if the pages are to be
    /// moved, and new memory otherwise.
    fn try_memory(&self, wanted: usize, is_move: bool) -> Option<Memory> {
        if is_move {
            if let Some(frames) = self.take_frames(wanted) {
                return Some(frames);
            }
            self.staging.want(wanted as u32);
        }
        match self.budget.charge(wanted as u32) {
            0 if self.can_move() => self.take_frames(wanted),
            0 => None,
            pages => Some(Memory::New(pages as usize)),
        }
    }

    fn take_frames(&self, wanted: usize) -> Option<Memory> {
        let batch = self.staging.take_backed()?;
        let (first, len) = longest_run(self.staging.backed(&batch));
        // From the end, so that the rest of the run stays a run.
        let used = len.min(wanted);
        Some(Memory::Frames { batch, first: first + len - used, len: used })
    }

    fn fill_and_put(
        &self,
        claims: &Claims,
        memory: Memory,
        scratch: &mut ScratchGuard,
        is_write: bool,
    ) -> Served {
        let pages = &claims.pages[..claims.len];
        let mut kinds = [PageContents::Zero; WINDOW_MAX];
        let read = self.read_file_runs(pages, &memory, scratch, &mut kinds);
        let mut zero_pages_charged = 0;
        for (at, (page, claim)) in pages.iter().enumerate().filter(|(at, _)| read >> at & 1 == 0) {
            if let Some((next, _)) = pages.get(at + 1) {
                self.store.prefetch_object(*next);
            }
            let Scratch { loader, pages } = &mut **scratch;
            let to = &mut self.memory_of(&memory, pages, at..at + 1)[0];
            let wants_memory = is_write || matches!(memory, Memory::Frames { .. });
            kinds[at] = match claim {
                FaultClaim::Load => self.load(*page, loader, to),
                FaultClaim::Zero if self.has_file_page(*page) => self.read_file_page(*page, to),
                _ if wants_memory => {
                    to.fill(0);
                    PageContents::Bytes
                }
                _ => PageContents::Zero,
            };
            // A page of zeroes is charged like any other: the program may write to it without a fault.
            if kinds[at] == PageContents::Zero && matches!(memory, Memory::Frames { .. }) {
                match self.budget.charge(1) {
                    0 => {
                        to.fill(0);
                        kinds[at] = PageContents::Bytes;
                    }
                    _ => zero_pages_charged += 1,
                }
            }
        }
        // Before the faulting thread goes on: it may look at the counts.
        self.readahead.count_brought(claims.len as u64 - 1);
        let used = self.put_runs(claims, &kinds, &memory, scratch, is_write);
        self.settle(memory, zero_pages_charged, used);
        if kinds[claims.faulting] == PageContents::Failed { Served::Failed } else { Served::Again }
    }

    /// Returns the memory of some of the claims.
    pub(super) fn memory_of<'a>(
        &self,
        memory: &Memory,
        scratch: &'a mut Pages,
        claims: Range<usize>,
    ) -> &'a mut [Page] {
        match memory {
            Memory::New(_) => &mut scratch.0[claims],
            Memory::Frames { batch, first, len } => {
                assert!(claims.start <= claims.end && claims.end <= *len);
                let frame = self.staging.frame(batch, first + claims.start);
                let start = self.staging.address(frame).cast::<Page>();
                // SAFETY: the frames of a batch are adjacent, and those of the claims (asserted) have memory. This
                // thread alone has the batch, and refers to its frames only by the result, which borrows the scratch:
                // so there is one reference at a time.
                unsafe { std::slice::from_raw_parts_mut(start, claims.len()) }
            }
        }
    }

    /// Loads the page's bytes from the store.
    fn load(&self, page: PageIndex, loader: &mut pagefold_store::Loader, to: &mut Page) -> PageContents {
        match self.store.load(page, loader, to) {
            Ok(Loaded::Page) => PageContents::Bytes,
            Ok(Loaded::SameFilled(0)) => PageContents::Zero,
            Ok(Loaded::Empty) => {
                // The page was folded, so the store should have it.
                self.counters.add(Counter::DecompressFail, 1);
                PageContents::Failed
            }
            Ok(Loaded::SameFilled(word)) => {
                pagefold_store::fill(to, word);
                PageContents::Bytes
            }
            Err(error) => {
                let counter = match error {
                    LoadError::ReadBack { .. } => Counter::ReadBackFail,
                    LoadError::Corrupt { .. } | LoadError::CorruptRecord { .. } => Counter::DecompressFail,
                };
                self.counters.add(counter, 1);
                PageContents::Failed
            }
        }
    }

    /// Puts the pages into the range, run by run, and ends their loading, except that of the faulting page if it
    /// cannot be loaded. Returns how many charged pages were used.
    ///
    /// The run of the faulting page comes last, because the thread that waits for it goes on then. On the same CPU it
    /// interrupts this thread, and would fault on the other pages too, which are still loading.
    fn put_runs(
        &self,
        claims: &Claims,
        kinds: &[PageContents; WINDOW_MAX],
        memory: &Memory,
        scratch: &Scratch,
        is_write: bool,
    ) -> u32 {
        let (mut used, mut at, mut last) = (0, 0, 0..0);
        while at < claims.len {
            let run = claims.run_at(at, kinds);
            at = run.end;
            match run.contains(&claims.faulting) {
                true => last = run,
                false => used += self.put_run(claims, run, kinds, memory, scratch, false),
            }
        }
        used + self.put_run(claims, last, kinds, memory, scratch, is_write)
    }

    /// Returns whether adjacent pages that come in by a copy are write-protected.
    fn is_protected(&self, run: &[(PageIndex, FaultClaim)], is_write: bool) -> bool {
        let is_unwritten = |(page, claim): &(PageIndex, FaultClaim)| {
            *claim == FaultClaim::Load && !self.word(*page).is_rewritten()
        };
        self.protects_loads() && !is_write && run.len() < RUN_UNPROTECTED_MIN && run.iter().all(is_unwritten)
    }

    /// Puts adjacent pages of the same kind into the range, as [`Pager::put_runs`] does. `is_write` says whether the run is
    /// known to be written at once.
    fn put_run(
        &self,
        claims: &Claims,
        run: Range<usize>,
        kinds: &[PageContents; WINDOW_MAX],
        memory: &Memory,
        scratch: &Scratch,
        is_write: bool,
    ) -> u32 {
        let pages = &claims.pages[..run.end];
        let is_protected =
            matches!(memory, Memory::New(_)) && self.is_protected(&pages[run.start..], is_write);
        let (mut used, mut at) = (0, run.start);
        while at < pages.len() {
            let (first, kind, mut len) = (pages[at].0, kinds[at], pages.len() - at);
            let mut is_moved = false;
            let put = match (kind, memory) {
                (PageContents::Failed, _) => Put::Refused(0, 0),
                // SAFETY: this thread owns the claims, which are loading.
                (PageContents::Zero, _) => unsafe { self.zero_in(first, len) },
                (PageContents::Bytes, Memory::New(_)) => {
                    // SAFETY: this thread owns the claims, which are loading.
                    unsafe { self.copy_in(first, &scratch.pages.0[at..at + len], is_protected) }
                }
                (PageContents::Bytes, Memory::Frames { batch, first: frame, .. }) => {
                    let frame = self.staging.frame(batch, frame + at);
                    // SAFETY: this thread owns the claims, which are loading, and the batch, and holds no reference
                    // into its frames any more.
                    let moved = unsafe { self.move_in(first, frame, len) };
                    is_moved = !matches!(moved, Put::Refused(0, _));
                    match moved {
                        Put::Refused(0, _) => {
                            len = 1;
                            // SAFETY: as above.
                            unsafe { self.copy_from_unmovable(first, frame) }
                        }
                        // The next turn begins at the page that was refused.
                        Put::Refused(done, _) => {
                            len = done;
                            Put::Done
                        }
                        moved => moved,
                    }
                }
            };
            let done = match put {
                Put::Done => len,
                Put::Present(done) => {
                    // The poison of a page that was lost, on a kernel that puts no page in its place. The page stays folded, and
                    // can be brought in next time.
                    // SAFETY: this thread owns the claims, which are loading.
                    unsafe { self.remove_poison(PageIndex(first.0 + done as u64)) };
                    done
                }
                Put::Refused(done, _) => done,
            };
            for (i, (page, claim)) in pages.iter().enumerate().skip(at).take(done) {
                if is_moved && let Memory::Frames { batch, first, .. } = memory {
                    self.staging.note_moved(self.staging.frame(batch, first + i));
                }
                let is_protected = is_protected && kind == PageContents::Bytes;
                self.finish(*page, *claim, claims.arrival(*page), is_protected);
            }
            used += match (kind, memory) {
                (PageContents::Bytes, Memory::Frames { .. }) => 0,
                _ => done as u32,
            };
            at += done;
            if put != Put::Done {
                // `serve` ends the loading of a faulting page that is lost.
                if at != claims.faulting || kind != PageContents::Failed {
                    self.word(pages[at].0).abandon_load();
                    self.wake(pages[at].0);
                }
                at += 1;
            }
        }
        used
    }

    /// Copies a page from a frame that the kernel does not move to the range: the program has locked or protected that
    /// part of the range, so that it differs from the frame. The memory is charged beyond the limit if need be: the
    /// access would fault for ever otherwise.
    ///
    /// # Safety
    /// The caller owns the page, which is loading, and alone has the frame.
    #[cold]
    unsafe fn copy_from_unmovable(&self, page: PageIndex, frame: Frame) -> Put {
        if self.budget.charge(1) == 0 {
            self.budget.force_charge(1);
        }
        // SAFETY: the caller guarantees it.
        let put = unsafe { self.copy_back(page, frame) };
        if put != Put::Done {
            self.budget.uncharge(1);
        }
        put
    }

    /// Ends the loading of a page that is in the range now. A copy takes memory from the region's limit, so that of a page
    /// that will probably be written is dropped.
    fn finish(&self, page: PageIndex, claim: FaultClaim, arrival: Arrival, is_protected: bool) {
        self.table.add_live(page);
        let word = self.word(page);
        if claim == FaultClaim::Load {
            self.table.add_folded(-1);
            if self.can_drop_copies_of_loads() && word.is_rewritten() {
                // SAFETY: this thread owns the page, which is loading, and its bytes are in the range.
                unsafe { self.drop_copy(page) };
                self.counters.add(Counter::CopiesDropped, 1);
                return word.finish_load_without_copy(self.fold_time(), arrival);
            }
            self.table.add_copies(1);
        }
        if is_protected {
            return word.finish_load_protected(self.fold_time(), arrival);
        }
        word.finish_load(self.fold_time(), arrival);
    }

    /// Returns whether a thread that brings pages in may drop copies. That takes locks of the pool, which a signal handler
    /// must not. With a backing it might wait for the medium.
    fn can_drop_copies_of_loads(&self) -> bool {
        self.service == Service::HandlerThreads && self.store.writeback().is_none()
    }

    /// Returns memory that was not used.
    fn settle(&self, memory: Memory, zero_pages_charged: u32, used: u32) {
        let charged = match memory {
            Memory::New(pages) => pages as u32,
            Memory::Frames { batch, .. } => {
                self.recycle_batch(batch);
                zero_pages_charged
            }
        };
        if charged > used {
            self.budget.uncharge(charged - used);
        }
    }

    /// Puts a batch in which no page waits into the set where it belongs: empty, or free with memory.
    pub(crate) fn recycle_batch(&self, batch: FrameBatch) {
        match self.staging.backed(&batch) {
            0 => self.staging.put_empty(batch),
            _ => {
                self.staging.put_backed(batch);
                self.budget.notify_release();
            }
        }
    }
}

impl Memory {
    fn len(&self) -> usize {
        match self {
            Memory::New(len) | Memory::Frames { len, .. } => *len,
        }
    }
}
