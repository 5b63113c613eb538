//! The pages that a thread brings in at once: the page that faulted and its neighbours.
//!
//! The neighbours are the pages that `readahead` returns and that no other thread owns. Where memory is short, those farthest from
//! the page that faulted are abandoned. This module does not load pages: [`page_in`](super::page_in) does.

use super::Pager;
use crate::page::{Arrival, FaultClaim};
use crate::readahead::{WINDOW_MAX, Window};
use pagefold_page::PageIndex;
use std::ops::Range;

/// From so many pages on, a batch with memory is used; fewer pages are copied to new memory, if there is any.
const MOVED_MIN: usize = 4;
/// Pages in runs shorter than this, on average, are copied, if there is new memory.
const RUN_MOVED_MIN: usize = 4;

/// A third of the pages of rows stay longer: those for which the middle of this product is small.
const KEPT_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const KEPT_OF_65536: u64 = 0x5555;

/// The contents of a page to be put into the range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PageContents {
    /// Those in the buffer or frame of the page.
    Bytes,
    Zero,
    /// They could not be read.
    Failed,
}

/// Pages that this thread is loading, in order of address but for those of a gather. [`Pager::put_runs`] puts adjacent pages
/// in at once if they stand in this order.
pub(super) struct Claims {
    pub(super) pages: [(PageIndex, FaultClaim); WINDOW_MAX],
    pub(super) len: usize,
    /// Index of the page that faulted.
    pub(super) faulting: usize,
    /// Whether they are pages of rows.
    in_rows: bool,
}

impl Claims {
    /// Returns how a page of the claims comes in.
    pub(super) fn arrival(&self, page: PageIndex) -> Arrival {
        match self.in_rows {
            true => {
                Arrival::InRow { is_kept: page.0.wrapping_mul(KEPT_FACTOR) >> 32 & 0xffff < KEPT_OF_65536 }
            }
            false => Arrival::Plain,
        }
    }

    /// Returns the run of adjacent pages of the same kind that begins at an index.
    pub(super) fn run_at(&self, at: usize, kinds: &[PageContents; WINDOW_MAX]) -> Range<usize> {
        let first = self.pages[at].0.0;
        let follows = |i: &usize| self.pages[*i].0.0 == first + (*i - at) as u64 && kinds[*i] == kinds[at];
        at..at + 1 + (at + 1..self.len).take_while(follows).count()
    }

    /// Returns whether moving the pages would be of use: they are many, in few runs.
    pub(super) fn are_worth_moving(&self) -> bool {
        let pages = &self.pages[..self.len];
        let ends = pages.windows(2).filter(|pair| pair[0].0.0 + 1 != pair[1].0.0).count();
        self.len >= MOVED_MIN && (ends + 1) * RUN_MOVED_MIN <= self.len
    }
}

impl Pager {
    /// Claims the neighbours that no other thread owns.
    ///
    /// # Safety
    /// The caller owns the page, which is loading.
    pub(super) unsafe fn claim_window(&self, page: PageIndex, claim: FaultClaim, window: Window) -> Claims {
        let in_rows = matches!(window, Window::Rows(_));
        let with_contents = !matches!(window, Window::Strided { .. });
        let mut claims = Claims { pages: [(page, claim); WINDOW_MAX], len: 1, faulting: 0, in_rows };
        let goes_up = match window {
            Window::Strided { pages, stride } => {
                let neighbour = |step| u64::try_from(page.0 as i64 + step * stride).map(PageIndex).ok();
                self.claim_neighbours(&mut claims, (1..pages as i64).map_while(neighbour), with_contents);
                stride > 0
            }
            Window::Rows(rows) => {
                // The page may be the second one of its row: the first one is not its neighbour in this order.
                let is_behind = |next: &PageIndex| if rows.goes_up() { *next <= page } else { *next >= page };
                self.claim_neighbours(&mut claims, rows.pages().skip_while(is_behind), with_contents);
                rows.goes_up()
            }
            Window::Gather(gather) => {
                self.claim_neighbours(&mut claims, gather.pages(), with_contents);
                true
            }
        };
        if !goes_up {
            claims.pages[..claims.len].reverse();
            claims.faulting = claims.len - 1;
        }
        claims
    }

    /// Adds the pages to the claims that no other thread owns, as far as there is room. `with_contents` leaves out pages
    /// that have none.
    fn claim_neighbours(
        &self,
        claims: &mut Claims,
        neighbours: impl Iterator<Item = PageIndex>,
        with_contents: bool,
    ) {
        for neighbour in neighbours.filter(|page| self.table.page_count().contains(*page)) {
            if claims.len == WINDOW_MAX {
                break;
            }
            let word = self.word(neighbour);
            // It is not one that the program goes over.
            if with_contents && word.is_untouched() && !self.has_file_page(neighbour) {
                continue;
            }
            if let Some(claim) = word.claim_readahead() {
                self.store.prefetch_slot(neighbour);
                claims.pages[claims.len] = (neighbour, claim);
                claims.len += 1;
            }
        }
    }

    /// Abandons neighbours until `len` claims are left.
    pub(super) fn abandon_neighbours(&self, claims: &mut Claims, len: usize) {
        while claims.len > len.max(1) {
            claims.len -= 1;
            // The faulting page stands at one end: abandon the claim at the other.
            let at = if claims.faulting == 0 { claims.len } else { 0 };
            self.word(claims.pages[at].0).abandon_load();
            if claims.faulting > 0 {
                claims.pages.copy_within(1..claims.len + 1, 0);
                claims.faulting -= 1;
            }
        }
    }
}
