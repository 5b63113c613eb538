//! The memory of the measured work: a region of compressed memory, or plain memory that the kernel swaps.

use super::plan::MemoryPlan;
use clap::ValueEnum;
use pagefold_memory::{Region, RegionConfig, Service};
use pagefold_sys::mem::Reservation;
use serde::{Deserialize, Serialize};

/// The side that is measured: the mechanism that keeps memory within the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// A region of compressed memory.
    Pagefold,
    /// A memory cgroup with swap on zram.
    Kernel,
}

/// The threads that serve the faults of pagefold's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceChoice {
    /// The thread that touched the page
    FaultingThread,
    /// Threads of the region
    HandlerThreads,
}

/// Zeroed memory for the work.
pub trait Space {
    /// All bytes.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// The counters of the region for the report; null for plain memory.
    fn statistics(&self) -> serde_json::Value;
}

/// Allocates the memory of a side.
pub fn make(side: Side, len_bytes: u64, plan: &MemoryPlan) -> anyhow::Result<Box<dyn Space>> {
    match side {
        Side::Pagefold => Ok(Box::new(RegionSpace(Region::new(region_config(len_bytes, plan))?))),
        Side::Kernel => Ok(Box::new(PlainSpace(Reservation::new(usize::try_from(len_bytes)?)?))),
    }
}

/// The configuration of pagefold's region.
pub fn region_config(len_bytes: u64, plan: &MemoryPlan) -> RegionConfig {
    let service = match plan.service {
        ServiceChoice::FaultingThread => Service::FaultingThread,
        ServiceChoice::HandlerThreads => Service::HandlerThreads,
    };
    // The pool has no separate limit here, because zram has none.
    RegionConfig { service, max_pool_percent: 100, ..RegionConfig::new(len_bytes, plan.limit_bytes) }
}

/// A region of compressed memory.
struct RegionSpace(Region);

impl Space for RegionSpace {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }

    fn statistics(&self) -> serde_json::Value {
        let s = self.0.stats();
        serde_json::json!({
            "eviction_method": format!("{:?}", self.0.eviction()),
            "resident_max_bytes": s.memory.resident_max,
            "pool_bytes": s.memory.pool,
            "metadata_max_bytes": s.memory.metadata_max,
            "folded_bytes": s.folded_bytes,
            "ratio": s.ratio(),
            "faults": {
                "zero": s.faults.zero,
                "folded": s.faults.folded,
                "staged": s.faults.staged,
                "waited": s.faults.waited,
                "there": s.faults.already_resident,
                "failed": s.faults.failed,
                "memory_waits": s.faults.memory_waits,
                "time_s": s.faults.time.as_secs_f64(),
                "wait_time_s": s.faults.wait_time.as_secs_f64(),
            },
            "neighbours_brought": s.neighbours_brought,
            "neighbours_used": s.neighbours_used,
            "pages_staged": s.eviction.staged,
            "pages_folded": s.eviction.folded,
            "pages_clean": s.eviction.clean,
            "copies_dropped": s.eviction.copies_dropped,
            "same_filled_pages": s.pool.same_filled_pages,
        })
    }
}

/// Plain private memory; a cgroup may limit it.
pub struct PlainSpace(pub Reservation);

impl Space for PlainSpace {
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the reservation is mapped, readable, writable and zeroed for its whole length and lives as long as
        // `self`. Access is possible only through `self`, which is mutably borrowed as long as the result.
        unsafe { std::slice::from_raw_parts_mut(self.0.base().as_ptr(), self.0.len_bytes()) }
    }

    fn statistics(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// Touches as much memory as the largest row needs, and frees it: in a virtual machine, the first use of a physical
/// page costs a fault on the host. Touches at most half of the available memory.
pub fn touch(plan: &MemoryPlan) -> anyhow::Result<()> {
    if plan.touched_beside_bytes == 0 {
        return Ok(());
    }
    let wanted = plan.largest_bytes() + plan.touched_beside_bytes;
    let available = pagefold_sys::swap::memory_available_bytes()? / 2;
    let len_bytes = wanted.min(available) as usize & !4095;
    Ok(Reservation::new(len_bytes)?.populate(0, len_bytes)?)
}
