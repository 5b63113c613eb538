//! Several regions with one limit, and a limit that follows the pressure on memory.

use crate::support::{MODES, Random, can, comes_true, noise, read, run_well, text, write};
use pagefold_memory::{PressurePolicy, Region, RegionConfig, RegionError, ResidentBudget};
use pagefold_testkit::skipped;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const PAGES: u64 = 4096;
const LIMIT: u64 = 8 * MIB;

/// A region that shares a budget, for each combination that the kernel supports.
fn each(test: &str, run: impl Fn(&dyn Fn(&ResidentBudget) -> Region)) {
    for (service, eviction) in MODES {
        if can(test, service, eviction) {
            run(&|budget| {
                let config =
                    RegionConfig { service, eviction, ..RegionConfig::in_budget(PAGES * 4096, budget) };
                Region::new(config).unwrap()
            });
        }
    }
}

fn fill(region: &Region) {
    (0..PAGES).for_each(|page| write(region, page, &text(page)));
}

fn check(region: &Region) {
    (0..PAGES).for_each(|page| assert!(read(region, page) == text(page), "{page}"));
}

fn limit_of(region: &Region) -> u64 {
    region.stats().memory.limit
}

#[test]
fn all_regions_together_hold_the_limit() {
    each("all_regions_together_hold_the_limit", |region| {
        let budget = ResidentBudget::new(LIMIT).unwrap();
        let regions = [region(&budget), region(&budget), region(&budget)];
        std::thread::scope(|scope| {
            for region in &regions {
                scope.spawn(|| (fill(region), check(region)));
            }
            for _ in 0..50 {
                let limits: u64 = regions.iter().map(limit_of).sum();
                // The three limits are read one after the other, while a part may move from one to another.
                assert!(limits <= LIMIT + LIMIT / 2, "{limits}");
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        assert_eq!(budget.region_count(), 3);
        let is_held = comes_true(|| budget.resident_bytes() <= LIMIT);
        assert!(is_held, "{}", budget.resident_bytes());
        regions.iter().for_each(check);
    });
}

#[test]
fn a_region_has_what_the_others_do_not_use() {
    each("a_region_has_what_the_others_do_not_use", |region| {
        let budget = ResidentBudget::new(LIMIT).unwrap();
        let idle = region(&budget);
        let busy = region(&budget);
        fill(&busy);
        assert!(limit_of(&busy) > LIMIT * 3 / 4, "{}", limit_of(&busy));
        drop(busy);
        assert_eq!(budget.region_count(), 1);
        fill(&idle);
        assert!(limit_of(&idle) > LIMIT * 3 / 4, "{}", limit_of(&idle));
        check(&idle);
    });
}

#[test]
fn the_region_in_use_takes_from_the_one_that_rests() {
    each("the_region_in_use_takes_from_the_one_that_rests", |region| {
        let budget = ResidentBudget::new(LIMIT).unwrap();
        let rests = region(&budget);
        fill(&rests);
        let used = region(&budget);
        fill(&used);
        let mut random = Random::new(1);
        let has_most = comes_true(|| {
            for _ in 0..1000 {
                let page = random.below(PAGES);
                assert!(read(&used, page) == text(page), "{page}");
            }
            limit_of(&used) > LIMIT * 3 / 4
        });
        assert!(has_most, "{} {}", limit_of(&used), limit_of(&rests));
        check(&rests);
    });
}

#[test]
fn a_changed_limit_holds_for_all() {
    each("a_changed_limit_holds_for_all", |region| {
        let budget = ResidentBudget::new(LIMIT).unwrap();
        let regions = [region(&budget), region(&budget)];
        regions.iter().for_each(fill);
        budget.set_limit(MIB).unwrap();
        assert!(regions.iter().map(limit_of).sum::<u64>() <= MIB);
        assert!(comes_true(|| budget.resident_bytes() <= MIB), "{}", budget.resident_bytes());
        budget.set_limit(2 * LIMIT).unwrap();
        regions.iter().for_each(check);
        assert!(comes_true(|| {
            regions.iter().for_each(check);
            regions.iter().map(limit_of).sum::<u64>() > LIMIT
        }));
        regions[0].set_limit(MIB).unwrap();
        assert!(comes_true(|| regions[0].stats().memory.resident <= MIB));
    });
}

#[test]
fn a_full_budget_takes_no_region() {
    let budget = ResidentBudget::new(RegionConfig::LIMIT_MIN_BYTES).unwrap();
    assert!(matches!(ResidentBudget::new(4096), Err(RegionError::LimitTooSmall { .. })));
    let Ok(_first) = Region::new(RegionConfig::in_budget(MIB, &budget)) else { return };
    let error = Region::new(RegionConfig::in_budget(MIB, &budget)).err().unwrap().to_string();
    assert!(error.contains("256 KiB") && error.contains("1 regions"), "{error}");
    assert_eq!(budget.region_count(), 1);
}

/// A memory group with a limit, which is removed when dropped.
struct Group(PathBuf);

impl Group {
    /// `None` if groups cannot be made here.
    fn new(limit_bytes: u64) -> Option<Self> {
        let name = format!("pagefold-budget-{}", std::process::id());
        let files = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/unified", "memory.max"),
        ];
        files.into_iter().find_map(|(root, limit)| {
            let group = Group(Path::new(root).join(&name));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::write(group.0.join(limit), limit_bytes.to_string()).ok().map(|()| group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        comes_true(|| std::fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn without_a_limit_a_region_stays_within_the_memory_group() {
    let test = "without_a_limit_a_region_stays_within_the_memory_group";
    let Some(group) = Group::new(256 * MIB) else {
        return skipped!("{test}: needs the right to make memory control groups");
    };
    run_well(&format!("group {}", group.0.display()));
}

/// Runs in a child, in the group.
fn stay_within(group: &Path) {
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    let budget = match ResidentBudget::by_pressure(PressurePolicy::default()) {
        Ok(budget) => budget,
        Err(e) => panic!("{e}"),
    };
    assert!(budget.limit_bytes() < 256 * MIB, "{}", budget.limit_bytes());
    // Far more than the group may have; the kernel would kill the process.
    let Ok(region) = Region::new(RegionConfig::in_budget(768 * MIB, &budget)) else { return };
    let pages = region.len_bytes() as u64 / 4096;
    // All of them fit into the group when they are folded.
    let contents = |page| {
        let noise = noise(page);
        std::array::from_fn(|place| if place < 32 { noise[place] } else { page })
    };
    (0..pages).for_each(|page| write(&region, page, &contents(page)));
    (0..pages).for_each(|page| assert!(read(&region, page) == contents(page), "{page}"));
    assert!(budget.limit_bytes() < 256 * MIB, "{}", budget.limit_bytes());
    assert!(region.stats().eviction.folded > 0);
}

/// Runs a part of a test in a child.
pub fn run_part(part: &str) -> bool {
    let Some(group) = part.strip_prefix("group ") else { return false };
    stay_within(Path::new(group));
    true
}
