//! A reserve of touched, locked frames, refilled in the background.
//!
//! A device used as swap is written to exactly when the system has no memory. With a reserve, its write path takes
//! frames from the reserve only, and never asks the kernel for memory; the refill thread does. If the reserve is
//! empty for longer than a second, the write fails instead of waiting for memory that perhaps only this write could
//! free.
//!
//! A second thread prevents a deadlock on the way to the device. There the kernel allocates too, in small amounts and
//! in threads of other subsystems (a loop device's worker for each FUSE request). Such an allocation may find free
//! memory below the watermark for ordinary allocations, while all reclaim waits for the device. So this thread,
//! the valve thread, watches: if no request has come for a while and the system is short of memory, it returns some of
//! the reserve to the kernel. It allocates nothing itself, so it cannot be blocked by the situation that it resolves.
//! Memory of the page cache counts as available, because the kernel reclaims it without writing to a device. When there
//! is memory again, the reserve is refilled.
//!
//! Locking is the process's responsibility (`mlockall` with `MCL_ONFAULT`): frames touched here are then locked too.

use crate::arena::Arena;
use crate::error::SourceError;
use crate::frame::FRAMES_MAX;
use pagefold_sys::mem;
use pagefold_sys::signal::spawn_masked;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// The wait before the next attempt after the kernel had no memory.
const RETRY: Duration = Duration::from_millis(20);

/// A system that is short of memory and sends no request for this long is taken to be deadlocked.
const SHORT_INTERVAL: Duration = Duration::from_millis(100);
/// The interval of checks while the system is not short of memory.
const NORMAL_INTERVAL: Duration = Duration::from_secs(1);
/// Frames returned to the kernel per check.
const STEP: u32 = 256;
/// One part in this many of the reserve is never returned.
const FLOOR_ONE_IN: u32 = 4;
/// A system is short of memory when less than one part in this many is available.
const SHORT_ONE_IN: u64 = 16;

/// The two threads of an arena's reserve: one refills it, one returns frames. They are stopped and joined on drop.
pub struct Reserve {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The state shared by the two threads.
struct Shared {
    arena: Arc<Arena>,
    stop: Mutex<bool>,
    stopped: Condvar,
    /// While set, the reserve is refilled up to the floor only.
    refill_paused: AtomicBool,
}

impl Reserve {
    /// Fills a reserve of `len_bytes` and starts the threads that keep it filled. Returns when the reserve is full.
    /// Fails if the kernel does not have that much memory now.
    pub fn start(arena: Arc<Arena>, len_bytes: u64) -> Result<Self, SourceError> {
        let target =
            (len_bytes / crate::FRAME_LEN as u64).clamp(FRAMES_MAX as u64, u64::from(u32::MAX) / 2) as u32;
        while arena.free().ready_len < target {
            drop(arena.make_ready()?);
        }
        arena.free().reserve_target = target;
        let shared = Arc::new(Shared {
            arena,
            stop: Mutex::new(false),
            stopped: Condvar::new(),
            refill_paused: AtomicBool::new(false),
        });
        let mut reserve = Reserve { shared, threads: Vec::new() };
        reserve.spawn("pagefold-refill", move |shared| shared.refill_loop(target))?;
        reserve.spawn("pagefold-valve", move |shared| shared.pressure_loop(target))?;
        Ok(reserve)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce(&Shared) + Send + 'static) -> Result<(), SourceError> {
        let shared = self.shared.clone();
        let builder = std::thread::Builder::new().name(name.into());
        // Writers wait for these threads, also in a signal handler, so a handler must not run in them.
        let thread = spawn_masked(builder, move || work(&shared));
        self.threads.push(thread.map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(0);
            pagefold_sys::SysError::new(format!("starting the reserve's thread {name}"), errno)
        })?);
        Ok(())
    }
}

/// The frames that a reserve of `target` frames never returns: enough for one write at least.
fn floor(target: u32) -> u32 {
    (target / FLOOR_ONE_IN).max(FRAMES_MAX as u32)
}

impl Shared {
    fn refill_loop(&self, target: u32) {
        let arena = &self.arena;
        while !*self.stop.lock() {
            let mut free = arena.free();
            if free.reserve_target == 0 {
                return;
            }
            let want = if self.refill_paused.load(Relaxed) { floor(target) } else { target };
            if free.ready_len >= target {
                arena.ready_changed.wait(&mut free);
                continue;
            }
            // The refill is paused: check again soon.
            if free.ready_len >= want {
                arena.ready_changed.wait_for(&mut free, RETRY);
                continue;
            }
            drop(free);
            if arena.make_ready().is_err() {
                // No memory now: writes use the rest of the reserve. Retry soon, or when the ready list changes.
                arena.ready_changed.wait_for(&mut arena.free(), RETRY);
            }
        }
    }

    fn pressure_loop(&self, target: u32) {
        touch_stack();
        let memory = mem::Available::open();
        let floor = floor(target);
        let mut pause = NORMAL_INTERVAL;
        let mut stop = self.stop.lock();
        loop {
            self.stopped.wait_for(&mut stop, pause);
            if *stop {
                return;
            }
            let is_short = memory.bytes() < mem::total_bytes() / SHORT_ONE_IN;
            pause = if is_short { SHORT_INTERVAL } else { NORMAL_INTERVAL };
            self.adjust(is_short, floor);
        }
    }

    /// Returns some frames if the system is short of memory and no request has come since the last check; otherwise
    /// lets the refill thread fill the reserve again.
    fn adjust(&self, is_short: bool, floor: u32) {
        let is_stalled = is_short && !self.arena.clear_used();
        if self.refill_paused.swap(is_stalled, Relaxed) && !is_stalled {
            self.arena.ready_changed.notify_all();
        }
        if is_stalled {
            let ready = self.arena.free().ready_len;
            self.arena.return_ready(ready.saturating_sub(STEP).max(floor));
        }
    }
}

/// More stack than returning frames uses, bytes.
const STACK_LEN: usize = 32 << 10;

/// Touches the stack below this function's frame. A first touch later would ask the kernel for memory, and might wait
/// for it in the deadlock that this thread resolves.
#[inline(never)]
fn touch_stack() {
    std::hint::black_box(&mut [0u8; STACK_LEN]);
}

impl Drop for Reserve {
    fn drop(&mut self) {
        *self.shared.stop.lock() = true;
        self.shared.stopped.notify_all();
        {
            // Under the lock, so that the thread cannot miss the change between its check and its wait.
            let mut free = self.shared.arena.free();
            free.reserve_target = 0;
            self.shared.arena.ready_changed.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A panic in a thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FRAME_LEN;
    use std::time::Instant;

    #[test]
    fn returned_frames_are_refilled_when_there_is_memory_again() {
        const TARGET: u32 = 4 * STEP;
        let arena = Arc::new(Arena::new(64 << 20).unwrap());
        let reserve = Reserve::start(arena.clone(), u64::from(TARGET) * FRAME_LEN as u64).unwrap();
        let ready = || arena.free().ready_len;
        assert_eq!(ready(), TARGET);
        for _ in 0..8 {
            reserve.shared.adjust(true, floor(TARGET));
        }
        assert_eq!(ready(), floor(TARGET));
        reserve.shared.adjust(false, floor(TARGET));
        let until = Instant::now() + Duration::from_secs(30);
        while ready() < TARGET && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(ready(), TARGET);
    }
}
