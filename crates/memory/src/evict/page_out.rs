//! Moving pages out of the range, so that no write to them is lost.
//!
//! *Drop*: a page that is unwritten by its word is write-protected since it was loaded, so it equals the store's copy, and
//! nothing can write to it: neither a thread nor, as the kernel gets memory to write to only by a fault that ends the
//! protection, a system call or a device. While the caller owns the page, such a fault waits. Devices that only read it keep
//! its memory. Many such pages are dropped by one system call, and none is read.
//!
//! All others leave in one of two ways. *Move*: the kernel moves the page's memory to a frame, atomically. *Protect*: the
//! page is write-protected, copied to a frame, and dropped; a thread that writes to it meanwhile faults and waits for the
//! page's word. If the hash of a protected page equals that of its copy in the store, only its memory is released. In all
//! ways the caller owns the pages, in state *taken*; afterwards they are staged or folded, or put back.
//!
//! A system call may have handed the page's memory to a device, which writes to it at any later moment and past any
//! protection. The kernel pins such memory, and refuses to move it. But it drops the page from the range all the same,
//! and what the device writes then is lost. So pages are copied only where no system call uses memory of the region
//! without a pin of ours ([`Pager::may_copy`]), and a page that the kernel does not move stays resident.
//!
//! A page that is resident by its word may be missing: the program dropped it by `madvise`, and it is zero. A move
//! reports this. A plain read would fault, and a thread that makes room for faults must not wait for a fault. So pages
//! are read through `sys::ownmem`, which returns an error instead.

use crate::config::Service;
use crate::counters::Counter;
use crate::page::Frame;
use crate::pager::Pager;
use crate::staging::FrameBatch;
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_sys::mem::{self, DiscardBatch};
use pagefold_sys::ownmem::OwnMemory;
use pagefold_sys::{Errno, SysError};

/// Attempts at a page while another thread changes its page tables.
const ATTEMPTS: u32 = 64;

/// How pages leave the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// By a move, to a batch without memory.
    Move,
    /// By a copy, to any batch.
    Copy,
}

/// The result of paging out. Pages that are not counted here were put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TakenOut {
    /// Pages that are in frames now.
    pub(super) staged: usize,
    /// Pages that equalled their copy, and whose memory was released at once.
    pub(super) clean: usize,
    /// Pages that were missing, because the program had dropped them: their memory is uncharged.
    pub(super) missing: usize,
}

/// Most pages paged out at once.
pub(super) const PAGE_OUT_MAX: usize = 256;

/// Pages in runs shorter than this, on average, are scattered: moving them costs more than copying.
const RUN_MOVED_MIN: usize = 8;

/// Returns whether pages, which are sorted, are scattered.
fn is_scattered(pages: &[PageIndex]) -> bool {
    let ends = |pair: &&[PageIndex]| pair[0].0 + 1 != pair[1].0;
    (pages.windows(2).filter(ends).count() + 1) * RUN_MOVED_MIN > pages.len()
}

/// The working memory of one thread that pages out.
pub(super) struct Mover {
    parts: DiscardBatch,
    is_clean: [bool; PAGE_OUT_MAX],
    copies: Copies,
    reader: Reader,
}

/// Reads taken pages of the range.
struct Reader {
    /// `None` if pages are never copied.
    memory: Option<OwnMemory>,
    /// The page that was read last.
    page: Box<Page>,
}

/// The result of reading a taken page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// The page's bytes are in `Reader::page`.
    Bytes,
    /// The page is missing, so it is zero.
    Missing,
    /// The kernel refused.
    Refused,
}

impl Reader {
    fn new(pager: &Pager) -> Result<Self, SysError> {
        let is_sigbus = pager.service == Service::FaultingThread;
        let memory = if pager.may_copy() { Some(OwnMemory::open(is_sigbus)?) } else { None };
        Ok(Reader { memory, page: Box::new([0; PAGE_SIZE]) })
    }

