//! Same-filled pages in compressed memory: what the check for them saves.
//!
//! The region's own meter tells the time in storing and loading pages, without the fault and without the
//! moving of pages, as zswap's patch measured it. All pages of the region are zero, or all repeat one other
//! word.

use super::child::Told;
use super::plan::MemoryPlan;
use super::space::region_config;
use anyhow::Context;
use pagefold_memory::{Region, RegionConfig};
use pagefold_page::Page;

/// A word that is not zero.
const WORD: u64 = 0x0123_4567_89ab_cdef;

/// Measures pages of zero and of another word, with the check or without it.
pub fn run(plan: &MemoryPlan, check: bool, told: &mut Told) -> anyhow::Result<()> {
    for (name, word) in [("zero", 0), ("word", WORD)] {
        let config = RegionConfig {
            same_filled: check,
            measure_pages: true,
            neighbours: false,
            ..region_config(plan.size_bytes, plan)
        };
        let mut region = Region::new(config)?;
        let wanted = word.to_le_bytes();
        for page in pages_of(&mut region) {
            page.as_chunks_mut().0.fill(wanted);
        }
        for (i, page) in pages_of(&mut region).iter().enumerate() {
            anyhow::ensure!(
                page.as_chunks().0.iter().all(|w| *w == wanted),
                "page {i} is not what was written"
            );
        }
        let stats = region.stats();
        let times = stats.times;
        // Which of the two a page is counted in depends on the check; here all pages are of one kind.
        let per_page = |time: std::time::Duration, pages: u64| -> anyhow::Result<f64> {
            let pages = std::num::NonZero::new(pages).context("no page was folded and brought back")?;
            Ok(time.as_nanos() as f64 / pages.get() as f64)
        };
        let store_ns = per_page(times.same_filled_store + times.store, stats.eviction.folded)?;
        let load_ns = per_page(times.same_filled_load + times.load, stats.faults.folded)?;
        told.figures.insert(format!("store_{name}_ns"), store_ns);
        told.figures.insert(format!("load_{name}_ns"), load_ns);
    }
    Ok(())
}

fn pages_of(region: &mut Region) -> &mut [Page] {
    region.bytes_mut().as_chunks_mut().0
}
