//! `pagefold-bench arena`: blocks of an arena of `libpagefold` against those of the system's malloc.
//!
//! The arena is called by the functions of its C interface. Two works: to free and allocate blocks again and again
//! below the limit, and to change blocks, drawn with a Zipf distribution, of four times as much data as may be resident.
//! The second work has no limit for malloc.
//!
//! `allocators` has the two allocators, and blocks of one; `data` the second work.

mod allocators;
mod data;

use crate::random::{Random, SEED, Zipf};
use crate::report::Target::AtMost;
use crate::report::{Figure, Report, Side};
use crate::stats::Clock;
use allocators::{Allocator, Arena, Blocks, System};
use anyhow::ensure;
use data::{BLOCK_BYTES, Data};
use pagefold_page::{PAGE_SIZE, size::Human};
use std::ptr::null_mut;

/// Runs all measurements.
pub fn run(report: &mut Report) -> anyhow::Result<()> {
    churn(report)?;
    skewed(report)
}

/// Frees and allocates random blocks of one size, and writes to each of their pages.
fn churn(report: &mut Report) -> anyhow::Result<()> {
    // Bytes that all live blocks have together; bytes and number of the blocks of a round.
    let live_bytes = report.pick(16 << 20, 4 << 20);
    let (churn_bytes, blocks_max) = report.pick((1 << 30, 1_000_000), (16 << 20, 10_000));
    let arena = Arena::new(16 * live_bytes, 8 * live_bytes)?;
    let figure = Figure("malloc, a write to each page, free: CPU time of a block", "ns", AtMost(1.0));
    for size in [64, 1 << 10, 16 << 10, 128 << 10, 1 << 20] {
        let blocks = (churn_bytes / size).min(blocks_max);
        let ours = Side::new("pagefold", |_| churn_once(&arena, size, live_bytes / size, blocks));
        let peer = Side::new("malloc", |_| churn_once(&System, size, live_bytes / size, blocks));
        report.compare(&Human(size as u64).to_string(), &[figure], rounds(report), vec![ours, peer])?;
    }
    Ok(())
}

/// Rounds that do not count, because they touch memory, and that do.
fn rounds(report: &Report) -> [usize; 2] {
    report.pick([1, 5], [1, 1])
}

fn churn_once(
    allocator: &impl Allocator,
    size: usize,
    live: usize,
    blocks: usize,
) -> anyhow::Result<Vec<f64>> {
    let mut random = Random(SEED);
    let mut live = Blocks::new(allocator, live, size)?;
    let clock = Clock::of_thread();
    for _ in 0..blocks {
        let at = random.below(live.blocks.len() as u64) as usize;
        allocator.free(live.blocks[at]);
        live.blocks[at] = null_mut();
        live.blocks[at] = allocator.allocate(size);
        ensure!(!live.blocks[at].is_null(), "no memory for a block of {size} bytes");
        for offset in (0..size).step_by(PAGE_SIZE) {
            // SAFETY: the block has so many bytes.
            unsafe { live.blocks[at].add(offset).write_volatile(1) };
        }
    }
    Ok(vec![clock.stop(blocks)[1]])
}

/// Changes blocks of more data than may be resident.
fn skewed(report: &mut Report) -> anyhow::Result<()> {
    let data_bytes = report.pick(512 << 20, 16 << 20);
    let accesses = report.pick(1_000_000, 10_000);
    let count = data_bytes / BLOCK_BYTES;
    let zipf = Zipf::new(u32::try_from(count)?);
    let arena = Arena::new(data_bytes / 4 * 5, data_bytes / 4)?;
    let (ours, theirs) = (Data::new(&arena, count)?, Data::new(&System, count)?);
    let ours = Side::new("pagefold", |round| ours.change(&zipf, accesses, round));
    let peer = Side::new("malloc without a limit", |round| theirs.change(&zipf, accesses, round));
    let figure = Figure("change blocks, Zipf 0.99, a quarter resident", "ns", AtMost(10.0));
    report.compare(&Human(BLOCK_BYTES as u64).to_string(), &[figure], rounds(report), vec![ours, peer])
}
