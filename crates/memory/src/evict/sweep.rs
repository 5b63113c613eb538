//! The clock's hand: which resident pages are cold.
//!
//! The range is looked at stretch by stretch, in order of address, so that pages that were brought in together
//! go together, many with one system call. A page is passed over while it has chances left, and loses one at each
//! visit (see `page`). Where writes are told (asynchronous write-protection), a write since the last visit is a chance of
//! its own. A copy in the store that is of no more use goes then: the page was written, or is so hot that it will
//! not be folded soon, or copies take too much.

use super::Hand;
use crate::counters::Counter;
use crate::page::{Effort, Visit};
use crate::pager::Pager;
use crate::table::STRETCH_PAGES;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_sys::SysError;
use pagefold_sys::pagemap::{Pagemap, Run};
use std::ops::Range;
use std::sync::Arc;

/// A bit for each page of a stretch.
const BITMAP_WORDS: usize = STRETCH_PAGES as usize / 64;
/// Runs of written pages asked for at once.
const RUNS: usize = 256;
/// Rounds of the hand after which pages that are not cold do, if fewer were found.
const ROUNDS_COLD: u64 = 2;

/// One thread's part of the hand's way.
pub(super) struct Sweep {
    hand: Arc<Hand>,
    pagemap: Option<Pagemap>,
    /// The stretch that this thread alone sweeps.
    held: Option<u64>,
    /// Rounds that the hand has made.
    round: u64,
    /// The next page, and the end of the stretch.
    next: u64,
    end: u64,
    written: [u64; BITMAP_WORDS],
    runs: Box<[Run]>,
    /// Pages that a stream has left behind, the next to take.
    behind: Range<u64>,
    /// Windows that streams had gone on from when that was asked last.
    gone_on: u64,
}

impl Sweep {
    pub(super) fn new(hand: Arc<Hand>, tells_writes: bool) -> Result<Self, SysError> {
        let pagemap = if tells_writes { Some(Pagemap::open()?) } else { None };
        let runs = vec![Run::default(); RUNS].into();
        Ok(Sweep {
            hand,
            pagemap,
            held: None,
            round: 0,
            next: 0,
            end: 0,
            written: [0; BITMAP_WORDS],
            runs,
            behind: 0..0,
            gone_on: 0,
        })
    }

    /// Takes pages, up to as many as `pages` has room for. Returns how many, sorted.
    pub(super) fn take(&mut self, pager: &Pager, pages: &mut [PageIndex], effort: Effort) -> usize {
        let rounds = if effort == Effort::Cold { ROUNDS_COLD } else { 1 };
        let looks = pager.table.stretch_count() * rounds;
        let (mut looked_at, mut found) = (0, 0);
        while found < pages.len() {
            if self.next == self.end {
                // What was found goes first: somebody may be waiting for it, and only this stretch is held.
                if looked_at > looks || found > 0 {
                    break;
                }
                looked_at += self.next_stretch(pager);
                continue;
            }
            found += self.take_more(pager, &mut pages[found..], effort);
        }
        found
    }

    /// Takes pages that streams have left behind. Returns how many, sorted.
    pub(super) fn take_behind(&mut self, pager: &Pager, pages: &mut [PageIndex]) -> usize {
        let mut found = 0;
        while found < pages.len() {
            let Some(page) = self.behind.next() else {
                let Some(behind) = pager.ahead.next_behind() else { break };
                self.behind = behind.start..behind.end.min(pager.table.page_count().0);
                continue;
            };
            if pager.word(PageIndex(page)).take_behind() {
                pages[found] = PageIndex(page);
                found += 1;
            }
        }
        pages[..found].sort_unstable();
        found
    }

    /// Whether streams have gone on since this was asked last: there will be pages behind them soon.
    pub(super) fn has_streams(&mut self, pager: &Pager) -> bool {
        let gone_on = pager.ahead.gone_on();
        std::mem::replace(&mut self.gone_on, gone_on) != gone_on
    }

    /// Takes pages of the rest of the stretch only.
    pub(super) fn take_more(&mut self, pager: &Pager, pages: &mut [PageIndex], effort: Effort) -> usize {
        let mut found = 0;
        while found < pages.len() && self.next < self.end {
            let page = PageIndex(self.next);
            self.next += 1;
            if self.visit(pager, page, effort) {
                pages[found] = page;
                found += 1;
            }
        }
        found
    }

    /// Goes on to the next stretch that has pages, at most one round. Returns how many were looked at.
    fn next_stretch(&mut self, pager: &Pager) -> u64 {
        let stretches = pager.table.stretch_count();
        self.let_go(pager);
        for looked_at in 1..=stretches {
            let at = self.hand.advance();
            let stretch = at % stretches;
            self.round = at / stretches;
            if pager.table.has_live(stretch) && pager.table.try_hold(stretch) {
                self.held = Some(stretch);
                self.hand.begin();
                self.next = stretch * STRETCH_PAGES;
                self.end = (self.next + STRETCH_PAGES).min(pager.table.page_count().0);
                self.look_for_writes(pager);
                return looked_at;
            }
        }
        stretches
    }

    /// Lets others sweep the stretch.
    pub(super) fn let_go(&mut self, pager: &Pager) {
        if let Some(stretch) = self.held.take() {
            pager.table.let_go(stretch);
            self.hand.end();
        }
        self.next = self.end;
    }

    /// Notes which pages of the stretch were written since they were last looked at, and protects them anew.
    fn look_for_writes(&mut self, pager: &Pager) {
        self.written = [0; BITMAP_WORDS];
        let Some(pagemap) = &self.pagemap else { return };
        let base = pager.address(PageIndex(self.next));
        let len_bytes = (self.end - self.next) as usize * PAGE_SIZE;
        let mut at = 0;
        while at < len_bytes {
            // An error (the range is going) means that nothing is known of writes.
            let Ok(scan) = pagemap.written(base + at, len_bytes - at, true, &mut self.runs) else { return };
            for run in &self.runs[..scan.runs] {
                let first = (run.start() - base) / PAGE_SIZE;
                (first..first + run.len_bytes() / PAGE_SIZE)
                    .for_each(|i| self.written[i / 64] |= 1 << (i % 64));
            }
            let walked = scan.end.saturating_sub(base);
            if walked <= at {
                return;
            }
            at = walked;
        }
    }

    fn visit(&self, pager: &Pager, page: PageIndex, effort: Effort) -> bool {
        let i = (page.0 % STRETCH_PAGES) as usize;
        let is_written = self.pagemap.as_ref().map(|_| self.written[i / 64] >> (i % 64) & 1 == 1);
        let word = pager.word(page);
        match word.visit(is_written, effort, self.round) {
            Visit::Taken => true,
            Visit::Kept { is_rewritten } => {
                if word.has_copy() && (is_rewritten || word.is_hot() || pager.has_too_many_copies()) {
                    drop_old_copy(pager, page);
                }
                false
            }
            Visit::NotFree => false,
        }
    }
}

/// Drops the store's copy of a resident page. If it was of use still, the page is merely folded again.
pub(super) fn drop_old_copy(pager: &Pager, page: PageIndex) {
    let word = pager.word(page);
    if !word.take() {
        return;
    }
    if word.has_copy() {
        // SAFETY: this thread has taken the page, whose bytes are in the range.
        unsafe { pager.drop_copy(page) };
        pager.table.add_copies(-1);
        pager.counters.add(Counter::CopiesDropped, 1);
    }
    word.put_back_dirty();
    pager.wake(page);
}
