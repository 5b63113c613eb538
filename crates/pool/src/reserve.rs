//! A reserve of touched, locked frames, refilled in the background.
//!
//! A device that is swapped to is written to exactly when the system has no
//! memory. Its write path then takes frames from this reserve only, and a thread
//! that writes never asks the kernel for memory; this thread does, beside it. When
//! the reserve is empty for longer than a moment the write fails instead of
//! waiting for memory that only it could free.
//!
//! That is not enough. On the way to the device the kernel allocates too, in small
//! pieces and on threads of its own (a loop device's worker for each FUSE request),
//! and such an allocation may find the free memory below the mark that is kept for
//! those who reclaim, while all who reclaim wait for the device. Then nothing moves
//! ever again. So a second thread looks on: when no request has come for a while and
//! the system is short of memory, it gives some of the reserve back to the kernel.
//! That thread asks for nothing, so it cannot be caught in what it is there to end.
//! Memory that the page cache could give up is not short: reclaim takes it without
//! writing to a device. When memory is there again, the reserve is filled again.
//!
//! Locking is the process's affair (`mlockall` with `MCL_ONFAULT`): what is touched
//! here is then locked too.

use crate::arena::Arena;
use crate::source::{FRAMES_MAX, SourceError};
use pagefold_sys::mem;
use pagefold_sys::signal::spawn_masked;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Wait before asking a kernel that has just refused.
const RETRY: Duration = Duration::from_millis(20);

/// Quiet for this long, in a system short of memory, is taken for a standstill.
const QUIET: Duration = Duration::from_millis(100);
/// How often to look at a system that is not short of memory.
const CALM: Duration = Duration::from_secs(1);
/// Frames given back at a time.
const STEP: u32 = 256;
/// One part in this many of the reserve is never given back.
const FLOOR_ONE_IN: u32 = 4;
/// A system is short of memory when less than one part in this many is available.
const SHORT_ONE_IN: u64 = 16;

/// The threads that fill an arena's reserve and give it back; they stop and join when dropped.
pub struct Reserve {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the two threads know in common.
struct Shared {
    arena: Arc<Arena>,
    stop: Mutex<bool>,
    stopped: Condvar,
    /// Not to be refilled beyond the floor while set: the system stands still.
    truce: AtomicBool,
}

impl Reserve {
    /// Fills a reserve of `len_bytes` and keeps it filled.
    ///
    /// Returns when the reserve is full. Fails if the kernel cannot give that much now.
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
            truce: AtomicBool::new(false),
        });
        let mut reserve = Reserve { shared, threads: Vec::new() };
        reserve.spawn("pagefold-refill", move |shared| shared.keep_filled(target))?;
        reserve.spawn("pagefold-valve", move |shared| shared.keep_moving(target))?;
        Ok(reserve)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce(&Shared) + Send + 'static) -> Result<(), SourceError> {
        let shared = self.shared.clone();
        let builder = std::thread::Builder::new().name(name.into());
        // Writers wait for these threads, in a signal handler too.
        let thread = spawn_masked(builder, move || work(&shared));
        self.threads.push(thread.map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(0);
            pagefold_sys::SysError::new(format!("starting the reserve's thread {name}"), errno)
        })?);
        Ok(())
    }
}

/// Frames that a reserve of `target` frames never gives back: enough for a write at least.
fn floor(target: u32) -> u32 {
    (target / FLOOR_ONE_IN).max(FRAMES_MAX as u32)
}

impl Shared {
    fn keep_filled(&self, target: u32) {
        let arena = &self.arena;
        while !*self.stop.lock() {
            let mut free = arena.free();
            if free.reserve_target == 0 {
                return;
            }
            let want = if self.truce.load(Relaxed) { floor(target) } else { target };
            if free.ready_len >= target {
                arena.ready_changed.wait(&mut free);
                continue;
            }
            // The refill is paused: look again soon whether it still is.
            if free.ready_len >= want {
                arena.ready_changed.wait_for(&mut free, RETRY);
                continue;
            }
            drop(free);
            if arena.make_ready().is_err() {
                // No memory now: writes take what is left. Ask again soon, or when something changes.
                arena.ready_changed.wait_for(&mut arena.free(), RETRY);
            }
        }
    }

    fn keep_moving(&self, target: u32) {
        touch_stack();
        let memory = mem::Available::open();
        let floor = floor(target);
        let mut pause = CALM;
        let mut stop = self.stop.lock();
        loop {
            self.stopped.wait_for(&mut stop, pause);
            if *stop {
                return;
            }
            let is_short = memory.bytes() < mem::total_bytes() / SHORT_ONE_IN;
            pause = if is_short { QUIET } else { CALM };
            let is_still = is_short && !self.arena.take_used();
            if self.truce.swap(is_still, Relaxed) && !is_still {
                // What was given back is asked for again.
                self.arena.ready_changed.notify_all();
            }
            if is_still {
                let ready = self.arena.free().ready_len;
                self.arena.return_ready(ready.saturating_sub(STEP).max(floor));
            }
        }
    }
}

/// Stack that giving back takes, and room, bytes.
const STACK_LEN: usize = 32 << 10;

/// Touches the stack below this frame: a first touch later on would ask the kernel for memory, and wait for it in the
/// very standstill that this thread is there to end.
#[inline(never)]
fn touch_stack() {
    std::hint::black_box(&mut [0u8; STACK_LEN]);
}

impl Drop for Reserve {
    fn drop(&mut self) {
        *self.shared.stop.lock() = true;
        self.shared.stopped.notify_all();
        {
            // Under the lock, so that the thread cannot miss it between its check and its wait.
            let mut free = self.shared.arena.free();
            free.reserve_target = 0;
            self.shared.arena.ready_changed.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A panic in a thread has been reported; there is nothing to add here.
            let _ = thread.join();
        }
    }
}