    fn read(&mut self, pager: &Pager, page: PageIndex) -> Read {
        let Some(memory) = &self.memory else { return Read::Refused };
        match memory.read(pager.address(page), &mut self.page[..]) {
            Ok(()) => Read::Bytes,
            Err(Errno(libc::EFAULT)) => Read::Missing,
            Err(_) => Read::Refused,
        }
    }
}

/// Pages copied to the first frames of some batches, one batch after the other.
struct Copies {
    batches: Vec<FrameBatch>,
    batch_pages: usize,
    /// Frames filled.
    len: usize,
    /// Whether each frame had memory before.
    was_backed: [bool; PAGE_OUT_MAX],
}

/// Returns the length of the run of adjacent pages that begins at an index of the list.
fn run_at(pages: &[PageIndex], at: usize) -> usize {
    let first = pages[at].0;
    (at + 1..pages.len()).take_while(|i| pages[*i].0 == first + (i - at) as u64).count() + 1
}

impl Copies {
    /// Returns the batch of a frame, and the frame's index there.
    fn at(&self, frame: usize) -> (&FrameBatch, usize) {
        (&self.batches[frame / self.batch_pages], frame % self.batch_pages)
    }

    /// Copies a page to the next frame. Returns false if there is no frame, or no memory.
    fn push(&mut self, pager: &Pager, page: &Page) -> bool {
        if self.len == self.batches.len() * self.batch_pages {
            let Some(batch) = pager.take_batch(Method::Copy) else { return false };
            self.batches.push(batch);
        }
        let (batch, at) = self.at(self.len);
        let is_backed = pager.staging.backed(batch) >> at & 1 == 1;
        // SAFETY: this thread owns the batch, and no page waits yet in frames that are not filled.
        if !unsafe { copy_to_frame(pager, page, pager.staging.frame(batch, at), is_backed) } {
            return false;
        }
        self.was_backed[self.len] = is_backed;
        self.len += 1;
        true
    }

    /// Enqueues the batches. Pages wait in their first `staged` frames.
    fn enqueue(&mut self, pager: &Pager, staged: usize) {
        // The other frames have memory now, though their pages were not dropped.
        for frame in staged..self.len {
            let (batch, at) = self.at(frame);
            pager.budget.force_charge(pager.staging.note_backed(batch, at..at + 1));
        }
        self.len = 0;
        self.batches.drain(..).for_each(|batch| pager.enqueue_or_recycle(batch));
    }
}

impl Mover {
    pub(super) fn new(pager: &Pager) -> Result<Self, SysError> {
        let copies = Copies {
            batches: Vec::with_capacity(PAGE_OUT_MAX),
            batch_pages: 1,
            len: 0,
            was_backed: [false; PAGE_OUT_MAX],
        };
        let (parts, reader) = (DiscardBatch::new(PAGE_OUT_MAX), Reader::new(pager)?);
        Ok(Mover { parts, is_clean: [false; PAGE_OUT_MAX], copies, reader })
    }

    /// Returns how to page out these pages, which are sorted.
    pub(super) fn choose(pager: &Pager, pages: &[PageIndex]) -> Method {
        let is_copied = pager.may_copy() && (!pager.can_move() || is_scattered(pages));
        if is_copied { Method::Copy } else { Method::Move }
    }

    /// Pages out a batch's worth of pages or, if they are copied, up to [`PAGE_OUT_MAX`]. Changes the order of the
    /// list.
    ///
    /// # Safety
    /// The caller owns the pages, which are taken, and they are sorted. If they are copied, they lie in one chunk,
    /// which the caller has locked.
    pub(super) unsafe fn page_out(
        &mut self,
        pager: &Pager,
        method: Method,
        pages: &mut [PageIndex],
    ) -> TakenOut {
        let taken = match method {
            // SAFETY: the caller owns the pages, which are taken.
            Method::Move => unsafe {
                let (moved, clean) = self.drop_unwritten(pager, pages);
                TakenOut { clean, ..move_out(pager, &pages[..moved]) }
            },
            // SAFETY: the caller owns the pages, which are taken, and has locked their chunk.
            Method::Copy => unsafe { self.copy_out(pager, pages) },
        };
        pager.counters.add(Counter::StagedPages, (taken.staged + taken.clean) as u64);
        taken
    }

