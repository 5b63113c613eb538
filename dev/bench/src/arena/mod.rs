//! `pagefold-bench arena`: blocks of an arena of `libpagefold` against those of the system's malloc.
//!
//! The arena is called by the functions of its C interface. Two works: to free and allocate blocks again and again
//! below the limit, and to change blocks, drawn with a Zipf distribution, of four times as much data as may be resident.
//! In each round both sides do the same work, one after the other. The second work has no limit for malloc here;
//! `pagefold-bench memory --only blocks` compares it with malloc in a memory cgroup that swaps.
//!
//! `allocators` has the two allocators, and blocks of one; `data` the second work.

mod allocators;
pub mod data;

pub use allocators::{Allocator, Arena, Blocks, System};

use super::plan::SEED;
use super::report::Report;
use super::stats::{Random, Rounds};
use super::table::{Table, number};
use super::zipf::Zipf;
use crate::output;
use anyhow::ensure;
use clap::Args;
use data::{BLOCK_BYTES, Data, THETA};
use pagefold_page::size::Human;
use pagefold_sys::cpu;
use serde::Serialize;
use std::ptr::null_mut;

/// `pagefold-bench arena`.
#[derive(Debug, Args)]
pub struct ArenaArgs {
    /// Run everything once with small counts: a test of the program, without meaningful figures
    #[arg(long)]
    pub quick: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The fixed numbers.
#[derive(Debug, Clone, Copy, Serialize)]
struct ArenaPlan {
    rounds: usize,
    /// Bytes that all live blocks have together below the limit.
    live_bytes: usize,
    /// Bytes that the blocks of a round have together.
    churn_bytes: usize,
    /// Most blocks of a round.
    blocks_max: usize,
    /// Data of the second work; a quarter of it may be resident.
    data_bytes: usize,
    /// Accesses in a round of the second work.
    accesses: usize,
}

const FULL: ArenaPlan = ArenaPlan {
    rounds: 5,
    live_bytes: 16 << 20,
    churn_bytes: 1 << 30,
    blocks_max: 1_000_000,
    data_bytes: 512 << 20,
    accesses: 1_000_000,
};
const QUICK: ArenaPlan = ArenaPlan {
    rounds: 1,
    live_bytes: 4 << 20,
    churn_bytes: 16 << 20,
    blocks_max: 10_000,
    data_bytes: 16 << 20,
    accesses: 10_000,
};

/// Runs all measurements and prints the report.
pub fn run(args: &ArenaArgs) -> anyhow::Result<()> {
    let plan = if args.quick { QUICK } else { FULL };
    let mut report = Report::new(plan, args.quick, Vec::new());
    if cfg!(debug_assertions) {
        report.note("this is a debug build: its figures mean nothing; use --release".into());
    }
    report.tables.push(churn(&plan)?);
    report.tables.push(skewed(&plan)?);
    let text = if args.json { report.json()? } else { report.text() };
    Ok(output::text(&text)?)
}

/// Frees and allocates random blocks of one size, and writes to each of their pages.
fn churn(plan: &ArenaPlan) -> anyhow::Result<Table> {
    let mut table = Table::new(
        "malloc, one write to each page, and free, below the limit: ns of CPU time a block, median of the rounds",
        &["block", "arena", "malloc", "malloc / arena"],
    );
    let arena = Arena::new(16 * plan.live_bytes, 8 * plan.live_bytes, false)?;
    for size in [64, 1 << 10, 16 << 10, 128 << 10, 1 << 20] {
        let (mut ours, mut peer) = (Rounds::default(), Rounds::default());
        // The first round touches memory and does not count.
        for round in 0..=plan.rounds {
            let (a, b) = (churn_once(&arena, plan, size)?, churn_once(&System, plan, size)?);
            if round > 0 {
                ours.push(a);
                peer.push(b);
            }
        }
        table.push([
            Human(size as u64).to_string(),
            number(ours.median()),
            number(peer.median()),
            number(peer.over(&ours).median()),
        ]);
    }
    Ok(table)
}

fn churn_once(allocator: &impl Allocator, plan: &ArenaPlan, size: usize) -> anyhow::Result<f64> {
    let mut random = Random(SEED);
    let mut live = Blocks::new(allocator, plan.live_bytes / size, size)?;
    let blocks = (plan.churn_bytes / size).min(plan.blocks_max);
    // Other programs take no time from it.
    let began = cpu::thread_time();
    for _ in 0..blocks {
        let at = random.below(live.blocks.len() as u64) as usize;
        allocator.free(live.blocks[at]);
        live.blocks[at] = null_mut();
        live.blocks[at] = allocator.allocate(size);
        ensure!(!live.blocks[at].is_null(), "no memory for a block of {size} bytes");
        for offset in (0..size).step_by(4096) {
            // SAFETY: the block has so many bytes.
            unsafe { live.blocks[at].add(offset).write_volatile(1) };
        }
    }
    Ok((cpu::thread_time() - began).as_nanos() as f64 / blocks as f64)
}

/// Changes blocks of more data than may be resident.
fn skewed(plan: &ArenaPlan) -> anyhow::Result<Table> {
    let title = format!(
        "changing blocks of {BLOCK_BYTES} bytes, Zipf {THETA}: {} of data in {} resident; malloc has no limit",
        Human(plan.data_bytes as u64),
        Human(plan.data_bytes as u64 / 4),
    );
    let mut table = Table::new(
        title,
        &["", "ns an access", "resident at most", "compressed", "into", "faults an access"],
    );
    let count = plan.data_bytes / BLOCK_BYTES;
    let zipf = Zipf::new(u32::try_from(count)?, THETA, SEED);
    let arena = Arena::new(plan.data_bytes / 4 * 5, plan.data_bytes / 4, false)?;
    let (ours, peer) = (Data::new(&arena, count)?, Data::new(&System, count)?);
    let (mut our_times, mut peer_times) = (Rounds::default(), Rounds::default());
    let before = arena.stats()?;
    for round in 0..plan.rounds {
        our_times.push(ours.change(&zipf, plan.accesses, round as u64)?);
        peer_times.push(peer.change(&zipf, plan.accesses, round as u64)?);
    }
    let after = arena.stats()?;
    let faults = (after.faults_compressed - before.faults_compressed) as f64;
    let bytes = |bytes: u64| Human(bytes).to_string();
    table.push([
        "arena".into(),
        number(our_times.median()),
        bytes(after.resident_max_bytes),
        bytes(after.folded_bytes),
        bytes(after.pool_bytes),
        number(faults / (plan.rounds * plan.accesses) as f64),
    ]);
    let none = || "-".to_string();
    table.push([
        "malloc".into(),
        number(peer_times.median()),
        bytes(plan.data_bytes as u64),
        none(),
        none(),
        none(),
    ]);
    Ok(table)
}
