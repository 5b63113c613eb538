//! `pagefold-bench arena`: blocks of an arena of `libpagefold` against those of the system's malloc.
//!
//! The arena is called by the functions of its C interface. Two works: to free and allocate blocks again and again
//! below the limit, and to change blocks, drawn with a Zipf distribution, of four times as much data as may be resident.
//! In each round both sides do the same work, one after the other.

use super::plan::SEED;
use super::report::Report;
use super::stats::{Random, Rounds};
use super::table::{Table, number};
use super::zipf::Zipf;
use crate::output;
use anyhow::{Context, ensure};
use clap::Args;
use pagefold::{pf_arena, pf_region, pf_region_config, pf_region_stats};
use pagefold_page::size::Human;
use pagefold_sys::cpu;
use serde::Serialize;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::time::Instant;

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

/// Bytes of a block of the second work, and the skew of its accesses, which is that of `pagefold-bench memory`.
const DATA_BLOCK_BYTES: usize = 1024;
const THETA: f64 = 0.99;

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

/// An allocator of C: a pair of functions.
trait Allocator {
    /// Returns a block, or null.
    fn allocate(&self, size: usize) -> *mut u8;
    /// Frees a block that this allocator returned.
    fn free(&self, block: *mut u8);
}

struct System;

impl Allocator for System {
    fn allocate(&self, size: usize) -> *mut u8 {
        // SAFETY: the call has no conditions.
        unsafe { libc::malloc(size) }.cast()
    }

    fn free(&self, block: *mut u8) {
        // SAFETY: this allocator returned the block, and its owner gives it up.
        unsafe { libc::free(block.cast()) };
    }
}

/// An arena on a whole region.
struct Arena {
    region: NonNull<pf_region>,
    arena: NonNull<pf_arena>,
}

impl Arena {
    fn new(len_bytes: usize, limit_bytes: usize) -> anyhow::Result<Self> {
        let (mut region, mut arena) = (null_mut(), null_mut());
        // SAFETY: each call gets structures of its types, and places for its results.
        unsafe {
            let mut config = std::mem::zeroed::<pf_region_config>();
            check(pagefold::pf_region_config_init(&mut config, size_of::<pf_region_config>()))?;
            (config.len_bytes, config.limit_bytes) = (len_bytes as u64, limit_bytes as u64);
            check(pagefold::pf_region_create(&config, &mut region))?;
            let start: *mut c_void = pagefold::pf_region_address(region);
            check(pagefold::pf_arena_create(region, start, len_bytes, &mut arena))?;
        }
        Ok(Arena {
            region: NonNull::new(region).context("no region")?,
            arena: NonNull::new(arena).context("no arena")?,
        })
    }

    fn stats(&self) -> anyhow::Result<pf_region_stats> {
        let mut stats = pf_region_stats::default();
        let size_bytes = size_of::<pf_region_stats>();
        // SAFETY: the region exists, and the structure has this size.
        check(unsafe { pagefold::pf_region_get_stats(self.region.as_ptr(), &mut stats, size_bytes) })?;
        Ok(stats)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: nobody uses the handles or blocks afterwards: blocks are freed by the works that allocate them.
        unsafe {
            pagefold::pf_arena_destroy(self.arena.as_ptr());
            pagefold::pf_region_destroy(self.region.as_ptr());
        }
    }
}

impl Allocator for Arena {
    fn allocate(&self, size: usize) -> *mut u8 {
        // SAFETY: the arena exists.
        unsafe { pagefold::pf_arena_malloc(self.arena.as_ptr(), size) }.cast()
    }

    fn free(&self, block: *mut u8) {
        // SAFETY: this arena returned the block, and its owner gives it up.
        unsafe { pagefold::pf_arena_free(self.arena.as_ptr(), block.cast()) };
    }
}

fn check(code: i32) -> anyhow::Result<()> {
    // SAFETY: the library returns a string, which no other call of this thread replaces meanwhile.
    let message = || unsafe { std::ffi::CStr::from_ptr(pagefold::pf_error_message()) }.to_string_lossy();
    ensure!(code == 0, "libpagefold: {}", message());
    Ok(())
}

