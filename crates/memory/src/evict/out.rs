//! Taking pages out of the range, so that no write to them is lost.
//!
//! A page that still equals its copy in the store, as its hash tells while it cannot be written, is not copied but only
//! dropped.
//!
//! *Move*: the kernel moves the page's memory to a frame; from one moment to the next the page is not in the
//! range, and its bytes are in the frame. *Protect*: the page is write-protected, copied to a frame, and dropped; a
//! thread that writes meanwhile faults and waits for the page's word. Either way the pages were taken by the
//! caller, and are staged afterwards, or put back.
//!
//! A page may be missing that was resident: the program dropped it by madvise, and it is zero. A move says so. A plain
//! read of it would fault, and a thread that makes room for faults must not wait for one. So pages are read in a way
//! that fails instead of faulting.

use crate::config::Service;
use crate::counters::Counter;
use crate::page::Frame;
use crate::pager::Pager;
use crate::staging::Tray;
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_sys::mem::Parts;
use pagefold_sys::ownmem::OwnMemory;
use pagefold_sys::{Errno, SysError};

/// Attempts at a page whose page tables somebody else is at.
const ATTEMPTS: u32 = 64;

/// How pages are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// To trays without memory.
    Move,
    /// To any trays.
    Copy,
}

/// What became of pages that were to be taken out; the others were put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TakenOut {
    /// Pages that wait in frames.
    pub(super) staged: usize,
    /// Pages whose memory was given back at once, as the store has them already.
    pub(super) clean: usize,
    /// Pages that were not there, as the program had dropped them: their memory is counted as given back.
    pub(super) lost: usize,
}

/// Most pages taken at once.
pub(super) const BATCH_PAGES: usize = 256;

/// Runs of pages shorter than this, on average, are scattered: a move is then dearer than copies.
const RUN_MOVED_MIN: usize = 8;

/// Whether pages, which are sorted, lie scattered.
fn is_scattered(pages: &[PageIndex]) -> bool {
    let ends = |pair: &&[PageIndex]| pair[0].0 + 1 != pair[1].0;
    (pages.windows(2).filter(ends).count() + 1) * RUN_MOVED_MIN > pages.len()
}

/// One thread's working memory.
pub(super) struct Mover {
    parts: Parts,
    is_clean: [bool; BATCH_PAGES],
    copies: Copies,
    reader: Reader,
}

/// Reads pages of the range that were taken.
struct Reader {
    /// `None` where pages are not copied.
    memory: Option<OwnMemory>,
    /// The page that was read last.
    page: Box<Page>,
}

/// What became of a taken page that was to be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// Its bytes are at hand.
    Bytes,
    /// It is missing, so it is zero.
    Missing,
    /// The kernel refused.
    Refused,
}

