//! The methods of [`Store`] for passes on request (writeback, recompression), idle marks, and maintenance.

use crate::engine::store::Store;
use crate::recompress::{RecompressError, RecompressProgress, RecompressReport, RecompressRequest, run_pass};
use crate::slot::AccessTime;
use crate::writeback::{Progress, Selection, WritebackError, WritebackReport};
use std::ops::ControlFlow;

impl Store {
    /// Writes back the pages of a selection; returns when all submitted writes are complete.
    ///
    /// One pass runs at a time; this call waits for a running one, including one of automatic writeback. `progress`
    /// is called repeatedly during the pass and ends it by returning [`ControlFlow::Break`]. It may read, write and
    /// discard, but must not wait for another pass, because that pass waits for this one; a write in it that finds no
    /// memory below the limit waits in vain and fails. If `progress` panics, the pass ends, and the panic continues
    /// when all submitted writes are complete.
    ///
    /// Returns an error if the pass could not begin. An error that ended the pass early, or the most recent error of
    /// a request, is in the report. No page is lost by either.
    pub fn write_back(
        &self,
        selection: &Selection,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<WritebackReport, WritebackError> {
        let writeback = self.writeback().ok_or(WritebackError::NoBacking)?;
        writeback.write_back(&self.pages, selection, progress)
    }

    /// Compresses pages in memory again, with another of the store's codecs; returns when the pass has ended.
    ///
    /// Reads and writes go on meanwhile. `progress` is called between stretches of pages, in the caller's thread, and
    /// ends the pass by returning [`ControlFlow::Break`]. No page is lost by any error.
    pub fn recompress(
        &self,
        request: &RecompressRequest,
        progress: &mut dyn FnMut(&RecompressProgress) -> ControlFlow<()>,
    ) -> Result<RecompressReport, RecompressError> {
        run_pass(&self.pages, request, progress)
    }

    /// Marks as idle the pages in memory whose last access was at least `age_s` seconds ago, and unmarks younger
    /// ones; 0 marks all. Ages above [`AccessTime::AGE_MAX_S`], 8192 s, count as that. An access clears the mark; a read does so only in a store that keeps access times.
    pub fn mark_idle(&self, age_s: u64) {
        self.pages.tick();
        let age_s = age_s.min(AccessTime::AGE_MAX_S);
        self.pages.each_slot(|_, slot, seen| {
            if seen.is_object() {
                let mut guard = slot.lock();
                // The present time: this thread may be stopped for any time.
                let now = self.pages.clock.now();
                let idle = age_s == 0 || guard.last_access().age_s(now) >= age_s;
                guard.set_idle(idle);
            }
            ControlFlow::Continue(())
        });
    }

    /// Lets the clock of access times leap, as if the process had been stopped for `time`.
    #[cfg(feature = "testing")]
    pub fn leap_clock(&self, time: std::time::Duration) {
        self.pages.clock.leap(time);
    }

    /// Does periodic work: advances the clock of access times, discards freed segments on the medium, and, if `clean`
    /// is true, cleans at most one segment. Short, except for a walk over all slots every half an hour. A
    /// [`WritebackThread`](crate::WritebackThread) calls it a few times a second.
    pub fn run_maintenance(&self, clean: bool) {
        if let Some(writeback) = self.writeback() {
            writeback.run_maintenance(&self.pages, clean);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{MemLimit, StoreConfig};
    use crate::writeback::Which;
    use pagefold_page::PageIndex;
    use std::time::Duration;

    fn store() -> Store {
        let config =
            StoreConfig { access_times: true, mem_limit: MemLimit::Off, ..StoreConfig::new(2 * 4096) };
        let store = Store::new(config).unwrap();
        store.write(0, &std::array::from_fn::<u8, 4096, _>(|i| (i * 7 % 251) as u8)).unwrap();
        store
    }

    fn is_idle(store: &Store) -> bool {
        let mut idle = false;
        store.pages.each_slot(|_, _, seen| {
            idle |= seen.is_object() && seen.is_idle();
            ControlFlow::Continue(())
        });
        idle
    }

    fn advance(store: &Store, to_s: u64) {
        store.pages.advance_clock(Duration::from_secs(to_s));
    }

    /// The clock stands still while the process is stopped, and in a library's store that nobody advances.
    #[test]
    fn a_page_stays_old_however_long_the_clock_stood_still() {
        let stops = [3_000, 3_700, 8_000, 12_000, 12_400, 14_000, 16_300, 16_384, 16_500, 20_000, 33_000];
        for before_s in [0, 1000, 2047, 2048, 9000] {
            for stop_s in stops.into_iter().chain([40_960, 65_536, 1_000_000, 30_000_000]) {
                let store = store();
                advance(&store, before_s);
                advance(&store, before_s + stop_s);
                store.mark_idle(stop_s.min(2000));
                assert!(is_idle(&store), "{before_s} s, then {stop_s} s without a tick");
                // A page that is written then is young, also after the next ticks.
                store.write(4096, &std::array::from_fn::<u8, 4096, _>(|i| (i * 5 % 249) as u8)).unwrap();
                advance(&store, before_s + stop_s + 10);
                let young = store.pages.table.get(PageIndex(1)).unwrap().snapshot().last_access();
                assert_eq!(young.age_s(store.pages.clock.now()), 10);
                let old = store.pages.table.get(PageIndex(0)).unwrap().snapshot().last_access();
                let age_s = (before_s + stop_s + 10).min(AccessTime::AGE_MAX_S);
                assert_eq!(old.age_s(store.pages.clock.now()), age_s);
            }
        }
    }

    #[test]
    fn ages_above_the_greatest_one_count_as_it_everywhere() {
        let store = store();
        let selects = |age_s| {
            let slot = store.pages.table.get(PageIndex(0)).unwrap().snapshot();
            let age = slot.last_access().age_s(store.pages.clock.now());
            Selection::of(Which::NotAccessedFor { age_s }).selects(PageIndex(0), &slot, age, 0)
        };
        for (at_s, is_old) in [(8191, false), (8192, true), (9000, true), (10_300, true), (100_000, true)] {
            advance(&store, at_s);
            for age_s in [AccessTime::AGE_MAX_S, 9000, 10_000, 86_400, u64::MAX] {
                store.mark_idle(age_s);
                assert_eq!((is_idle(&store), selects(age_s)), (is_old, is_old), "{age_s} s at {at_s} s");
            }
        }
    }
}
