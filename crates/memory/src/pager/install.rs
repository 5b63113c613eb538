//! The system calls that put pages into the range.
//!
//! Each call is repeated while the kernel returns EAGAIN (the address space was changing, or another CPU was changing
//! the same page tables). A page that is present already is left as it is.

use super::Pager;
use crate::page::Frame;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_sys::uffd::Done;
use std::sync::atomic::Ordering::Relaxed;

/// The result of putting pages into the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// All are present.
    Done,
    /// So many were put there, and the next was present before.
    Present(usize),
    /// So many were put there, and then the kernel refused with this error number.
    Refused(usize, i32),
}

/// Runs `step` from page to page until all are done. Its arguments are the index of a page, and how many to put there.
fn repeat(pages: usize, mut step: impl FnMut(usize, usize) -> Done) -> Put {
    let (mut at, mut len_max) = (0, pages);
    while at < pages {
        let len = len_max.min(pages - at);
        let done = step(at, len);
        at += done.len_bytes / PAGE_SIZE;
        match done.errno {
            0 | libc::EAGAIN => {}
            libc::EEXIST => return Put::Present(at),
            // The pages may cross the border of a part that the program has locked or protected.
            libc::EINVAL | libc::ENOENT if len > 1 => len_max = 1,
            errno => return Put::Refused(at, errno),
        }
    }
    Put::Done
}

impl Pager {
    /// Copies pages to the range, write-protected if `is_protected` is set.
    ///
    /// # Safety
    /// The caller owns the pages, which are loading.
    pub(crate) unsafe fn copy_in(
        &self,
        first: PageIndex,
        bytes: &[[u8; PAGE_SIZE]],
        is_protected: bool,
    ) -> Put {
        repeat(bytes.len(), |at, len| {
            let to = self.address(PageIndex(first.0 + at as u64));
            let from = &bytes[at..at + len];
            let (source, len_bytes) = (from.as_ptr().cast(), size_of_val(from));
            // SAFETY: the caller owns the pages, which are loading, and decides their contents; the source is a live
            // slice. `serve` removes the protection when there is a write.
            unsafe {
                match is_protected {
                    true => self.uffd.copy_protected(to, source, len_bytes, true),
                    false => self.uffd.copy(to, source, len_bytes, true),
                }
            }
        })
    }

    /// Copies a frame to the range.
    ///
    /// # Safety
    /// The caller owns the page, which is returning from the frame; or loading, and the caller alone has the frame.
    pub(crate) unsafe fn copy_back(&self, page: PageIndex, frame: Frame) -> Put {
        repeat(1, |_, _| {
            let from = self.staging.address(frame);
            // SAFETY: the caller owns the page, which is returning or loading, and decides its contents; the frame keeps
            // its memory until no page returns from it, and no thread writes to it.
            unsafe { self.uffd.copy(self.address(page), from, PAGE_SIZE, true) }
        })
    }

    /// Maps zero pages in the range.
    ///
    /// # Safety
    /// The caller owns the pages, which are loading.
    pub(crate) unsafe fn zero_in(&self, first: PageIndex, pages: usize) -> Put {
        repeat(pages, |at, len| {
            let to = self.address(PageIndex(first.0 + at as u64));
            // SAFETY: the caller owns the pages, which are loading, and decides their contents.
            unsafe { self.uffd.zero(to, len * PAGE_SIZE, true) }
        })
    }

    /// Moves the memory of adjacent frames to the range.
    ///
    /// # Safety
    /// The caller owns the pages, which are loading or returning, and alone refers to the frames.
    pub(crate) unsafe fn move_in(&self, first: PageIndex, frame: Frame, pages: usize) -> Put {
        repeat(pages, |at, len| {
            let to = self.address(PageIndex(first.0 + at as u64));
            let from = self.frame_address(frame) + at * PAGE_SIZE;
            // SAFETY: the caller owns the pages, which are loading or returning, and decides their contents; no other
            // thread has a reference into the frames.
            unsafe { self.uffd.move_pages(to, from, len * PAGE_SIZE, true, false) }
        })
    }

    /// Removes the protection of pages, and wakes threads that wait for it.
    ///
    /// # Safety
    /// No other thread is copying any of the pages out: a write could be lost.
    pub(crate) unsafe fn unprotect(&self, first: PageIndex, pages: usize) {
        // SAFETY: the range is ours; removing protection changes no contents. The call fails only while the address
        // space is being changed, and then the access faults once more.
        let _ = unsafe { self.uffd.write_protect(self.address(first), pages * PAGE_SIZE, false, true) };
    }

    /// Makes accesses to a page whose contents are lost fail, with handler threads. If the kernel cannot do this, the
    /// process is ended: wrong contents must not be read.
    ///
    /// # Safety
    /// The caller owns the page, which is loading.
    pub(crate) unsafe fn poison(&self, page: PageIndex) {
        self.has_poison.store(true, Relaxed);
        // SAFETY: the caller owns the page, which is loading, so it is not mapped; it has no contents any more.
        let put = repeat(1, |_, _| unsafe { self.uffd.poison(self.address(page), PAGE_SIZE, true) });
        // `Present`: the page was poisoned before.
        if matches!(put, Put::Refused(..)) {
            std::process::abort();
        }
    }

    /// Removes the poison of a page, if it has any, so that an access faults again.
    ///
    /// # Safety
    /// The caller owns the page, which is loading.
    pub(crate) unsafe fn remove_poison(&self, page: PageIndex) {
        if self.has_poison.load(Relaxed) {
            // If the kernel refuses, the poison stays, and an access still fails.
            // SAFETY: the caller owns the page, which is loading, so it has no memory here.
            let _ = unsafe { self.range.discard(page.0 as usize * PAGE_SIZE, PAGE_SIZE) };
        }
    }

    /// Wakes threads that the kernel blocks at a page, so that they retry. Does nothing where the faulting threads
    /// serve.
    pub(crate) fn wake(&self, page: PageIndex) {
        if self.service == crate::config::Service::HandlerThreads {
            // The call fails only for ranges that are not registered.
            let _ = self.uffd.wake(self.address(page), PAGE_SIZE);
        }
    }
}
