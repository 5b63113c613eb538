//! Same-filled pages in compressed memory: the time that the check for them saves.
//!
//! The region's statistics contain the time of storing and loading pages, without the fault and without moving pages,
//! as zswap's patch for same-filled pages measured it. All pages of the region are zero, or all repeat one other word.
//! The statistics are sampled regularly, and the median of the times between two samples counts, because other work of
//! the machine affects only some of these intervals.

use super::child::ChildReport;
use super::plan::MemoryPlan;
use super::space::region_config;
use crate::stats::Rounds;
use pagefold_memory::{Region, RegionConfig};
use pagefold_page::Page;
use std::time::Duration;

/// A word that is not zero.
const WORD: u64 = 0x0123_4567_89ab_cdef;
/// Pages that are touched between two samples.
const SAMPLE_PAGES: usize = 256;
/// Minimum number of pages stored, or loaded, in an interval; an interval with fewer continues to the next sample.
const INTERVAL_PAGES: u64 = 1024;

/// Measures pages of zeroes and of another word, with or without the check.
pub fn run(plan: &MemoryPlan, check: bool, report: &mut ChildReport) -> anyhow::Result<()> {
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
        for first in (0..page_count).step_by(SAMPLE_PAGES) {
            for page in pages_from(&mut region, first) {
                page.as_chunks_mut().0.fill(wanted);
            }
            sample(&region, &mut store, &mut load);
        }
        for first in (0..page_count).step_by(SAMPLE_PAGES) {
            for (i, page) in pages_from(&mut region, first).iter().enumerate() {
                let is_right = page.as_chunks().0.iter().all(|w| *w == wanted);
                anyhow::ensure!(is_right, "page {} is not what was written", first + i);
            }
            sample(&region, &mut store, &mut load);
        }
        report.figures.insert(format!("store_{name}_ns"), store.median_ns()?);
        report.figures.insert(format!("load_{name}_ns"), load.median_ns()?);
    }
    Ok(())
}

fn pages_of(region: &mut Region) -> &mut [Page] {
    region.bytes_mut().as_chunks_mut().0
}

/// The pages from `first` on that are touched before the next sample.
fn pages_from(region: &mut Region, first: usize) -> &mut [Page] {
    let pages = pages_of(region);
    let end = pages.len().min(first + SAMPLE_PAGES);
    &mut pages[first..end]
}

fn sample(region: &Region, store: &mut Times, load: &mut Times) {
    let stats = region.stats();
    let times = stats.times;
    // The check decides which of the two counters includes a page. All pages are of one kind, so the sum is right.
    store.sample(times.same_filled_store + times.store, stats.eviction.folded);
    load.sample(times.same_filled_load + times.load, stats.faults.folded);
}

/// Times per page in intervals, computed from growing totals.
#[derive(Default)]
struct Times {
    ns: Rounds,
    count: usize,
    /// Time and pages in all at the end of the last interval, and at the last sample.
    before: (Duration, u64),
    now: (Duration, u64),
}

impl Times {
    fn sample(&mut self, time: Duration, pages: u64) {
        self.now = (time, pages);
        if pages - self.before.1 >= INTERVAL_PAGES {
            self.end_interval();
        }
    }

    fn end_interval(&mut self) {
        let time = self.now.0.saturating_sub(self.before.0);
        self.ns.push(time.as_nanos() as f64 / (self.now.1 - self.before.1) as f64);
        self.count += 1;
        self.before = self.now;
    }

    /// The median time per page, ns. If there were too few pages for an interval, all of them form one.
    fn median_ns(mut self) -> anyhow::Result<f64> {
        if self.count == 0 {
            anyhow::ensure!(self.now.1 > 0, "no page was compressed and loaded again");
            self.end_interval();
        }
        Ok(self.ns.median())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(samples: &[(u64, u64)]) -> anyhow::Result<f64> {
        let mut times = Times::default();
        samples.iter().for_each(|(ns, pages)| times.sample(Duration::from_nanos(*ns), *pages));
        times.median_ns()
    }

    #[test]
    fn the_median_is_of_the_intervals_between_samples() {
        // 2, 9 and 3 ns per page. Too few pages for an interval count in the next one; the last ones do not count.
        let samples = [(2_000, 1_000), (4_000, 2_000), (22_000, 4_000), (25_600, 5_200), (90_000, 5_300)];
        assert_eq!(times(&samples).unwrap(), 3.0);
    }

    #[test]
    fn few_pages_form_one_interval_and_no_pages_are_an_error() {
        assert_eq!(times(&[(0, 0), (50, 5), (70, 7)]).unwrap(), 10.0);
        assert!(times(&[(0, 0)]).is_err());
        assert!(times(&[]).is_err());
    }

    #[test]
    fn both_sides_report_all_figures() {
        if let Err(e) = pagefold_sys::uffd::kernel_features() {
            pagefold_testkit::skipped!("both_sides_report_all_figures: {e}");
            return;
        }
        for check in [true, false] {
            let mut report = ChildReport::default();
            run(&MemoryPlan::QUICK, check, &mut report).unwrap();
            let names: Vec<_> = report.figures.keys().map(String::as_str).collect();
            assert_eq!(names, ["load_word_ns", "load_zero_ns", "store_word_ns", "store_zero_ns"]);
        }
    }
}
