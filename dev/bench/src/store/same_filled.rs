//! Same-filled pages: how much faster they are than compressed pages.
//!
//! All source pages fit in the CPU's caches, because a cache miss on the first word of a page is a cost of either kind.

use super::subject::{new_store, rounds};
use crate::pages::PageSet;
use crate::random::{Random, SEED};
use crate::report::Target::AtMost;
use crate::report::{Figure, Report, Side};
use crate::stats::Clock;
use pagefold_page::{PAGE_SIZE, Page};

/// Pages of a block that fits in the CPU's caches while it is measured.
const HOT_PAGES: usize = 128;

const FIGURES: [Figure; 2] = [
    Figure("same-filled page: store", "ns", AtMost(0.05)),
    Figure("same-filled page: load", "ns", AtMost(0.2)),
];

/// Measures one set and adds the rows.
pub fn measure(set: &PageSet, report: &mut Report) -> anyhow::Result<()> {
    let pages = set.not_same_filled();
    if pages.len() < HOT_PAGES {
        report.note(format!("page set '{}': too few pages that are not same-filled", set.name));
        return Ok(());
    }
    let repeats = report.pick(40, 1);
    let compressed: Vec<Page> = (0..HOT_PAGES).map(|i| *pages[i * pages.len() / HOT_PAGES]).collect();
    let mut random = Random(SEED);
    let same: Vec<Page> =
        (0..HOT_PAGES).map(|i| repeated(if i % 2 == 0 { 0 } else { random.next() })).collect();
    let ours = Side::new("pagefold", |_| measure_round(&same, repeats));
    let peer = Side::new("compressed page", |_| measure_round(&compressed, repeats));
    report.compare(&set.name, &FIGURES, rounds(report), vec![ours, peer])
}

fn repeated(word: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    page.as_chunks_mut().0.fill(word.to_ne_bytes());
    page
}

/// Returns the CPU time to store and to load a page.
fn measure_round(pages: &[Page], repeats: usize) -> anyhow::Result<Vec<f64>> {
    let store = new_store((pages.len() * PAGE_SIZE) as u64)?;
    let at = |i: usize| (i * PAGE_SIZE) as u64;
    let put = || pages.iter().enumerate().try_for_each(|(i, page)| store.write(at(i), page));
    let mut loaded = vec![[0; PAGE_SIZE]; pages.len()];
    let mut load = || loaded.iter_mut().enumerate().try_for_each(|(i, page)| store.read(at(i), page));
    let count = repeats * pages.len();
    // Each slot already contains a page of the same kind.
    put()?;
    let clock = Clock::of_thread();
    (0..repeats).try_for_each(|_| put())?;
    let [_, store_ns] = clock.stop(count);
    let clock = Clock::of_thread();
    (0..repeats).try_for_each(|_| load())?;
    let [_, load_ns] = clock.stop(count);
    anyhow::ensure!(loaded == pages, "other pages were loaded than were stored");
    Ok(vec![store_ns, load_ns])
}
