//! The store keeps no copies of resident pages that are written each time they come in, and keeps those of others.

use crate::support::{can, read, text, write};
use pagefold_memory::{Eviction, Region, RegionConfig, Service};

const PAGES: u64 = 8192;
const LIMIT_PAGES: u64 = 2048;

fn region(eviction: Eviction) -> Region {
    let config = RegionConfig {
        service: Service::HandlerThreads,
        eviction,
        ..RegionConfig::new(PAGES * 4096, LIMIT_PAGES * 4096)
    };
    Region::new(config).unwrap()
}

/// Writes all pages, each of which has other contents in each round.
fn write_rounds(region: &Region, rounds: u64) {
    for round in 0..rounds {
        for page in 0..PAGES {
            assert!(round == 0 || read(region, page) == text(page + round - 1), "{round}: {page}");
            write(region, page, &text(page + round));
        }
    }
}

#[test]
fn copies_of_pages_that_are_written_each_time_are_dropped() {
    for eviction in [Eviction::Auto, Eviction::Protect] {
        if !can("copies_of_written_pages", Service::HandlerThreads, eviction) {
            continue;
        }
        let region = region(eviction);
        write_rounds(&region, 2);
        let before = region.stats().eviction.copies_dropped;
        for page in 0..PAGES {
            assert!(read(&region, page) == text(page + 1), "{page}");
            write(&region, page, &text(page));
        }
        let stats = region.stats();
        // All but the pages that were resident all the time, and some that came in before they were seen to be written.
        let dropped = stats.eviction.copies_dropped - before;
        assert!(dropped > PAGES / 2, "{dropped} copies dropped: {stats:#?}");
        let copies = stats.pool.stored_pages.saturating_sub(stats.folded_bytes / 4096);
        assert!(copies < LIMIT_PAGES / 4, "{copies} copies: {stats:#?}");
    }
}

#[test]
fn pages_that_are_only_read_again_keep_their_copies() {
    for eviction in [Eviction::Auto, Eviction::Protect] {
        if !can("copies_of_read_pages", Service::HandlerThreads, eviction) {
            continue;
        }
        let region = region(eviction);
        write_rounds(&region, 3);
        let read_all =
            || (0..PAGES).for_each(|page| assert!(read(&region, page) == text(page + 2), "{page}"));
        // Their copies are dropped once more, and then the pages are seen to be clean.
        read_all();
        read_all();
        let before = region.stats().eviction;
        read_all();
        let after = region.stats().eviction;
        let (dropped, clean) = (after.copies_dropped - before.copies_dropped, after.clean - before.clean);
        assert!(dropped < PAGES / 8, "{eviction:?}: {dropped} copies dropped");
        assert!(clean > PAGES / 2, "{eviction:?}: {clean} clean pages");
    }
}
