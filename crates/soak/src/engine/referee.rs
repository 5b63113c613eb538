//! What the model is asked with: the state of a store in this process around a refusal.

use crate::load::mixed::Referee;
use crate::model::{self, Room, Seen, SeenBacking, Verdict};
use pagefold_store::Store;
use pagefold_store::parking::{Condition, LayoutKind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Looks at a store.
pub struct StoreReferee<'a> {
    store: &'a Store,
    threads: u64,
    /// The medium fails on purpose; then it may be closed to pages at any time.
    may_fail: bool,
    /// The most memory ever in use.
    peak_bytes: AtomicU64,
}

impl<'a> StoreReferee<'a> {
    /// One for this store under a load of so many threads.
    pub fn new(store: &'a Store, threads: usize, may_fail: bool) -> Self {
        StoreReferee { store, threads: threads as u64, may_fail, peak_bytes: AtomicU64::new(0) }
    }

    fn seen(&self, in_use_bytes: u64) -> Seen {
        let limit = self.store.mem_limit_bytes();
        Seen {
            in_use_bytes,
            limit_bytes: (limit != u64::MAX).then_some(limit),
            machine_bytes: crate::process::available_bytes(),
            backing: self.backing(),
        }
    }

    fn backing(&self) -> Option<SeenBacking> {
        let parking = self.store.parking()?;
        let stats = parking.stats();
        let is_log = parking.layout() == LayoutKind::Log;
        // A capacity of 64 MiB or more is in segments of 1 MiB; see the model.
        let segment = model::log_geometry(stats.capacity_bytes + (1 << 20)).1;
        let is_closed = match parking.condition() {
            Condition::Off | Condition::LimitSpent | Condition::DailySpent | Condition::Failing(_) => true,
            _ => self.may_fail,
        };
        Some(SeenBacking {
            capacity_bytes: stats.capacity_bytes,
            segment_bytes: is_log.then_some(segment),
            pages: stats.bd.bd_count,
            bytes: stats.parked_bytes,
            is_closed,
            condition: parking.condition().to_string(),
        })
    }
}

impl Referee for StoreReferee<'_> {
    fn look(&self) {
        // So that the mark is what this request reached.
        self.peak_bytes.fetch_max(self.store.stats().mm.mem_used_max, Relaxed);
        self.store.reset_mem_used_max();
    }

    fn judge(&self) -> Result<Verdict, String> {
        let reached = self.store.stats().mm.mem_used_max;
        let ever = self.peak_bytes.fetch_max(reached, Relaxed).max(reached);
        // Memory that was never at its limit excuses no refusal, whatever other threads free.
        if let Verdict::Wrong(Room::Memory, room) = model::judge(&self.seen(ever), self.threads) {
            return Err(room);
        }
        Ok(model::judge(&self.seen(reached), self.threads))
    }
}
