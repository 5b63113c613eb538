//! Advice changes which pages come in, and never contents.

use crate::support::{MODES, bytes_of, comes_true, each, noise, read, write};
use pagefold_memory::{Advice, Region, RegionConfig, RegionStats};

const PAGES: u64 = 4096;
const LIMIT: u64 = 1024 * 4096;
/// Pages that are read: evicted long before, and much fewer than the limit.
const READ: u64 = 256;

/// Makes a region of which the first pages are folded. Its limit is then raised over its length: neighbours use only
/// memory for which nobody has to wait, and how much evictors have ready depends on the load of the machine.
fn folded(mode: usize, neighbours: bool) -> Region {
    let (service, eviction) = MODES[mode];
    let config = RegionConfig { service, eviction, neighbours, ..RegionConfig::new(PAGES * 4096, LIMIT) };
    let region = Region::new(config).unwrap();
    (0..PAGES).for_each(|page| write(&region, page, &noise(page)));
    // Pages that wait to be folded can return without coming from the store.
    assert!(comes_true(|| region.stats().folded_bytes >= (PAGES * 4096 - LIMIT) * 3 / 4));
    region.set_limit(PAGES * 4096).unwrap();
    region
}

/// Reads the first pages in order. Returns the faults that brought pages in, and the neighbours that came with them.
fn read_first(region: &Region) -> (u64, u64) {
    let counts = |stats: RegionStats| (stats.faults.folded, stats.neighbours_brought);
    let before = counts(region.stats());
    (0..READ).for_each(|page| assert!(read(region, page) == noise(page), "{page}"));
    let after = counts(region.stats());
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn random_advice_brings_no_neighbours() {
    each("random_advice_brings_no_neighbours", |mode| {
        let region = folded(mode, true);
        region.advise(bytes_of(0, READ), Advice::Random).unwrap();
        let (faults, neighbours) = read_first(&region);
        assert!(faults > READ * 3 / 4 && neighbours == 0, "{faults} faults, {neighbours} neighbours");
    });
}

#[test]
fn normal_advice_takes_other_advice_back() {
    each("normal_advice_takes_other_advice_back", |mode| {
        let region = folded(mode, true);
        region.advise(.., Advice::Random).unwrap();
        region.advise(bytes_of(0, READ), Advice::Normal).unwrap();
        let (faults, neighbours) = read_first(&region);
        assert!(faults < READ / 4 && neighbours > READ / 2, "{faults} faults, {neighbours} neighbours");
    });
}

#[test]
fn sequential_advice_brings_neighbours_from_the_first_fault_on() {
    each("sequential_advice_brings_neighbours", |mode| {
        // The region does not look for sequential access by itself.
        let region = folded(mode, false);
        region.advise(bytes_of(0, READ), Advice::Sequential).unwrap();
        let (faults, neighbours) = read_first(&region);
        assert!(faults < READ / 4 && neighbours > READ / 2, "{faults} faults, {neighbours} neighbours");
    });
}

#[test]
fn needed_pages_come_in_without_faults() {
    each("needed_pages_come_in_without_faults", |mode| {
        let mut region = folded(mode, false);
        let before = region.stats();
        region.advise(bytes_of(0, READ), Advice::WillNeed).unwrap();
        let brought = region.stats().neighbours_brought - before.neighbours_brought;
        assert!(brought > READ * 3 / 4, "{brought} of {READ} pages");
        let (faults, _) = read_first(&region);
        assert!(faults < READ / 8, "mode {mode}: {faults} faults, {:#?}", region.stats());
        // More than there is room for is no error.
        region.set_limit(LIMIT).unwrap();
        let (bytes, parts) = region.parts();
        parts.advise(bytes, Advice::WillNeed).unwrap();
        assert!(comes_true(|| region.stats().memory.resident <= LIMIT), "{:#?}", region.stats());
        (0..PAGES).for_each(|page| assert!(read(&region, page) == noise(page), "{page}"));
    });
}

#[test]
fn advice_for_bytes_outside_is_refused() {
    each("advice_for_bytes_outside", |mode| {
        let region = folded(mode, true);
        for advice in [Advice::Normal, Advice::Sequential, Advice::Random, Advice::WillNeed] {
            assert!(region.advise(5..=region.len_bytes(), advice).is_err());
            assert!(region.advise(region.len_bytes().., advice).is_ok());
        }
    });
}
