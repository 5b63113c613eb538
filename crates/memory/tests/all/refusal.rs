//! What the store refuses stays resident, and what a medium fails to do loses nothing silently.

use crate::support::{WAYS, can, comes_true, noise, read, run_to_sigbus, run_well, text, write};
use pagefold_backing::MemoryBacking;
use pagefold_backing::layer::{ErrorControl, ErrorLayer, When};
use pagefold_memory::{RangeError, Region, RegionConfig, RegionStats, Service};
use pagefold_store::parking::{LayoutKind, ParkConfig};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Barrier};
use std::time::Duration;

const PAGES: u64 = 2048;
const LIMIT: u64 = 128 * 4096;
const POOL: u64 = 1 << 20;

fn config(way: usize) -> RegionConfig {
    let (service, eviction) = WAYS[way];
    RegionConfig {
        service,
        eviction,
        max_pool_bytes: Some(POOL),
        fold_threads: 2,
        ..RegionConfig::new(PAGES * 4096, LIMIT)
    }
}

/// A region that parks on a medium that can be told to fail.
fn backed(way: usize) -> (Region, Arc<ErrorControl>) {
    let medium = ErrorLayer::new(MemoryBacking::new(32 << 20));
    let control = medium.control();
    let layout = if way.is_multiple_of(2) { LayoutKind::Log } else { LayoutKind::Blocks };
    let backing = Some(ParkConfig { backing: Arc::new(medium), layout });
    (Region::new(RegionConfig { backing, ..config(way) }).unwrap(), control)
}

fn each(test: &str, run: impl Fn(usize)) {
    for (way, (service, eviction)) in WAYS.into_iter().enumerate() {
        if can(test, service, eviction) {
            run(way);
        }
    }
}

fn fill(region: &Region, pages: std::ops::Range<u64>) {
    pages.for_each(|page| write(region, page, &noise(page)));
}

fn check(region: &Region, mut pages: impl Iterator<Item = u64>) {
    let wrong = pages.find(|page| read(region, *page) != noise(*page));
    assert_eq!(wrong, None, "{:#?}", region.stats());
}

fn discard(region: &Region, page: u64, pages: u64) {
    // SAFETY: there are no references into the region.
    unsafe { region.discard_shared(page as usize * 4096, pages as usize * 4096) }.unwrap();
}

fn refused(stats: &RegionStats) -> u64 {
    stats.pool.reject_reclaim_fail + stats.pool.reject_alloc_fail
}

#[test]
fn what_does_not_fit_the_pool_stays_resident() {
    each("what_does_not_fit_the_pool", |way| {
        let region = Region::new(config(way)).unwrap();
        // 4 MiB into a pool of 1 MiB, with a limit of 512 KiB.
        fill(&region, 0..1024);
        let stats = region.stats();
        assert!(stats.memory.resident >= 2 << 20, "{stats:#?}");
        assert!(stats.memory.resident <= 1024 * 4096 + LIMIT, "{stats:#?}");
        assert!(stats.pool.pool_limit_hit >= 1 && refused(&stats) > 0, "{stats:#?}");
        check(&region, 0..1024);
        // The limit holds again once memory is given up.
        discard(&region, 0, 960);
        let stats = || region.stats();
        assert!(comes_true(|| stats().memory.resident <= LIMIT), "{:#?}", stats());
        check(&region, 960..1024);
        assert!(comes_true(|| stats().memory.resident <= LIMIT), "{:#?}", stats());
        // And so does folding: other pages fit now.
        (1100..1300).for_each(|page| write(&region, page, &text(page)));
        (1100..1300).for_each(|page| assert!(read(&region, page) == text(page), "{page}"));
        assert!(comes_true(|| stats().memory.resident <= LIMIT), "{:#?}", stats());
        assert!(stats().folded_bytes > 0);
    });
}

#[test]
fn a_full_pool_accepts_pages_at_the_threshold_only() {
    each("a_full_pool_accepts_pages_at_the_threshold_only", |way| {
        let config = RegionConfig { accept_threshold_percent: 50, ..config(way) };
        let region = Region::new(config).unwrap();
        fill(&region, 0..600);
        let stats = || region.stats();
        assert!(
            comes_true(|| refused(&stats()) > 0 && stats().pool.pool_total_size > POOL * 9 / 10),
            "{:#?}",
            stats()
        );
        // Down to three quarters, between the marks: nothing is accepted.
        let mut page = 0;
        while stats().pool.pool_total_size > POOL * 3 / 4 {
            discard(&region, page, 1);
            page += 1;
        }
        let before = stats();
        assert!(before.memory.resident > LIMIT, "{before:#?}");
        std::thread::sleep(Duration::from_millis(100));
        // But for what each of the two threads was about to fold when the pool was full.
        assert!(stats().eviction.folded <= before.eviction.folded + 2, "{:#?}", stats());
        // Below the threshold it goes on.
        while stats().pool.pool_total_size > POOL / 2 - 65536 {
            discard(&region, page, 1);
            page += 1;
        }
        assert!(comes_true(|| stats().eviction.folded > before.eviction.folded + 2), "{:#?}", stats());
        check(&region, page..600);
    });
}

#[test]
fn a_full_pool_parks_where_it_can() {
    each("a_full_pool_parks_where_it_can", |way| {
        let (region, _) = backed(way);
        fill(&region, 0..PAGES);
        check(&region, 0..PAGES);
        let stats = region.stats();
        assert!(stats.pool.written_back_pages > 0, "{stats:#?}");
        assert!(stats.memory.resident_max <= LIMIT, "{stats:#?}");
        assert_eq!(refused(&stats), 0, "{stats:#?}");
    });
}

