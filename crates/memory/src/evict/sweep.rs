//! The clock hand: finds resident pages that are cold.
//!
//! The hand visits the range chunk by chunk, in order of address, so that pages that were brought in together leave
//! together, many by one system call. A page with chances is passed over and loses one (see `page::clock`).
//!
//! The hand also drops copies in the store that are of no use: the page is so hot that it will not be folded soon, or
//! copies take too much memory.

use super::hand::ClockHand;
use crate::counters::Counter;
use crate::page::{Candidates, Visit};
use crate::pager::Pager;
use crate::table::CHUNK_PAGES;
use pagefold_page::PageIndex;
use std::ops::Range;
use std::sync::Arc;

/// Rounds of the hand in search of cold pages, before any page is taken.
const ROUNDS_COLD: u64 = 2;

/// One thread's position in the sweep.
pub(super) struct Sweep {
    hand: Arc<ClockHand>,
    /// The chunk that this thread has locked.
    locked: Option<u64>,
    /// Rounds that the hand has made.
    round: u64,
    /// The next page, and the end of the chunk.
    next: u64,
    end: u64,
    /// Pages that a stream has passed and that are not taken yet.
    behind: Range<u64>,
    /// Windows that streams had passed at the last call of `has_streams`.
    windows_passed: u64,
}

impl Sweep {
    pub(super) fn new(hand: Arc<ClockHand>) -> Self {
        Sweep { hand, locked: None, round: 0, next: 0, end: 0, behind: 0..0, windows_passed: 0 }
    }

    /// Takes up to `pages.len()` pages. Returns how many, sorted.
    pub(super) fn take(&mut self, pager: &Pager, pages: &mut [PageIndex], candidates: Candidates) -> usize {
        let rounds = if candidates == Candidates::Cold { ROUNDS_COLD } else { 1 };
        let looks = pager.table.chunk_count() * rounds;
        let (mut looked_at, mut found) = (0, 0);
        while found < pages.len() {
            if self.next == self.end {
                // Return the pages found so far: a thread may be waiting for memory, and only this chunk is locked.
                if looked_at > looks || found > 0 {
                    break;
                }
                looked_at += self.next_chunk(pager);
                continue;
            }
            found += self.take_more(pager, &mut pages[found..], candidates);
        }
        found
    }

    /// Takes pages that streams have passed. Returns how many, sorted.
    pub(super) fn take_drop_behind(&mut self, pager: &Pager, pages: &mut [PageIndex]) -> usize {
        let mut found = 0;
        while found < pages.len() {
            let Some(page) = self.behind.next() else {
                let Some(behind) = pager.readahead.next_drop_behind() else { break };
                self.behind = behind.start..behind.end.min(pager.table.page_count().0);
                continue;
            };
            if pager.word(PageIndex(page)).take_drop_behind() {
                pages[found] = PageIndex(page);
                found += 1;
            }
        }
        pages[..found].sort_unstable();
        found
    }

    /// Returns whether streams have passed windows since the last call: there will be more soon.
    pub(super) fn has_streams(&mut self, pager: &Pager) -> bool {
        let windows_passed = pager.readahead.windows_passed();
        std::mem::replace(&mut self.windows_passed, windows_passed) != windows_passed
    }

    /// Takes pages of the rest of the chunk only.
    pub(super) fn take_more(
        &mut self,
        pager: &Pager,
        pages: &mut [PageIndex],
        candidates: Candidates,
    ) -> usize {
        let mut found = 0;
        while found < pages.len() && self.next < self.end {
            let page = PageIndex(self.next);
            self.next += 1;
            if self.visit(pager, page, candidates) {
                pages[found] = page;
                found += 1;
            }
        }
        found
    }

    /// Locks the next chunk that has pages, searching at most one round. Returns how many chunks were examined.
    fn next_chunk(&mut self, pager: &Pager) -> u64 {
        let chunks = pager.table.chunk_count();
        self.unlock_chunk(pager);
        for looked_at in 1..=chunks {
            let at = self.hand.advance();
            let chunk = at % chunks;
            self.round = at / chunks;
            if pager.table.has_live(chunk) && pager.table.try_lock_chunk(chunk) {
                self.locked = Some(chunk);
                self.hand.begin();
                self.next = chunk * CHUNK_PAGES;
                self.end = (self.next + CHUNK_PAGES).min(pager.table.page_count().0);
                return looked_at;
            }
        }
        chunks
    }

    /// Unlocks the chunk, so that other threads can sweep it.
    pub(super) fn unlock_chunk(&mut self, pager: &Pager) {
        if let Some(chunk) = self.locked.take() {
            pager.table.unlock_chunk(chunk);
            self.hand.end();
        }
        self.next = self.end;
    }

    fn visit(&self, pager: &Pager, page: PageIndex, candidates: Candidates) -> bool {
        let word = pager.word(page);
        match word.visit(candidates, self.round) {
            Visit::Taken => true,
            Visit::Kept => {
                if word.has_copy() && (word.is_hot() || pager.has_too_many_copies()) {
                    drop_old_copy(pager, page);
                }
                false
            }
            Visit::NotFree => false,
        }
    }
}

/// Drops the store's copy of a resident page. If the copy was useful, the page only has to be compressed again.
pub(super) fn drop_old_copy(pager: &Pager, page: PageIndex) {
    let word = pager.word(page);
    if !word.take() {
        return;
    }
    if word.has_copy() {
        // SAFETY: this thread owns the page, which is taken and whose bytes are in the range.
        unsafe { pager.drop_copy(page) };
        pager.table.add_copies(-1);
        pager.counters.add(Counter::CopiesDropped, 1);
    }
    word.put_back_dirty();
    pager.wake(page);
}
