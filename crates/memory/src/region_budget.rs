//! The budget of a region's resident memory, and the threads that wait for it.
//!
//! A charged page is memory behind a page of the range or behind a frame of the staging area. A thread charges the
//! budget before it maps new memory, and uncharges it after it has returned memory to the kernel. Below the low
//! watermark faults wake the evictors, which run until the high watermark is reached, as kswapd does.
//!
//! A thread that finds no memory left sleeps on `release_epoch`, and evictors with nothing to do sleep on
//! `evictor_epoch`; both are futexes. A sleeper registers itself and then checks again; a thread that changes
//! something checks for sleepers afterwards. Nothing here takes a lock or allocates, because faults are served inside
//! a signal handler.

use crate::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::*, WAKE_ALL, fence, wait, wake};

/// The least limit of a region, bytes.
#[cfg(not(loom))]
pub(crate) const LIMIT_MIN_BYTES: u64 = 64 * pagefold_page::PAGE_SIZE as u64;

/// The budget of a region, in pages.
pub struct RegionBudget {
    /// Pages that are charged. A separate count from the limit, so that each is read and changed by itself: a count of
    /// what is left would have to be compared with the limit, which another thread may be changing.
    charged: AtomicI64,
    limit: AtomicU64,
    /// Faults wake the evictors when fewer pages than this are left.
    low_watermark: AtomicI64,
    /// Evictors stop when this many pages are left.
    high_watermark: AtomicI64,
    /// Advances whenever there may be more memory; threads that wait for memory sleep on it.
    release_epoch: AtomicU32,
    waiters: AtomicU32,
    /// Pages that may still exceed the limit, because nothing can be evicted; 0 otherwise.
    overcommit_left: AtomicU32,
    /// Advances when evictors have work; they sleep on it.
    evictor_epoch: AtomicU32,
    sleeping_evictors: AtomicU32,
    is_closing: AtomicBool,
    /// Memory of the copies that the store keeps of resident pages, and of tables, in pages: it counts as if it were
    /// charged.
    copy_pages: AtomicI64,
}

/// Most pages that may exceed the limit each time that the store refuses pages.
const OVERCOMMIT_MAX: u64 = 4096;
/// The greatest high watermark, pages left.
const HIGH_WATERMARK_MAX: u64 = 4096;

/// Returns the high watermark of a limit: evictors that have begun stop when so many pages are left.
pub fn high_watermark_of(limit_pages: u64) -> u64 {
    (limit_pages / 32).clamp(4, HIGH_WATERMARK_MAX)
}

impl RegionBudget {
    /// Makes a budget of which nothing is charged.
    pub fn new(limit_pages: u64) -> Self {
        let budget = RegionBudget {
            charged: AtomicI64::new(0),
            limit: AtomicU64::new(0),
            low_watermark: AtomicI64::new(0),
            high_watermark: AtomicI64::new(0),
            release_epoch: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            overcommit_left: AtomicU32::new(0),
            evictor_epoch: AtomicU32::new(0),
            sleeping_evictors: AtomicU32::new(0),
            is_closing: AtomicBool::new(false),
            copy_pages: AtomicI64::new(0),
        };
        budget.set_limit(limit_pages);
        budget
    }

    /// Returns the limit in pages.
    pub fn limit(&self) -> u64 {
        self.limit.load(Acquire)
    }

    /// Changes the limit. If it is lower than what is in use, the evictors free the difference from now on.
    pub fn set_limit(&self, pages: u64) {
        self.limit.store(pages, Release);
        let high = high_watermark_of(pages) as i64;
        self.high_watermark.store(high, Relaxed);
        self.low_watermark.store(high / 2, Relaxed);
        self.wake_waiters();
    }

    /// Returns the pages that are charged.
    pub fn in_use(&self) -> u64 {
        u64::try_from(self.charged.load(Acquire)).unwrap_or(0)
    }

    /// Returns the pages left; negative above the limit.
    pub fn available(&self) -> i64 {
        self.limit() as i64 - self.charged.load(Relaxed)
    }

