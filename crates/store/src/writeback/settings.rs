//! The settings of writeback and read-back.

use crate::layout::LimitCharge;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Pages in flight unless set otherwise; zram's default.
const BATCH_DEFAULT: u32 = 32;
/// The highest value of the batch size; bounds the memory of requests.
pub const BATCH_MAX: u32 = 1024;
/// Two reads of a written-back page within this many seconds bring it back to memory.
const PROMOTE_WINDOW_S: u32 = 60;

/// The settings of writeback. Each may change at any time and takes effect with the next request.
#[derive(Debug)]
pub struct Settings {
    batch_size: AtomicU32,
    promote: AtomicBool,
    promote_window_s: AtomicU32,
    /// The state of `writeback_limit`.
    pub(crate) limit: WritebackLimit,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            batch_size: AtomicU32::new(BATCH_DEFAULT),
            promote: AtomicBool::new(true),
            promote_window_s: AtomicU32::new(PROMOTE_WINDOW_S),
            limit: WritebackLimit::default(),
        }
    }
}

impl Settings {
    /// Most pages in flight; the log, which packs pages, always has at least one write in flight.
    pub fn writeback_batch_size(&self) -> u32 {
        self.batch_size.load(Relaxed)
    }

    /// Sets the batch size, 1 to [`BATCH_MAX`]. Returns false, and changes nothing, for other values.
    pub fn set_writeback_batch_size(&self, pages: u32) -> bool {
        let fits = (1..=BATCH_MAX).contains(&pages);
        if fits {
            self.batch_size.store(pages, Relaxed);
        }
        fits
    }

    /// Whether a page that is read twice within the window is promoted to memory.
    pub fn promote(&self) -> bool {
        self.promote.load(Relaxed)
    }

    /// Enables or disables promotion; off is the kernel's behaviour.
    pub fn set_promote(&self, on: bool) {
        self.promote.store(on, Relaxed);
    }

    /// The promotion window, seconds.
    pub fn promote_window_s(&self) -> u32 {
        self.promote_window_s.load(Relaxed)
    }

    /// Sets the promotion window.
    pub fn set_promote_window_s(&self, window_s: u32) {
        self.promote_window_s.store(window_s, Relaxed);
    }

    /// Pages that may still be written back while the limit is enabled (zram's `writeback_limit`).
    pub fn writeback_limit(&self) -> u64 {
        self.limit.left.load(Relaxed)
    }

    /// Sets how many pages may still be written back.
    pub fn set_writeback_limit(&self, pages: u64) {
        self.limit.left.store(pages, Relaxed);
    }

    /// Whether `writeback_limit` is enabled.
    pub fn writeback_limit_enabled(&self) -> bool {
        self.limit.enabled.load(Relaxed)
    }

    /// Enables or disables `writeback_limit`.
    pub fn set_writeback_limit_enabled(&self, on: bool) {
        self.limit.enabled.store(on, Relaxed);
    }
}

/// `writeback_limit`: charged before a page is submitted, and refunded if it was not written. Charging at completion
/// would exceed the limit by the pages in flight.
#[derive(Debug, Default)]
pub(crate) struct WritebackLimit {
    enabled: AtomicBool,
    left: AtomicU64,
}

impl WritebackLimit {
    /// Charges one page; `None` if the limit is used up.
    pub(crate) fn charge(&self) -> Option<LimitCharge> {
        if !self.enabled.load(Relaxed) {
            return Some(LimitCharge::None);
        }
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        taken.is_ok().then_some(LimitCharge::Page)
    }

    /// Refunds the charge of a page.
    pub(crate) fn refund(&self, charge: LimitCharge) {
        if charge == LimitCharge::Page {
            // Saturates, because the limit may have been set to the maximum since the charge.
            let more = |left: u64| left.checked_add(1);
            let _ = self.left.fetch_update(Relaxed, Relaxed, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_exact_and_refunds_only_what_was_charged() {
        let settings = Settings::default();
        let unlimited = settings.limit.charge().unwrap();
        settings.set_writeback_limit(2);
        settings.set_writeback_limit_enabled(true);
        settings.limit.refund(unlimited);
        assert_eq!(settings.writeback_limit(), 2);
        let charges: Vec<_> = std::iter::from_fn(|| settings.limit.charge()).collect();
        assert_eq!(charges, [LimitCharge::Page, LimitCharge::Page]);
        settings.limit.refund(charges[0]);
        assert_eq!(settings.writeback_limit(), 1);
    }

    #[test]
    fn batch_sizes_are_bounded() {
        let settings = Settings::default();
        assert_eq!(settings.writeback_batch_size(), 32);
        for (size, fits) in [(0, false), (1, true), (BATCH_MAX, true), (BATCH_MAX + 1, false)] {
            assert_eq!(settings.set_writeback_batch_size(size), fits);
        }
        assert_eq!(settings.writeback_batch_size(), BATCH_MAX);
    }
}
