//! Taking pages out of the range, so that no write to them is lost.
//!
//! A page that still equals its copy in the store, as its hash tells while it cannot be written, is not copied but only
//! dropped.
//!
//! *Move*: the kernel moves the page's memory to a frame; from one moment to the next the page is not in the
//! range, and its bytes are in the frame. *Protect*: the page is write-protected, copied to a frame, and dropped; a
//! thread that writes meanwhile faults and waits for the page's word. Either way the pages were taken by the
//! caller, and are staged afterwards, or put back.

use crate::counters::Counter;
use crate::page::Frame;
use crate::pager::Pager;
use crate::staging::{TRAY_FRAMES, Tray};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_sys::mem::Parts;

/// Attempts at a page whose page tables somebody else is at.
const ATTEMPTS: u32 = 64;

/// How pages are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// To a tray without memory.
    Move,
    /// To any tray.
    Copy,
}

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
    is_clean: [bool; TRAY_FRAMES],
    /// Frames that were copied to.
    copied: usize,
}

/// The length of the run of pages behind each other that begins at a place of the list.
fn run_at(pages: &[PageIndex], at: usize) -> usize {
    let first = pages[at].0;
    (at + 1..pages.len()).take_while(|i| pages[*i].0 == first + (i - at) as u64).count() + 1
}

impl Mover {
    pub(super) fn new() -> Self {
        Mover { parts: Parts::new(TRAY_FRAMES), is_clean: [false; TRAY_FRAMES], copied: 0 }
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

    /// Takes pages out to a tray's frames, from the first on. Returns how many; the others are put back.
    pub(super) fn take_out(&mut self, pager: &Pager, how: How, tray: &Tray, pages: &[PageIndex]) -> usize {
        let moved = match how {
            How::Move => move_out(pager, tray, pages),
            How::Copy => self.copy_out(pager, tray, pages),
        };
        pager.counters.add(Counter::StagedPages, moved as u64);
        moved
    }

    /// The pages lie in one stretch, which nobody else sweeps.
    fn copy_out(&mut self, pager: &Pager, tray: &Tray, pages: &[PageIndex]) -> usize {
        let (Some(first), Some(last)) = (pages.first(), pages.last()) else { return 0 };
        let span = (last.0 - first.0 + 1) as usize;
        let protecting = pager.begin_protecting();
        let ready = if protect(pager, pages, span) { self.copy_or_compare(pager, tray, pages) } else { 0 };
        self.parts.clear();
        for page in &pages[..ready] {
            self.parts.push(&pager.range, page.0 as usize * PAGE_SIZE, PAGE_SIZE);
        }
        let backed_before = pager.staging.backed(tray);
        // SAFETY: the pages were copied, or the store has them, and nobody can have written since: they are protected,
        // and taken by this thread, so that a write to them faults and waits.
        let dropped = unsafe { pager.range.discard_parts(&self.parts) } / PAGE_SIZE;
        for (page, is_clean) in pages[..dropped].iter().zip(self.is_clean) {
            match is_clean {
                true => fold_clean(pager, *page),
                false => stage_next(pager, tray, *page),
            }
        }
        // Frames whose pages were not dropped after all have memory now.
        let staged = pager.staging.filled(tray);
        pager.left.overdraw(pager.staging.note_backed(tray, staged..self.copied));
        pager.unprotect(*first, span);
        drop(protecting);
        for page in &pages[dropped..] {
            pager.counters.add(Counter::Unmovable, 1);
            pager.word(*page).put_back_busy();
            pager.wake(*page);
        }
        // Where a frame had memory already, or none was needed, the page's own is free now.
        let used_again = (0..staged).filter(|i| backed_before >> i & 1 == 1).count();
        pager.left.give((dropped - staged + used_again) as u32);
        dropped
    }

    /// Sees which pages, taken and write-protected, still equal their copy in the store; and copies the others to the
    /// first frames of a tray. Returns how many were done, from the first on.
    fn copy_or_compare(&mut self, pager: &Pager, tray: &Tray, pages: &[PageIndex]) -> usize {
        let backed = pager.staging.backed(tray);
        self.copied = 0;
        for (i, page) in pages.iter().enumerate() {
            let from = pager.range.base().as_ptr().wrapping_add(page.0 as usize * PAGE_SIZE);
            // SAFETY: a whole page of mapped memory, which cannot be written while it is protected.
            let bytes = unsafe { &*from.cast::<Page>() };
            self.is_clean[i] = pager.word(*page).has_copy() && pager.equals_copy(*page, pager.hash(bytes));
            if self.is_clean[i] {
                continue;
            }
            let frame = pager.staging.frame(tray, self.copied);
            if !copy_to_frame(pager, bytes, frame, backed >> self.copied & 1 == 1) {
                return i;
            }
            self.copied += 1;
        }
        pages.len()
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
fn copy_to_frame(pager: &Pager, page: &Page, frame: Frame, is_backed: bool) -> bool {
    if is_backed || !pager.moves() {
        // SAFETY: a whole page of mapped memory that is this thread's alone.
        unsafe { pager.staging.address(frame).cast::<Page>().copy_from_nonoverlapping(page, 1) };
        return true;
    }
    // A frame without memory would fault, as the staging area is served too.
    // SAFETY: the frame is this thread's.
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

fn move_out(pager: &Pager, tray: &Tray, pages: &[PageIndex]) -> usize {
    let (mut at, mut filled, mut attempts) = (0, 0, 0);
    while at < pages.len() {
        let len = run_at(pages, at) * PAGE_SIZE;
        let to = pager.frame_address(pager.staging.frame(tray, filled));
        // SAFETY: the frames are this thread's and hold nothing; the pages are taken by it, and what moves is
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
            libc::ENOENT => lose(pager, pages[at]),
            _ => {
                pager.counters.add(Counter::Unmovable, 1);
                pager.word(pages[at]).put_back_busy();
                pager.wake(pages[at]);
            }
        }
        attempts = 0;
        at += 1;
    }
    filled
}

/// A taken page that is not there: it was dropped behind our back (by madvise), and is zero.
fn lose(pager: &Pager, page: PageIndex) {
    let word = pager.word(page);
    if word.has_copy() {
        pager.drop_copy(page);
        pager.table.add_copies(-1);
    }
    pager.table.remove_live(page);
    pager.left.give(1);
    word.finish_drop();
    pager.wake(page);
}
