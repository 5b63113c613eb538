//! The methods of [`Store`] for passes on request (writeback, recompression), idle marks, and maintenance.

use crate::engine::store::Store;
use crate::recompress::{RecompressError, RecompressProgress, RecompressReport, RecompressRequest, run_pass};
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
    /// ones; 0 marks all. An access clears the mark; a read does so only in a store that keeps access times.
    pub fn mark_idle(&self, age_s: u64) {
        let now = self.pages.tick();
        self.pages.each_slot(|_, slot, seen| {
            if seen.is_object() {
                let mut guard = slot.lock();
                let idle = age_s == 0 || guard.last_access().age_s(now) >= age_s;
                guard.set_idle(idle);
            }
            ControlFlow::Continue(())
        });
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
