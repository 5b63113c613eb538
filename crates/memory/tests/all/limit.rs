//! A limit that is lowered is held, and leaves room to work in.

use crate::support::{MODES, can, comes_true, read, text, write};
use pagefold_memory::{Eviction, Region, RegionConfig, Service};

const PAGES: u64 = 8192;
const LIMIT: u64 = 4096 * 4096;
const SMALL_LIMIT: u64 = RegionConfig::LIMIT_MIN_BYTES;
/// Pages that are used over and over: far fewer than the small limit.
const USED: u64 = 8;
const ROUNDS: u64 = 50;

/// Makes a region whose limit is small now. Batches were filled and folded under a larger limit, so free frames have
/// memory.
fn lowered(service: Service, eviction: Eviction) -> Region {
    let config =
        RegionConfig { service, eviction, fold_threads: 2, ..RegionConfig::new(PAGES * 4096, LIMIT) };
    let region = Region::new(config).unwrap();
    (0..PAGES).for_each(|page| write(&region, page, &text(page)));
    (0..PAGES).for_each(|page| assert!(read(&region, page) == text(page), "{page}"));
    region.set_limit(SMALL_LIMIT).unwrap();
    region
}

#[test]
fn a_lowered_limit_is_held_without_any_access() {
    for (service, eviction) in MODES {
        if can("a_lowered_limit", service, eviction) {
            let region = lowered(service, eviction);
            let is_held = comes_true(|| region.stats().memory.resident <= SMALL_LIMIT);
            assert!(is_held, "{service:?} {eviction:?}: {:#?}", region.stats());
        }
    }
}

#[test]
fn a_few_pages_stay_resident_under_a_lowered_limit() {
    for (service, eviction) in MODES {
        if !can("a_few_pages", service, eviction) {
            continue;
        }
        let region = lowered(service, eviction);
        let rounds = |rounds: u64| {
            for page in (0..rounds * USED).map(|at| at % USED * 16) {
                assert!(read(&region, page) == text(page), "{page}");
            }
        };
        // Free frames with memory may be released meanwhile.
        rounds(ROUNDS);
        let faults = || region.stats().faults.folded;
        let before = faults();
        rounds(ROUNDS);
        let again = faults() - before;
        assert!(again < ROUNDS * USED / 4, "{service:?} {eviction:?}: {again} faults, {:#?}", region.stats());
    }
}
