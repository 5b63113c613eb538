//! Parts of a region that the program locks or protects, and processes that lock all of their memory. Neither is for
//! regions, but programs do it to memory that they were passed: pages keep their contents, and no thread hangs.

use crate::support::{MODES, bytes_of, noise, read, run_in_each_mode, write};
use pagefold_memory::{RangeError, Region, RegionConfig};

const PAGES: u64 = 640;
const LIMIT: u64 = 200 * 4096;
/// The part that is locked or protected. Its ends lie within runs of pages that come in and leave together.
const PART: (u64, u64) = (331, 50);

/// Runs a part in a separate process. Returns false if it is not one of these.
pub fn run_part(part: &str) -> bool {
    match part.split_once(' ') {
        Some(("part-changed", mode)) => change_a_part(mode.parse().unwrap()),
        Some(("locked-process", mode)) => lock_the_process(mode.parse().unwrap()),
        Some(("sealed", mode)) => seal_a_part(mode.parse().unwrap()),
        Some(("sealed-evicted", mode)) => evict_around_a_sealed_part(mode.parse().unwrap()),
        _ => return false,
    }
    true
}

fn region(mode: usize, system_calls: bool) -> Region {
    let (service, eviction) = MODES[mode];
    let config = RegionConfig { service, eviction, system_calls, ..RegionConfig::new(PAGES * 4096, LIMIT) };
    Region::new(config).unwrap()
}

fn start_of(region: &Region, page: u64) -> *mut libc::c_void {
    region.as_ptr().wrapping_add(page as usize * 4096).cast()
}

fn protect(region: &Region, protection: i32) {
    // SAFETY: in the range; the test accesses the part only as it is allowed.
    let rc = unsafe { libc::mprotect(start_of(region, PART.0), PART.1 as usize * 4096, protection) };
    assert_eq!(rc, 0);
}

fn read_all(region: &Region, version: u64) {
    (0..PAGES).for_each(|page| assert!(read(region, page) == noise(page + version), "{page}"));
}

fn change_a_part(mode: usize) {
    for system_calls in [true, false] {
        let region = region(mode, system_calls);
        (0..PAGES).for_each(|page| write(&region, page, &noise(page)));
        // The call fails where no thread serves its faults, and the part is locked all the same.
        // SAFETY: in the range.
        unsafe { libc::mlock(start_of(&region, PART.0), PART.1 as usize * 4096) };
        read_all(&region, 0);
        (0..PAGES).for_each(|page| write(&region, page, &noise(page + 1)));
        read_all(&region, 1);
        // SAFETY: in the range.
        unsafe { libc::munlock(start_of(&region, PART.0), PART.1 as usize * 4096) };
        read_all(&region, 1);
        protect(&region, libc::PROT_READ);
        read_all(&region, 1);
        protect(&region, libc::PROT_NONE);
        let others = || (0..PAGES).filter(|page| !(PART.0..PART.0 + PART.1).contains(page));
        others().for_each(|page| write(&region, page, &noise(page + 1)));
        others().for_each(|page| assert!(read(&region, page) == noise(page + 1), "{page}"));
        protect(&region, libc::PROT_READ | libc::PROT_WRITE);
        read_all(&region, 1);
        (0..PAGES).for_each(|page| write(&region, page, &noise(page + 2)));
        read_all(&region, 2);
    }
}

#[test]
fn a_part_that_is_locked_or_protected_hangs_no_thread() {
    run_in_each_mode("a_part_that_is_locked_or_protected", "part-changed");
}

/// Returns a line of `/proc/self/status` in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn lock_the_process(mode: usize) {
    // SAFETY: the call changes no contents.
    if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
        return pagefold_testkit::skipped!(
            "a_region_in_a_process_that_locks_its_memory: mlockall is refused"
        );
    }
    let (service, eviction) = MODES[mode];
    // Threads have stacks, which are locked in full.
    let few = RegionConfig { handler_threads: 1, fold_threads: 1, ..RegionConfig::new(4 << 30, LIMIT) };
    let before = status_bytes("VmRSS");
    let region = Region::new(RegionConfig { service, eviction, ..few }).unwrap();
    let grown = status_bytes("VmRSS") - before;
    assert!(grown < 64 << 20, "{grown} bytes more are resident");
    (0..PAGES).for_each(|page| write(&region, page, &noise(page)));
    read_all(&region, 0);
    assert!(region.stats().memory.resident_max <= LIMIT);
    // SAFETY: no references into the region.
    unsafe { region.discard_shared(bytes_of(0, PAGES)) }.unwrap();
    (0..PAGES).for_each(|page| assert!(read(&region, page) == [0; 512], "{page}"));
}

#[test]
fn a_region_in_a_process_that_locks_its_memory_takes_no_more_than_its_limit() {
    run_in_each_mode("a_region_in_a_process_that_locks_its_memory", "locked-process");
}

/// Seals the part, so that it cannot be written. Returns false if the kernel cannot.
fn seal(region: &Region) -> bool {
    const SYS_MSEAL: libc::c_long = 462;
    protect(region, libc::PROT_READ);
    // SAFETY: the call changes no contents.
    unsafe { libc::syscall(SYS_MSEAL, start_of(region, PART.0), PART.1 as usize * 4096, 0) == 0 }
}

/// The kernel does not release the pages of a sealed part that cannot be written.
fn seal_a_part(mode: usize) {
    let region = region(mode, true);
    (0..PART.0 + PART.1).for_each(|page| write(&region, page, &noise(page)));
    if !seal(&region) {
        return pagefold_testkit::skipped!("a_part_that_the_kernel_does_not_release: no mseal (Linux 6.10)");
    }
    let last = PART.0 + PART.1 - 1;
    assert!(read(&region, last) == noise(last));
    // SAFETY: no references into the region.
    let dropped = unsafe { region.discard_shared(bytes_of(PART.0, PART.1)) };
    assert!(matches!(dropped, Err(RangeError::NotReleased { .. })), "{dropped:?}");
    assert!(read(&region, last) == noise(last));
    // Its memory cannot be unmapped.
    std::mem::forget(region);
}

#[test]
fn a_discard_that_the_kernel_refuses_is_an_error() {
    run_in_each_mode("a_discard_that_the_kernel_refuses", "sealed");
}

/// Pages around a sealed part, and in it, leave together: the kernel releases some of them before it refuses the others.
fn evict_around_a_sealed_part(mode: usize) {
    let region = region(mode, false);
    let scattered = |i: u64| i * 3 % PAGES;
    (0..PART.0 + PART.1).for_each(|page| write(&region, page, &noise(page)));
    if !seal(&region) {
        return pagefold_testkit::skipped!("pages_around_a_sealed_part: no mseal (Linux 6.10)");
    }
    let others = || (0..PAGES).filter(|page| !(PART.0..PART.0 + PART.1).contains(page));
    for version in 0..3 {
        others().for_each(|page| write(&region, page, &noise(page + version)));
        let expected =
            |page| noise(if (PART.0..PART.0 + PART.1).contains(&page) { page } else { page + version });
        (0..PAGES).for_each(|page| assert!(read(&region, page) == expected(page), "{page}"));
        (0..PAGES).map(scattered).for_each(|page| assert!(read(&region, page) == expected(page), "{page}"));
    }
    std::mem::forget(region);
}

#[test]
fn pages_around_a_sealed_part_keep_their_contents() {
    run_in_each_mode("pages_around_a_sealed_part", "sealed-evicted");
}