impl Reader {
    fn new(pager: &Pager) -> Result<Self, SysError> {
        let is_sigbus = pager.service == Service::FaultingThread;
        let memory = if pager.protects() { Some(OwnMemory::open(is_sigbus)?) } else { None };
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

/// Pages copied to the first frames of some trays, one tray after the other.
struct Copies {
    trays: Vec<Tray>,
    tray_pages: usize,
    /// Frames that were copied to.
    len: usize,
    /// Whether each had memory before.
    was_backed: [bool; BATCH_PAGES],
}

/// The length of the run of pages behind each other that begins at a place of the list.
fn run_at(pages: &[PageIndex], at: usize) -> usize {
    let first = pages[at].0;
    (at + 1..pages.len()).take_while(|i| pages[*i].0 == first + (i - at) as u64).count() + 1
}

impl Copies {
    /// The tray of a frame, and its place there.
    fn at(&self, frame: usize) -> (&Tray, usize) {
        (&self.trays[frame / self.tray_pages], frame % self.tray_pages)
    }

    /// Copies a page to the next frame. False if there is no frame, or no memory.
    fn push(&mut self, pager: &Pager, page: &Page) -> bool {
        if self.len == self.trays.len() * self.tray_pages {
            let Some(tray) = pager.take_tray(How::Copy) else { return false };
            self.trays.push(tray);
        }
        let (tray, at) = self.at(self.len);
        let is_backed = pager.staging.backed(tray) >> at & 1 == 1;
        // SAFETY: this thread has the tray, and nothing waits yet in frames that are not filled.
        if !unsafe { copy_to_frame(pager, page, pager.staging.frame(tray, at), is_backed) } {
            return false;
        }
        self.was_backed[self.len] = is_backed;
        self.len += 1;
        true
    }

    /// Hands the trays on, pages waiting in the first `staged` frames.
    fn hand_on(&mut self, pager: &Pager, staged: usize) {
        // Frames whose pages were not dropped after all have memory now.
        for frame in staged..self.len {
            let (tray, at) = self.at(frame);
            pager.left.overdraw(pager.staging.note_backed(tray, at..at + 1));
        }
        self.len = 0;
        self.trays.drain(..).for_each(|tray| pager.pass_on(tray));
    }
}

impl Mover {
    pub(super) fn new(pager: &Pager) -> Result<Self, SysError> {
        let copies = Copies {
            trays: Vec::with_capacity(BATCH_PAGES),
            tray_pages: 1,
            len: 0,
            was_backed: [false; BATCH_PAGES],
        };
        let (parts, reader) = (Parts::new(BATCH_PAGES), Reader::new(pager)?);
        Ok(Mover { parts, is_clean: [false; BATCH_PAGES], copies, reader })
    }

    /// How to take these pages, which are sorted.
    pub(super) fn choose(pager: &Pager, pages: &[PageIndex]) -> How {
        match (pager.moves(), pager.protects()) {
            (true, false) => How::Move,
            (false, _) => How::Copy,
            (true, true) if is_scattered(pages) => How::Copy,
            (true, true) => How::Move,
        }
    }

    /// Takes pages out, a tray's worth or, if they are copied, up to [`BATCH_PAGES`]. The list is used up.
    ///
    /// # Safety
    /// The pages are taken, by the caller, and sorted. If they are copied, they lie in one stretch, which the caller
    /// holds.
    pub(super) unsafe fn take_out(&mut self, pager: &Pager, how: How, pages: &mut [PageIndex]) -> TakenOut {
        let taken = match how {
            // SAFETY: the pages are taken, by the caller.
            How::Move => unsafe { move_out(pager, pages) },
            // SAFETY: the pages are taken, by the caller, who holds their stretch.
            How::Copy => unsafe { self.copy_out(pager, pages) },
        };
        pager.counters.add(Counter::StagedPages, (taken.staged + taken.clean) as u64);
        taken
    }

    /// # Safety
    /// The pages are taken, by the caller, sorted, and lie in one stretch, which the caller holds.
    unsafe fn copy_out(&mut self, pager: &Pager, pages: &mut [PageIndex]) -> TakenOut {
        let (Some(&first), Some(last)) = (pages.first(), pages.last()) else { return TakenOut::default() };
        let span = (last.0 - first.0 + 1) as usize;
        let protecting = pager.begin_protecting();
        let is_protected = protect(pager, pages, span);
        // Pages that were looked at and are not ready are lost.
        // SAFETY: the pages are protected, and taken by the caller, who holds their stretch.
        let (ready, seen) = if is_protected { unsafe { self.copy_or_compare(pager, pages) } } else { (0, 0) };
        self.parts.clear();
        for page in &pages[..ready] {
            self.parts.push(&pager.range, page.0 as usize * PAGE_SIZE, PAGE_SIZE);
        }
        // SAFETY: the pages were copied, or the store has them, and nobody can have written since: they are protected,
        // and taken by this thread, so that a write to them faults and waits.
        let dropped = unsafe { pager.range.discard_parts(&self.parts) } / PAGE_SIZE;
        let mut staged = 0;
        for (page, is_clean) in pages[..dropped].iter().zip(self.is_clean) {
            if is_clean {
                fold_clean(pager, *page);
            } else {
                stage_next(pager, self.copies.at(staged).0, *page);
                staged += 1;
            }
        }
        // Where a frame had memory already, or none was needed, the page's own is free now.
        let used_again = self.copies.was_backed[..staged].iter().filter(|was_backed| **was_backed).count();
        self.copies.hand_on(pager, staged);
        // SAFETY: the span lies in the stretch that the caller holds, so that nobody else copies pages of it out.
        unsafe { pager.unprotect(first, span) };
        drop(protecting);
        put_back_busy(pager, &pages[dropped..ready]);
        put_back(pager, &pages[seen..]);
        pager.left.give((dropped - staged + used_again) as u32);
        TakenOut { staged, clean: dropped - staged, lost: seen - ready }
    }

    /// Sees which pages, taken and write-protected, still equal their copy in the store; and copies the others to
    /// frames. Returns how many were done, which come first in the list now, and how many were looked at: those that
    /// were not done are this thread's no more.
    ///
    /// # Safety
    /// The pages are write-protected, and taken by the caller, who holds their stretch.
    unsafe fn copy_or_compare(&mut self, pager: &Pager, pages: &mut [PageIndex]) -> (usize, usize) {
        self.copies.tray_pages = pager.tray_pages();
        let mut done = 0;
        for at in 0..pages.len() {
            let page = pages[at];
            match self.reader.read(pager, page) {
                Read::Bytes => {}
                Read::Missing => {
                    // SAFETY: the page is taken, by the caller, and not there.
                    unsafe { lose(pager, page) };
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

/// Puts pages back for which there was no room.
fn put_back(pager: &Pager, pages: &[PageIndex]) {
    for page in pages {
        pager.word(*page).put_back();
        pager.wake(*page);
    }
}

/// Puts pages back that the kernel would not give.
fn put_back_busy(pager: &Pager, pages: &[PageIndex]) {
    for page in pages {
        pager.counters.add(Counter::Unmovable, 1);
        pager.word(*page).put_back_busy();
        pager.wake(*page);
    }
}

/// Protects pages of a span, all at once with what lies between, as each call interrupts all CPUs that run the
/// program; but no pinned pages, which system calls could not write to. False if the kernel refused.
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

/// Copies a page to a frame. False if there is no memory.
///
/// # Safety
/// The frame is the caller's, and has memory if `is_backed` says so, or if frames are not served.
unsafe fn copy_to_frame(pager: &Pager, page: &Page, frame: Frame, is_backed: bool) -> bool {
    if is_backed || !pager.moves() {
        // SAFETY: a whole page of mapped memory that is the caller's alone, so it does not overlap the other.
        unsafe { pager.staging.address(frame).cast::<Page>().copy_from_nonoverlapping(page, 1) };
        return true;
    }
    // A frame without memory would fault, as the staging area is served too.
    // SAFETY: the frame is the caller's, who so decides its contents; the page can be read.
    let done = unsafe { pager.uffd.copy(pager.frame_address(frame), page.as_ptr(), PAGE_SIZE, false) };
    done.errno == 0
}

/// A page that was taken, and dropped as it equals its copy.
fn fold_clean(pager: &Pager, page: PageIndex) {
    pager.counters.add(Counter::CleanPages, 1);
    pager.table.add_copies(-1);
    pager.note_folded(page);
    pager.word(page).fold_clean(pager.fold_time());
}

/// A page that was taken, and is now in the next frame of a tray.
fn stage_next(pager: &Pager, tray: &Tray, page: PageIndex) {
    let frame = pager.staging.frame(tray, pager.staging.filled(tray));
    pager.staging.put(tray, page);
    pager.word(page).stage(frame);
}

/// # Safety
/// The pages are taken, by the caller.
unsafe fn move_out(pager: &Pager, pages: &[PageIndex]) -> TakenOut {
    let Some(tray) = pager.take_tray(How::Move) else {
        put_back(pager, pages);
        return TakenOut::default();
    };
    // SAFETY: the pages are taken, by the caller, and the tray was empty.
    let moved = unsafe { move_to_tray(pager, &tray, pages) };
    pager.pass_on(tray);
    moved
}

/// # Safety
/// The pages are taken, by the caller; the tray's frames have no memory.
unsafe fn move_to_tray(pager: &Pager, tray: &Tray, pages: &[PageIndex]) -> TakenOut {
    let (mut at, mut filled, mut lost, mut attempts) = (0, 0, 0, 0);
    while at < pages.len() {
        let len = run_at(pages, at) * PAGE_SIZE;
        let to = pager.frame_address(pager.staging.frame(tray, filled));
        // SAFETY: this thread has the tray, whose frames hold nothing; the pages are taken by the caller, and what moves is
        // whatever they hold at that moment.
        let done = unsafe { pager.uffd.move_pages(to, pager.address(pages[at]), len, false, false) };
        let moved = done.len_bytes / PAGE_SIZE;
        for page in &pages[at..at + moved] {
            stage_next(pager, tray, *page);
            filled += 1;
        }
        at += moved;
        attempts = if moved > 0 { 0 } else { attempts + 1 };
        if done.errno == 0 || (done.errno == libc::EAGAIN && attempts < ATTEMPTS) {
            continue;
        }
        match done.errno {
            libc::ENOENT => {
                // SAFETY: the page is taken, by the caller, and not there.
                unsafe { lose(pager, pages[at]) };
                lost += 1;
            }
            _ => put_back_busy(pager, &pages[at..=at]),
        }
        attempts = 0;
        at += 1;
    }
    TakenOut { staged: filled, clean: 0, lost }
}

/// A taken page that is not there: it was dropped behind our back (by madvise), and is zero.
///
/// # Safety
/// The page is taken, by the caller, and not in the range.
unsafe fn lose(pager: &Pager, page: PageIndex) {
    let word = pager.word(page);
    if word.has_copy() {
        // SAFETY: the page is taken, by the caller, and what it was is lost already.
        unsafe { pager.drop_copy(page) };
        pager.table.add_copies(-1);
    }
    pager.table.remove_live(page);
    pager.left.give(1);
    word.finish_drop();
    pager.wake(page);
}
