//! Memory used per byte stored, after many random overwrites with pages of all sets: the cost of fragmentation.

use super::engine::{memory, new_store};
use super::pages::PageSet;
use super::plan::{self, Plan, SEED};
use super::report::{Report, Row};
use super::stats::Random;
use pagefold_page::{PAGE_SIZE, Page};

/// Measures all sets together and adds the row.
pub fn measure(sets: &[PageSet], plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let pages: Vec<&Page> = sets.iter().flat_map(|set| set.pages()).collect();
    let store = new_store(plan.density_pages * PAGE_SIZE as u64)?;
    let mut random = Random(SEED);
    let mut put = |index: u64| {
        let page = pages[random.below(pages.len() as u64) as usize];
        store.write(index * PAGE_SIZE as u64, page)
    };
    for index in 0..plan.density_pages {
        put(index)?;
    }
    let mut indexes = Random(SEED.rotate_left(32));
    for _ in 0..plan.density_overwrites {
        put(indexes.below(plan.density_pages))?;
    }

    let stats = store.stats();
    let (stored, used) = (stats.mm.compr_data_size as f64, memory(&store));
    // The target is about the memory of the compressed objects, so slots are not counted.
    let total = (stats.memory.total() - stats.memory.slots) as f64;
    report.note(format!(
        "density: {} overwrites of {} pages; stored {} bytes, used {} ({:.4}), with lists and ready frames \
         {total} ({:.4}), with slots {} ({:.4}); {} objects moved",
        plan.density_overwrites,
        plan.density_pages,
        used.stored,
        used.used,
        used.used as f64 / stored,
        total / stored,
        used.with_slots,
        used.with_slots as f64 / stored,
        stats.objects_moved,
    ));
    let comparable = sets.iter().all(|set| set.comparable);
    let peer = kernel_density(report);
    let row = Row::of_all(
        "memory / bytes stored, after overwrites",
        comparable,
        "x",
        "fresh kernel zram",
        plan::DENSITY,
    );
    // The target is about our figure itself. The peer is only for comparison: it has no overwrites.
    report.rows.push(Row { ours: total / stored, peer, ratio: Some(total / stored), ..row });
    Ok(())
}

/// Memory used / bytes stored by the kernel for all sets together, if `compare` measured it in this run.
fn kernel_density(report: &Report) -> Option<f64> {
    let kernel: Vec<_> = report.sets.iter().filter_map(|set| set.subjects.get(1)).map(|s| s.memory).collect();
    let (used, stored) = kernel.iter().fold((0, 0), |(u, s), m| (u + m.used, s + m.stored));
    (stored > 0).then(|| used as f64 / stored as f64)
}
