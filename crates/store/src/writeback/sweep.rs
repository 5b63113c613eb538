//! Implements `policy`'s interface to a store: sweeps over its pages, maintenance, and figures.

use crate::error::WritebackError;
use crate::pages::Pages;
use crate::policy::{Memory, Sweep, SweepResult, WritebackTarget};
use crate::report::Progress;
use crate::slot::{AccessTime, Slot, SlotSnapshot};
use crate::writeback::Writeback;
use pagefold_page::PageCount;
use std::ops::{ControlFlow, RangeInclusive};
use std::time::{Duration, Instant};

/// The pages of a store, their writeback, and the clock of automatic writeback.
pub(crate) struct Sweeper<'a> {
    pages: &'a Pages,
    writeback: &'a Writeback,
    began: Instant,
}

impl<'a> Sweeper<'a> {
    /// Creates the interface; its clock starts now.
    pub(crate) fn new(pages: &'a Pages, writeback: &'a Writeback) -> Self {
        Sweeper { pages, writeback, began: Instant::now() }
    }
}

impl WritebackTarget for Sweeper<'_> {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn access_time_now(&self) -> AccessTime {
        self.pages.tick()
    }

    fn memory(&self) -> Memory {
        let arena = self.pages.pool.source().arena();
        Memory { used_bytes: arena.in_use_bytes(), limit_bytes: arena.limit_bytes() }
    }

    fn page_count(&self) -> PageCount {
        self.pages.table.page_count()
    }

    fn each_snapshot(&self, visit: &mut dyn FnMut(&SlotSnapshot) -> ControlFlow<()>) {
        self.pages.each_slot(|_, _, seen| visit(seen));
    }

    fn write_back_aged(
        &self,
        sweep: &Sweep,
        on_progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<SweepResult, WritebackError> {
        self.pages.tick();
        let mut filter = |_, slot: &Slot, seen: &SlotSnapshot| {
            // The present time: this thread may have been stopped for any time since the sweep began.
            if seen.last_access().age_ticks(self.pages.clock.now()) < sweep.age_ticks_min {
                return false;
            }
            if sweep.urgent || !seen.is_accessed() {
                return true;
            }
            slot.lock().clear_accessed();
            false
        };
        let mut seen_pages = 0;
        let mut count_and_report = |progress: &Progress| {
            seen_pages = progress.seen_pages;
            on_progress(progress)
        };
        let runs = runs(sweep, self.page_count());
        let report = self.writeback.run_pass(self.pages, &runs, &mut filter, &mut count_and_report)?;
        Ok(SweepResult { seen: PageCount(seen_pages), report })
    }

    fn run_maintenance(&self, clean: bool) {
        self.writeback.run_maintenance(self.pages, clean);
    }

    fn bytes_written(&self) -> u64 {
        let stats = self.writeback.stats();
        stats.written_bytes + stats.cleaned_bytes
    }

    fn backing_room_bytes(&self) -> u64 {
        self.writeback.layout.room_bytes()
    }

    fn limit_left(&self) -> Option<u64> {
        let settings = self.writeback.settings();
        settings.writeback_limit_enabled.load().then(|| settings.writeback_limit.load())
    }
}

/// The ranges of pages that a sweep passes: to the end, and then from the beginning.
fn runs(sweep: &Sweep, count: PageCount) -> Vec<RangeInclusive<u64>> {
    let span = sweep.span.0.min(count.0);
    let first = span.min(count.0 - sweep.from.0.min(count.0));
    let mut runs = Vec::new();
    if first > 0 {
        runs.push(sweep.from.0..=sweep.from.0 + first - 1);
    }
    if span > first {
        runs.push(0..=span - first - 1);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_page::PageIndex;

    #[test]
    fn the_hand_wraps_and_passes_over_no_page_twice() {
        let sweep = |from, span| Sweep {
            from: PageIndex(from),
            span: PageCount(span),
            age_ticks_min: 0,
            urgent: false,
        };
        assert_eq!(runs(&sweep(0, 10), PageCount(10)), [0..=9]);
        assert_eq!(runs(&sweep(7, 10), PageCount(10)), [7..=9, 0..=6]);
        assert_eq!(runs(&sweep(7, 2), PageCount(10)), vec![7..=8]);
        assert_eq!(runs(&sweep(9, 3), PageCount(10)), [9..=9, 0..=1]);
        assert_eq!(runs(&sweep(0, 99), PageCount(10)), vec![0..=9]);
    }
}
