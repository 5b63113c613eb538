//! [`ThreadWarmup`]: has every session thread receive one request and touch its memory before the disk is used.
//!
//! When the kernel swaps to the device, a session thread that has to fault in a buffer waits for memory that only its
//! own reply can free: a deadlock. So before the file is used, every thread must have begun to receive requests, with
//! both of its buffers in memory, must have received one of full size, and must have touched its stack.
//!
//! The kernel decides which thread receives a request. The warm-up is therefore a barrier: the mounting thread starts
//! one writer for each session thread, each writes once to a separate file, and a session thread does not answer its
//! write before all session threads have received one. If one of them receives none in time, the others answer and
//! the warm-up fails.

use super::MAX_IO_BYTES;
use crate::export_error::ExportError;
use pagefold_page::AlignedBytes;
use pagefold_sys::{SysError, harden};
use std::fs::OpenOptions;
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// Time limit for every session thread to receive a request.
const WARMUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of stack touched in advance. Call chains need a fraction, as codecs keep their tables on the heap.
const STACK_BYTES: usize = 128 << 10;

/// The report of the session threads from their warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadReport {
    /// Session threads.
    pub threads: usize,
    /// Session threads that are I/O flushers: all of them, if `harden::for_swap` succeeded before they started.
    pub io_flushers: usize,
}

/// The warm-up of the session threads, a barrier; see the module.
pub(super) struct ThreadWarmup {
    expected: usize,
    state: Mutex<WarmupState>,
    changed: Condvar,
}

#[derive(Default)]
struct WarmupState {
    arrived: Vec<ThreadId>,
    io_flushers: usize,
    over: bool,
}

impl ThreadWarmup {
    pub(super) fn new(expected: usize) -> Self {
        ThreadWarmup { expected, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, WarmupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the warm-up, whether complete or not, and wakes the threads that wait for the others.
    fn end(&self) {
        self.lock().over = true;
        self.changed.notify_all();
    }

    /// The number of files to write to during the warm-up; 0 afterwards.
    pub(super) fn files(&self) -> usize {
        if self.lock().over { 0 } else { self.expected }
    }

    /// The name of the file with this index, from 0.
    pub(super) fn file_name(index: usize) -> String {
        format!("warmup-{index}")
    }

    /// Touches the stack of the calling session thread, records the thread, and waits for the other session threads.
    pub(super) fn arrive(&self) {
        black_box([0xffu8; STACK_BYTES]);
        let mut state = self.lock();
        let me = std::thread::current().id();
        if state.over || state.arrived.contains(&me) {
            return;
        }
        state.arrived.push(me);
        state.io_flushers += usize::from(harden::is_io_flusher());
        self.changed.notify_all();
        let incomplete = |state: &mut WarmupState| state.arrived.len() < self.expected && !state.over;
        drop(self.changed.wait_timeout_while(state, WARMUP_TIMEOUT, incomplete));
    }

    /// Warms up the session threads of the file system at `mount_point`.
    pub(super) fn run(&self, mount_point: &Path) -> Result<ThreadReport, ExportError> {
        let written = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..self.expected)
                .map(|i| {
                    let path = mount_point.join(Self::file_name(i));
                    std::thread::Builder::new()
                        .spawn_scoped(scope, move || write_once(&path).inspect_err(|_| self.end()))
                })
                .collect();
            if writers.iter().any(Result::is_err) {
                self.end();
            }
            let joined = writers.into_iter().map(|w| match w {
                Ok(writer) => writer.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())),
                Err(e) => Err(e),
            });
            joined.collect::<Vec<_>>()
        });
        self.end();
        for result in written {
            result.map_err(|e| SysError::io("warming up the FUSE threads", &e))?;
        }
        let state = self.lock();
        match state.arrived.len() {
            n if n == self.expected => Ok(ThreadReport { threads: n, io_flushers: state.io_flushers }),
            n => Err(ExportError::Session(format!("only {n} of {} FUSE threads answered", self.expected))),
        }
    }
}

/// Writes one request of the largest size: with O_DIRECT, from page-aligned memory.
fn write_once(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path)?;
    file.write_all_at(&AlignedBytes::new(MAX_IO_BYTES, 0xff), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn every_thread_waits_until_all_have_arrived() {
        let warmup = Arc::new(ThreadWarmup::new(3));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let warmup = warmup.clone();
                std::thread::spawn(move || {
                    warmup.arrive();
                    warmup.lock().arrived.len()
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 3);
        }
        assert_eq!(warmup.files(), 3);
    }
}
