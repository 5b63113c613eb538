//! Regions that are only numbers.

use super::*;
use crate::config::RegionConfig;
use crate::counters::Counter;
use crate::error::RegionError;
use crate::pager::Pager;
use crate::pager::{OnLoss, Served};
use crate::source::Source;
use crossbeam_utils::atomic::AtomicCell;
use pagefold_page::PageIndex;
use proptest::prelude::*;

#[derive(Default)]
struct Numbers {
    in_use: AtomicCell<u64>,
    page_ins: AtomicCell<u64>,
    limit: AtomicCell<u64>,
}

impl Sharer for Numbers {
    fn in_use_pages(&self) -> u64 {
        self.in_use.load()
    }

    fn page_ins(&self) -> u64 {
        self.page_ins.load()
    }

    fn set_limit_pages(&self, pages: u64) {
        self.limit.store(pages);
    }
}

impl Numbers {
    /// Folds what is beyond the limit.
    fn fold(&self) {
        self.in_use.store(self.in_use.load().min(self.limit.load()));
    }
}

/// Grows a region that fills all that it gets, for so long.
fn fill(split: &mut Split<Numbers>, id: ShareId, region: &Numbers, start: Instant, steps: u32) {
    for step in 0..steps {
        region.in_use.store(region.limit.load());
        split.grow(id, start + HEAT_INTERVAL * step);
        split.parts.iter().for_each(|share| share.region.fold());
    }
}

#[test]
fn one_region_gets_all() {
    let mut split = Split::new(10_000);
    let region = Arc::new(Numbers::default());
    let id = split.join(region.clone(), u64::MAX).unwrap();
    assert_eq!(region.limit.load(), 5000);
    fill(&mut split, id, &region, Instant::now(), 3);
    assert_eq!(region.limit.load(), 10_000);
}

#[test]
fn a_region_never_gets_more_than_its_most() {
    let mut split = Split::new(10_000);
    let region = Arc::new(Numbers::default());
    let id = split.join(region.clone(), 6000).unwrap();
    fill(&mut split, id, &region, Instant::now(), 5);
    assert_eq!(region.limit.load(), 6000);
    split.set_max(id, 100);
    assert_eq!(region.limit.load(), 100);
}

#[test]
fn a_region_gets_what_another_does_not_use() {
    let mut split = Split::new(10_000);
    let [idle, busy] = [(); 2].map(|()| Arc::new(Numbers::default()));
    let first = split.join(idle.clone(), u64::MAX).unwrap();
    fill(&mut split, first, &idle, Instant::now(), 5);
    assert_eq!(idle.limit.load(), 10_000);
    idle.in_use.store(10);
    let second = split.join(busy.clone(), u64::MAX).unwrap();
    fill(&mut split, second, &busy, Instant::now(), 20);
    assert!(busy.limit.load() > 9000, "{}", busy.limit.load());
}

#[test]
fn the_region_that_brings_back_more_takes_from_the_one_that_brings_back_less() {
    let mut split = Split::new(10_000);
    let [cold, hot] = [(); 2].map(|()| Arc::new(Numbers::default()));
    let first = split.join(cold.clone(), u64::MAX).unwrap();
    fill(&mut split, first, &cold, Instant::now(), 5);
    let second = split.join(hot.clone(), u64::MAX).unwrap();
    assert_eq!(hot.limit.load(), MIN_PAGES);
    let start = Instant::now();
    for step in 0..200 {
        hot.page_ins.store(hot.page_ins.load() + 1000);
        cold.page_ins.store(cold.page_ins.load() + 10);
        cold.in_use.store(cold.limit.load());
        hot.in_use.store(hot.limit.load());
        split.grow(second, start + HEAT_INTERVAL * step);
    }
    assert!(hot.limit.load() > 8000, "{}", hot.limit.load());
    // Equal heat moves nothing.
    let before = hot.limit.load();
    for step in 200..300 {
        hot.page_ins.store(hot.page_ins.load() + hot.limit.load());
        cold.page_ins.store(cold.page_ins.load() + cold.limit.load());
        split.grow(if step % 2 == 0 { first } else { second }, start + HEAT_INTERVAL * step);
    }
    assert!(hot.limit.load().abs_diff(before) < 1000, "{before} {}", hot.limit.load());
}

#[test]
fn a_budget_takes_no_more_regions_than_it_has_least_limits() {
    let mut split = Split::new(2 * MIN_PAGES);
    let join = |split: &mut Split<_>| split.join(Arc::new(Numbers::default()), u64::MAX);
    assert!(join(&mut split).is_some());
    let second = join(&mut split).unwrap();
    assert!(join(&mut split).is_none());
    assert!(split.leave(second).is_some() && join(&mut split).is_some());
}

