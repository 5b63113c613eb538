//! A store as automatic parking sees it.

use super::engine::{Engine, Memory, Sweep, Swept};
use crate::engine::Store;
use crate::parking::error::ParkError;
use crate::parking::report::Progress;
use crate::parking::{ParkStats, Parking};
use crate::slot::{Peek, Stamp};
use pagefold_page::{PageCount, PageIndex};
use std::ops::ControlFlow;
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
        Stamp::at(self.now())
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
        _sweep: &Sweep,
        _goal: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Swept, ParkError> {
        Err(ParkError::NoBacking)
    }

    fn tend(&self, _clean: bool) {}

    fn bytes_written(&self) -> u64 {
        let stats = self.stats();
        stats.written_bytes + stats.cleaned_bytes
    }

    fn backing_free_bytes(&self) -> u64 {
        self.stats().free_bytes
    }

    fn limit_left(&self) -> Option<u64> {
        let settings = self.parking()?.settings();
        settings.writeback_limit_enabled().then(|| settings.writeback_limit())
    }
}
