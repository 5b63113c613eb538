//! Serving a fault, by the state of its page.

use super::Pager;
use super::install::Put;
use crate::counters::Counter;
use crate::page::{FaultClaim, Frame};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_sys::panic_line;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// The result of serving a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// The access can be retried.
    Again,
    /// The page cannot be brought in: the access must fail.
    Failed,
}

/// The handling of a page that cannot be brought in, besides the returned error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// Nothing: the caller makes the access fail.
    Return,
    /// Poison the page, so that any access to it fails, after a line on standard error.
    Poison,
}

/// Whether this process has written the line about a page that cannot be brought in. A program may go on, after the error
/// of a system call or in its own handler of SIGBUS; further pages write no line.
static HAS_REPORTED: AtomicBool = AtomicBool::new(false);

impl Pager {
    /// Serves a fault at an offset in the range, in bytes. `is_write` is false if unknown.
    ///
    /// The page may still be absent afterwards: then the access faults again.
    pub(crate) fn serve(&self, offset: u64, is_write: bool, on_loss: OnLoss) -> Served {
        let began = Instant::now();
        let page = PageIndex(offset / PAGE_SIZE as u64);
        let served = self.serve_by_state(offset, is_write);
        if served == Served::Failed {
            self.counters.add(Counter::FaultsFailed, 1);
            // SAFETY: after a failure the page is still loading, owned by this thread.
            unsafe { self.give_up(page, on_loss) };
        }
        self.budget.wake_evictors_if_low(self.ready_frames());
        self.counters.add(Counter::FaultNs, began.elapsed().as_nanos() as u64);
        served
    }

    /// Ends the loading of a page that cannot be brought in. The poison is set while the caller owns the page, before
    /// waiting threads try again: later it could hit a page that was dropped meanwhile, or that could be read again.
    ///
    /// # Safety
    /// The caller owns the page, which is loading.
    pub(super) unsafe fn give_up(&self, page: PageIndex, on_loss: OnLoss) {
        if on_loss == OnLoss::Poison {
            // Before the poison: the thread that made the access may end the process then.
            self.report_loss();
            // SAFETY: the caller owns the page, which is loading.
            unsafe { self.poison(page) };
        }
        self.word(page).abandon_load();
        self.wake(page);
    }

    /// Writes a line to standard error about a page that cannot be brought in, once in the life of the process. An access
    /// to such a page ends the process, unless it has its own handler. Runs in signal handlers.
    pub(crate) fn report_loss(&self) {
        if HAS_REPORTED.swap(true, Relaxed) {
            return;
        }
        panic_line::write_line(match self.is_file_changed() {
            true => {
                "pagefold: the file of a compressed region was changed or made shorter, so a page of the region cannot be \
                 read: the file must not change while the region exists\n"
            }
            false => {
                "pagefold: a page of compressed memory cannot be brought back: its contents are lost or cannot be read\n"
            }
        });
    }

    /// Serves a fault by the state of its page. If it returns `Failed`, the page is still loading, owned by the
    /// caller.
    fn serve_by_state(&self, offset: u64, is_write: bool) -> Served {
        let page = PageIndex(offset / PAGE_SIZE as u64);
        // Prefetch the slot while the page's word, which is not in the CPU's cache either, is loaded.
        self.store.prefetch_slot(page);
        let word = self.word(page);
        if word.is_untouched() && self.unregister_around(page) {
            self.counters.add(Counter::FaultsZero, 1);
            self.wake(page);
            return Served::Again;
        }
        match word.claim_fault() {
            // SAFETY: the claim has made the page loading, to recheck it, owned by this thread.
            FaultClaim::Recheck => unsafe { self.recheck(page) },
            FaultClaim::Unregistered => {
                // Another thread is changing the chunk.
                std::thread::yield_now();
                self.wake(page);
                Served::Again
            }
            FaultClaim::Busy(seen) => {
                self.counters.add(Counter::FaultsWaited, 1);
                word.wait(seen);
                self.wake(page);
                Served::Again
            }
            FaultClaim::Return { frame, is_folding } => {
                self.counters.add(Counter::FaultsStaged, 1);
                let ticket = self.budget.ticket();
                // SAFETY: the claim has made the page returning from this frame, owned by this thread.
                if unsafe { self.bring_back(page, frame, is_folding) } {
                    word.finish_return();
                } else {
                    word.abandon_return();
                    self.budget.wait_for_release(ticket);
                    self.wake(page);
                }
                Served::Again
            }
            // SAFETY: the claim has made the page loading, owned by this thread.
            claim @ (FaultClaim::Zero | FaultClaim::Zeroed | FaultClaim::Load) => unsafe {
                self.page_in(offset, claim, is_write)
            },
        }
    }

