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

    /// Whether the pages lie so scattered that each would be taken by itself.
    pub(super) fn is_scattered(pages: &[PageIndex]) -> bool {
        let follows = |pair: &&[PageIndex]| pair[0].0 + 1 == pair[1].0;
        pages.windows(2).filter(follows).count() * 2 < pages.len()
    }

    /// Takes pages out to a tray's frames, from the first on. Returns how many; the others are put back.
    pub(super) fn take_out(&mut self, pager: &Pager, tray: &Tray, pages: &[PageIndex]) -> usize {
        let moved = match pager.moves() {
            true => move_out(pager, tray, pages),
            false => self.copy_out(pager, tray, pages),
        };
        pager.counters.add(Counter::StagedPages, moved as u64);
        moved
    }

    fn copy_out(&mut self, pager: &Pager, tray: &Tray, pages: &[PageIndex]) -> usize {
        let protected = self.protect(pager, pages);
        for (i, page) in pages[..protected].iter().enumerate() {
            copy_to_frame(pager, *page, pager.staging.frame(tray, i));
        }
        let backed_before = pager.staging.backed(tray).count_ones();
        // SAFETY: the pages were copied, and nobody can have written since: they are protected, and taken by this
        // thread, so that a write to them faults and waits.
        let dropped = unsafe { pager.range.discard_parts(&self.parts) } / PAGE_SIZE;
        for (i, page) in pages.iter().enumerate() {
            if i < dropped {
                pager.staging.put(tray, *page);
                pager.word(*page).stage(pager.staging.frame(tray, i));
            } else {
                unprotect_and_put_back(pager, *page);
            }
        }
        // Where a frame had memory already, the page's own is free now.
        let newly_backed = pager.staging.backed(tray).count_ones() - backed_before;
        pager.left.give((dropped as u32).saturating_sub(newly_backed));
        dropped
    }

    /// Write-protects pages, and notes them as parts to drop. Returns how many, from the first on.
    fn protect(&mut self, pager: &Pager, pages: &[PageIndex]) -> usize {
        self.parts.clear();
        let mut at = 0;
        while at < pages.len() {
            let len = run_at(pages, at) * PAGE_SIZE;
            // SAFETY: the range is ours; protecting changes no contents.
            if unsafe { pager.uffd.write_protect(pager.address(pages[at]), len, true, false) }.is_err() {
                break;
            }
            self.parts.push(&pager.range, pages[at].0 as usize * PAGE_SIZE, len);
            at += len / PAGE_SIZE;
        }
        at
    }
}

/// Copies a page that is taken and write-protected.
fn copy_to_frame(pager: &Pager, page: PageIndex, frame: Frame) {
    let from = pager.range.base().as_ptr().wrapping_add(page.0 as usize * PAGE_SIZE);
    let to = pager.staging.address(frame);
    // SAFETY: both are whole pages of mapped memory; the frame is this thread's, and the page cannot be written
    // while it is protected.
    unsafe { std::ptr::copy_nonoverlapping(from, to, PAGE_SIZE) };
}

fn unprotect_and_put_back(pager: &Pager, page: PageIndex) {
    // SAFETY: the range is ours; lifting protection changes no contents.
    let _ = unsafe { pager.uffd.write_protect(pager.address(page), PAGE_SIZE, false, true) };
    pager.word(page).put_back_busy();
    pager.wake(page);
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