/// Frees and allocates random blocks of one size, and writes to each of their pages.
fn churn(plan: &ArenaPlan) -> anyhow::Result<Table> {
    let mut table = Table::new(
        "malloc, one write to each page, and free, below the limit: ns of CPU time a block, median of the rounds",
        &["block", "arena", "malloc", "malloc / arena"],
    );
    let arena = Arena::new(16 * plan.live_bytes, 8 * plan.live_bytes)?;
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

/// Blocks that are freed when this is dropped.
struct Blocks<'a, A: Allocator> {
    allocator: &'a A,
    blocks: Vec<*mut u8>,
}

impl<'a, A: Allocator> Blocks<'a, A> {
    fn new(allocator: &'a A, count: usize, size: usize) -> anyhow::Result<Self> {
        let blocks = (0..count.max(1)).map(|_| allocator.allocate(size)).collect();
        let blocks = Blocks { allocator, blocks };
        ensure!(blocks.blocks.iter().all(|block| !block.is_null()), "no memory for {count} blocks");
        Ok(blocks)
    }
}

impl<A: Allocator> Drop for Blocks<'_, A> {
    fn drop(&mut self) {
        self.blocks.iter().filter(|block| !block.is_null()).for_each(|block| self.allocator.free(*block));
    }
}

/// Changes blocks of more data than may be resident.
fn skewed(plan: &ArenaPlan) -> anyhow::Result<Table> {
    let title = format!(
        "changing blocks of {DATA_BLOCK_BYTES} bytes, Zipf {THETA}: {} of data in {} resident; malloc has no limit",
        Human(plan.data_bytes as u64),
        Human(plan.data_bytes as u64 / 4),
    );
    let mut table = Table::new(
        title,
        &["", "ns an access", "resident at most", "compressed", "into", "faults an access"],
    );
    let count = plan.data_bytes / DATA_BLOCK_BYTES;
    let zipf = Zipf::new(u32::try_from(count)?, THETA, SEED);
    let arena = Arena::new(plan.data_bytes / 4 * 5, plan.data_bytes / 4)?;
    let (ours, peer) = (Data::new(&arena, count)?, Data::new(&System, count)?);
    let (mut our_times, mut peer_times) = (Rounds::default(), Rounds::default());
    let before = arena.stats()?;
    for round in 0..plan.rounds {
        our_times.push(ours.change(&zipf, plan, round)?);
        peer_times.push(peer.change(&zipf, plan, round)?);
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

/// Blocks that begin with their number, and repeat a few words, as records do.
struct Data<'a, A: Allocator>(Blocks<'a, A>);

impl<'a, A: Allocator> Data<'a, A> {
    fn new(allocator: &'a A, count: usize) -> anyhow::Result<Self> {
        let data = Data(Blocks::new(allocator, count, DATA_BLOCK_BYTES)?);
        let mut random = Random(SEED);
        for (number, block) in data.0.blocks.iter().enumerate() {
            let words = [random.next(), random.next(), number as u64];
            for (i, at) in (0..DATA_BLOCK_BYTES).step_by(8).enumerate() {
                let word = if i % 4 == 3 { random.next() } else { words[i % 3] };
                let word = if i == 0 { number as u64 } else { word };
                // SAFETY: the block has so many bytes, aligned to 16.
                unsafe { block.add(at).cast::<u64>().write(word) };
            }
        }
        Ok(data)
    }

    /// Returns the nanoseconds of an access.
    fn change(&self, zipf: &Zipf, plan: &ArenaPlan, round: usize) -> anyhow::Result<f64> {
        let mut random = Random(SEED + round as u64);
        let began = Instant::now();
        for _ in 0..plan.accesses {
            let number = zipf.draw(&mut random);
            let block = self.0.blocks[number as usize].cast::<u64>();
            // SAFETY: the block has so many words, which only this thread uses.
            unsafe {
                ensure!(block.read() == u64::from(number), "block {number} has other contents");
                let last = block.add(DATA_BLOCK_BYTES / 8 - 1);
                last.write(last.read().wrapping_add(1));
            }
        }
        Ok(began.elapsed().as_nanos() as f64 / plan.accesses as f64)
    }
}
