//! A reserve of touched, locked frames, refilled in the background.
//!
//! A device that is swapped to is written to exactly when the system has no
//! memory. Its write path then takes frames from this reserve only, and a thread
//! that writes never asks the kernel for memory; this thread does, beside it. When
//! the reserve is empty for longer than a moment the write fails instead of
//! waiting for memory that only it could free.
//!
//! Locking is the process's affair (`mlockall` with `MCL_ONFAULT`): what is touched
//! here is then locked too.

use crate::arena::Arena;
use crate::source::SourceError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Wait before asking a kernel that has just refused.
const RETRY: Duration = Duration::from_millis(20);

/// The refilling thread of an arena; stops and joins when dropped.
pub struct Reserve {
    arena: Arc<Arena>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reserve {
    /// Fills a reserve of `len_bytes` and keeps it filled.
    ///
    /// Returns when the reserve is full. Fails if the kernel cannot give that much now.
    pub fn start(arena: Arc<Arena>, len_bytes: u64) -> Result<Self, SourceError> {
        let target = (len_bytes / crate::FRAME_LEN as u64).clamp(1, u64::from(u32::MAX) / 2) as u32;
        while arena.free().ready_len < target {
            arena.make_ready()?;
        }
        arena.free().reserve_target = target;
        let stop = Arc::new(AtomicBool::new(false));
        let (for_thread, stopped) = (arena.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("pagefold-refill".into())
            .spawn(move || keep_filled(&for_thread, &stopped))
            .map_err(|e| {
                let errno = e.raw_os_error().unwrap_or(0);
                pagefold_sys::SysError::new("starting the thread that refills the reserve", errno)
            })?;
        Ok(Reserve { arena, stop, thread: Some(thread) })
    }
}

fn keep_filled(arena: &Arena, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let mut free = arena.free();
        if free.ready_len >= free.reserve_target {
            arena.ready_changed.wait(&mut free);
            continue;
        }
        drop(free);
        if arena.make_ready().is_err() {
            // No memory now: writes take what is left. Ask again soon, or when something changes.
            arena.ready_changed.wait_for(&mut arena.free(), RETRY);
        }
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        {
            // Under the lock, so that the thread cannot miss it between its check and its wait.
            let mut free = self.arena.free();
            free.reserve_target = 0;
            self.stop.store(true, Relaxed);
            self.arena.ready_changed.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            // A panic in the refill thread has been reported; there is nothing to add here.
            let _ = thread.join();
        }
    }
}
