//! What can be set while pages are parked and read back.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Pages in flight unless set otherwise; zram's default.
const BATCH_DEFAULT: u32 = 32;
/// Most pages in flight: bounds the memory of requests whatever is asked for.
pub const BATCH_MAX: u32 = 1024;
/// Two reads of a parked page within this many seconds bring it back to memory.
const PROMOTE_WINDOW_S: u32 = 60;

/// The settings of parking. Each may change at any time and holds from the next request on.
#[derive(Debug)]
pub struct Settings {
    batch_size: AtomicU32,
    promote: AtomicBool,
    promote_window_s: AtomicU32,
    /// The write-back budget.
    pub(crate) budget: Budget,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            batch_size: AtomicU32::new(BATCH_DEFAULT),
            promote: AtomicBool::new(true),
            promote_window_s: AtomicU32::new(PROMOTE_WINDOW_S),
            budget: Budget::default(),
        }
    }
}

impl Settings {
    /// Most pages in flight; the log, which packs pages, always has at least one write in flight.
    pub fn writeback_batch_size(&self) -> u32 {
        self.batch_size.load(Relaxed)
    }

    /// Sets it: 1 to [`BATCH_MAX`]. Returns false, and changes nothing, if it is outside.
    pub fn set_writeback_batch_size(&self, pages: u32) -> bool {
        let fits = (1..=BATCH_MAX).contains(&pages);
        if fits {
            self.batch_size.store(pages, Relaxed);
        }
        fits
    }

    /// Whether a page that is read twice within the window comes back to memory.
    pub fn promote(&self) -> bool {
        self.promote.load(Relaxed)
    }

    /// Sets it; off is the kernel's behaviour.
    pub fn set_promote(&self, on: bool) {
        self.promote.store(on, Relaxed);
    }

    /// The window, seconds.
    pub fn promote_window_s(&self) -> u32 {
        self.promote_window_s.load(Relaxed)
    }

    /// Sets it.
    pub fn set_promote_window_s(&self, window_s: u32) {
        self.promote_window_s.store(window_s, Relaxed);
    }

    /// Pages that may still be parked while the limit is enabled.
    pub fn writeback_limit(&self) -> u64 {
        self.budget.left.load(Relaxed)
    }

    /// Sets how many pages may still be parked.
    pub fn set_writeback_limit(&self, pages: u64) {
        self.budget.left.store(pages, Relaxed);
    }

    /// Whether the limit holds.
    pub fn writeback_limit_enabled(&self) -> bool {
        self.budget.enabled.load(Relaxed)
    }

    /// Switches the limit on or off.
    pub fn set_writeback_limit_enabled(&self, on: bool) {
        self.budget.enabled.store(on, Relaxed);
    }
}

/// The write-back budget: charged before a page is submitted, refunded if it was not written.
///
/// Charging at completion would overshoot by what is in flight.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    enabled: AtomicBool,
    left: AtomicU64,
}

/// What a page cost, to be refunded if it was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Charge {
    /// One page of the budget.
    One,
    /// Nothing: the limit was off.
    Nothing,
}

impl Budget {
    /// Charges one page; `None` if the budget is used up.
    pub(crate) fn charge(&self) -> Option<Charge> {
        if !self.enabled.load(Relaxed) {
            return Some(Charge::Nothing);
        }
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        taken.is_ok().then_some(Charge::One)
    }

    /// Gives back what a page cost.
    pub(crate) fn refund(&self, charge: Charge) {
        if charge == Charge::One {
            // Somebody may have set the most there is since it was charged.
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
        let unlimited = settings.budget.charge().unwrap();
        settings.set_writeback_limit(2);
        settings.set_writeback_limit_enabled(true);
        settings.budget.refund(unlimited);
        assert_eq!(settings.writeback_limit(), 2);
        let charges: Vec<_> = std::iter::from_fn(|| settings.budget.charge()).collect();
        assert_eq!(charges, [Charge::One, Charge::One]);
        settings.budget.refund(charges[0]);
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
