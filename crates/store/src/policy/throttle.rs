//! The throttle: writers at the memory limit wait here for memory, and the writeback thread for work.
//!
//! It has one mutex and two condition variables. Every waited-for condition changes under the mutex (or, for memory,
//! before the mutex is taken to report it) and is checked under the mutex before sleeping, so no wake-up is lost. A
//! writer that finds memory charges it in the same check, so no other writer can take it in between.
//!
//! The writeback thread works in rounds; a round begins when [`Throttle::wait_for_work`] returns and ends with
//! [`Throttle::end_round`]. A waiting writer is refused only if a round that began after its call ended with the
//! decision that writeback cannot free memory (the backing is full or fails, a budget is used up, nothing can be
//! written back). An older decision does not count: a discard may have changed the situation since. Rounds are cheap.
//!
//! There is one exception, a medium that hangs. After half a minute without progress a writer gives up, and later
//! writers do not wait until there is progress again, so that the hang costs one wait and not one per write.
//!
//! The largest need of the waiting writers is recorded until there is memory for it. The writeback thread works for
//! it even if memory is below the marks, which happens at limits of a few frames.
//!
//! Memory also becomes free when other threads discard pages. They do not notify the throttle; waiting writers check
//! every 50 ms.

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a writer waits without progress: the kernel's timeout for a request to a disk.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which a waiting writer checks for memory by itself.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Counts of the writes that waited for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Throttled {
    /// Number of such writes.
    pub writes: u64,
    /// Their total waiting time, microseconds.
    pub time_us: u64,
}

/// The throttle of one store.
#[derive(Debug)]
pub struct Throttle {
    state: Mutex<State>,
    /// Writers wait on it.
    room: Condvar,
    /// The writeback thread waits on it.
    work: Condvar,
    /// Copies of the state's flags that are read without the lock.
    stopping: AtomicBool,
    running: AtomicBool,
    stall_timeout: Duration,
    recheck_interval: Duration,
    writes: AtomicU64,
    time_us: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// A writeback thread exists.
    running: bool,
    stopping: bool,
    /// Writeback can free memory, by the last decision.
    can_free: bool,
    /// A writer gave up waiting, and there was no progress since.
    stalled: bool,
    /// A writer has requested work since the writeback thread last began a round.
    work_requested: bool,
    waiting: u32,
    /// The largest need of the writers that found too little memory; 0 if there has been enough for it since.
    needed_bytes: u64,
    /// Number of progress reports.
    progress_epoch: u64,
    /// Number of rounds of the writeback thread.
    round: u64,
    /// The last round that ended with a decision.
    decided_round: u64,
}

impl Default for Throttle {
    fn default() -> Self {
        Throttle::with_timeouts(STALL_TIMEOUT, RECHECK_INTERVAL)
    }
}