#[test]
fn a_lower_total_takes_unused_pages_first() {
    let mut split = Split::new(10_000);
    let [idle, busy] = [(); 2].map(|()| Arc::new(Numbers::default()));
    let first = split.join(idle.clone(), u64::MAX).unwrap();
    let second = split.join(busy.clone(), u64::MAX).unwrap();
    fill(&mut split, second, &busy, Instant::now(), 2);
    idle.in_use.store(100);
    let (idle_before, busy_before) = (idle.limit.load(), busy.limit.load());
    assert!(idle_before > 2000 && busy_before > 2000, "{idle_before} {busy_before}");
    split.set_total_pages(idle_before + busy_before - 2000);
    assert_eq!((idle.limit.load(), busy.limit.load()), (idle_before - 2000, busy_before));
    // Now both must fold.
    idle.in_use.store(idle.limit.load());
    split.set_total_pages(2000);
    assert!(idle.limit.load() + busy.limit.load() <= 2000 && busy.limit.load() > idle.limit.load());
    split.set_max(first, 0);
    assert_eq!(idle.limit.load(), MIN_PAGES);
}

#[derive(Debug, Clone)]
enum Step {
    Join { max_pages: u64 },
    Remove(usize),
    Use { region: usize, percent: u64, page_ins: u64 },
    Grow(usize),
    SetMost { region: usize, max_pages: u64 },
    SetTotal(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u64..20_000).prop_map(|max_pages| Step::Join { max_pages }),
        (0usize..8).prop_map(Step::Remove),
        (0usize..8, 0u64..101, 0u64..5000).prop_map(|(region, percent, page_ins)| Step::Use {
            region,
            percent,
            page_ins
        }),
        (0usize..8).prop_map(Step::Grow),
        (0usize..8, 0u64..20_000).prop_map(|(region, max_pages)| Step::SetMost { region, max_pages }),
        (0u64..20_000).prop_map(Step::SetTotal),
    ]
}

proptest! {
    #[test]
    fn all_limits_together_are_at_most_the_total(steps in proptest::collection::vec(step(), 1..200)) {
        let mut split = Split::new(10_000);
        let mut regions: Vec<(ShareId, Arc<Numbers>)> = Vec::new();
        let mut now = Instant::now();
        for step in steps {
            now += Duration::from_millis(60);
            let count = regions.len().max(1);
            match step {
                Step::Join { max_pages } => {
                    let region = Arc::new(Numbers::default());
                    match split.join(region.clone(), max_pages) {
                        Some(id) => regions.push((id, region)),
                        None => prop_assert!(split.total_pages() < MIN_PAGES * (regions.len() as u64 + 1)),
                    }
                }
                Step::Remove(at) if at < regions.len() => {
                    let (id, _) = regions.swap_remove(at);
                    prop_assert!(split.leave(id).is_some());
                }
                Step::Use { region, percent, page_ins } => {
                    if let Some((_, region)) = regions.get(region % count) {
                        region.in_use.store(region.limit.load() * percent / 100);
                        region.page_ins.store(region.page_ins.load() + page_ins);
                    }
                }
                Step::Grow(region) => {
                    if let Some((id, region)) = regions.get(region % count) {
                        let before = region.limit.load();
                        prop_assert_eq!(split.grow(*id, now), region.limit.load() > before);
                    }
                }
                Step::SetMost { region, max_pages } => {
                    if let Some((id, _)) = regions.get(region % count) {
                        split.set_max(*id, max_pages);
                    }
                }
                Step::SetTotal(pages) => split.set_total_pages(pages),
                Step::Remove(_) => {}
            }
            let limits: Vec<u64> = regions.iter().map(|(_, region)| region.limit.load()).collect();
            prop_assert!(limits.iter().all(|limit| *limit >= MIN_PAGES), "{limits:?}");
            prop_assert!(limits.iter().sum::<u64>() <= split.total_pages(), "{limits:?}");
        }
    }
}

/// A page of a file that is read for the first time was not taken from the program before.
#[test]
fn only_pages_of_the_file_that_are_read_again_are_page_ins() {
    let file =
        std::fs::File::from(rustix::fs::memfd_create("source", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.set_len(64 * PAGE_SIZE as u64).unwrap();
    let config = RegionConfig { neighbours: false, ..RegionConfig::new(64 * PAGE_SIZE as u64, 1 << 20) };
    let pager = match Pager::new(config, Some(Source::new(file).unwrap())) {
        Ok(pager) => Arc::new(pager),
        Err(error @ (RegionError::Userfaultfd(_) | RegionError::NoFeature(_))) => {
            return pagefold_testkit::skipped!("only_pages_of_the_file_that_are_read_again: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let touch =
        |page: u64| assert_eq!(pager.serve(page * PAGE_SIZE as u64, false, OnLoss::Return), Served::Again);
    (0..64).for_each(touch);
    assert_eq!((pager.counters.get(Counter::FileReads), pager.page_ins()), (64, 0));
    // As an evictor drops a page that equals the file's bytes.
    assert!(pager.word(PageIndex(9)).take());
    // SAFETY: no code uses the bytes.
    unsafe { pager.range.discard(9 * PAGE_SIZE, PAGE_SIZE) }.unwrap();
    pager.word(PageIndex(9)).finish_drop_folded_in_file();
    touch(9);
    assert_eq!((pager.counters.get(Counter::FileReads), pager.page_ins()), (65, 1));
}
