//! Calling up the session threads: each is met once, made ready, and asked how it runs.
//!
//! When the kernel swaps to the device, a session thread that has to fault in a buffer waits for
//! memory that only its own answer could free. So before the file is used, every thread must have
//! received one request of full size (which touches the buffer it receives into, inside `fuser`,
//! out of our reach) and have touched its reply buffer and its stack.
//!
//! Which thread takes a request is the kernel's choice. A thread that holds its first request back
//! until all have one forces the choice: as many writes as threads, to as many files, reach every
//! thread exactly once.

use super::MAX_IO_BYTES;
use crate::loopdoor::DoorError;
use pagefold_page::PAGE_SIZE;
use pagefold_sys::{SysError, harden};
use std::cell::RefCell;
use std::fs::OpenOptions;
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// How long the kernel gets to bring one request to every thread.
const PATIENCE: Duration = Duration::from_secs(10);
/// Stack touched in advance. Codecs keep their tables on the heap; call chains need a fraction.
const STACK_BYTES: usize = 128 << 10;

thread_local! {
    /// Where a session thread assembles the answer to a read.
    static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` on this thread's reply buffer of [`MAX_IO_BYTES`].
pub(super) fn with_reply_buffer<T>(f: impl FnOnce(&mut [u8]) -> T) -> T {
    REPLY.with_borrow_mut(|buffer| {
        if buffer.is_empty() {
            touch(buffer);
        }
        f(buffer)
    })
}

/// Zero bytes would come from the kernel's zero page, untouched.
fn touch(buffer: &mut Vec<u8>) {
    buffer.resize(MAX_IO_BYTES, 0xff);
}

/// What the session threads found when they were called up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadReport {
    /// Threads that serve.
    pub threads: usize,
    /// Those among them that are I/O flushers. All, if `harden::for_swap` ran before they started.
    pub io_flushers: usize,
}

impl ThreadReport {
    /// Whether every thread is an I/O flusher.
    pub fn all_io_flushers(&self) -> bool {
        self.threads == self.io_flushers
    }
}

/// The state of the call; see the module.
pub(super) struct Muster {
    expected: usize,
    roll: Mutex<Roll>,
    changed: Condvar,
}

#[derive(Default)]
struct Roll {
    seen: Vec<ThreadId>,
    io_flushers: usize,
    over: bool,
}

impl Muster {
    pub(super) fn new(expected: usize) -> Self {
        Muster { expected, roll: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Roll> {
        self.roll.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the call, complete or not: nobody waits any longer.
    fn dismiss(&self) {
        self.lock().over = true;
        self.changed.notify_all();
    }

    /// The number of files to write to while the call goes on, 0 afterwards.
    pub(super) fn files(&self) -> usize {
        if self.lock().over { 0 } else { self.expected }
    }

    /// The name of one of them.
    pub(super) fn file_name(index: usize) -> String {
        format!("muster-{index}")
    }

    /// Called on a session thread with a request in hand: makes it ready and waits for the others.
    pub(super) fn report(&self) {
        black_box([0xffu8; STACK_BYTES]);
        with_reply_buffer(|_| ());
        let mut roll = self.lock();
        let me = std::thread::current().id();
        if roll.over || roll.seen.contains(&me) {
            return;
        }
        roll.seen.push(me);
        roll.io_flushers += usize::from(harden::is_io_flusher());
        self.changed.notify_all();
        let waiting = |roll: &mut Roll| roll.seen.len() < self.expected && !roll.over;
        drop(self.changed.wait_timeout_while(roll, PATIENCE, waiting));
    }

    /// Calls up the threads that serve the file system at `mount_point`.
    pub(super) fn call(&self, mount_point: &Path) -> Result<ThreadReport, DoorError> {
        let written = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..self.expected)
                .map(|i| {
                    let path = mount_point.join(Self::file_name(i));
                    std::thread::Builder::new()
                        .spawn_scoped(scope, move || write_once(&path).inspect_err(|_| self.dismiss()))
                })
                .collect();
            if writers.iter().any(Result::is_err) {
                self.dismiss();
            }
            let joined = writers.into_iter().map(|w| match w {
                Ok(writer) => writer.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())),
                Err(e) => Err(e),
            });
            joined.collect::<Vec<_>>()
        });
        self.dismiss();
        for outcome in written {
            outcome.map_err(|e| SysError::io("calling up the FUSE threads", &e))?;
        }
        let roll = self.lock();
        match roll.seen.len() {
            n if n == self.expected => Ok(ThreadReport { threads: n, io_flushers: roll.io_flushers }),
            n => Err(DoorError::Session(format!("only {n} of {} FUSE threads answered", self.expected))),
        }
    }
}

/// One request as large as they get: direct, from memory that starts at a page.
fn write_once(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path)?;
    let buffer = vec![0xff; MAX_IO_BYTES + PAGE_SIZE];
    let start = buffer.as_ptr().align_offset(PAGE_SIZE);
    file.write_all_at(buffer.get(start..start + MAX_IO_BYTES).unwrap_or(&buffer), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn report_holds_every_thread_until_all_are_there() {
        let muster = Arc::new(Muster::new(3));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let muster = muster.clone();
                std::thread::spawn(move || {
                    muster.report();
                    muster.lock().seen.len()
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 3);
        }
        assert_eq!(muster.files(), 3);
    }

    #[test]
    fn reply_buffer_is_large_enough_and_kept() {
        let first = with_reply_buffer(|b| (b.as_ptr() as usize, b.len()));
        assert_eq!(first.1, MAX_IO_BYTES);
        assert_eq!(with_reply_buffer(|b| b.as_ptr() as usize), first.0);
    }
}