    /// Drops the pages that are unwritten, or puts them back. Returns how many pages are left, which come first in the list
    /// now and are not protected, and how many were dropped.
    ///
    /// # Safety
    /// The caller owns the pages, which are taken.
    unsafe fn drop_unwritten(&mut self, pager: &Pager, pages: &mut [PageIndex]) -> (usize, usize) {
        if !pager.protects_loads() {
            return (pages.len(), 0);
        }
        // Pages that the kernel merges lose their protection. It is allowed to only if the program has asked for it after it
        // had made the region.
        let is_merged = mem::is_merged();
        let mut unwritten = [PageIndex(0); PAGE_OUT_MAX];
        let (mut left, mut count) = (0, 0);
        self.parts.clear();
        for at in 0..pages.len() {
            let page = pages[at];
            let word = pager.word(page);
            if word.is_unwritten() && !is_merged {
                self.parts.push(&pager.range, page.0 as usize * PAGE_SIZE, PAGE_SIZE);
                unwritten[count] = page;
                count += 1;
            } else {
                if word.is_protected() {
                    // The copy was dropped. A move could take the protection along, which no word would tell.
                    // SAFETY: this thread owns the page, which is taken, and does not copy it.
                    unsafe { pager.unprotect(page, 1) };
                    word.end_protection();
                }
                pages[left] = page;
                left += 1;
            }
        }
        // SAFETY: the store has the pages, and nothing has written to them: they are write-protected, and taken by this
        // thread, so that a write to them faults and waits.
        let mut dropped = unsafe { pager.range.discard_batch(&self.parts) } / PAGE_SIZE;
        unwritten[..dropped].iter().for_each(|page| fold_clean(pager, *page));
        for page in &unwritten[dropped..count] {
            // The batch ended at a page that the kernel refused: it may drop those after that one.
            // SAFETY: as above.
            match unsafe { pager.range.discard(page.0 as usize * PAGE_SIZE, PAGE_SIZE) } {
                Ok(()) => {
                    fold_clean(pager, *page);
                    dropped += 1;
                }
                Err(_) => put_back_busy(pager, &[*page]),
            }
        }
        pager.budget.uncharge(dropped as u32);
        (left, dropped)
    }

    /// # Safety
    /// The caller owns the pages, which are taken, sorted, and lie in one chunk, which the caller has locked.
    unsafe fn copy_out(&mut self, pager: &Pager, pages: &mut [PageIndex]) -> TakenOut {
        let (Some(&first), Some(last)) = (pages.first(), pages.last()) else { return TakenOut::default() };
        let span = (last.0 - first.0 + 1) as usize;
        let protecting = pager.begin_protecting();
        let is_protected = protect(pager, pages, span);
        // Pages that were read but are not ready are missing.
        // SAFETY: the pages are protected, and taken by the caller, who has locked their chunk.
        let (ready, seen) = if is_protected { unsafe { self.copy_or_compare(pager, pages) } } else { (0, 0) };
        self.parts.clear();
        for page in &pages[..ready] {
            self.parts.push(&pager.range, page.0 as usize * PAGE_SIZE, PAGE_SIZE);
        }
        // SAFETY: the pages were copied, or the store has them, and no thread can have written since: they are
        // protected, and taken by this thread, so that a write to them faults and waits.
        let dropped = unsafe { pager.range.discard_batch(&self.parts) } / PAGE_SIZE;
        let mut staged = 0;
        for (page, is_clean) in pages[..dropped].iter().zip(self.is_clean) {
            if is_clean {
                fold_clean(pager, *page);
            } else {
                stage_next(pager, self.copies.at(staged).0, *page);
                staged += 1;
            }
        }
        // A page that was copied to a frame without memory passes its charge to that frame. The other pages whose
        // memory was released (unchanged ones, and those copied to a frame that was charged already) are uncharged.
        let used_again = self.copies.was_backed[..staged].iter().filter(|was_backed| **was_backed).count();
        self.copies.enqueue(pager, staged);
        // SAFETY: the span lies in the chunk that the caller has locked, so that no other thread copies pages of it
        // out.
        unsafe { pager.unprotect(first, span) };
        drop(protecting);
        put_back_busy(pager, &pages[dropped..ready]);
        put_back(pager, &pages[seen..]);
        pager.budget.uncharge((dropped - staged + used_again) as u32);
        TakenOut { staged, clean: dropped - staged, missing: seen - ready }
    }

