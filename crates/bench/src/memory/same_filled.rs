//! Same-filled pages in compressed memory: what the check for them saves.
//!
//! The region's own meter tells the time in storing and loading pages, without the fault and without the
//! moving of pages, as zswap's patch measured it. All pages of the region are zero, or all repeat one other
//! word. The meter is looked at again and again, and the median of the times between two looks counts: what
//! else the machine did meanwhile falls on some of them.

use super::child::Told;
use super::plan::MemoryPlan;
use super::space::region_config;
use crate::stats::Rounds;
use pagefold_memory::{Region, RegionConfig};
use pagefold_page::Page;
use std::time::Duration;

/// A word that is not zero.
const WORD: u64 = 0x0123_4567_89ab_cdef;
/// Pages that are touched between two looks at the meter.
const LOOK_PAGES: usize = 256;
/// Pages stored, or loaded, that give a time: fewer wait for the next look.
const TIMED_PAGES: u64 = 1024;

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
        let page_count = pages_of(&mut region).len();
        let (mut store, mut load) = (Times::default(), Times::default());
        let wanted = word.to_le_bytes();
        for first in (0..page_count).step_by(LOOK_PAGES) {
            for page in some_of(&mut region, first) {
                page.as_chunks_mut().0.fill(wanted);
            }
            look(&region, &mut store, &mut load);
        }
        for first in (0..page_count).step_by(LOOK_PAGES) {
            for (i, page) in some_of(&mut region, first).iter().enumerate() {
                let is_right = page.as_chunks().0.iter().all(|w| *w == wanted);
                anyhow::ensure!(is_right, "page {} is not what was written", first + i);
            }
            look(&region, &mut store, &mut load);
        }
        told.figures.insert(format!("store_{name}_ns"), store.median_ns()?);
        told.figures.insert(format!("load_{name}_ns"), load.median_ns()?);
    }
    Ok(())
}

fn pages_of(region: &mut Region) -> &mut [Page] {
    region.bytes_mut().as_chunks_mut().0
}

/// The pages from one on that are touched before the next look.
fn some_of(region: &mut Region, first: usize) -> &mut [Page] {
    let pages = pages_of(region);
    let end = pages.len().min(first + LOOK_PAGES);
    &mut pages[first..end]
}

fn look(region: &Region, store: &mut Times, load: &mut Times) {
    let stats = region.stats();
    let times = stats.times;
    // Which of the two a page is counted in depends on the check; here all pages are of one kind.
    store.look(times.same_filled_store + times.store, stats.eviction.folded);
    load.look(times.same_filled_load + times.load, stats.faults.folded);
}

/// Times per page, of a meter that counts up.
#[derive(Default)]
struct Times {
    ns: Rounds,
    count: usize,
    /// The meter when the last time was taken, and now.
    before: (Duration, u64),
    now: (Duration, u64),
}

impl Times {
    fn look(&mut self, time: Duration, pages: u64) {
        self.now = (time, pages);
        if pages - self.before.1 >= TIMED_PAGES {
            self.take();
        }
    }

    fn take(&mut self) {
        let time = self.now.0.saturating_sub(self.before.0);
        self.ns.push(time.as_nanos() as f64 / (self.now.1 - self.before.1) as f64);
        self.count += 1;
        self.before = self.now;
    }

    /// The median time per page, ns; of a few pages the only one.
    fn median_ns(mut self) -> anyhow::Result<f64> {
        if self.count == 0 {
            anyhow::ensure!(self.now.1 > 0, "no page was folded and brought back");
            self.take();
        }
        Ok(self.ns.median())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(looks: &[(u64, u64)]) -> anyhow::Result<f64> {
        let mut times = Times::default();
        looks.iter().for_each(|(ns, pages)| times.look(Duration::from_nanos(*ns), *pages));
        times.median_ns()
    }

    #[test]
    fn the_median_is_of_what_was_added_between_two_looks() {
        // 2, 9 and 3 ns a page; what is too little for a time counts in the next, and the rest not at all.
        let looks = [(2_000, 1_000), (4_000, 2_000), (22_000, 4_000), (25_600, 5_200), (90_000, 5_300)];
        assert_eq!(times(&looks).unwrap(), 3.0);
    }

    #[test]
    fn few_pages_have_one_time_and_none_have_none() {
        assert_eq!(times(&[(0, 0), (50, 5), (70, 7)]).unwrap(), 10.0);
        assert!(times(&[(0, 0)]).is_err());
        assert!(times(&[]).is_err());
    }

    #[test]
    fn both_sides_are_measured() {
        if let Err(e) = pagefold_sys::uffd::kernel_features() {
            pagefold_testkit::skipped!("both_sides_are_measured: {e}");
            return;
        }
        for check in [true, false] {
            let mut told = Told::default();
            run(&MemoryPlan::QUICK, check, &mut told).unwrap();
            let names: Vec<_> = told.figures.keys().map(String::as_str).collect();
            assert_eq!(names, ["load_word_ns", "load_zero_ns", "store_word_ns", "store_zero_ns"]);
        }
    }
}
