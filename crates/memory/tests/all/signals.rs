//! Signal handlers may touch a region, whatever thread they interrupt, and wherever. The progress callback of
//! writeback may touch it too.

use crate::support::{MODES, bytes_of, each, noise, read, run_well, text, write};
use pagefold_backing::layer::{DelayLayer, DelayOptions, SystemClock};
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_memory::{RangeError, Region, RegionConfig, RegionError, Service};
use pagefold_store::writeback::{LayoutKind, Selection, Which, WritebackConfig};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGES: u64 = 1024;
/// Pages that the handler reads and no thread writes.
const READ_ONLY: u64 = 512;

/// Makes a region whose faults wait for room: with a small limit, a small pool, and a backing.
fn region(mode: usize) -> Region {
    region_on(mode, Arc::new(MemoryBacking::new(32 << 20)))
}

fn region_on(mode: usize, backing: Arc<dyn Backing>) -> Region {
    let (service, eviction) = MODES[mode];
    let backing = WritebackConfig { backing, layout: LayoutKind::Log };
    let config = RegionConfig {
        service,
        eviction,
        max_pool_bytes: Some(1 << 20),
        backing: Some(backing),
        fold_threads: 1,
        ..RegionConfig::new(PAGES * 4096, RegionConfig::LIMIT_MIN_BYTES)
    };
    Region::new(config).unwrap()
}

/// Returns the threads of the region, with a mask of the signals that each blocks.
fn own_threads() -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let read = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread may end meanwhile.
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_string())
        };
        let name = field("Name:").filter(|name| name.starts_with("pagefold"))?;
        Some((name, u64::from_str_radix(&field("SigBlk:")?, 16).unwrap()))
    };
    tasks.filter_map(read).collect()
}

/// Runs a part in a separate process. Returns false if it is not one of these.
pub fn run_part(part: &str) -> bool {
    match part.split_once(' ') {
        Some(("masks", mode)) => check_masks(mode.parse().unwrap()),
        Some(("storm", mode)) => signal_storm(mode.parse().unwrap()),
        Some(("panic", mode)) => panic_in_progress(mode.parse().unwrap()),
        Some(("progress", mode)) => touch_in_progress(mode.parse().unwrap()),
        _ => return false,
    }
    true
}

/// Checks that threads of the region block all signals but those that their own instructions raise.
fn check_masks(mode: usize) {
    let bit = |signal: i32| 1_u64 << (signal - 1);
    let synchronous =
        [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS].map(bit);
    let synchronous = synchronous.into_iter().sum::<u64>();
    // Signals that the kernel never blocks, and those that the C library keeps for itself.
    let never = [libc::SIGKILL, libc::SIGSTOP, 32, 33].map(bit).into_iter().sum::<u64>();
    for parent_blocks_all in [false, true] {
        let mut all = std::mem::MaybeUninit::uninit();
        let how = if parent_blocks_all { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
        // SAFETY: the set is filled before it is used.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            if MODES[mode].0 == Service::FaultingThread {
                // A region is not made in a thread that blocks it.
                libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
            }
            libc::pthread_sigmask(how, all.as_ptr(), std::ptr::null_mut());
        }
        let region = region(mode);
        // Threads set their names after they have started.
        let is_writeback_thread = |(name, _): &(String, u64)| name == "pagefold-wb";
        assert!(
            crate::support::comes_true(|| own_threads().iter().any(is_writeback_thread)),
            "{:?}",
            own_threads()
        );
        let is_right = |(_, blocked): &(String, u64)| {
            blocked & synchronous == 0 && blocked | synchronous | never == u64::MAX
        };
        assert!(crate::support::comes_true(|| own_threads().iter().all(is_right)), "{:x?}", own_threads());
        drop(region);
    }
}

#[test]
fn threads_of_a_region_block_all_but_synchronous_signals() {
    each("threads_of_a_region_block_signals", |mode| run_well(&format!("masks {mode}")));
}

