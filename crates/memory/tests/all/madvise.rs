//! Pages that the program drops by madvise, which a region does not ask for, are zero or what they were, and nobody hangs.

use crate::support::{WAYS, can, comes_true, noise, read, run_well, text, write};
use pagefold_memory::{Region, RegionConfig};
use std::time::{Duration, Instant};

const PAGES: u64 = 1024;
const LIMIT: u64 = 128 * 4096;

fn region(way: usize) -> Region {
    let (service, eviction) = WAYS[way];
    // One thread to serve faults, if any: it waits for who moves pages out, who must not wait for it.
    let config =
        RegionConfig { service, eviction, handler_threads: 1, ..RegionConfig::new(PAGES * 4096, LIMIT) };
    Region::new(config).unwrap()
}

fn each(test: &str, part: &str) {
    for (way, (service, eviction)) in WAYS.into_iter().enumerate() {
        if can(test, service, eviction) {
            run_well(&format!("{part} {way}"));
        }
    }
}

/// Runs a part in a process of its own. False if it is not one of these.
pub fn run_part(part: &str) -> bool {
    match part.split_once(' ') {
        Some(("dropped", way)) => drop_then_evict(way.parse().unwrap()),
        Some(("within", way)) => stay_within_the_limit(way.parse().unwrap()),
        Some(("beside", way)) => drop_beside_eviction(way.parse().unwrap()),
        _ => return false,
    }
    true
}

/// Drops pages as a program would that does not know of the region.
fn drop_behind(region: &Region, page: u64, pages: u64) {
    assert!(page + pages <= PAGES);
    let start = region.as_ptr().wrapping_add(page as usize * 4096);
    // SAFETY: in the range, without references to it.
    let rc = unsafe { libc::madvise(start.cast(), pages as usize * 4096, libc::MADV_DONTNEED) };
    assert_eq!(rc, 0);
}

fn is_zero(words: &[u64; 512]) -> bool {
    *words == [0; 512]
}

/// All that is resident is dropped, and then there must be room.
fn drop_then_evict(way: usize) {
    let region = region(way);
    for round in 0..6 {
        // Scattered pages are copied in the mixed mode, runs are moved.
        let step = [1, 3, 5][round as usize % 3];
        let all = || (0..step).flat_map(move |start| (start..PAGES).step_by(step as usize));
        all().for_each(|page| write(&region, page, &noise(page + round)));
        match round < 3 {
            true => drop_behind(&region, 0, PAGES),
            false => (0..PAGES).step_by(2).for_each(|page| drop_behind(&region, page, 1)),
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
fn pages_dropped_behind_the_back_hang_nobody() {
    each("pages_dropped_behind_the_back", "dropped");
}

/// Threads write, drop and read their own pages, so that every moment of the eviction is met.
fn drop_beside_eviction(way: usize) {
    let region = region(way);
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
                    own().step_by(1 + (x >> 50) as usize % 3).for_each(|page| drop_behind(region, page, 1));
                    for page in own() {
                        let words = read(region, page);
                        assert!(is_zero(&words) || words == noise(page + version), "{page}");
                        // What is written afterwards is kept.
                        write(region, page, &text(page + version));
                    }
                    own().for_each(|page| assert!(read(region, page) == text(page + version), "{page}"));
                    if (x >> 40).is_multiple_of(2) {
                        // A page that is being moved out may be dropped in this way, too, and touched anew.
                        // SAFETY: pages of this thread, without references to them.
                        let dropped = unsafe { region.discard_shared(first as usize * 4096, 8 * 4096) };
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
    assert!(stats().faults.there > 0, "no page was found missing: this checks nothing");
}

#[test]
fn pages_dropped_beside_the_eviction_keep_what_is_written_next() {
    each("pages_dropped_beside_the_eviction", "beside");
}

/// Under the least limit a few pages are taken at once; if all of them were dropped, that is room all the same, and no
/// reason to go beyond the limit.
fn stay_within_the_limit(way: usize) {
    let (service, eviction) = WAYS[way];
    let limit = RegionConfig::LIMIT_MIN_BYTES;
    let config =
        RegionConfig { service, eviction, fold_threads: 1, ..RegionConfig::new(PAGES * 4096, limit) };
    let region = Region::new(config).unwrap();
    for round in 0..20 {
        // Nothing that came in before is left.
        (0..PAGES / 4).for_each(|page| write(&region, page, &noise(page + round)));
        let resident = region.stats().memory.resident / 4096;
        drop_behind(&region, 0, PAGES / 4);
        (PAGES / 4..PAGES / 2).for_each(|page| write(&region, page, &noise(page + round)));
        let stats = region.stats();
        assert!(
            stats.memory.resident_max <= limit,
            "round {round}, {resident} pages were dropped: {stats:?}"
        );
        drop_behind(&region, PAGES / 4, PAGES / 4);
    }
}

#[test]
fn dropped_pages_are_no_reason_to_exceed_the_limit() {
    each("dropped_pages_are_no_reason", "within");
}