    /// Charges up to `wanted` pages. Returns how many were available. If the limit is lowered meanwhile, the old one
    /// may count.
    pub fn charge(&self, wanted: u32) -> u32 {
        let mut charged = self.charged.load(Relaxed);
        loop {
            let left = self.limit() as i64 - charged - self.copy_pages.load(Relaxed);
            let got = left.clamp(0, i64::from(wanted));
            if got == 0 {
                return 0;
            }
            match self.charged.compare_exchange_weak(charged, charged + got, AcqRel, Relaxed) {
                Ok(_) => return got as u32,
                Err(now) => charged = now,
            }
        }
    }

    /// Charges so many pages, if that is far from making memory short. Returns false if it would.
    pub fn charge_spare(&self, pages: u32) -> bool {
        if self.free(0) - i64::from(pages) < 2 * self.high_watermark.load(Relaxed) {
            return false;
        }
        let got = self.charge(pages);
        if got < pages {
            self.uncharge(got);
        }
        got == pages
    }

    /// Charges `pages` even if none are left.
    pub fn force_charge(&self, pages: u32) {
        self.charged.fetch_add(i64::from(pages), AcqRel);
    }

    /// Uncharges pages, and wakes threads that wait for memory.
    pub fn uncharge(&self, pages: u32) {
        self.charged.fetch_sub(i64::from(pages), AcqRel);
        self.notify_release();
    }

    /// Wakes threads that wait for memory, after memory became available without [`RegionBudget::uncharge`].
    pub fn notify_release(&self) {
        // Pairs with the fence in `wait_for_release`: this thread sees the waiter, or the waiter sees the memory.
        fence(SeqCst);
        if self.has_waiters() {
            self.wake_waiters();
        }
    }

    /// Wakes the evictors if less than the low watermark is left, `ready` frames with memory included.
    #[inline]
    pub fn wake_evictors_if_low(&self, ready: u32) {
        if self.free(ready) < self.low_watermark.load(Relaxed) && self.sleeping_evictors.load(Relaxed) > 0 {
            self.wake_evictors();
        }
    }

    /// Wakes all evictors.
    #[cold]
    pub fn wake_evictors(&self) {
        self.evictor_epoch.fetch_add(1, AcqRel);
        wake(&self.evictor_epoch, WAKE_ALL);
    }

    /// Returns whether evictors have work, given `ready` free frames with memory.
    ///
    /// A waiter for which there is memory by now does not count: on a busy machine it takes a while until it runs, and
    /// in that time the evictors would empty the region.
    pub fn needs_eviction(&self, ready: u32) -> bool {
        self.free(ready) < self.high_watermark.load(Relaxed)
            || self.has_unserved_waiters()
            || (ready > 0 && self.is_over_limit())
    }

    /// Returns whether more than the limit is in use, because it was lowered or could not be held. Free frames with
    /// memory should be released then.
    pub fn is_over_limit(&self) -> bool {
        self.free(0) < 0
    }

    /// Returns whether so little is left that evictors take any page, without waiting for better ones.
    pub fn is_urgent(&self, ready: u32) -> bool {
        self.free(ready) < self.low_watermark.load(Relaxed) / 2 || self.has_waiters()
    }

    /// Returns whether less than an eighth of the limit is left.
    pub fn is_tight(&self) -> bool {
        self.free(0) < self.limit() as i64 / 8
    }

    /// Memory that faults can use: what is left of the budget, and `ready` free frames with memory.
    fn free(&self, ready: u32) -> i64 {
        self.available() + i64::from(ready) - self.copy_pages.load(Relaxed)
    }

    /// Returns whether nothing is left: [`RegionBudget::charge`] would return 0.
    pub fn is_exhausted(&self) -> bool {
        self.free(0) <= 0
    }

    /// Sets the memory of copies and tables, and wakes threads that wait for memory if that is less than before.
    pub fn set_copy_pages(&self, pages: u64) {
        if self.copy_pages.swap(pages as i64, AcqRel) > pages as i64 {
            self.notify_release();
        }
    }

    /// Returns the memory of copies and tables, in pages.
    pub fn copy_pages(&self) -> u64 {
        u64::try_from(self.copy_pages.load(Relaxed)).unwrap_or(0)
    }

    /// Returns whether threads wait for memory.
    pub fn has_waiters(&self) -> bool {
        self.waiters.load(Relaxed) > 0
    }

    /// Returns whether threads wait for memory and [`RegionBudget::charge`] would find none for them.
    pub fn has_unserved_waiters(&self) -> bool {
        self.has_waiters() && self.is_exhausted()
    }