#[test]
fn a_thread_that_blocks_sigbus_is_refused_with_a_hint() {
    each("a_thread_that_blocks_sigbus_is_refused_with_a_hint", |mode| {
        let mut owned = region(mode);
        let refused_by_signal = MODES[mode].0 == Service::FaultingThread;
        let blocked = move || {
            // SAFETY: the set is made before it is used, in a thread that ends soon.
            unsafe {
                let mut set = std::mem::MaybeUninit::uninit();
                libc::sigemptyset(set.as_mut_ptr());
                libc::sigaddset(set.as_mut_ptr(), libc::SIGBUS);
                libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            }
            let is_refused = |result: Result<(), RangeError>| match result {
                Ok(()) => false,
                Err(error) => {
                    assert!(
                        error == RangeError::SigbusBlocked && error.to_string().contains("pthread_sigmask")
                    );
                    true
                }
            };
            assert_eq!(is_refused(owned.pin(..4096).map(drop)), refused_by_signal);
            assert_eq!(is_refused(owned.pin_mut(..4096).map(drop)), refused_by_signal);
            assert_eq!(is_refused(owned.pin_owned(..4096).map(drop)), refused_by_signal);
            let (service, eviction) = MODES[mode];
            let config = RegionConfig { service, eviction, ..RegionConfig::new(1 << 20, 1 << 20) };
            match Region::new(config) {
                Ok(_) => assert!(!refused_by_signal),
                Err(RegionError::UnfitThread(error)) => {
                    assert!(refused_by_signal && error.to_string().contains("pthread_sigmask"));
                }
                Err(error) => panic!("{error}"),
            }
        };
        std::thread::spawn(blocked).join().unwrap();
    });
}

static BASE: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
/// Handlers that run at this moment.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// The program's handler: reads pages of the region that only it uses.
extern "C" fn on_signal(_: libc::c_int) {
    RUNNING.fetch_add(1, Relaxed);
    let count = HANDLED.fetch_add(1, Relaxed);
    for i in 0..8 {
        let page = (count * 8 + i).wrapping_mul(0x9e37_79b9) % READ_ONLY;
        let word = std::ptr::with_exposed_provenance::<u64>(BASE.load(Relaxed) + page as usize * 4096);
        // SAFETY: in the range, which lives as long as signals are sent; nobody writes there.
        if unsafe { word.read_volatile() } != noise(page)[0] {
            WRONG.fetch_add(1, Relaxed);
        }
    }
    RUNNING.fetch_sub(1, Relaxed);
}

/// Sends signals to every thread, those of the region too, until `is_over`.
fn send_signals(is_over: &AtomicBool) {
    let (own_process, own_thread) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get());
    while !is_over.load(Relaxed) {
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let thread: i32 = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
            if thread != own_thread {
                // SAFETY: a signal that has a handler.
                unsafe { libc::syscall(libc::SYS_tgkill, own_process, thread, libc::SIGUSR1) };
            }
        }
        // A handler may take long on a busy machine. The threads must get on with their work nevertheless.
        while RUNNING.load(Relaxed) > 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Makes all calls that the owner of a region can make, again and again.
fn make_all_calls(region: &Region, is_over: &AtomicBool) {
    let mut round = 0_u64;
    while !is_over.load(Relaxed) {
        round += 1;
        region.stats();
        region.store().stats();
        region.store().class_stats();
        region.store().compact();
        let writeback = region.store().writeback().unwrap();
        writeback.stats();
        writeback.policy().condition();
        writeback.mark_idle(1);
        if round.is_multiple_of(16) {
            let some = Selection::of(Which::All);
            let _ = writeback.write_back(&some, &mut |_| ControlFlow::Continue(()));
        }
        let own = READ_ONLY + 256 + round % 64;
        write(region, own, &text(round));
        assert!(read(region, own) == text(round), "{own}");
        drop(region.pin(bytes_of(own, 1)).unwrap());
        // SAFETY: this thread alone uses the page.
        unsafe { region.discard_shared(bytes_of(own, 1)) }.unwrap();
    }
}

