//! Pages that the program drops by `madvise`, which is not for regions, are zero or unchanged, and no thread hangs.

use crate::support::{MODES, bytes_of, comes_true, noise, read, run_in_each_mode, text, write};
use pagefold_memory::{Region, RegionConfig};
use std::time::{Duration, Instant};

const PAGES: u64 = 1024;
const LIMIT: u64 = 128 * 4096;

fn region(mode: usize) -> Region {
    let (service, eviction) = MODES[mode];
    // One thread serves faults, if any: it waits for evictors, which must not wait for it.
    let config =
        RegionConfig { service, eviction, handler_threads: 1, ..RegionConfig::new(PAGES * 4096, LIMIT) };
    Region::new(config).unwrap()
}

/// Runs a part in a separate process. Returns false if it is not one of these.
pub fn run_part(part: &str) -> bool {
    match part.split_once(' ') {
        Some(("dropped", mode)) => drop_then_evict(mode.parse().unwrap()),
        Some(("within", mode)) => stay_within_the_limit(mode.parse().unwrap()),
        Some(("beside", mode)) => drop_beside_eviction(mode.parse().unwrap()),
        _ => return false,
    }
    true
}

/// Drops pages as code does that does not know that they lie in a region.
fn madvise_dontneed(region: &Region, page: u64, pages: u64) {
    assert!(page + pages <= PAGES);
    let start = region.as_ptr().wrapping_add(page as usize * 4096);
    // SAFETY: in the range, without references to it.
    let rc = unsafe { libc::madvise(start.cast(), pages as usize * 4096, libc::MADV_DONTNEED) };
    assert_eq!(rc, 0);
}

fn is_zero(words: &[u64; 512]) -> bool {
    *words == [0; 512]
}

/// Drops all resident pages; afterwards there must be room.
fn drop_then_evict(mode: usize) {
    let region = region(mode);
    for round in 0..6 {
        // Scattered pages are copied in the mixed mode, runs are moved.
        let step = [1, 3, 5][round as usize % 3];
        let all = || (0..step).flat_map(move |start| (start..PAGES).step_by(step as usize));
        all().for_each(|page| write(&region, page, &noise(page + round)));
        match round < 3 {
            true => madvise_dontneed(&region, 0, PAGES),
            false => (0..PAGES).step_by(2).for_each(|page| madvise_dontneed(&region, page, 1)),
        }
        for page in all() {
            let words = read(&region, page);
            assert!(is_zero(&words) || words == noise(page + round), "{page}");
        }
    }
    (0..PAGES).for_each(|page| write(&region, page, &text(page)));
    (0..PAGES).for_each(|page| assert!(read(&region, page) == text(page), "{page}"));
    let stats = region.stats();
    assert!(stats.memory.resident_max <= LIMIT && stats.eviction.folded > 0, "{stats:#?}");
}

#[test]
fn pages_dropped_by_madvise_hang_no_thread() {
    run_in_each_mode("pages_dropped_by_madvise_hang_no_thread", "dropped");
}

/// Threads write, drop and read their own pages, to meet the eviction at every moment.
fn drop_beside_eviction(mode: usize) {
    let region = region(mode);
    let until = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let region = &region;
            scope.spawn(move || {
                let (mut x, mut version) = (thread, 0);
                while Instant::now() < until {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let first = (x >> 33) % (PAGES / 8 / 3) * 24 + thread * 8;
                    let own = || first..first + 8;
                    version += PAGES;
                    own().for_each(|page| write(region, page, &noise(page + version)));
                    if x >> 60 < 8 {
                        std::thread::yield_now();
                    }
                    own()
                        .step_by(1 + (x >> 50) as usize % 3)
                        .for_each(|page| madvise_dontneed(region, page, 1));
                    for page in own() {
                        let words = read(region, page);
                        assert!(is_zero(&words) || words == noise(page + version), "{page}");
                        // A write after the drop is kept.
                        write(region, page, &text(page + version));
                    }
                    own().for_each(|page| assert!(read(region, page) == text(page + version), "{page}"));
                    if (x >> 40).is_multiple_of(2) {
                        // Pages that are being paged out may be dropped in this way, too, and touched again.
                        // SAFETY: pages of this thread, without references to them.
                        let dropped = unsafe { region.discard_shared(bytes_of(first, 8)) };
                        dropped.unwrap();
                        own().for_each(|page| assert!(is_zero(&read(region, page)), "{page}"));
                    }
                }
            });
        }
    });
    let stats = || region.stats();
    assert!(comes_true(|| stats().memory.resident <= LIMIT), "{:#?}", stats());
    assert!(stats().eviction.staged > 100 && stats().faults.failed == 0, "{:#?}", stats());
    assert!(stats().faults.already_resident > 0, "no page was found missing: this checks nothing");
}

#[test]
fn a_write_after_madvise_during_eviction_is_kept() {
    run_in_each_mode("a_write_after_madvise_during_eviction", "beside");
}

/// Under the least limit a few pages are taken at once. If all of them turn out to be dropped, this makes room too,
/// and nothing may exceed the limit.
fn stay_within_the_limit(mode: usize) {
    let (service, eviction) = MODES[mode];
    let limit = RegionConfig::LIMIT_MIN_BYTES;
    let config =
        RegionConfig { service, eviction, fold_threads: 1, ..RegionConfig::new(PAGES * 4096, limit) };
    let region = Region::new(config).unwrap();
    for round in 0..20 {
        // All pages that came in before were dropped.
        (0..PAGES / 4).for_each(|page| write(&region, page, &noise(page + round)));
        let resident = region.stats().memory.resident / 4096;
        madvise_dontneed(&region, 0, PAGES / 4);
        (PAGES / 4..PAGES / 2).for_each(|page| write(&region, page, &noise(page + round)));
        let stats = region.stats();
        assert!(
            stats.memory.resident_max <= limit,
            "round {round}, {resident} pages were dropped: {stats:?}"
        );
        madvise_dontneed(&region, PAGES / 4, PAGES / 4);
    }
}

#[test]
fn pages_dropped_by_madvise_do_not_exceed_the_limit() {
    run_in_each_mode("pages_dropped_by_madvise_do_not_exceed", "within");
}
