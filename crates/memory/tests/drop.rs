//! Regions are made and dropped: while threads fault in them, many one after the other, many at once, and with another
//! handler of SIGBUS in the program.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::{MODES, can, part, read, run, run_well, text, write};
use pagefold_memory::{Eviction, Region, RegionConfig, RegionError, Service};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Tests that make many regions run alone, because the regions of a process are counted.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn child() {
    let Some(part) = part() else { return };
    match part.split_once(' ') {
        Some(("in_flight", mode)) => drop_in_flight(mode.parse().unwrap()),
        Some(("chained", mode)) => reach_earlier_handler(mode.parse().unwrap()),
        _ => panic!("there is no part {part}"),
    }
    std::process::exit(0);
}

/// Drops a region that four threads read and write.
fn drop_in_flight(mode: usize) {
    let (service, eviction) = MODES[mode];
    let config = RegionConfig { service, eviction, ..RegionConfig::new(4 << 20, 256 << 10) };
    let region = Region::new(config).unwrap();
    let base = region.as_ptr().expose_provenance();
    for thread in 0..4_usize {
        std::thread::spawn(move || {
            let mut x = thread;
            loop {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let page = (x >> 33) % 1024;
                let word = std::ptr::with_exposed_provenance_mut::<usize>(base + page * 4096);
                // After the region is dropped, this kills the process: the test checks that.
                // SAFETY: in the range, as long as there is one.
                unsafe { word.write_volatile(word.read_volatile() + 1) };
            }
        });
    }
    std::thread::sleep(Duration::from_millis(20));
    drop(region);
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn dropping_a_region_under_threads_ends_them_and_never_hangs() {
    let _alone = alone();
    for (mode, (service, eviction)) in MODES.into_iter().enumerate() {
        if !can("dropping_a_region_under_threads", service, eviction) {
            continue;
        }
        for _ in 0..8 {
            let status = run(&format!("in_flight {mode}"), Duration::from_secs(10));
            let is_fault = matches!(status.signal(), Some(libc::SIGSEGV | libc::SIGBUS));
            assert!(is_fault || status.success(), "{service:?} {eviction:?}: {status}");
        }
    }
}

fn small(service: Service) -> RegionConfig {
    let limit = RegionConfig::LIMIT_MIN_BYTES;
    RegionConfig { service, fold_threads: 1, handler_threads: 1, ..RegionConfig::new(2 * limit, limit) }
}

/// Writes all pages of a region and reads them back.
fn use_once(region: &Region, salt: u64) {
    let pages = region.len_bytes() as u64 / 4096;
    (0..pages).for_each(|page| write(region, page, &text(page + salt)));
    (0..pages).for_each(|page| assert!(read(region, page) == text(page + salt), "{page}"));
}

#[test]
fn many_regions_in_turn_leak_nothing() {
    let _alone = alone();
    for service in [Service::FaultingThread, Service::HandlerThreads] {
        if !can("many_regions_in_turn", service, Eviction::Auto) {
            continue;
        }
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let before = (descriptors(), mappings());
        for i in 0..300 {
            let region = Region::new(small(service)).unwrap();
            if i % 10 == 0 {
                use_once(&region, i);
            }
        }
        let after = (descriptors(), mappings());
        assert_eq!(after.0, before.0, "descriptors");
        // The allocator and thread stacks may keep a few.
        assert!(after.1 < before.1 + 50, "{before:?} {after:?} mappings");
    }
}

#[test]
fn the_largest_number_of_regions_is_served_and_one_more_is_refused() {
    let _alone = alone();
    if !can("the_largest_number_of_regions", Service::FaultingThread, Eviction::Auto) {
        return;
    }
    let regions: Vec<_> = (0..256).map(|_| Region::new(small(Service::FaultingThread)).unwrap()).collect();
    assert!(matches!(Region::new(small(Service::FaultingThread)).err(), Some(RegionError::TooMany(256))));
    // The last entry of the table is served too, and serving it does not disturb others.
    [0, 128, 255].into_iter().for_each(|i| use_once(&regions[i], i as u64));
    drop(regions);
    use_once(&Region::new(small(Service::FaultingThread)).unwrap(), 1);
}

#[test]
fn regions_are_made_and_dropped_concurrently() {
    let _alone = alone();
    if !can("regions_are_made_and_dropped", Service::HandlerThreads, Eviction::Mixed) {
        return;
    }
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                for i in 0..40_u64 {
                    let (service, eviction) = MODES[(i + thread) as usize % MODES.len()];
                    let region = Region::new(RegionConfig { eviction, ..small(service) }).unwrap();
                    use_once(&region, thread << 8 | i);
                }
            });
        }
    });
}

static FOREIGN: AtomicU32 = AtomicU32::new(0);
static FOREIGN_PAGE: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The program's handler: maps memory at the page.
extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let page = FOREIGN_PAGE.load(SeqCst);
    // SAFETY: the kernel passes the information of the signal.
    if unsafe { (*info).si_addr() } != page {
        std::process::abort();
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: replaces the page of this test.
    unsafe { libc::mmap(page, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    FOREIGN.fetch_add(1, SeqCst);
}

/// Maps a file that is shorter than the mapping, so that an access is SIGBUS.
fn map_nothing() -> *mut u64 {
    let name = c"nothing".as_ptr();
    // SAFETY: an empty file, and a mapping of it at an address that the kernel chooses.
    unsafe {
        let file = libc::memfd_create(name, 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, file, 0);
        assert!(file >= 0 && page != libc::MAP_FAILED);
        FOREIGN_PAGE.store(page, SeqCst);
        page.cast()
    }
}

fn reach_earlier_handler(mode: usize) {
    // SAFETY: zeroes are valid, and the handler only makes system calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
    }
    let (service, eviction) = MODES[mode];
    for round in 1..=20 {
        let region = Region::new(RegionConfig { eviction, ..small(service) }).unwrap();
        use_once(&region, 3);
        let page = map_nothing();
        // SAFETY: mapped; the handler maps memory there.
        unsafe { page.write_volatile(7) };
        // SAFETY: mapped, and the handler has mapped memory there.
        assert_eq!((unsafe { page.read_volatile() }, FOREIGN.load(SeqCst)), (7, round));
        use_once(&region, 4);
    }
}

#[test]
fn sigbus_outside_regions_reaches_the_earlier_handler() {
    let _alone = alone();
    for (mode, (service, eviction)) in MODES.into_iter().enumerate() {
        if can("sigbus_outside_regions", service, eviction) {
            run_well(&format!("chained {mode}"));
        }
    }
}
