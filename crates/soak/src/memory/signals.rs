//! Signals to every thread of the process, whose handler reads and writes pages of the region.

use super::config::{HANDLER_PAGES, PAGE};
use crate::part::{Fault, FaultKind};
use crate::random::Random;
use pagefold_memory::Region;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Pages that one run of the handler touches.
const TOUCHED: u64 = 6;
/// How long runs of the handler may take to end.
const ENDING: Duration = Duration::from_secs(60);

/// Where the handler's pages begin; 0 while there are none.
static BASE: AtomicUsize = AtomicUsize::new(0);
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
/// Words that were not what they must be.
static WRONG: AtomicU64 = AtomicU64::new(0);

/// What the first word of a page is.
fn mark(page: u64) -> u64 {
    (page + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A word of a page of the handler's.
///
/// # Safety
/// `base` is where the handler's pages begin, in a region that lives as long as the word is used.
unsafe fn word<'a>(base: usize, page: u64, place: u64) -> &'a AtomicU64 {
    let address = base + (page * PAGE + place * 8) as usize;
    // SAFETY: aligned, and in the handler's pages of a region that lives (the caller's duty), which are only accessed as
    // atomics.
    unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(address)) }
}

/// Checks the marks of some pages, and counts in them.
extern "C" fn on_signal(_: libc::c_int) {
    let number = BEGUN.fetch_add(1, SeqCst);
    let base = BASE.load(SeqCst);
    if base != 0 {
        for i in 0..TOUCHED {
            let page = (number * TOUCHED + i).wrapping_mul(0x9E37_79B1) % HANDLER_PAGES;
            // SAFETY: who takes the base away waits until no handler runs before the region goes.
            let (marked, counter) = unsafe { (word(base, page, 0), word(base, page, 1 + number % 500)) };
            if marked.load(SeqCst) != mark(page) {
                WRONG.fetch_add(1, SeqCst);
            }
            counter.fetch_add(1, SeqCst);
        }
    }
    ENDED.fetch_add(1, SeqCst);
}

/// Signals that have a handler until this ends.
pub struct Signals {
    base: usize,
}

impl Signals {
    /// Gives the handler its pages, which nobody else uses.
    pub fn begin(region: &Region, first_page: u64) -> Result<Self, Fault> {
        let base = region.as_ptr().expose_provenance() + (first_page * PAGE) as usize;
        // SAFETY: the region lives as long as this, which `end` sees to.
        (0..HANDLER_PAGES).for_each(|page| unsafe { word(base, page, 0) }.store(mark(page), SeqCst));
        // SAFETY: zeroes are a valid action, and the handler makes no system call and takes no lock.
        let rc = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut())
        };
        if rc != 0 {
            return Err(Fault::failed("installing a handler", std::io::Error::last_os_error()));
        }
        BASE.store(base, SeqCst);
        Ok(Signals { base })
    }

    /// Sends signals to all threads but its own, until told to stop.
    pub fn send(&self, random: &mut Random, stop: &AtomicBool) {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        while !stop.load(SeqCst) {
            for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
                let Some(thread) = task.file_name().to_str().and_then(|name| name.parse().ok()) else {
                    continue;
                };
                if thread != own {
                    send(thread);
                }
            }
            std::thread::sleep(Duration::from_micros(random.doubling(20, 5000)));
        }
    }

    /// Takes the handler's pages away, and checks what it found and left there.
    pub fn end(self) -> Result<(), Fault> {
        BASE.store(0, SeqCst);
        let until = Instant::now() + ENDING;
        while ENDED.load(SeqCst) != BEGUN.load(SeqCst) {
            if Instant::now() > until {
                return Err(Fault::new(FaultKind::Hang, "a signal handler that touched the region hangs"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let all = || (0..HANDLER_PAGES).flat_map(|page| (1..=500).map(move |place| (page, place)));
        // SAFETY: the region lives: it is dropped after this.
        let counted: u64 =
            all().map(|(page, place)| unsafe { word(self.base, page, place) }.load(SeqCst)).sum();
        // Handlers that began before the pages were given to them, or after they were taken away, did nothing.
        let (runs, wrong) = (ENDED.load(SeqCst), WRONG.load(SeqCst));
        if wrong > 0 || counted > runs * TOUCHED || !counted.is_multiple_of(TOUCHED) {
            let message =
                format!("{runs} signal handlers left {counted} counts, and {wrong} words were wrong");
            return Err(Fault::new(FaultKind::Contents, message));
        }
        // SAFETY: the region lives: it is dropped after this.
        let is_marked = |page: u64| unsafe { word(self.base, page, 0) }.load(SeqCst) == mark(page);
        match (0..HANDLER_PAGES).all(is_marked) {
            true => Ok(()),
            false => Err(Fault::new(FaultKind::Contents, "a mark of the signal handlers is lost")),
        }
    }
}

fn send(thread: i32) {
    // SAFETY: a signal that has a handler; a thread that is gone is an error that says so.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGUSR1) };
}
