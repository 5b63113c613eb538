//! What a fault leads to, by the state of its page.

use super::Pager;
use super::install::Put;
use crate::counters::Counter;
use crate::page::{Frame, Touch};
use pagefold_page::{PAGE_SIZE, PageIndex};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// What became of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// The access can be tried again.
    Again,
    /// The page cannot be brought in: the access must fail.
    Failed,
}

/// What else is done about a page that cannot be brought in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// Nothing: the caller makes the access fail.
    Tell,
    /// It is marked, so that the access fails wherever it is made.
    Poison,
}

impl Pager {
    /// Serves a fault in the range. `is_write` may be false if it is not known.
    ///
    /// Afterwards the page may or may not be there: the access faults again if not.
    pub(crate) fn serve(&self, page: PageIndex, is_write: bool, on_loss: OnLoss) -> Served {
        let began = Instant::now();
        let served = self.serve_touch(page, is_write);
        if served == Served::Failed {
            self.counters.add(Counter::FaultsFailed, 1);
            // SAFETY: after a failure the page is still loading, by this thread.
            unsafe { self.give_up(page, on_loss) };
        }
        self.left.check(self.ready_frames());
        self.counters.add(Counter::FaultNs, began.elapsed().as_nanos() as u64);
        served
    }

    /// Ends the loading of a page that cannot be brought in. It is marked while it is still the caller's, and before who waits
    /// there tries again: a mark that came later could hit a page that was dropped, or could be read, meanwhile.
    ///
    /// # Safety
    /// The page is loading, by the caller.
    unsafe fn give_up(&self, page: PageIndex, on_loss: OnLoss) {
        if on_loss == OnLoss::Poison {
            // SAFETY: the page is loading, by the caller.
            unsafe { self.poison(page) };
        }
        self.word(page).abandon_load();
        self.wake(page);
    }

    /// If it failed, the page is still loading, by the caller.
    fn serve_touch(&self, page: PageIndex, is_write: bool) -> Served {
        // It comes in while the page's word, which is as far away, is waited for.
        self.store.prefetch_slot(page);
        let word = self.word(page);
        match word.touch() {
            // SAFETY: this thread has just made the page loading, to look at it.
            Touch::There if word.begin_recheck() => unsafe { self.recheck(page) },
            Touch::There => Served::Again,
            Touch::Busy(seen) => {
                self.counters.add(Counter::FaultsWaited, 1);
                word.wait(seen);
                self.wake(page);
                Served::Again
            }
            Touch::Return { frame, is_folding } => {
                self.counters.add(Counter::FaultsStaged, 1);
                let ticket = self.left.ticket();
                // SAFETY: the touch has made the page returning from this frame, by this thread.
                if unsafe { self.bring_back(page, frame, is_folding) } {
                    word.finish_return();
                } else {
                    word.abandon_return();
                    self.left.await_more(ticket);
                    self.wake(page);
                }
                Served::Again
            }
            // SAFETY: the touch has made the page loading, by this thread.
            touch @ (Touch::Zero | Touch::Load) => unsafe { self.bring_in(page, touch, is_write) },
        }
    }

    /// A fault on a page that was resident, and that is looked at by the caller: it was brought in since; or is protected
    /// beside others; or was dropped behind our back (by madvise), in which case it is zero.
    ///
    /// # Safety
    /// The page is loading, by the caller, after [`PageWord::begin_recheck`](crate::page::PageWord::begin_recheck).
    unsafe fn recheck(&self, page: PageIndex) -> Served {
        self.counters.add(Counter::FaultsThere, 1);
        // SAFETY: the page is loading, by the caller.
        if unsafe { self.zero_in(page, 1) } != Put::Done && self.protects() {
            // It was protected with its neighbours while they were copied.
            // SAFETY: the page is loading, by the caller, so that nobody copies it out.
            unsafe { self.unprotect(page, 1) };
        }
        self.word(page).end_recheck();
        self.wake(page);
        Served::Again
    }

    /// Brings a returning page back from its frame. False if that takes memory and there is none: the page is where it
    /// was.
    ///
    /// # Safety
    /// The page is returning from the frame, by the caller. With `is_read`, another thread may be reading the frame, else
    /// nobody is.
    pub(crate) unsafe fn bring_back(&self, page: PageIndex, frame: Frame, is_read: bool) -> bool {
        // A copy interrupts no other CPU, a move does; but it takes memory.
        // SAFETY: the page is returning from the frame, by the caller.
        if self.protects() && self.left.take(1) == 1 && unsafe { self.copy_back_paid(page, frame) } {
            return true;
        }
        if self.moves() && !is_read {
            // SAFETY: the page is returning, by the caller; nobody reads the frame, and nobody else returns from it.
            match unsafe { self.move_in(page, frame, 1) } {
                Put::Done => {
                    self.staging.note_moved(frame);
                    return true;
                }
                // Not there but by madvise and another access; what that brought is to be kept.
                Put::Present(_) => return true,
                Put::Refused(..) => {}
            }
        }
        // SAFETY: the page is returning from the frame, by the caller.
        (self.left.take(1) == 1 || self.left.go_beyond()) && unsafe { self.copy_back_paid(page, frame) }
    }

    /// Copies a returning page back to memory that was taken for it, or gives that up. False if the kernel has none: a
    /// page must not count as resident that is not there, as it would be taken for one of zeroes.
    ///
    /// # Safety
    /// The page is returning from the frame, by the caller.
    pub(crate) unsafe fn copy_back_paid(&self, page: PageIndex, frame: Frame) -> bool {
        // SAFETY: the caller's duty.
        let put = unsafe { self.copy_back(page, frame) };
        if put != Put::Done {
            self.left.give(1);
        }
        !matches!(put, Put::Refused(..))
    }

    /// Waits until `take` gets memory; or, if the limit cannot be held anyway, overdraws by a page. `None` if the region
    /// is going.
    pub(super) fn await_memory<T>(
        &self,
        mut take: impl FnMut() -> Option<T>,
        overdrawn: impl FnOnce() -> T,
    ) -> Option<T> {
        let began = Instant::now();
        self.counters.add(Counter::MemoryWaits, 1);
        let got = loop {
            let ticket = self.left.ticket();
            if let Some(memory) = take() {
                break Some(memory);
            }
            if self.left.is_closing() {
                break None;
            }
            if self.left.go_beyond() {
                break Some(overdrawn());
            }
            self.bringing.fetch_sub(1, Relaxed);
            self.left.await_more(ticket);
            self.bringing.fetch_add(1, Relaxed);
        };
        self.counters.add(Counter::WaitNs, began.elapsed().as_nanos() as u64);
        got
    }

    /// Serves a fault in the staging area, which only the engine makes, if a frame lost its memory: it is zero, and
    /// what was read there will not be used.
    pub(crate) fn serve_staging(&self, address: usize) {
        let page = address / PAGE_SIZE * PAGE_SIZE;
        // SAFETY: it fills a frame only if that has no memory, and so no contents that could be lost.
        unsafe { self.uffd.zero(page, PAGE_SIZE, true) };
    }
}
