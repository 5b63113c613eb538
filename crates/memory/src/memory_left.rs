//! How much memory a region may still take, and who waits for more.
//!
//! A *page of memory* is real memory behind a page of the region or a frame of the staging area. The count of those
//! left begins at the limit; who maps new memory takes from it first, who gives memory back to the kernel adds to
//! it. Two marks say when pages are moved out: below the low one it begins, at the high one it ends.
//!
//! Threads that find none left sleep here until there is more. Nothing in this module takes a lock or allocates,
//! because the thread that touched a page comes here from inside a signal handler.

use crate::sync::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::*, WAKE_ALL, fence, wait, wake};

/// The count of pages of memory left, with its waiters.
pub struct MemoryLeft {
    left: AtomicI64,
    limit: AtomicU64,
    low: AtomicI64,
    high: AtomicI64,
    /// Advances whenever there may be more; slept on by who waits for memory.
    more: AtomicU32,
    waiting: AtomicU32,
    /// Pages that may be taken beyond the limit, because nothing can be moved out; 0 otherwise.
    beyond: AtomicU32,
    /// Advances when pages are to be moved out; slept on by those who do it.
    wanted: AtomicU32,
    sleeping: AtomicU32,
    is_closing: AtomicBool,
    /// Memory of copies that the store keeps of resident pages, in pages: it counts as if it were in use.
    copies: AtomicI64,
}

/// Most pages beyond the limit each time that nothing can be moved out.
const BEYOND_MAX: u64 = 4096;
/// Most pages between the limit and the high mark.
const HIGH_MAX: u64 = 4096;

impl MemoryLeft {
    /// A count with all of the limit left.
    pub fn new(limit_pages: u64) -> Self {
        let left = MemoryLeft {
            left: AtomicI64::new(0),
            limit: AtomicU64::new(0),
            low: AtomicI64::new(0),
            high: AtomicI64::new(0),
            more: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            beyond: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
            sleeping: AtomicU32::new(0),
            is_closing: AtomicBool::new(false),
            copies: AtomicI64::new(0),
        };
        left.set_limit(limit_pages);
        left
    }

    /// The limit in pages.
    pub fn limit(&self) -> u64 {
        self.limit.load(Acquire)
    }

    /// Changes the limit. What is over a smaller one is moved out from now on.
    pub fn set_limit(&self, pages: u64) {
        let old = self.limit.swap(pages, AcqRel);
        self.left.fetch_add(pages as i64 - old as i64, AcqRel);
        let high = (pages / 32).clamp(4, HIGH_MAX) as i64;
        self.high.store(high, Relaxed);
        self.low.store(high / 2, Relaxed);
        self.tell();
    }

    /// Pages of memory in use.
    pub fn in_use(&self) -> u64 {
        loop {
            let limit = self.limit();
            let left = self.left.load(Acquire);
            // A limit from before a change and what is left after it do not go together. The other way round, less
            // is in use than the larger of the limits.
            if self.limit() == limit {
                return u64::try_from(limit as i64 - left).unwrap_or(0);
            }
        }
    }

    /// Pages of memory left; negative above the limit.
    #[cfg(loom)]
    pub fn left(&self) -> i64 {
        self.left.load(Relaxed)
    }

    /// Takes up to `wanted` pages. Returns how many there were.
    pub fn take(&self, wanted: u32) -> u32 {
        let mut left = self.left.load(Relaxed);
        loop {
            let got = (left - self.copies.load(Relaxed)).clamp(0, i64::from(wanted));
            if got == 0 {
                return 0;
            }
            match self.left.compare_exchange_weak(left, left - got, AcqRel, Relaxed) {
                Ok(_) => return got as u32,
                Err(now) => left = now,
            }
        }
    }

    /// Takes `pages` even if there are none left.
    pub fn overdraw(&self, pages: u32) {
        self.left.fetch_sub(i64::from(pages), AcqRel);
    }

    /// Adds pages that were given back, and tells those who wait.
    pub fn give(&self, pages: u32) {
        self.left.fetch_add(i64::from(pages), AcqRel);
        self.tell_of_memory();
    }

    /// Tells those who wait, after memory was given in another way.
    pub fn tell_of_memory(&self) {
        // Either it is seen here that somebody waits, or there that there is more.
        fence(SeqCst);
        if self.is_waited_for() {
            self.tell();
        }
    }

    /// Whether memory is so short that pages are to be moved out: those who do it are woken.
    #[inline]
    pub fn check(&self, ready: u32) {
        if self.free(ready) < self.low.load(Relaxed) && self.sleeping.load(Relaxed) > 0 {
            self.call();
        }
    }