    /// Compares pages, which are taken and write-protected, with their copies in the store, and copies those that
    /// differ to frames. Returns how many are ready, which come first in the list now, and how many were read. This
    /// thread no longer owns those that were read but are not ready.
    ///
    /// # Safety
    /// The pages are write-protected, and taken by the caller, who has locked their chunk.
    unsafe fn copy_or_compare(&mut self, pager: &Pager, pages: &mut [PageIndex]) -> (usize, usize) {
        self.copies.batch_pages = pager.batch_pages();
        let mut done = 0;
        for at in 0..pages.len() {
            let page = pages[at];
            match self.reader.read(pager, page) {
                Read::Bytes => {}
                Read::Missing => {
                    // SAFETY: the caller owns the page, which is taken and missing.
                    unsafe { drop_missing(pager, page) };
                    continue;
                }
                Read::Refused => return (done, at),
            }
            let bytes = &*self.reader.page;
            self.is_clean[done] = pager.word(page).has_copy() && pager.equals_copy(page, pager.hash(bytes));
            if !self.is_clean[done] && !self.copies.push(pager, bytes) {
                return (done, at);
            }
            pages[done] = page;
            done += 1;
        }
        (done, pages.len())
    }
}

/// Puts back pages for which there was no room.
fn put_back(pager: &Pager, pages: &[PageIndex]) {
    for page in pages {
        pager.word(*page).put_back();
        pager.wake(*page);
    }
}

/// Puts back pages that the kernel refused to move or drop.
fn put_back_busy(pager: &Pager, pages: &[PageIndex]) {
    for page in pages {
        pager.counters.add(Counter::Unmovable, 1);
        pager.word(*page).put_back_busy();
        pager.wake(*page);
    }
}

/// Protects the pages of a span, with all pages between them in one call, because each call interrupts all CPUs that
/// run the program. Pinned pages are left out: system calls could not write to them. Returns false if the kernel
/// refused.
fn protect(pager: &Pager, pages: &[PageIndex], span: usize) -> bool {
    let first = pages[0].0;
    // SAFETY: the range is ours; protecting changes no contents.
    let protect = |first: PageIndex, pages: usize| unsafe {
        pager.uffd.write_protect(pager.address(first), pages * PAGE_SIZE, true, false).is_ok()
    };
    if !(first..first + span as u64).any(|page| pager.word(PageIndex(page)).pins() > 0) {
        return protect(pages[0], span);
    }
    let mut at = 0;
    while at < pages.len() {
        let len = run_at(pages, at);
        if !protect(pages[at], len) {
            return false;
        }
        at += len;
    }
    true
}

/// Copies a page to a frame. Returns false if there is no memory.
///
/// # Safety
/// The caller owns the frame, and the frame has memory if `is_backed` is set or if pages cannot be moved.
unsafe fn copy_to_frame(pager: &Pager, page: &Page, frame: Frame, is_backed: bool) -> bool {
    if is_backed || !pager.can_move() {
        // SAFETY: a whole page of mapped memory that the caller alone owns, so it does not overlap the other.
        unsafe { pager.staging.address(frame).cast::<Page>().copy_from_nonoverlapping(page, 1) };
        return true;
    }
    // A plain write to a frame without memory would fault, as the staging area is registered too.
    // SAFETY: the caller owns the frame and decides its contents; the page can be read.
    let done = unsafe { pager.uffd.copy(pager.frame_address(frame), page.as_ptr(), PAGE_SIZE, false) };
    done.errno == 0
}