impl Throttle {
    /// Creates a throttle with these timeouts.
    pub fn with_timeouts(stall_timeout: Duration, recheck_interval: Duration) -> Self {
        Throttle {
            state: Mutex::new(State::default()),
            room: Condvar::new(),
            work: Condvar::new(),
            stopping: AtomicBool::new(false),
            running: AtomicBool::new(false),
            stall_timeout,
            recheck_interval,
            writes: AtomicU64::new(0),
            time_us: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code here panics with the lock held, and the state has no invariant between fields, so a poisoned lock
        // is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For writers: waits until `try_charge` returns true, and returns true. Returns false if writeback cannot free
    /// the memory; then the write fails as it would without a backing.
    ///
    /// `try_charge` charges the memory that the writer needs, `needed_bytes`, if it is available. It is called
    /// several times with the mutex held: it must be cheap and take no lock. The caller holds no lock and no stream
    /// that writeback could need.
    pub fn wait_for_room(&self, needed_bytes: u64, try_charge: &mut dyn FnMut() -> bool) -> bool {
        let mut state = self.state();
        if try_charge() {
            return true;
        }
        if !state.running || state.stopping {
            return false;
        }
        if state.stalled {
            self.request_work(&mut state, needed_bytes);
            return false;
        }
        let (began, round) = (Instant::now(), state.round);
        state.waiting += 1;
        let (mut without_progress, mut progress_epoch) = (Duration::ZERO, state.progress_epoch);
        let is_charged = loop {
            // Requested again in each iteration: the writeback thread may have begun a round before there was
            // anything to free.
            self.request_work(&mut state, needed_bytes);
            let slept_from = Instant::now();
            state = self.sleep(&self.room, state, self.recheck_interval);
            without_progress += self.time_run(slept_from.elapsed());
            if try_charge() {
                break true;
            }
            let is_refused = !state.can_free && state.decided_round > round;
            if is_refused || state.stalled || !state.running || state.stopping {
                break false;
            }
            if state.progress_epoch != progress_epoch {
                (without_progress, progress_epoch) = (Duration::ZERO, state.progress_epoch);
            } else if without_progress >= self.stall_timeout {
                state.stalled = true;
                break false;
            }
        };
        state.waiting -= 1;
        drop(state);
        self.writes.fetch_add(1, Relaxed);
        self.time_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
        is_charged
    }

    /// The part of a sleep in which the writeback thread could work. If the process was stopped meanwhile, or had no CPU,
    /// the sleep was far longer than intended.
    fn time_run(&self, slept: Duration) -> Duration {
        slept.min(self.recheck_interval.saturating_mul(2))
    }

    fn request_work(&self, state: &mut State, needed_bytes: u64) {
        state.needed_bytes = state.needed_bytes.max(needed_bytes);
        state.work_requested = true;
        self.work.notify_one();
    }

    fn sleep<'a>(
        &'a self,
        queue: &Condvar,
        state: MutexGuard<'a, State>,
        time: Duration,
    ) -> MutexGuard<'a, State> {
        queue.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// For the writeback thread: registers it. Returns false, and changes nothing, if there is one already.
    pub fn register_thread(&self) -> bool {
        let mut state = self.state();
        if state.running {
            return false;
        }
        *state = State { running: true, can_free: true, waiting: state.waiting, ..State::default() };
        self.stopping.store(false, Relaxed);
        self.running.store(true, Relaxed);
        true
    }

    /// For the writeback thread: unregisters it. Waiting writers give up.
    pub fn unregister_thread(&self) {
        let mut state = self.state();
        (state.running, state.can_free) = (false, false);
        self.running.store(false, Relaxed);
        self.room.notify_all();
    }

    /// Stops the writeback thread. Waiting writers give up.
    pub fn stop(&self) {
        let mut state = self.state();
        (state.stopping, state.can_free) = (true, false);
        self.stopping.store(true, Relaxed);
        self.room.notify_all();
        self.work.notify_all();
    }

    /// Whether the writeback thread has been stopped.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Whether there is a writeback thread, for which writers wait.
    pub fn is_running(&self) -> bool {
        self.running.load(Relaxed) && !self.is_stopping()
    }

    /// For the writeback thread: reports that memory was freed, and wakes the waiting writers.
    pub fn report_progress(&self) {
        let mut state = self.state();
        state.progress_epoch += 1;
        state.stalled = false;
        self.room.notify_all();
    }

    /// For the writeback thread: ends the round with the decision whether writeback can free memory. If it cannot,
    /// writers that have waited since before the round give up.
    pub fn end_round(&self, can_free: bool) {
        let mut state = self.state();
        state.can_free = can_free && state.running && !state.stopping;
        state.decided_round = state.round;
        if !state.can_free {
            if state.waiting == 0 {
                state.needed_bytes = 0;
            }
            self.room.notify_all();
        }
    }

    /// Whether a writer is waiting.
    #[cfg(test)]
    pub fn has_waiters(&self) -> bool {
        self.state().waiting > 0
    }

    /// For the writeback thread: the largest need of the writers that found too little memory; 0 if there is none.
    pub fn needed_bytes(&self) -> u64 {
        self.state().needed_bytes
    }

    /// For the writeback thread: reports that there is memory for the recorded need. Waiting writers check, and
    /// request work again if another writer has taken it.
    pub fn clear_need(&self) {
        let mut state = self.state();
        (state.needed_bytes, state.stalled) = (0, false);
        self.room.notify_all();
    }

    /// For the writeback thread: sleeps for `time`, or until a writer requests work or the thread is stopped. May
    /// return early. A new round begins when it returns.
    pub fn wait_for_work(&self, time: Duration) {
        let mut state = self.state();
        if !state.work_requested && !state.stopping && !time.is_zero() {
            state = self.sleep(&self.work, state, time);
        }
        state.work_requested = false;
        state.round += 1;
    }

    /// The counts of writes that waited.
    pub fn stats(&self) -> Throttled {
        Throttled { writes: self.writes.load(Relaxed), time_us: self.time_us.load(Relaxed) }
    }
}