    /// Wakes those who move pages out.
    #[cold]
    pub fn call(&self) {
        self.wanted.fetch_add(1, AcqRel);
        wake(&self.wanted, WAKE_ALL);
    }

    /// Whether more pages are to be moved out, `ready` pages of memory lying in frames.
    pub fn is_short(&self, ready: u32) -> bool {
        self.free(ready) < self.high.load(Relaxed)
            || self.is_waited_for()
            || (ready > 0 && self.is_exceeded())
    }

    /// Whether more is in use than the limit, which was lowered or could not be held. Then frames that are ready are too
    /// many.
    pub fn is_exceeded(&self) -> bool {
        self.left.load(Relaxed) < 0
    }

    /// Whether there is so little that it does not matter which pages are moved out.
    pub fn is_pressed(&self, ready: u32) -> bool {
        self.free(ready) < self.low.load(Relaxed) / 2 || self.is_waited_for()
    }

    /// Memory that faults can have, the frames that are ready included.
    fn free(&self, ready: u32) -> i64 {
        self.left.load(Relaxed) + i64::from(ready) - self.copies.load(Relaxed)
    }

    /// Whether there is none to be had: [`MemoryLeft::take`] would find nothing.
    pub fn is_empty(&self) -> bool {
        self.free(0) <= 0
    }

    /// Sets what copies of resident pages take, and tells those who wait if that is less than before.
    pub fn set_copies(&self, pages: u64) {
        if self.copies.swap(pages as i64, AcqRel) > pages as i64 {
            self.tell_of_memory();
        }
    }

    /// What copies of resident pages take, in pages.
    pub fn copies(&self) -> u64 {
        u64::try_from(self.copies.load(Relaxed)).unwrap_or(0)
    }

    /// Whether threads wait for memory.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Sleeps until pages are to be moved out.
    pub fn await_work(&self, is_needed: impl Fn() -> bool) {
        let seen = self.wanted.load(Acquire);
        self.sleeping.fetch_add(1, AcqRel);
        // Either it is seen here that somebody waits, or there that somebody is to be called.
        fence(SeqCst);
        if !is_needed() && !self.is_closing() {
            wait(&self.wanted, seen);
        }
        self.sleeping.fetch_sub(1, AcqRel);
    }

    /// What to give to [`MemoryLeft::await_more`]: taken before looking for memory.
    pub fn ticket(&self) -> u32 {
        self.more.load(Acquire)
    }

    /// Sleeps until there is more memory than when the ticket was taken, or the region is going. May return early.
    pub fn await_more(&self, ticket: u32) {
        self.waiting.fetch_add(1, AcqRel);
        fence(SeqCst);
        if self.sleeping.load(Relaxed) > 0 {
            self.call();
        }
        // Who gave some before it was known that somebody waits has told nobody. Who closes has told those with an older
        // ticket; with a newer one it is seen here.
        if self.is_empty() && !self.is_closing() {
            wait(&self.more, ticket);
        }
        self.waiting.fetch_sub(1, AcqRel);
    }

    /// Tells those who wait that there is more memory, or that waiting is in vain.
    pub fn tell(&self) {
        self.more.fetch_add(1, AcqRel);
        fence(SeqCst);
        if self.is_waited_for() {
            wake(&self.more, WAKE_ALL);
        }
    }

    /// Tells those who wait if there is memory, `ready` pages of it in frames.
    pub fn tell_if_any(&self, ready: u32) {
        if self.is_waited_for() && (ready > 0 || !self.is_empty()) {
            self.tell();
        }
    }

    /// Notes whether anything can be moved out at all. If not, some pages may be taken beyond the limit, and more only
    /// when this is noted again: that may be long ago, or over, when the next is wanted.
    pub fn set_stuck(&self, is_stuck: bool) {
        let some = (self.limit() / 16).clamp(1, BEYOND_MAX) as u32;
        let before = self.beyond.swap(if is_stuck { some } else { 0 }, AcqRel);
        if before > 0 || is_stuck {
            self.tell();
        }
    }

    /// Takes a page beyond the limit, if that cannot be held and as long as there are some for it.
    pub fn go_beyond(&self) -> bool {
        let may = self.beyond.fetch_update(AcqRel, Relaxed, |pages| pages.checked_sub(1)).is_ok();
        if may {
            self.overdraw(1);
        }
        may
    }

    /// The region is going: nobody waits any more.
    pub fn close(&self) {
        self.is_closing.store(true, Release);
        self.call();
        self.tell();
    }

    /// Whether the region is going.
    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Relaxed)
    }
}