/// Makes a taken page folded, after it was dropped because it equals its copy.
fn fold_clean(pager: &Pager, page: PageIndex) {
    pager.counters.add(Counter::CleanPages, 1);
    pager.table.add_copies(-1);
    pager.note_folded(page);
    pager.word(page).fold_clean(pager.fold_time());
}

/// Makes a taken page staged, in the next frame of a batch.
fn stage_next(pager: &Pager, batch: &FrameBatch, page: PageIndex) {
    let frame = pager.staging.frame(batch, pager.staging.filled(batch));
    pager.staging.put(batch, page);
    pager.word(page).stage(frame);
}

/// # Safety
/// The caller owns the pages, which are taken.
unsafe fn move_out(pager: &Pager, pages: &[PageIndex]) -> TakenOut {
    if pages.is_empty() {
        return TakenOut::default();
    }
    let Some(batch) = pager.take_batch(Method::Move) else {
        put_back(pager, pages);
        return TakenOut::default();
    };
    // SAFETY: the caller owns the pages, which are taken, and the batch was empty.
    let moved = unsafe { move_to_batch(pager, &batch, pages) };
    pager.enqueue_or_recycle(batch);
    moved
}

/// # Safety
/// The caller owns the pages, which are taken; the batch's frames have no memory.
unsafe fn move_to_batch(pager: &Pager, batch: &FrameBatch, pages: &[PageIndex]) -> TakenOut {
    let (mut at, mut filled, mut missing, mut attempts) = (0, 0, 0, 0);
    let mut run_max = pages.len();
    while at < pages.len() {
        let run = run_at(pages, at).min(run_max);
        let to = pager.frame_address(pager.staging.frame(batch, filled));
        // SAFETY: this thread owns the batch, whose frames hold nothing; the caller owns the pages, and the move takes
        // whatever they contain at that moment.
        let done =
            unsafe { pager.uffd.move_pages(to, pager.address(pages[at]), run * PAGE_SIZE, false, false) };
        let moved = done.len_bytes / PAGE_SIZE;
        for page in &pages[at..at + moved] {
            stage_next(pager, batch, *page);
            filled += 1;
        }
        at += moved;
        attempts = if moved > 0 { 0 } else { attempts + 1 };
        if done.errno == 0 || (done.errno == libc::EAGAIN && attempts < ATTEMPTS) {
            continue;
        }
        match done.errno {
            // The run may cross the border of a part that the program has locked or protected.
            libc::EINVAL if run > 1 => {
                run_max = 1;
                continue;
            }
            libc::ENOENT => {
                // SAFETY: the caller owns the page, which is taken and missing.
                unsafe { drop_missing(pager, pages[at]) };
                missing += 1;
            }
            _ => put_back_busy(pager, &pages[at..=at]),
        }
        attempts = 0;
        at += 1;
    }
    TakenOut { staged: filled, clean: 0, missing }
}

/// Makes a taken page untouched that is missing: the program dropped it by `madvise`, and it is zero.
///
/// # Safety
/// The caller owns the page, which is taken and not in the range.
unsafe fn drop_missing(pager: &Pager, page: PageIndex) {
    let word = pager.word(page);
    if word.has_copy() {
        // SAFETY: the caller owns the page, which is taken, and its contents are lost already.
        unsafe { pager.drop_copy(page) };
        pager.table.add_copies(-1);
    }
    pager.table.remove_live(page);
    pager.budget.uncharge(1);
    pager.finish_drop(page, word);
    pager.wake(page);
}
