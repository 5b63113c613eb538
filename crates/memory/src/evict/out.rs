//! Taking pages out of the range, so that no write to them is lost.
//!
//! *Move*: the kernel moves the page's memory to a frame; from one moment to the next the page is not in the
//! range, and its bytes are in the frame. *Protect*: the page is write-protected, copied to a frame, and dropped; a
//! thread that writes meanwhile faults and waits for the page's word. Either way the pages were taken by the
//! caller, and are staged afterwards, or put back.

use crate::counters::Counter;
use crate::page::Frame;
use crate::pager::Pager;
use crate::staging::{TRAY_FRAMES, Tray};
use pagefold_page::{PAGE_SIZE, PageIndex};
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
}

/// The length of the run of pages behind each other that begins at a place of the list.
fn run_at(pages: &[PageIndex], at: usize) -> usize {
    let first = pages[at].0;
    (at + 1..pages.len()).take_while(|i| pages[*i].0 == first + (i - at) as u64).count() + 1
}

impl Mover {
    pub(super) fn new() -> Self {
        Mover { parts: Parts::new(TRAY_FRAMES) }
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
        // All at once, with what lies between: each call interrupts all CPUs that run the program.
        // SAFETY: the range is ours; protecting changes no contents.
        let done = unsafe { pager.uffd.write_protect(pager.address(*first), span * PAGE_SIZE, true, false) };
        let copied = if done.is_ok() { copy_to_frames(pager, tray, pages) } else { 0 };
        self.parts.clear();
        for page in &pages[..copied] {
            self.parts.push(&pager.range, page.0 as usize * PAGE_SIZE, PAGE_SIZE);
        }
        let backed_before = pager.staging.backed(tray).count_ones();
        // SAFETY: the pages were copied, and nobody can have written since: they are protected, and taken by this
        // thread, so that a write to them faults and waits.
        let dropped = unsafe { pager.range.discard_parts(&self.parts) } / PAGE_SIZE;
        for (i, page) in pages[..dropped].iter().enumerate() {
            pager.staging.put(tray, *page);
            pager.word(*page).stage(pager.staging.frame(tray, i));
        }
        pager.unprotect(*first, span);
        for page in &pages[dropped..] {
            pager.counters.add(Counter::Unmovable, 1);
            pager.word(*page).put_back_busy();
            pager.wake(*page);
        }
        // Where a frame had memory already, the page's own is free now.
        let newly_backed = pager.staging.backed(tray).count_ones() - backed_before;
        pager.left.give((dropped as u32).saturating_sub(newly_backed));
        dropped
    }
}

/// Copies pages that are taken and write-protected to the first frames of a tray. Returns how many.
fn copy_to_frames(pager: &Pager, tray: &Tray, pages: &[PageIndex]) -> usize {
    let backed = pager.staging.backed(tray);
    for (i, page) in pages.iter().enumerate() {
        let from = pager.range.base().as_ptr().wrapping_add(page.0 as usize * PAGE_SIZE);
        let frame = pager.staging.frame(tray, i);
        if backed >> i & 1 == 1 || !pager.moves() {
            // SAFETY: both are whole pages of mapped memory; the frame is this thread's, and the page cannot be
            // written while it is protected.
            unsafe { std::ptr::copy_nonoverlapping(from, pager.staging.address(frame), PAGE_SIZE) };
            continue;
        }
        // A frame without memory would fault, as the staging area is served too.
        // SAFETY: the frame is this thread's; the page is mapped.
        let done = unsafe { pager.uffd.copy(pager.frame_address(frame), from, PAGE_SIZE, false) };
        if done.errno != 0 {
            return i;
        }
    }
    pages.len()
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
            let frame = pager.staging.frame(tray, filled);
            pager.staging.put(tray, *page);
            pager.word(*page).stage(frame);
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
