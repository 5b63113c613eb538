//! Reports memory pressure of a region to a callback, from a thread that exists as long as there is a callback.
//!
//! A fault or an evictor cannot call back: the first may run in a signal handler, and other threads wait for the
//! second. So the thread reads the statistics at intervals.

use crate::error::{Code, Error};
use crate::guard;
use crate::region::{handle, pf_region};
use crate::shared::Shared;
use crate::stats::refused_pages;
use pagefold_sys::signal;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks at the statistics.
const INTERVAL: Duration = Duration::from_millis(100);
/// Looks without a refused page after which the pool counts as accepting pages again. A full pool is tried only when
/// pages are to be evicted, which may happen in bursts.
const CALM_LOOKS: u32 = 5;

/// The header's `PF_PRESSURE_…`.
pub(crate) const POOL_FULL: u32 = 1;
pub(crate) const OVER_LIMIT: u32 = 2;

/// The header's type of a callback.
pub type pf_pressure_fn = Option<unsafe extern "C" fn(reasons: u32, arg: *mut c_void)>;

/// The reasons for pressure, found from one look at the statistics after the other.
pub(crate) struct Judge {
    refused: u64,
    calm_looks: u32,
}

impl Judge {
    /// Begins with the pages that the pool has refused so far.
    pub(crate) fn new(refused: u64) -> Self {
        Judge { refused, calm_looks: CALM_LOOKS }
    }

    /// Returns the present reasons: bits, or 0.
    pub(crate) fn look(&mut self, refused: u64, resident: u64, limit: u64) -> u32 {
        match refused > self.refused {
            true => self.calm_looks = 0,
            false => self.calm_looks = self.calm_looks.saturating_add(1),
        }
        self.refused = refused;
        let pool_full = if self.calm_looks < CALM_LOOKS { POOL_FULL } else { 0 };
        pool_full | if resident > limit { OVER_LIMIT } else { 0 }
    }
}

thread_local! {
    /// The region that this thread watches, if it is the thread of a watcher. Only compared, never dereferenced.
    static WATCHED: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

/// A callback and its argument.
struct Callback {
    function: unsafe extern "C" fn(u32, *mut c_void),
    arg: *mut c_void,
}

// SAFETY: the caller of `pf_region_on_pressure` guarantees that the function may be called in another thread, with this
// argument.
unsafe impl Send for Callback {}

#[derive(Default)]
struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

/// The thread that watches a region. It ends when this is dropped.
pub(crate) struct Watcher {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    fn start(shared: Arc<Shared>, callback: Callback) -> Result<Self, Error> {
        let stop = Arc::new(Stop::default());
        let builder = std::thread::Builder::new().name("pagefold-watch".into());
        let watched = stop.clone();
        let thread = signal::spawn_masked(builder, move || watch(&shared, &callback, &watched));
        let thread =
            thread.map_err(|error| Error::new(Code::System, format_args!("starting a thread: {error}")))?;
        Ok(Watcher { stop, thread: Some(thread) })
    }

    /// Puts a callback in the place of the present one, and waits until that one has returned.
    pub(crate) fn replace(region: &pf_region, callback: Option<Watcher>) -> Result<(), Error> {
        // Asked before the lock is taken: a thread that replaces the callback holds it until this thread has ended.
        if WATCHED.get() == Arc::as_ptr(&region.shared) {
            let message = "the callback itself can neither replace the callback nor destroy the region";
            return Err(Error::new(Code::Busy, message));
        }
        *region.watcher.lock() = callback;
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        *self.stop.is_set.lock() = true;
        self.stop.changed.notify_all();
        // A panic in the thread has been reported by the panic hook.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, callback: &Callback, stop: &Stop) {
    WATCHED.set(shared);
    let look = || shared.region.read().stats();
    let mut judge = Judge::new(refused_pages(&look()));
    let mut reported = 0;
    loop {
        let mut is_set = stop.is_set.lock();
        if !*is_set {
            stop.changed.wait_for(&mut is_set, INTERVAL);
        }
        if *is_set {
            return;
        }
        drop(is_set);
        let stats = look();
        let reasons = judge.look(refused_pages(&stats), stats.memory.resident, stats.memory.limit);
        if reasons != reported {
            reported = reasons;
            // SAFETY: the caller of `pf_region_on_pressure` guarantees a function and its argument, until the callback
            // is replaced, which waits for this thread.
            unsafe { (callback.function)(reasons, callback.arg) };
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_region_on_pressure(
    region: *mut pf_region,
    function: pf_pressure_fn,
    arg: *mut c_void,
) -> c_int {
    guard::call(|| {
        // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
        let region = unsafe { handle(region) }?;
        // First, so that two callbacks never run at once.
        Watcher::replace(region, None)?;
        let Some(function) = function else { return Ok(()) };
        let watcher = Watcher::start(region.shared.clone(), Callback { function, arg })?;
        Watcher::replace(region, Some(watcher))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_pages_count_as_pressure_until_none_is_refused_for_a_while() {
        let mut judge = Judge::new(7);
        assert_eq!(judge.look(7, 10, 10), 0);
        assert_eq!(judge.look(8, 10, 10), POOL_FULL);
        assert_eq!(judge.look(8, 11, 10), POOL_FULL | OVER_LIMIT);
        for _ in 2..CALM_LOOKS {
            assert_eq!(judge.look(8, 10, 10), POOL_FULL);
        }
        assert_eq!(judge.look(8, 11, 10), OVER_LIMIT);
        assert_eq!(judge.look(8, 10, 10), 0);
    }
}