#[test]
fn a_medium_that_fails_writes_loses_nothing() {
    each("a_medium_that_fails_writes", |way| {
        let (region, control) = backed(way);
        control.fail_writes(When::EveryNth(3), libc::EIO);
        fill(&region, 0..600);
        check(&region, 0..600);
        control.clear();
        control.fail_writes(When::Always, libc::EIO);
        fill(&region, 600..1000);
        check(&region, 0..1000);
        assert!(control.injected() > 0);
        assert_eq!(region.stats().faults.failed, 0);
    });
}

/// A region most of whose pages are parked, on a medium that fails reads from now on; and such a page.
fn lost_page(way: usize) -> (Region, Arc<ErrorControl>, u64) {
    let (region, control) = backed(way);
    fill(&region, 0..PAGES);
    control.fail_reads(When::Always, libc::EIO);
    let page = (0..PAGES).find(|page| region.pin(*page as usize * 4096, 4096).is_err());
    (region, control, page.unwrap())
}

#[test]
fn a_page_that_cannot_be_read_back_is_told_and_kept() {
    each("a_page_that_cannot_be_read_back", |way| {
        let (region, control, page) = lost_page(way);
        let failed = region.stats().faults.failed;
        assert!(failed > 0);
        let pinned = region.pin(page as usize * 4096, 4096).err();
        assert_eq!(pinned, Some(RangeError::Lost { page }));
        assert!(region.stats().faults.failed > failed);
        assert!(region.stats().faults.unreadable > 0);
        control.clear();
        check(&region, 0..PAGES);
    });
}

#[test]
fn an_access_to_a_page_that_cannot_be_read_back_dies() {
    each("an_access_to_a_page_that_cannot_be_read_back", |way| run_to_sigbus(&format!("access {way}")));
}

#[test]
fn a_page_that_was_given_up_can_be_used_again() {
    each("a_page_that_was_given_up", |way| run_well(&format!("again {way}")));
}

#[test]
fn a_page_that_several_threads_lost_is_marked_while_it_is_lost_only() {
    each("a_page_that_several_threads_lost", |way| run_well(&format!("together {way}")));
}

/// Runs a part in a process of its own. False if it is not one of these.
pub fn run_part(part: &str) -> bool {
    match part.split_once(' ') {
        Some(("access", way)) => {
            let (region, _control, page) = lost_page(way.parse().unwrap());
            std::hint::black_box(read(&region, page));
        }
        Some(("again", way)) => use_again(way.parse().unwrap()),
        Some(("together", way)) => lose_together(way.parse().unwrap()),
        _ => return false,
    }
    true
}

/// Has the system read a page, which fails where an access would die.
fn system_reads(region: &Region, page: u64) -> bool {
    let (_read_end, write_end) = rustix::pipe::pipe().unwrap();
    let bytes = region.as_ptr().wrapping_add(page as usize * 4096).cast();
    // SAFETY: a page of the range.
    unsafe { libc::write(write_end.as_raw_fd(), bytes, 4096) == 4096 }
}

/// Threads touch a lost page at once, and each has it looked for; who is told first drops it and goes on. The others, who are
/// told later, must not make it fail then.
fn lose_together(way: usize) {
    let (region, control) = backed(way);
    fill(&region, 0..PAGES);
    let barrier = Barrier::new(3);
    for round in 0..40 {
        control.fail_reads(When::Always, libc::EIO);
        let page = (0..PAGES).find(|page| region.pin(*page as usize * 4096, 4096).is_err()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    barrier.wait();
                    system_reads(&region, page);
                });
            }
            barrier.wait();
            system_reads(&region, page);
            discard(&region, page, 1);
            control.clear();
            assert!(read(&region, page) == [0; 512]);
            // It goes out and comes in while the others' faults are still served.
            fill(&region, 0..page);
            fill(&region, page + 1..PAGES);
            assert!(read(&region, page) == [0; 512], "round {round}");
            write(&region, page, &noise(page));
        });
    }
    check(&region, 0..PAGES);
}

/// A page that was lost for who touched it is zero once it was dropped, and its neighbours are what they were.
fn use_again(way: usize) {
    let (region, control, page) = lost_page(way);
    assert!(!system_reads(&region, page));
    control.clear();
    discard(&region, page, 1);
    assert!(read(&region, page) == [0; 512]);
    check(&region, (0..PAGES).filter(|other| *other != page));
    write(&region, page, &noise(page));
    check(&region, 0..PAGES);
    if WAYS[way].0 == Service::FaultingThread {
        return;
    }
    // Poisoned and not dropped: it harms no other page, nor who moves pages out, whatever brings it in.
    control.fail_reads(When::Always, libc::EIO);
    let lost: Vec<_> =
        (PAGES / 2..PAGES).filter(|page| page % 5 == 0 && !system_reads(&region, *page)).collect();
    assert!(lost.len() > 20, "{}", lost.len());
    control.clear();
    for _ in 0..3 {
        check(&region, (0..PAGES).filter(|other| !lost.contains(other)));
    }
    // A neighbour's fault may have brought it in after all; but nothing is made up.
    for page in lost {
        assert!(!system_reads(&region, page) || read(&region, page) == noise(page));
    }
    check(&region, (0..PAGES).filter(|page| page % 5 != 0));
}
