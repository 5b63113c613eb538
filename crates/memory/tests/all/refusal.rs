//! Pages that the store refuses stay resident, and a medium that fails never loses a page silently.

use crate::support::{MODES, bytes_of, comes_true, each, noise, read, run_to_sigbus, run_well, text, write};
use pagefold_backing::MemoryBacking;
use pagefold_backing::layer::{ErrorControl, ErrorLayer, When};
use pagefold_memory::{RangeError, Region, RegionConfig, RegionStats, Service};
use pagefold_store::writeback::{LayoutKind, WritebackConfig};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Barrier};
use std::time::Duration;

const PAGES: u64 = 2048;
const LIMIT: u64 = 128 * 4096;
const POOL: u64 = 1 << 20;

fn config(mode: usize) -> RegionConfig {
    let (service, eviction) = MODES[mode];
    RegionConfig {
        service,
        eviction,
        max_pool_bytes: Some(POOL),
        fold_threads: 2,
        ..RegionConfig::new(PAGES * 4096, LIMIT)
    }
}

/// Makes a region that writes back to a medium whose requests can be made to fail.
fn backed(mode: usize) -> (Region, Arc<ErrorControl>) {
    let medium = ErrorLayer::new(MemoryBacking::new(32 << 20));
    let control = medium.control();
    let layout = if mode.is_multiple_of(2) { LayoutKind::Log } else { LayoutKind::Blocks };
    let backing = Some(WritebackConfig { backing: Arc::new(medium), layout });
    (Region::new(RegionConfig { backing, ..config(mode) }).unwrap(), control)
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
    unsafe { region.discard_shared(bytes_of(page, pages)) }.unwrap();
}

fn refused(stats: &RegionStats) -> u64 {
    stats.pool.reject_reclaim_fail + stats.pool.reject_alloc_fail
}

#[test]
fn pages_that_do_not_fit_the_pool_stay_resident() {
    each("pages_that_do_not_fit_the_pool", |mode| {
        let region = Region::new(config(mode)).unwrap();
        // 4 MiB into a pool of 1 MiB, with a limit of 512 KiB.
        fill(&region, 0..1024);
        let stats = region.stats();
        assert!(stats.memory.resident >= 2 << 20, "{stats:#?}");
        assert!(stats.memory.resident <= 1024 * 4096 + LIMIT, "{stats:#?}");
        assert!(stats.pool.pool_limit_hit >= 1 && refused(&stats) > 0, "{stats:#?}");
        check(&region, 0..1024);
        // The limit is held again once pages are discarded.
        discard(&region, 0, 960);
        let stats = || region.stats();
        assert!(comes_true(|| stats().memory.resident <= LIMIT), "{:#?}", stats());
        check(&region, 960..1024);
        assert!(comes_true(|| stats().memory.resident <= LIMIT), "{:#?}", stats());
        // Folding works again, too: other pages fit now.
        (1100..1300).for_each(|page| write(&region, page, &text(page)));
        (1100..1300).for_each(|page| assert!(read(&region, page) == text(page), "{page}"));
        assert!(comes_true(|| stats().memory.resident <= LIMIT), "{:#?}", stats());
        assert!(stats().folded_bytes > 0);
    });
}

#[test]
fn a_full_pool_accepts_pages_at_the_threshold_only() {
    each("a_full_pool_accepts_pages_at_the_threshold_only", |mode| {
        let config = RegionConfig { accept_threshold_percent: 50, ..config(mode) };
        let region = Region::new(config).unwrap();
        fill(&region, 0..600);
        let stats = || region.stats();
        assert!(
            comes_true(|| refused(&stats()) > 0 && stats().pool.pool_total_size > POOL * 9 / 10),
            "{:#?}",
            stats()
        );
        // Down to three quarters, between threshold and limit: nothing is accepted.
        let mut page = 0;
        while stats().pool.pool_total_size > POOL * 3 / 4 {
            discard(&region, page, 1);
            page += 1;
        }
        let before = stats();
        assert!(before.memory.resident > LIMIT, "{before:#?}");
        std::thread::sleep(Duration::from_millis(100));
        // Except for the page that each of the two threads was about to fold when the pool was full.
        assert!(stats().eviction.folded <= before.eviction.folded + 2, "{:#?}", stats());
        // Below the threshold, pages are accepted again.
        while stats().pool.pool_total_size > POOL / 2 - 65536 {
            discard(&region, page, 1);
            page += 1;
        }
        assert!(comes_true(|| stats().eviction.folded > before.eviction.folded + 2), "{:#?}", stats());
        check(&region, page..600);
    });
}

