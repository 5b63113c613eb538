//! What becomes of a tray when nothing waits in it any more: its memory is stocked, for faults that bring many
//! pages in at once, or given back to the kernel.

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
        let stock_max = (self.left.limit() / 32).min(STOCK_TRAYS_MAX * TRAY_FRAMES as u64);
        let is_wanted = longest_run(backed).1 >= RUN_MIN
            && (u64::from(self.staging.stock()) < stock_max || self.staging.is_wanted(backed.count_ones()));
        match is_wanted || backed == 0 {
            true => self.give_tray(tray),
            false => self.unback(tray, backed),
        }
    }

    /// Gives a tray's memory back to the kernel.
    fn unback(&self, tray: Tray, backed: u64) {
        let offset = usize::from(self.staging.frame(&tray, 0).0) * PAGE_SIZE;
        // SAFETY: nothing waits in the tray, and it is this thread's alone.
        let dropped = unsafe { self.staging.memory().discard(offset, TRAY_FRAMES * PAGE_SIZE) };
        // Memory that the kernel does not take back can be used again.
        if dropped.is_ok() {
            self.staging.set_unbacked(&tray);
            self.left.give(backed.count_ones());
        }
        self.give_tray(tray);
    }
}
