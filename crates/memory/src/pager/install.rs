//! The system calls that put pages into the range.
//!
//! Each is repeated as long as the kernel says that it should be (the address space was changing, or another
//! CPU was at the same page tables). A page that is already there is left as it is.

use super::Pager;
use crate::page::Frame;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_sys::uffd::Done;

/// What became of pages that were to be put into the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// They are there.
    Done,
    /// So many are, and the next was there before.
    Present(usize),
    /// So many are, and then the kernel refused with this number.
    Refused(usize, i32),
}

/// Runs `step` from page to page until all are done.
fn repeat(pages: usize, mut step: impl FnMut(usize) -> Done) -> Put {
    let mut at = 0;
    while at < pages {
        let done = step(at);
        at += done.len_bytes / PAGE_SIZE;
        match done.errno {
            0 | libc::EAGAIN => {}
            libc::EEXIST => return Put::Present(at),
            errno => return Put::Refused(at, errno),
        }
    }
    Put::Done
}

impl Pager {
    /// Copies pages to the range.
    ///
    /// # Safety
    /// The pages are loading, by the caller.
    pub(crate) unsafe fn copy_in(&self, first: PageIndex, bytes: &[[u8; PAGE_SIZE]]) -> Put {
        repeat(bytes.len(), |at| {
            let to = self.address(PageIndex(first.0 + at as u64));
            let from = &bytes[at..];
            // SAFETY: the pages are loading, by the caller, who so decides their contents; the source is a live slice.
            unsafe { self.uffd.copy(to, from.as_ptr().cast(), size_of_val(from), true) }
        })
    }

    /// Copies a frame to the range.
    ///
    /// # Safety
    /// The page is returning from the frame, by the caller.
    pub(crate) unsafe fn copy_back(&self, page: PageIndex, frame: Frame) -> Put {
        repeat(1, |_| {
            let from = self.staging.address(frame);
            // SAFETY: the page is returning, by the caller, who so decides its contents; the frame keeps its memory until
            // nobody returns from it, and nobody writes to it.
            unsafe { self.uffd.copy(self.address(page), from, PAGE_SIZE, true) }
        })
    }

    /// Maps zero pages in the range.
    ///
    /// # Safety
    /// The pages are loading, by the caller.
    pub(crate) unsafe fn zero_in(&self, first: PageIndex, pages: usize) -> Put {
        repeat(pages, |at| {
            let to = self.address(PageIndex(first.0 + at as u64));
            // SAFETY: the pages are loading, by the caller, who so decides their contents.
            unsafe { self.uffd.zero(to, (pages - at) * PAGE_SIZE, true) }
        })
    }

    /// Moves the memory of frames that lie behind each other to the range.
    ///
    /// # Safety
    /// The pages are loading or returning, by the caller, who alone refers to the frames.
    pub(crate) unsafe fn move_in(&self, first: PageIndex, frame: Frame, pages: usize) -> Put {
        repeat(pages, |at| {
            let to = self.address(PageIndex(first.0 + at as u64));
            let from = self.frame_address(frame) + at * PAGE_SIZE;
            // SAFETY: the pages are loading or returning, by the caller, who so decides their contents; nobody else has a
            // reference into the frames.
            unsafe { self.uffd.move_pages(to, from, (pages - at) * PAGE_SIZE, true, false) }
        })
    }

    /// Lifts the protection of pages, and wakes who waits there.
    ///
    /// # Safety
    /// No thread but the caller is copying any of the pages out: a write could be lost.
    pub(crate) unsafe fn unprotect(&self, first: PageIndex, pages: usize) {
        // SAFETY: the range is ours; lifting protection changes no contents. It fails only while the address space
        // is being changed, and then the access faults once more.
        let _ = unsafe { self.uffd.write_protect(self.address(first), pages * PAGE_SIZE, false, true) };
    }

    /// Makes an access to a page whose contents are lost fail, where the kernel holds the thread that made it. A
    /// kernel that cannot leaves no way but to end the process: other contents must not be made up.
    ///
    /// # Safety
    /// The page is loading, by the caller.
    pub(crate) unsafe fn poison(&self, page: PageIndex) {
        // SAFETY: the page is loading, by the caller, so it is not there; it has no contents any more.
        let put = repeat(1, |_| unsafe { self.uffd.poison(self.address(page), PAGE_SIZE, true) });
        // It has the mark if it was lost before.
        if matches!(put, Put::Refused(..)) {
            std::process::abort();
        }
    }

    /// Wakes threads that the kernel holds at a page, so that they try again. Nothing where threads serve themselves.
    pub(crate) fn wake(&self, page: PageIndex) {
        if self.service == crate::config::Service::HandlerThreads {
            // It fails only for ranges that are not registered.
            let _ = self.uffd.wake(self.address(page), PAGE_SIZE);
        }
    }
}
