//! What becomes of a tray when nothing waits in it any more: its memory is stocked, for faults that bring many
//! pages in at once and for pages that are copied out, or given back to the kernel.
//!
//! The stock counts as memory in use. So it never takes more than its small part of the limit unless faults ask for it,
//! and what was stocked under a larger limit is given back.

use super::out::How;
use crate::pager::Pager;
use crate::staging::{TRAY_FRAMES, Tray, longest_run};
use pagefold_page::PAGE_SIZE;

/// The shortest run of frames that is worth stocking.
const RUN_MIN: usize = 16;
/// Most trays in the stock.
const STOCK_TRAYS_MAX: u64 = 16;

impl Pager {
    /// A tray to fill: without memory for pages that are moved, rather with for those that are copied.
    pub(super) fn take_tray(&self, how: How) -> Option<Tray> {
        match how {
            How::Move => self.staging.take_empty(),
            How::Copy => self.staging.take_stock().or_else(|| self.staging.take_empty()),
        }
    }

    /// A tray in which nothing waits any more.
    pub(super) fn release(&self, tray: Tray) {
        self.staging.reset(&tray);
        let backed = self.staging.backed(&tray);
        let is_wanted = longest_run(backed).1 >= RUN_MIN
            && !self.left.is_exceeded()
            && (self.has_room_in_stock(backed.count_ones()) || self.staging.is_wanted(backed.count_ones()));
        match is_wanted || backed == 0 {
            true => self.give_tray(tray),
            false => {
                self.unback(tray, backed);
            }
        }
    }

    /// Gives the memory of a tray of the stock back to the kernel. False if there is none.
    pub(super) fn shrink_stock(&self) -> bool {
        let Some(tray) = self.staging.take_stock() else { return false };
        let backed = self.staging.backed(&tray);
        self.unback(tray, backed)
    }

    /// Whether the stock has room for all of so many frames. A tray has as many frames whatever the limit is: under a small
    /// one the first tray may be too much.
    fn has_room_in_stock(&self, frames: u32) -> bool {
        let most = (self.left.limit() / 32).min(STOCK_TRAYS_MAX * TRAY_FRAMES as u64);
        u64::from(self.staging.stock() + frames) <= most
    }

    /// Gives a tray's memory back to the kernel. False if the kernel does not take it.
    fn unback(&self, tray: Tray, backed: u64) -> bool {
        let offset = usize::from(self.staging.frame(&tray, 0).0) * PAGE_SIZE;
        // SAFETY: nothing waits in the tray, and it is this thread's alone.
        let dropped = unsafe { self.staging.memory().discard(offset, TRAY_FRAMES * PAGE_SIZE) };
        // Memory that the kernel does not take back can be used again.
        if dropped.is_ok() {
            self.staging.set_unbacked(&tray);
            self.left.give(backed.count_ones());
        }
        self.give_tray(tray);
        dropped.is_ok()
    }
}
