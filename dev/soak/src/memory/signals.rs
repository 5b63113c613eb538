//! Sends signals to all threads of the process, with a handler that reads and writes pages of the region.
//!
//! The handler uses pages that no other code uses. It counts its beginnings and ends, so that [`Signals::end`] can
//! wait until no handler runs.

use super::config::{HANDLER_PAGES, PAGE};
use crate::process;
use crate::random::Random;
use crate::verdict::{Fault, require};
use pagefold_memory::Region;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Pages that one call of the handler touches.
const TOUCHED: u64 = 6;
/// How long handlers that have begun may take to end.
const ENDING: Duration = Duration::from_secs(60);

/// Address of the handler's first page; 0 while it has no pages.
static BASE: AtomicUsize = AtomicUsize::new(0);
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
/// Number of marks that a handler found changed.
static WRONG: AtomicU64 = AtomicU64::new(0);

/// The first word of a page, which never changes.
fn mark(page: u64) -> u64 {
    (page + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A word of one of the handler's pages.
///
/// # Safety
/// `base` is the address of the handler's first page, in a region that lives as long as the word is used.
unsafe fn word<'a>(base: usize, page: u64, index: u64) -> &'a AtomicU64 {
    let address = base + (page * PAGE + index * 8) as usize;
    // SAFETY: aligned, and in the handler's pages of a live region (the caller's duty). These pages are only accessed
    // as atomics.
    unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(address)) }
}

/// Checks the marks of some pages, and increments a counter in each of them.
extern "C" fn on_signal(_: libc::c_int) {
    let number = BEGUN.fetch_add(1, SeqCst);
    let base = BASE.load(SeqCst);
    if base != 0 {
        for i in 0..TOUCHED {
            let page = (number * TOUCHED + i).wrapping_mul(0x9E37_79B1) % HANDLER_PAGES;
            // SAFETY: `Signals::end` sets the base to 0 and waits until no handler runs, before the region is dropped.
            let (marked, counter) = unsafe { (word(base, page, 0), word(base, page, 1 + number % 500)) };
            if marked.load(SeqCst) != mark(page) {
                WRONG.fetch_add(1, SeqCst);
            }
            counter.fetch_add(1, SeqCst);
        }
    }
    ENDED.fetch_add(1, SeqCst);
}

/// A handler of SIGUSR1 that touches pages of a region until [`Signals::end`].
pub struct Signals {
    base: usize,
}

impl Signals {
    /// Installs the handler. Its pages, which begin at `first_page`, must have no other user.
    pub fn begin(region: &Region, first_page: u64) -> Result<Self, Fault> {
        let base = region.as_ptr().expose_provenance() + (first_page * PAGE) as usize;
        // SAFETY: the caller borrows the region, and calls `end` before dropping it.
        (0..HANDLER_PAGES).for_each(|page| unsafe { word(base, page, 0) }.store(mark(page), SeqCst));
        // SAFETY: an action of zeroes is valid, and the handler makes no system call and takes no lock.
        let rc = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut())
        };
        require!(rc == 0, Failed, "installing a handler: {}", std::io::Error::last_os_error());
        BASE.store(base, SeqCst);
        Ok(Signals { base })
    }

    /// Sends signals to all threads except the calling one, until `stop` is set.
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

    /// Waits until no handler runs, and checks the marks and counters in the pages.
    pub fn end(self) -> Result<(), Fault> {
        BASE.store(0, SeqCst);
        let have_ended = process::wait_until(ENDING, || Ok(ENDED.load(SeqCst) == BEGUN.load(SeqCst)))?;
        require!(have_ended, Hang, "a signal handler that touches the region hangs");
        let all = || (0..HANDLER_PAGES).flat_map(|page| (1..=500).map(move |index| (page, index)));
        // SAFETY: the region is dropped after this function returns.
        let counted: u64 =
            all().map(|(page, index)| unsafe { word(self.base, page, index) }.load(SeqCst)).sum();
        // Handlers that ran while the base was 0 have counted nothing.
        let (runs, wrong) = (ENDED.load(SeqCst), WRONG.load(SeqCst));
        let is_right = wrong == 0 && counted <= runs * TOUCHED && counted.is_multiple_of(TOUCHED);
        require!(is_right, Contents, "{runs} signal handlers counted {counted}; {wrong} words were wrong");
        // SAFETY: the region is dropped after this function returns.
        let is_marked = |page: u64| unsafe { word(self.base, page, 0) }.load(SeqCst) == mark(page);
        let are_marked = (0..HANDLER_PAGES).all(is_marked);
        require!(are_marked, Contents, "a mark of the signal handlers is lost");
        Ok(())
    }
}

fn send(thread: i32) {
    // SAFETY: SIGUSR1 has a handler. If the thread is gone, the system call fails.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGUSR1) };
}
