//! Blocks of an arena of `libpagefold` against those of malloc in a memory cgroup that swaps.
//!
//! The work is that of `pagefold-bench arena`: one thread changes blocks of 1 KiB that a Zipf distribution draws. The
//! blocks of both sides have the size of the data together, and the arena's region has an eighth more, for what jemalloc
//! rounds up. Each allocator keeps its own metadata: that of the arena is ordinary memory outside of the region,
//! that of malloc is among the blocks.

use super::child::{ChildReport, Clock};
use super::plan::MemoryPlan;
use super::space::{ServiceChoice, Side};
use crate::arena::data::{BLOCK_BYTES, Data, THETA};
use crate::arena::{Allocator, Arena, System};
use crate::plan::SEED;
use crate::zipf::Zipf;

/// The tables of the distribution: made before the process enters its cgroup, which so does not count them.
pub fn prepare(plan: &MemoryPlan) -> anyhow::Result<Zipf> {
    Ok(Zipf::new(u32::try_from(plan.size_bytes as usize / BLOCK_BYTES)?, THETA, SEED))
}

/// Bytes of the addresses of the blocks, which are in ordinary memory on both sides.
pub fn table_bytes(plan: &MemoryPlan) -> u64 {
    plan.size_bytes / BLOCK_BYTES as u64 * size_of::<*mut u8>() as u64
}

/// Measures one side.
pub fn run(plan: &MemoryPlan, side: Side, zipf: &Zipf, report: &mut ChildReport) -> anyhow::Result<()> {
    match side {
        Side::Kernel => work(&System, plan, zipf, report),
        Side::Pagefold => {
            let len_bytes = (plan.size_bytes + plan.size_bytes / 8) as usize;
            let handler_threads = plan.service == ServiceChoice::HandlerThreads;
            let arena = Arena::new(len_bytes, plan.limit_bytes as usize, handler_threads)?;
            work(&arena, plan, zipf, report)?;
            let stats = arena.stats()?;
            report.statistics = serde_json::json!({
                "resident_max_bytes": stats.resident_max_bytes,
                "pool_bytes": stats.pool_bytes,
                "folded_bytes": stats.folded_bytes,
                "ratio": stats.stored_bytes as f64 / stats.compressed_bytes.max(1) as f64,
                "faults_compressed": stats.faults_compressed,
                "faults_staged": stats.faults_staged,
                "fault_ns": stats.fault_ns,
                "memory_wait_ns": stats.memory_wait_ns,
                "evicted_pages": stats.evicted_pages,
                "evicted_clean_pages": stats.evicted_clean_pages,
            });
            Ok(())
        }
    }
}

fn work(
    allocator: &impl Allocator,
    plan: &MemoryPlan,
    zipf: &Zipf,
    report: &mut ChildReport,
) -> anyhow::Result<()> {
    let clock = Clock::start();
    let data = Data::new(allocator, zipf.len())?;
    clock.record_ns("blocks_fill", zipf.len(), report);
    data.change(zipf, plan.zipf_warm_up_ops as usize, 0)?;
    let clock = Clock::start();
    data.change(zipf, plan.zipf_ops as usize, 1)?;
    clock.record_ns("blocks_change", plan.zipf_ops as usize, report);
    report.checksum = data.checksum()?;
    Ok(())
}
