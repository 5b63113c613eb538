//! Reports memory pressure of a region to a callback, from a thread that exists as long as there is a callback.
//!
//! A fault or an evictor cannot call back: the first may run in a signal handler, and other threads wait for the
//! second. So the thread reads a few counters at intervals.
//!
//! A call that replaces a callback waits while that one runs. Callbacks of several regions could wait for each other in a
//! circle, so a call that a callback makes never waits for another callback: it fails with `PF_EBUSY`.

use crate::error::{Code, Error};
use crate::shared::Shared;
use pagefold_memory::Pressure;
use pagefold_sys::signal;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two samples of the counters.
const INTERVAL: Duration = Duration::from_millis(100);
/// Samples without a refused page after which the pool counts as accepting pages again. A full pool is tried only when
/// pages are to be evicted, which may happen in bursts.
const CALM_SAMPLES: u32 = 5;

/// The header's `PF_PRESSURE_…`.
pub(crate) const POOL_FULL: u32 = 1;
pub(crate) const OVER_LIMIT: u32 = 2;

/// The header's type of a callback.
pub type pf_pressure_fn = Option<unsafe extern "C" fn(reasons: u32, arg: *mut c_void)>;

/// The reasons for pressure, found from successive samples of the counters.
pub(crate) struct PressureState {
    refused: u64,
    calm_samples: u32,
}

impl PressureState {
    /// Begins with the pages that the pool has refused so far.
    pub(crate) fn new(refused: u64) -> Self {
        PressureState { refused, calm_samples: CALM_SAMPLES }
    }

    /// Returns the present reasons: bits, or 0.
    pub(crate) fn update(&mut self, refused: u64, is_over_limit: bool) -> u32 {
        match refused > self.refused {
            true => self.calm_samples = 0,
            false => self.calm_samples = self.calm_samples.saturating_add(1),
        }
        self.refused = refused;
        let pool_full = if self.calm_samples < CALM_SAMPLES { POOL_FULL } else { 0 };
        pool_full | if is_over_limit { OVER_LIMIT } else { 0 }
    }
}

thread_local! {
    /// The region that this thread watches, if it is the thread of a watcher. Only compared, never dereferenced.
    static WATCHED: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

/// A callback and its argument.
#[derive(Clone, Copy)]
pub(crate) struct Callback {
    pub(crate) function: unsafe extern "C" fn(u32, *mut c_void),
    pub(crate) arg: *mut c_void,
}

// SAFETY: the caller of `pf_region_on_pressure` guarantees that the function may be called in another thread, with this
// argument.
unsafe impl Send for Callback {}

/// The state that the thread of a watcher shares with the calls that replace its callback.
#[derive(Default)]
struct Exchange {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// `None` ends the thread.
    callback: Option<Callback>,
    /// Counts the callbacks that were set.
    number: u64,
    is_running: bool,
}

/// The thread that watches a region. It ends when this is dropped.
pub(crate) struct Watcher {
    exchange: Arc<Exchange>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    fn start(shared: Arc<Shared>, callback: Callback) -> Result<Self, Error> {
        let exchange = Arc::new(Exchange::default());
        exchange.state.lock().callback = Some(callback);
        let builder = std::thread::Builder::new().name("pagefold-watch".into());
        let watched = exchange.clone();
        let thread = signal::spawn_masked(builder, move || watch(&shared, &watched));
        let thread =
            thread.map_err(|error| Error::new(Code::System, format_args!("starting a thread: {error}")))?;
        Ok(Watcher { exchange, thread: Some(thread) })
    }

    /// Exchanges the callback while it does not run. If it does, waits for its end, or fails.
    fn exchange(&self, callback: Option<Callback>, may_wait: bool) -> Result<(), Error> {
        let mut state = self.exchange.state.lock();
        while state.is_running {
            if !may_wait {
                return Err(circle());
            }
            self.exchange.changed.wait(&mut state);
        }
        state.callback = callback;
        state.number += 1;
        self.exchange.changed.notify_all();
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Waiting, it cannot fail. Nobody else sets a callback meanwhile.
        let _ = self.exchange(None, true);
        // A panic in the thread has been reported by the panic hook.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Puts a callback in the place of the present one, which is not running when this returns and is not called again.
pub(crate) fn replace(
    shared: &Arc<Shared>,
    watcher: &Mutex<Option<Watcher>>,
    callback: Option<Callback>,
) -> Result<(), Error> {
    let watched = WATCHED.get();
    if watched == Arc::as_ptr(shared) {
        let message = "the callback itself can neither replace the callback nor destroy the region";
        return Err(Error::new(Code::Busy, message));
    }
    let may_wait = watched.is_null();
    // Held for all of the exchange, so that two callbacks never run at once.
    let slot = if may_wait { Some(watcher.lock()) } else { watcher.try_lock() };
    let mut slot = slot.ok_or_else(circle)?;
    match (&*slot, callback) {
        (Some(watcher), callback) => watcher.exchange(callback, may_wait)?,
        (None, Some(callback)) => *slot = Some(Watcher::start(shared.clone(), callback)?),
        (None, None) => {}
    }
    if callback.is_none() {
        *slot = None;
    }
    Ok(())
}

/// The error of a callback that would wait for another one.
fn circle() -> Error {
    let message = "another callback is running or being replaced, and a callback cannot wait for it: try again later, or \
        from another thread";
    Error::new(Code::Busy, message)
}

fn watch(shared: &Shared, exchange: &Exchange) {
    WATCHED.set(shared);
    let sample = || shared.region().map_or(Pressure::default(), |region| region.pressure());
    let (mut pressures, mut reported, mut number) = (PressureState::new(sample().refused_pages), 0, 0);
    let mut state = exchange.state.lock();
    while state.callback.is_some() {
        exchange.changed.wait_for(&mut state, INTERVAL);
        // Without the lock: a sample may wait for a change of the region's size.
        let pressure = MutexGuard::unlocked(&mut state, sample);
        let Some(callback) = state.callback else { break };
        if state.number != number {
            number = state.number;
            (pressures, reported) = (PressureState::new(pressure.refused_pages), 0);
        }
        let reasons = pressures.update(pressure.refused_pages, pressure.is_over_limit);
        if reasons == reported {
            continue;
        }
        reported = reasons;
        state.is_running = true;
        // SAFETY: the caller of `pf_region_on_pressure` guarantees a function and its argument, until the callback is
        // replaced, which waits while it runs.
        MutexGuard::unlocked(&mut state, || unsafe { (callback.function)(reasons, callback.arg) });
        state.is_running = false;
        exchange.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_pages_count_as_pressure_until_none_is_refused_for_a_while() {
        let mut pressures = PressureState::new(7);
        assert_eq!(pressures.update(7, false), 0);
        assert_eq!(pressures.update(8, false), POOL_FULL);
        assert_eq!(pressures.update(8, true), POOL_FULL | OVER_LIMIT);
        for _ in 2..CALM_SAMPLES {
            assert_eq!(pressures.update(8, false), POOL_FULL);
        }
        assert_eq!(pressures.update(8, true), OVER_LIMIT);
        assert_eq!(pressures.update(8, false), 0);
    }
}
