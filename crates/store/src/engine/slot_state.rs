//! The state of each slot, as zram's `block_state` shows it.
//!
//! The walk reads slots without their locks, so it never waits and delays no request. Its result is no picture of one
//! moment: pages that change during the walk are seen before or after their change. The callers of a long walk call it
//! for one part of the slots after another.

use crate::engine::store::Store;
use crate::slot::SlotSnapshot;
use crate::writeback::LayoutKind;
use pagefold_page::{PAGE_SIZE, PageIndex};
use std::ops::{ControlFlow, Range};
use std::time::Duration;

/// The state of a stored page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotState {
    /// The page.
    pub index: PageIndex,
    /// Time from the creation of the store to the last access, in steps of a quarter of a second; an access more than
    /// 8192 seconds ago counts as one at that age. Meaningless in a store that does not time accesses.
    pub last_access: Duration,
    /// The page repeats one word, and only the word is stored.
    pub is_same_filled: bool,
    /// The page is on the backing.
    pub is_written_back: bool,
    /// The page is stored as it is, because it does not compress. Always false for a page on a backing without
    /// compression.
    pub is_raw: bool,
    /// The page is marked idle, and was not accessed since.
    pub is_idle: bool,
    /// A codec of a priority above 0 has compressed the page.
    pub is_recompressed: bool,
    /// The codec of the highest priority has not made the page smaller. Only of pages in memory.
    pub is_incompressible: bool,
}

impl Store {
    /// Calls `visit` for each page in `range` that has contents, in order, until it returns [`ControlFlow::Break`].
    pub fn each_slot_state(
        &self,
        range: Range<PageIndex>,
        mut visit: impl FnMut(SlotState) -> ControlFlow<()>,
    ) {
        // The clock too, so that no age has wrapped around.
        let elapsed = self.elapsed();
        self.pages.advance_clock(elapsed);
        let highest = self.pages.codecs.highest_further();
        let keeps_form = self.writeback().is_some_and(|w| w.layout() == LayoutKind::Log);
        self.pages.each_slot_in(range, |index, _, seen| {
            if seen.is_empty() {
                return ControlFlow::Continue(());
            }
            let (is_raw, priority) = form(seen, keeps_form);
            visit(SlotState {
                index,
                last_access: seen.last_access().since_start(elapsed),
                is_same_filled: seen.is_same_filled(),
                is_written_back: seen.is_written_back(),
                is_raw,
                is_idle: seen.is_idle(),
                is_recompressed: priority > 0,
                is_incompressible: highest.is_some_and(|highest| seen.is_tried(highest)),
            })
        });
    }

    /// Time since the creation of the store.
    pub fn elapsed(&self) -> Duration {
        self.pages.clock.elapsed()
    }
}

/// Whether the page is raw, and the priority of its codec. `keeps_form`: pages on the backing have the bytes that they
/// had in memory.
fn form(seen: &SlotSnapshot, keeps_form: bool) -> (bool, u8) {
    match seen.written_back_form() {
        Some((len_bytes, priority)) if keeps_form => (len_bytes == PAGE_SIZE, priority),
        Some(_) => (false, 0),
        None => (seen.is_raw(), seen.priority()),
    }
}
