//! A forked child has no part of a region, and the parent keeps all of it.
//!
//! Children only make system calls and touch memory, as the parent has other threads.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::{MODES, can, read, text, write};
use pagefold_memory::{Region, RegionConfig};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PAGES: u64 = 512;

fn filled(mode: usize) -> Region {
    let (service, eviction) = MODES[mode];
    let region =
        Region::new(RegionConfig { service, eviction, ..RegionConfig::new(PAGES * 4096, 256 << 10) })
            .unwrap();
    (0..PAGES).for_each(|page| write(&region, page, &text(page)));
    region
}

fn check(region: &Region) {
    (0..PAGES).for_each(|page| assert!(read(region, page) == text(page), "page {page}"));
}

/// Forks. The child runs `run` and exits with its result. Returns the child's status, as wait(2) does.
fn fork(run: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only makes system calls, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = run();
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0);
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let mut status = 0;
        // SAFETY: waits for the child above.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            return status;
        }
        if Instant::now() > until {
            // SAFETY: ends the child above.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn signal_of(status: i32) -> Option<i32> {
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

fn touch(address: usize) -> u64 {
    // SAFETY: none: the child may die of it; the tests check that.
    unsafe { std::ptr::with_exposed_provenance::<u64>(address).read_volatile() }
}

/// Runs a test for each combination that the kernel supports, and no two tests at the same time: one that looks at all
/// mappings of the process must not see those of another come and go.
fn each(test: &str, run: impl Fn(usize)) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (mode, (service, eviction)) in MODES.into_iter().enumerate() {
        if can(test, service, eviction) {
            run(mode);
        }
    }
}

/// Returns the mappings of this process that children do not get: ranges and staging areas.
fn kept_from_children() -> Vec<usize> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut found, mut start) = (Vec::new(), 0);
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if flags.split_whitespace().any(|flag| flag == "dc") {
                found.push(start);
            }
        } else if let Some((first, _)) = line.split_once('-') {
            start = usize::from_str_radix(first, 16).unwrap_or(start);
        }
    }
    found
}

#[test]
fn a_child_has_neither_range_nor_staging() {
    each("a_child_has_neither_range_nor_staging", |mode| {
        let region = filled(mode);
        let base = region.as_ptr().expose_provenance();
        let last = base + (PAGES as usize - 1) * 4096;
        let mut addresses = kept_from_children();
        assert!(addresses.len() >= 2, "{addresses:x?}");
        addresses.extend([base, base + 4096, last]);
        for address in addresses {
            let status = fork(|| touch(address) as i32);
            assert_eq!(signal_of(status), Some(libc::SIGSEGV), "{address:#x}: {status:#x}");
        }
        check(&region);
    });
}

/// Forks a child that touches an address. Returns its status, as wait(2) does, and what it wrote to standard error.
fn touch_in_child(address: usize) -> (i32, String) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let status = fork(|| {
        // SAFETY: the child's descriptors.
        unsafe { libc::dup2(writer.as_raw_fd(), 2) };
        touch(address) as i32
    });
    drop(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    (status, said)
}

#[test]
fn a_child_that_touches_the_region_says_why_it_dies() {
    each("a_child_that_touches_the_region_says_why_it_dies", |mode| {
        let region = filled(mode);
        let base = region.as_ptr().expose_provenance();
        for address in [base, base + PAGES as usize * 4096 - 8] {
            let (status, said) = touch_in_child(address);
            assert_eq!(signal_of(status), Some(libc::SIGSEGV), "{status:#x}");
            assert!(said.contains("was forked") && said.lines().count() == 1, "{said}");
        }
        // Other faults are as before.
        let (status, said) = touch_in_child(64);
        assert_eq!((signal_of(status), said.contains("forked")), (Some(libc::SIGSEGV), false), "{said}");
        // No later mapping of a child takes the place, in a child of the child either.
        let status = fork(|| {
            let inner = fork(|| i32::from(is_taken(base)) << 1);
            i32::from(!is_taken(base)) | i32::from(libc::WEXITSTATUS(inner) != 2) << 1
        });
        assert_eq!(status, 0, "{status:#x}");
        check(&region);
        drop(region);
        let (status, said) = touch_in_child(base);
        assert_eq!((signal_of(status), said.contains("forked")), (Some(libc::SIGSEGV), false), "{said}");
    });
}

extern "C" fn note_sender(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the information of a signal that a process has sent. The child ends.
    unsafe {
        let is_sent = (*info).si_code == libc::SI_USER && (*info).si_pid() == libc::getpid();
        libc::_exit(if is_sent { 7 } else { 8 });
    }
}