#[test]
fn a_full_pool_writes_back_if_there_is_a_backing() {
    each("a_full_pool_writes_back_if_there_is_a_backing", |mode| {
        let (region, _) = backed(mode);
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
    each("a_medium_that_fails_writes", |mode| {
        let (region, control) = backed(mode);
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

/// Makes a region most of whose pages are written back, to a medium that fails reads from now on; and finds such a
/// page.
fn lost_page(mode: usize) -> (Region, Arc<ErrorControl>, u64) {
    let (region, control) = backed(mode);
    fill(&region, 0..PAGES);
    control.fail_reads(When::Always, libc::EIO);
    let page = (0..PAGES).find(|page| region.pin(bytes_of(*page, 1)).is_err());
    (region, control, page.unwrap())
}

#[test]
fn a_page_that_cannot_be_read_back_is_reported_and_kept() {
    each("a_page_that_cannot_be_read_back", |mode| {
        let (region, control, page) = lost_page(mode);
        let failed = region.stats().faults.failed;
        assert!(failed > 0);
        let pinned = region.pin(bytes_of(page, 1)).err();
        assert_eq!(pinned, Some(RangeError::Lost { page }));
        assert!(region.stats().faults.failed > failed);
        assert!(region.stats().faults.unreadable > 0);
        control.clear();
        check(&region, 0..PAGES);
    });
}

#[test]
fn an_access_to_a_page_that_cannot_be_read_back_gets_sigbus() {
    each("an_access_to_a_page_that_cannot_be_read_back", |mode| {
        run_to_sigbus(&format!("access {mode}"), "cannot be brought back");
    });
}

#[test]
fn a_lost_page_can_be_used_again_after_it_was_dropped() {
    each("a_lost_page_can_be_used_again", |mode| run_well(&format!("again {mode}")));
}

#[test]
fn a_lost_page_that_can_be_read_again_can_be_pinned() {
    each("a_lost_page_that_can_be_read_again", |mode| run_well(&format!("pin {mode}")));
}

#[test]
fn a_lost_page_can_be_overwritten_whole() {
    each("a_lost_page_can_be_overwritten", |mode| run_well(&format!("overwrite {mode}")));
}

#[test]
fn a_page_lost_by_several_threads_is_poisoned_only_while_it_is_lost() {
    each("a_page_lost_by_several_threads", |mode| run_well(&format!("together {mode}")));
}

/// Runs a part in a separate process. Returns false if it is not one of these.
pub fn run_part(part: &str) -> bool {
    match part.split_once(' ') {
        Some(("access", mode)) => {
            let (region, _control, page) = lost_page(mode.parse().unwrap());
            std::hint::black_box(read(&region, page));
        }
        Some(("again", mode)) => use_again(mode.parse().unwrap()),
        Some(("pin", mode)) => pin_again(mode.parse().unwrap()),
        Some(("overwrite", mode)) => overwrite(mode.parse().unwrap()),
        Some(("together", mode)) => lose_together(mode.parse().unwrap()),
        _ => return false,
    }
    true
}

/// Reads a page by a system call, which fails where an access would end the process.
fn system_reads(region: &Region, page: u64) -> bool {
    let (_read_end, write_end) = rustix::pipe::pipe().unwrap();
    let bytes = region.as_ptr().wrapping_add(page as usize * 4096).cast();
    // SAFETY: a page of the range.
    unsafe { libc::write(write_end.as_raw_fd(), bytes, 4096) == 4096 }
}

/// Pages whose reads failed are poisoned. When the medium can be read again, a pin makes them what they were.
fn pin_again(mode: usize) {
    let (region, control, _) = lost_page(mode);
    let tried = || (0..PAGES).step_by(7);
    let failed = tried().filter(|page| !system_reads(&region, *page)).count();
    assert!(failed > 20, "{failed}");
    control.clear();
    for page in tried() {
        let _pin = region.pin(bytes_of(page, 1)).unwrap();
        assert!(system_reads(&region, page), "page {page}");
    }
    check(&region, tried());
}

/// Pages that cannot be read back, some of them poisoned, get new contents, while the medium still fails reads.
fn overwrite(mode: usize) {
    let (region, control, _) = lost_page(mode);
    let tried = || (0..PAGES / 2).step_by(3);
    // The accesses poison pages. They fail for other pages too where the faulting thread serves faults.
    let failed: Vec<_> = tried().filter(|page| !system_reads(&region, *page)).collect();
    // The threads that serve faults may still have pages: a pin waits for them.
    failed.iter().for_each(|page| drop(region.pin(bytes_of(*page, 1))));
    let mut copy = [0; 4096];
    let mut is_lost = |page: &u64| {
        region.read_part(*page as usize * 4096, &mut copy) == Err(RangeError::Lost { page: *page })
    };
    let lost: Vec<_> = failed.into_iter().filter(&mut is_lost).collect();
    assert!(!lost.is_empty());
    for page in &lost {
        let offset = *page as usize * 4096;
        let contents: Vec<u8> = text(*page).into_iter().flat_map(u64::to_ne_bytes).collect();
        // SAFETY: there are no references into the region.
        let write = || unsafe { region.write_part_shared(offset, &contents) };
        // While there is no room in the store, a page that cannot be read is refused, too.
        let written = (0..1000).any(|_| {
            let result = write();
            assert!(matches!(result, Ok(()) | Err(RangeError::Lost { .. })), "{result:?}");
            result.inspect_err(|_| std::thread::sleep(Duration::from_millis(5))).is_ok()
        });
        assert!(written, "page {page}");
    }
    control.clear();
    // A page that the medium failed to read stays poisoned until it is written.
    for page in (0..PAGES).filter(|page| lost.contains(page) || !tried().any(|tried| tried == *page)) {
        let expected = if lost.contains(&page) { text(page) } else { noise(page) };
        assert!(read(&region, page) == expected, "page {page}");
    }
}

/// Threads fault on a lost page at once, and each fault looks for the page. The first thread that gets an error drops
/// the page and goes on. The errors of the others, which come later, must not make the page fail then.
fn lose_together(mode: usize) {
    let (region, control) = backed(mode);
    fill(&region, 0..PAGES);
    let barrier = Barrier::new(3);
    for round in 0..40 {
        control.fail_reads(When::Always, libc::EIO);
        let page = (0..PAGES).find(|page| region.pin(bytes_of(*page, 1)).is_err()).unwrap();
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
            // The page is paged out and in while the others' faults are still served.
            fill(&region, 0..page);
            fill(&region, page + 1..PAGES);
            assert!(read(&region, page) == [0; 512], "round {round}");
            write(&region, page, &noise(page));
        });
    }
    check(&region, 0..PAGES);
}

/// A page whose read failed is zero after it was dropped, and its neighbours are unchanged.
fn use_again(mode: usize) {
    let (region, control, page) = lost_page(mode);
    assert!(!system_reads(&region, page));
    control.clear();
    discard(&region, page, 1);
    assert!(read(&region, page) == [0; 512]);
    check(&region, (0..PAGES).filter(|other| *other != page));
    write(&region, page, &noise(page));
    check(&region, 0..PAGES);
    if MODES[mode].0 == Service::FaultingThread {
        return;
    }
    // Poisoned and not dropped: the poison disturbs no other page and no evictor, whatever brings the page in.
    control.fail_reads(When::Always, libc::EIO);
    let lost: Vec<_> =
        (PAGES / 2..PAGES).filter(|page| page % 5 == 0 && !system_reads(&region, *page)).collect();
    assert!(lost.len() > 20, "{}", lost.len());
    control.clear();
    for _ in 0..3 {
        check(&region, (0..PAGES).filter(|other| !lost.contains(other)));
    }
    // A neighbour's fault may have brought the page in after all; but its contents are never wrong.
    for page in lost {
        assert!(!system_reads(&region, page) || read(&region, page) == noise(page));
    }
    check(&region, (0..PAGES).filter(|page| page % 5 != 0));
}
