//! A store as automatic parking sees it.

use super::ages::age_ticks;
use super::engine::{Engine, Memory, Sweep, Swept};
use crate::engine::Store;
use crate::parking::error::ParkError;
use crate::parking::report::Progress;
use crate::parking::{ParkStats, Parking};
use crate::slot::{Peek, Slot, Stamp};
use pagefold_page::{PageCount, PageIndex};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The store, and the clock it is driven by.
pub(crate) struct StoreEngine {
    store: Arc<Store>,
    began: Instant,
}

impl StoreEngine {
    /// A store whose time begins now.
    pub(crate) fn new(store: Arc<Store>) -> Self {
        StoreEngine { store, began: Instant::now() }
    }

    /// Its parking, if it has a backing.
    pub(crate) fn parking(&self) -> Option<&Parking> {
        self.store.parking()
    }

    fn stats(&self) -> ParkStats {
        self.parking().map(Parking::stats).unwrap_or_default()
    }
}

impl Engine for StoreEngine {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn stamp_now(&self) -> Stamp {
        self.parking().map(|parking| parking.clock.tick()).unwrap_or_default()
    }

    fn memory(&self) -> Memory {
        let arena = self.store.pool.source().arena().stats();
        Memory { used_bytes: arena.in_use_bytes, limit_bytes: arena.limit_bytes }
    }

    fn page_count(&self) -> PageCount {
        self.store.table.page_count()
    }

    fn peeks(&self, visit: &mut dyn FnMut(&Peek) -> ControlFlow<()>) {
        let table = &self.store.table;
        let mut index = table.next_allocated(PageIndex(0));
        while index.0 < table.page_count().0 {
            if let Some(slot) = table.get(index)
                && visit(&slot.peek()).is_break()
            {
                return;
            }
            index = table.next_allocated(PageIndex(index.0 + 1));
        }
    }

    fn park_aged(
        &self,
        sweep: &Sweep,
        goal: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Swept, ParkError> {
        let parking = self.parking().ok_or(ParkError::NoBacking)?;
        let now = self.stamp_now();
        let mut wants = |_, slot: &Slot, seen: &Peek| {
            if age_ticks(seen.stamp(), now) < sweep.age_ticks_min {
                return false;
            }
            if sweep.urgent || !seen.is_accessed() {
                return true;
            }
            slot.lock().clear_accessed();
            false
        };
        let mut seen_pages = 0;
        let mut on_progress = |progress: &Progress| {
            seen_pages = progress.seen_pages;
            goal(progress)
        };
        let runs = runs(sweep, self.page_count());
        let report = self.store.park_where(parking, &runs, &mut wants, &mut on_progress)?;
        Ok(Swept { seen: PageCount(seen_pages), report })
    }

    fn tend(&self, clean: bool) {
        self.store.tend(clean);
    }

    fn bytes_written(&self) -> u64 {
        let stats = self.stats();
        stats.written_bytes + stats.cleaned_bytes
    }

    fn backing_room_bytes(&self) -> u64 {
        self.parking().map_or(0, Parking::room_bytes)
    }

    fn limit_left(&self) -> Option<u64> {
        let settings = self.parking()?.settings();
        settings.writeback_limit_enabled().then(|| settings.writeback_limit())
    }
}

/// The pages that a hand passes over: to the end, and then from the beginning.
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
