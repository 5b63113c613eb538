//! Judges refusals of a store in this process by its statistics.

use super::config::Config;
use crate::load::mixed::RefusalJudge;
use crate::model::{self, BackingState, Judgement, Room, StoreState};
use pagefold_store::Store;
use pagefold_store::writeback::{Condition, LayoutKind};
use pagefold_sys::mem::Available;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Reads the state of a store after a refusal and asks the model about it.
pub struct StoreJudge<'a> {
    store: &'a Store,
    threads: u64,
    /// Workers of recompression that may be at work.
    workers: u64,
    /// Whether the medium fails on purpose; then it may refuse pages at any time.
    may_fail: bool,
    /// Peak of the memory in use since the store was made.
    peak_bytes: AtomicU64,
}

impl<'a> StoreJudge<'a> {
    /// A judge for this store under the load of its case.
    pub fn new(store: &'a Store, config: &Config, may_fail: bool) -> Self {
        let (threads, workers) = (config.load.threads as u64, config.recompression.workers());
        StoreJudge { store, threads, workers, may_fail, peak_bytes: AtomicU64::new(0) }
    }

    fn state(&self, in_use_bytes: u64) -> StoreState {
        let limit = self.store.mem_limit_bytes();
        StoreState {
            in_use_bytes,
            limit_bytes: (limit != u64::MAX).then_some(limit),
            machine_bytes: Available::open().bytes(),
            workers: self.workers,
            backing: self.backing(),
        }
    }

    fn backing(&self) -> Option<BackingState> {
        let writeback = self.store.writeback()?;
        let stats = writeback.stats();
        let is_log = writeback.layout() == LayoutKind::Log;
        // `log_geometry` takes the length with the superblock, 1 MiB.
        let segment = model::log_geometry(stats.capacity_bytes + (1 << 20)).1;
        let is_closed = match writeback.condition() {
            Condition::Off | Condition::LimitSpent | Condition::DailySpent | Condition::Failing(_) => true,
            _ => self.may_fail,
        };
        Some(BackingState {
            capacity_bytes: stats.capacity_bytes,
            segment_bytes: is_log.then_some(segment),
            pages: stats.bd.bd_count,
            bytes: stats.written_back_bytes,
            is_closed,
            condition: writeback.condition().to_string(),
        })
    }
}

impl RefusalJudge for StoreJudge<'_> {
    fn before_request(&self) {
        // So that the peak after the request is the peak during the request.
        self.peak_bytes.fetch_max(self.store.stats().mm.mem_used_max, Relaxed);
        self.store.reset_mem_used_max();
    }

    fn judge(&self) -> Result<Judgement, String> {
        let reached = self.store.stats().mm.mem_used_max;
        let ever = self.peak_bytes.fetch_max(reached, Relaxed).max(reached);
        // If memory was never at its limit, the refusal is unjustified, however much other threads free.
        if let Judgement::Unjustified(Room::Memory, room) = model::judge(&self.state(ever), self.threads) {
            return Err(room);
        }
        Ok(model::judge(&self.state(reached), self.threads))
    }
}