/// Sends signals to every thread while the pool is full and pages are written back.
fn signal_storm(mode: usize) {
    let region = region(mode);
    (0..READ_ONLY).for_each(|page| write(&region, page, &noise(page)));
    BASE.store(region.as_ptr().expose_provenance(), Relaxed);
    // SAFETY: zeroes are valid, and the handler touches memory and atomics only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let is_over = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        scope.spawn(|| make_all_calls(&region, &is_over));
        let writer = scope.spawn(|| {
            let mut round = 0;
            while Instant::now() < until {
                round += PAGES;
                let pages = || READ_ONLY..READ_ONLY + 256;
                pages().for_each(|page| write(&region, page, &noise(page + round)));
                pages().for_each(|page| assert!(read(&region, page) == noise(page + round), "{page}"));
            }
        });
        let sender = scope.spawn(|| send_signals(&is_over));
        let is_well = writer.join().is_ok();
        is_over.store(true, Relaxed);
        sender.join().unwrap();
        assert!(is_well);
    });
    assert!(HANDLED.load(Relaxed) > 100 && WRONG.load(Relaxed) == 0, "{HANDLED:?} {WRONG:?}");
    (0..READ_ONLY).for_each(|page| assert!(read(&region, page) == noise(page), "{page}"));
}

#[test]
fn handlers_touch_a_region_in_any_thread_at_any_time() {
    each("handlers_touch_a_region_in_any_thread", |mode| run_well(&format!("storm {mode}")));
}

/// The progress callback writes to more of the region than memory and pool have room for: its pages come in only if
/// others are written back meanwhile. The medium is so slow that the callback also runs before the end.
fn touch_in_progress(mode: usize) {
    let slow = DelayOptions { bytes_per_s: Some(10 << 20), ..DelayOptions::default() };
    let medium = DelayLayer::new(MemoryBacking::new(32 << 20), slow, Arc::new(SystemClock::default()));
    let region = region_on(mode, Arc::new(medium));
    (0..PAGES).for_each(|page| write(&region, page, &noise(page)));
    let writeback = region.store().writeback().unwrap();
    let mut calls = 0;
    let report = writeback.write_back(&Selection::of(Which::All), &mut |_| {
        calls += 1;
        (0..PAGES).for_each(|page| write(&region, page, &noise(page + calls * PAGES)));
        // Another pass in the middle of this one.
        let some = Selection::of(Which::Idle);
        assert_eq!(writeback.write_back(&some, &mut |_| ControlFlow::Continue(())).unwrap().error, None);
        if calls < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(report.is_ok() && calls > 0, "{report:?}");
    (0..PAGES).for_each(|page| assert!(read(&region, page) == noise(page + calls * PAGES), "{page}"));
}

#[test]
fn a_progress_callback_may_touch_the_region() {
    each("a_progress_callback_may_touch_the_region", |mode| run_well(&format!("progress {mode}")));
}

#[test]
fn a_panic_of_a_progress_callback_ends_the_pass() {
    each("a_panic_of_a_progress_callback_ends_the_pass", |mode| run_well(&format!("panic {mode}")));
}

fn panic_in_progress(mode: usize) {
    let region = region(mode);
    (0..PAGES).for_each(|page| write(&region, page, &noise(page)));
    let writeback = region.store().writeback().unwrap();
    let all = Selection::of(Which::All);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        writeback.write_back(&all, &mut |_| panic!("as the test wants"))
    }));
    assert!(result.is_err());
    // The next pass can begin, and nothing is lost.
    assert_eq!(writeback.write_back(&all, &mut |_| ControlFlow::Continue(())).unwrap().error, None);
    (0..PAGES).for_each(|page| assert!(read(&region, page) == noise(page), "{page}"));
}
