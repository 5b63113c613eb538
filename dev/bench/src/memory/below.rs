//! Memory that never reaches its limit: a region against ordinary memory with huge pages.
//!
//! Each process allocates its memory, fills it with numbers in order, and sorts a shuffled part of it. The region's
//! limit is twice the size of the data.

use super::child::{ChildReport, Clock};
use super::plan::MemoryPlan;
use super::space::{PlainSpace, Space, region_config};
use pagefold_memory::{Region, RegionConfig};
use pagefold_page::PAGE_SIZE;
use pagefold_sys::mem::Reservation;

/// The sorted part of the data is one in so many.
const SORTED_SHARE: usize = 8;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Measures a region, or ordinary memory.
pub fn run(plan: &MemoryPlan, in_region: bool, report: &mut ChildReport) -> anyhow::Result<()> {
    let len_bytes = plan.size_bytes as usize;
    if in_region {
        let config =
            RegionConfig { limit_bytes: 2 * plan.size_bytes, ..region_config(plan.size_bytes, plan) };
        let mut region = Region::new(config)?;
        work(region.bytes_mut(), report);
        anyhow::ensure!(region.stats().eviction.staged == 0, "the data did not stay below the limit");
    } else {
        let memory = Reservation::aligned(len_bytes, HUGE_PAGE_BYTES)?;
        memory.advise_huge_pages(0, len_bytes, true);
        work(PlainSpace(memory).bytes_mut(), report);
    }
    Ok(())
}

fn work(bytes: &mut [u8], report: &mut ChildReport) {
    // SAFETY: numbers of 8 bytes may have any bytes.
    let (_, numbers, _) = unsafe { bytes.align_to_mut::<u64>() };
    let clock = Clock::start();
    for (i, number) in numbers.iter_mut().enumerate() {
        *number = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    clock.record_ns("below_fill", numbers.len() * 8 / PAGE_SIZE, report);
    let part = numbers.len() / SORTED_SHARE;
    let clock = Clock::start();
    numbers[..part].sort_unstable();
    clock.record_s("below_sort", report);
    report.checksum = numbers[..part].iter().step_by(509).fold(0, |sum, n| sum.rotate_left(5) ^ n);
}
