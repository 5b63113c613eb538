//! The settings of writeback and read-back.

use crate::layout::LimitCharge;
use crossbeam_utils::atomic::AtomicCell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
    /// Whether a page that is read twice within the window is promoted to memory; off is the kernel's behaviour.
    pub promote: AtomicCell<bool>,
    /// The promotion window, seconds.
    pub promote_window_s: AtomicCell<u32>,
    /// Pages that may still be written back while the limit is enabled (zram's `writeback_limit`).
    pub writeback_limit: AtomicCell<u64>,
    /// Whether `writeback_limit` is enabled.
    pub writeback_limit_enabled: AtomicCell<bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            batch_size: AtomicU32::new(BATCH_DEFAULT),
            promote: AtomicCell::new(true),
            promote_window_s: AtomicCell::new(PROMOTE_WINDOW_S),
            writeback_limit: AtomicCell::new(0),
            writeback_limit_enabled: AtomicCell::new(false),
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

    /// Charges one page to `writeback_limit`, before it is submitted: charging at completion would exceed the limit by the
    /// pages in flight. `None` if the limit is used up.
    pub(crate) fn charge(&self) -> Option<LimitCharge> {
        if !self.writeback_limit_enabled.load() {
            return Some(LimitCharge::None);
        }
        let charged = self.writeback_limit.fetch_update(|left| left.checked_sub(1));
        charged.is_ok().then_some(LimitCharge::Page)
    }

    /// Refunds the charge of a page that was not written.
    pub(crate) fn refund(&self, charge: LimitCharge) {
        if charge == LimitCharge::Page {
            // Saturates, because the limit may have been set to the maximum since the charge.
            let _ = self.writeback_limit.fetch_update(|left| left.checked_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_exact_and_refunds_only_what_was_charged() {
        let settings = Settings::default();
        let unlimited = settings.charge().unwrap();
        settings.writeback_limit.store(2);
        settings.writeback_limit_enabled.store(true);
        settings.refund(unlimited);
        assert_eq!(settings.writeback_limit.load(), 2);
        let charges: Vec<_> = std::iter::from_fn(|| settings.charge()).collect();
        assert_eq!(charges, [LimitCharge::Page, LimitCharge::Page]);
        settings.refund(charges[0]);
        assert_eq!(settings.writeback_limit.load(), 1);
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