#[test]
fn a_signal_that_is_sent_to_a_child_takes_effect_at_once() {
    each("a_signal_that_is_sent_to_a_child_takes_effect_at_once", |mode| {
        let region = filled(mode);
        let fork_and_kill = |handler: libc::sighandler_t| {
            // SAFETY: zeroes are valid, and the handler only makes system calls. The standard library's handler would
            // ignore the first signal that is sent.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                (action.sa_sigaction, action.sa_flags) = (handler, libc::SA_SIGINFO);
                libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            }
            // SAFETY: ends the child.
            fork(|| unsafe { libc::kill(libc::getpid(), libc::SIGSEGV) })
        };
        let status = fork_and_kill(note_sender as *const () as libc::sighandler_t);
        assert_eq!(libc::WEXITSTATUS(status), 7, "{status:#x}");
        let status = fork_and_kill(libc::SIG_DFL);
        assert_eq!(signal_of(status), Some(libc::SIGSEGV), "{status:#x}");
        drop(region);
    });
}

/// Returns whether something is mapped at an address.
fn is_taken(address: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let place = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the flag makes the call fail where something is mapped.
    unsafe { libc::mmap(place, 4096, libc::PROT_NONE, flags, -1, 0) == libc::MAP_FAILED }
}

/// Maps memory or a file at the region's address in a child.
fn map_there(base: usize, file: i32) -> bool {
    let flags =
        libc::MAP_FIXED | if file < 0 { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
    let place = std::ptr::with_exposed_provenance_mut(base);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the child has nothing there.
    unsafe { libc::mmap(place, PAGES as usize * 4096, protection, flags, file, 0) == place }
}

#[test]
fn a_child_can_map_memory_at_the_address_of_the_region() {
    each("a_child_can_map_memory_at_the_address_of_the_region", |mode| {
        let region = filled(mode);
        let base = region.as_ptr().expose_provenance();
        let status = fork(|| {
            let is_mapped = map_there(base, -1);
            let all = || (0..PAGES as usize).map(|page| base + page * 4096);
            let is_zero = all().all(|address| touch(address) == 0);
            // SAFETY: mapped above, in the child.
            all().for_each(|address| unsafe {
                std::ptr::with_exposed_provenance_mut::<u64>(address).write(9)
            });
            i32::from(!(is_mapped && is_zero && all().all(|address| touch(address) == 9)))
        });
        assert_eq!(status, 0, "{mode}");
        check(&region);
    });
}

#[test]
fn sigbus_in_a_child_is_not_served() {
    each("sigbus_in_a_child_is_not_served", |mode| {
        let region = filled(mode);
        let base = region.as_ptr().expose_provenance();
        // SAFETY: makes an empty file.
        let file = unsafe { libc::memfd_create(c"nothing".as_ptr(), 0) };
        for page in [0, 1, PAGES as usize - 1] {
            let status = fork(|| i32::from(map_there(base, file)) + touch(base + page * 4096) as i32);
            assert_eq!(signal_of(status), Some(libc::SIGBUS), "{mode}: {status:#x}");
        }
        // SAFETY: ours.
        unsafe { libc::close(file) };
        check(&region);
    });
}

#[test]
fn dropping_the_region_in_a_child_harms_nothing() {
    each("dropping_the_region_in_a_child_harms_nothing", |mode| {
        let region = filled(mode);
        let copy = std::mem::ManuallyDrop::new(region);
        let status = fork(|| {
            // SAFETY: the child's copy, dropped once.
            drop(unsafe { std::ptr::read(&*copy) });
            0
        });
        assert_eq!(status, 0, "{mode}");
        let region = std::mem::ManuallyDrop::into_inner(copy);
        check(&region);
        (0..PAGES).for_each(|page| write(&region, page, &text(page + 1)));
        (0..PAGES).for_each(|page| assert!(read(&region, page) == text(page + 1), "{page}"));
    });
}

#[test]
fn threads_of_the_parent_continue_while_it_forks() {
    each("threads_of_the_parent_continue_while_it_forks", |mode| {
        let region = filled(mode);
        let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (region, is_over, rounds) = (&region, &is_over, &rounds);
                scope.spawn(move || {
                    let own = || (0..PAGES).filter(move |page| page % 3 == thread);
                    let mut version = 0;
                    while !is_over.load(Relaxed) {
                        own().for_each(|page| assert!(read(region, page) == text(page + version), "{page}"));
                        version += PAGES;
                        own().for_each(|page| write(region, page, &text(page + version)));
                        rounds.fetch_add(1, Relaxed);
                    }
                    own().for_each(|page| assert!(read(region, page) == text(page + version), "{page}"));
                });
            }
            (0..40).for_each(|_| assert_eq!(fork(|| 0), 0));
            let seen = rounds.load(Relaxed);
            let goes_on = crate::support::comes_true(|| rounds.load(Relaxed) > seen + 6);
            is_over.store(true, Relaxed);
            assert!(goes_on, "threads do not go on after forks");
        });
        let stats = region.stats();
        assert!(stats.memory.resident_max <= stats.memory.limit, "{stats:?}");
    });
}