    /// Serves a fault on a page that was resident. Since the fault, another thread may have brought it in; or it is
    /// protected together with its neighbours, or since it was loaded; or the program dropped it with `madvise`, and it
    /// is zero.
    ///
    /// # Safety
    /// The caller owns the page, by [`FaultClaim::Recheck`].
    unsafe fn recheck(&self, page: PageIndex) -> Served {
        self.counters.add(Counter::FaultsResident, 1);
        // SAFETY: the caller owns the page, which is loading.
        if unsafe { self.zero_in(page, 1) } != Put::Done {
            // The page is protected since it was loaded, or with its neighbours while they were copied.
            // SAFETY: the caller owns the page, so that no other thread copies it out or drops it.
            unsafe { self.unprotect(page, 1) };
        }
        self.word(page).end_recheck();
        self.wake(page);
        Served::Again
    }

    /// Brings a returning page back from its frame. Returns false if this takes memory and there is none; then nothing
    /// has changed.
    ///
    /// # Safety
    /// The caller owns the page, which is returning from the frame. With `is_folding`, another thread may be reading
    /// the frame, to fold the page; otherwise none is.
    pub(crate) unsafe fn bring_back(&self, page: PageIndex, frame: Frame, is_folding: bool) -> bool {
        // A copy takes memory but, unlike a move, interrupts no other CPU.
        // SAFETY: the caller owns the page, which is returning from the frame.
        if self.budget.charge(1) == 1 && unsafe { self.copy_back_charged(page, frame) } {
            return true;
        }
        let mut is_unmovable = false;
        if self.can_move() && !is_folding {
            // SAFETY: the caller owns the page; no thread reads the frame, and no other page returns from it.
            match unsafe { self.move_in(page, frame, 1) } {
                Put::Done => {
                    self.staging.note_moved(frame);
                    return true;
                }
                // Another access put a page of zeroes there, after `madvise`: it is kept.
                Put::Present(_) => return true,
                // The program has locked or protected this part of the range, so that it differs from the frame.
                Put::Refused(_, errno) => is_unmovable = errno == libc::EINVAL,
            }
        }
        let is_charged = self.budget.charge(1) == 1 || self.budget.overcommit();
        if !is_charged && is_unmovable {
            // Beyond the limit until an evictor releases the frame.
            self.budget.force_charge(1);
        }
        // SAFETY: the caller owns the page, which is returning from the frame.
        (is_charged || is_unmovable) && unsafe { self.copy_back_charged(page, frame) }
    }

    /// Copies a returning page back to memory that was charged for it, and uncharges the memory if it is not used.
    /// Returns false if the kernel has no memory: the page must not count as resident then, or it would be taken for a
    /// page of zeroes.
    ///
    /// # Safety
    /// The caller owns the page, which is returning from the frame.
    pub(crate) unsafe fn copy_back_charged(&self, page: PageIndex, frame: Frame) -> bool {
        // SAFETY: the caller guarantees it.
        let put = unsafe { self.copy_back(page, frame) };
        if put != Put::Done {
            self.budget.uncharge(1);
        }
        !matches!(put, Put::Refused(..))
    }

    /// Waits until `take` gets memory. If eviction is stuck, exceeds the limit by a page and returns `overcommitted`.
    /// Returns `None` if the region is being dropped.
    pub(super) fn await_memory<T>(
        &self,
        mut take: impl FnMut() -> Option<T>,
        overcommitted: impl FnOnce() -> T,
    ) -> Option<T> {
        let began = Instant::now();
        self.counters.add(Counter::MemoryWaits, 1);
        let got = loop {
            let ticket = self.budget.ticket();
            if let Some(memory) = take() {
                break Some(memory);
            }
            if self.budget.is_closing() {
                break None;
            }
            if self.budget.overcommit() {
                break Some(overcommitted());
            }
            self.page_ins.fetch_sub(1, Relaxed);
            self.budget.wait_for_release(ticket);
            self.page_ins.fetch_add(1, Relaxed);
        };
        self.counters.add(Counter::WaitNs, began.elapsed().as_nanos() as u64);
        got
    }

    /// Serves a fault in the staging area. Only the engine makes such accesses, when a frame lost its memory: the
    /// frame becomes zero, and the bytes that are read there are not used.
    pub(crate) fn serve_staging(&self, address: usize) {
        let page = address / PAGE_SIZE * PAGE_SIZE;
        // SAFETY: the call fills a frame only if it has no memory, and so no contents that could be lost.
        unsafe { self.uffd.zero(page, PAGE_SIZE, true) };
    }
}