    /// Puts an evictor to sleep until it has work.
    pub fn wait_for_work(&self, is_needed: impl Fn() -> bool) {
        let seen = self.evictor_epoch.load(Acquire);
        self.sleeping_evictors.fetch_add(1, AcqRel);
        // Pairs with the fence in `wait_for_release`: this thread sees the waiter, or the waiter sees this sleeper and
        // wakes it.
        fence(SeqCst);
        if !is_needed() && !self.is_closing() {
            wait(&self.evictor_epoch, seen);
        }
        self.sleeping_evictors.fetch_sub(1, AcqRel);
    }

    /// Returns the epoch for [`RegionBudget::wait_for_release`]. The caller reads it before it looks for memory.
    pub fn ticket(&self) -> u32 {
        self.release_epoch.load(Acquire)
    }

    /// Sleeps until there is more memory than when the ticket was read, or the region is closing. May return early.
    pub fn wait_for_release(&self, ticket: u32) {
        self.waiters.fetch_add(1, AcqRel);
        fence(SeqCst);
        if self.sleeping_evictors.load(Relaxed) > 0 {
            self.wake_evictors();
        }
        // A release, or `close`, may have missed our registration as a waiter: check again before sleeping. With an
        // older ticket the futex does not sleep.
        if self.is_exhausted() && !self.is_closing() {
            wait(&self.release_epoch, ticket);
        }
        self.waiters.fetch_sub(1, AcqRel);
    }

    /// Wakes all threads that wait for memory: there is more, or waiting is of no use.
    pub fn wake_waiters(&self) {
        self.release_epoch.fetch_add(1, AcqRel);
        fence(SeqCst);
        if self.has_waiters() {
            wake(&self.release_epoch, WAKE_ALL);
        }
    }

    /// Wakes threads that wait for memory if there is some, `ready` free frames with memory included.
    pub fn wake_waiters_if_available(&self, ready: u32) {
        if self.has_waiters() && (ready > 0 || !self.is_exhausted()) {
            self.wake_waiters();
        }
    }

    /// Notes whether the store refuses all pages. If so, a bounded number of pages may exceed the limit. The number is
    /// renewed only by the next call, because eviction may be possible again when the pages are used up.
    pub fn set_store_refuses(&self, is_stuck: bool) {
        let bound = (self.limit() / 16).clamp(1, OVERCOMMIT_MAX) as u32;
        self.allow_overcommit(if is_stuck { bound } else { 0 });
    }

    /// Allows each thread that waits one page beyond the limit, because no page can be moved out. One page each is
    /// enough: pages that come in can be moved out for the next.
    pub fn overcommit_waiters(&self) {
        self.allow_overcommit(self.waiters.load(Relaxed));
    }

    fn allow_overcommit(&self, pages: u32) {
        let before = self.overcommit_left.swap(pages, AcqRel);
        if before > 0 || pages > 0 {
            self.wake_waiters();
        }
    }

    /// Charges a page beyond the limit, if eviction is stuck and the bounded number is not used up.
    pub fn overcommit(&self) -> bool {
        let is_allowed =
            self.overcommit_left.fetch_update(AcqRel, Relaxed, |pages| pages.checked_sub(1)).is_ok();
        if is_allowed {
            self.force_charge(1);
        }
        is_allowed
    }

    /// Closes the budget: the region is being dropped, and no thread waits any more.
    pub fn close(&self) {
        self.is_closing.store(true, Release);
        self.wake_evictors();
        self.wake_waiters();
    }

    /// Returns whether the region is being dropped.
    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_for_which_there_is_memory_needs_no_eviction() {
        let budget = RegionBudget::new(1600);
        budget.waiters.store(1, Relaxed);
        assert!(!budget.needs_eviction(0));
        // No memory is left but that of free frames, which a waiter for a staged page cannot use.
        assert_eq!(budget.charge(1600), 1600);
        assert!(budget.needs_eviction(1600));
    }

    #[test]
    fn as_many_pages_exceed_the_limit_as_threads_wait() {
        let budget = RegionBudget::new(1600);
        budget.overcommit_waiters();
        assert!(!budget.overcommit());
        budget.waiters.store(2, Relaxed);
        budget.overcommit_waiters();
        assert_eq!([(); 3].map(|()| budget.overcommit()), [true, true, false]);
    }
}
